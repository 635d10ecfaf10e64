"""Dataset over a wide matrix: its rows as tensors, or as one array for scikit-learn."""

from __future__ import annotations

import hashlib
import json
import logging
import os
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from zarr_core._util.arguments import boolean, check_names, check_number
from zarr_core._util.plain_arrays import check_labels, plain_array
from zarr_core.datasets.batch import Batch, BatchDataset
from zarr_core.datasets.memory_map import memory_mapped, row_blocks
from zarr_core.errors import ZarrCoreError
from zarr_core.matrix import WideMatrix
from zarr_core.matrix.read.selection import FeatureSelection
from zarr_core.matrix.store.state import ITEM_NAMES
from zarr_core.storage.disk_cache import DEFAULT_LIMIT

logger = logging.getLogger(__name__)

#: Default distance from 0 and 1 to which :func:`m_values` clamps.
M_VALUE_OFFSET = 0.001

TensorOrArray = TypeVar("TensorOrArray", Tensor, np.ndarray)


class MatrixDataset(BatchDataset):
    """Samples of a wide matrix, as dicts of tensors.

    An item has three tensors: the value under its own name, for example "beta", (features,) float32; "missing",
    (features,) bool, true where the matrix has no value, imputed or not; and "sample", the item's index in
    ``sample_ids``, for looking up labels. Further values and columns of metadata are further tensors. A DataLoader
    with ``batch_size`` gets whole batches (items, features), each from one read per value. Items do not depend on the
    epoch: nothing is drawn.

    Args:
        matrix: a matrix, or its path or URL. Reads use the generation that it has now: later appends to this object, or
            refreshes of it, do not change the items.
        sample_ids: samples in the order of the items; by default all, in row order.
        feature_ids: features in the order of the columns, or the result of ``matrix.select(...)``; by default all, in
            axis order.
        value: name of the value to read; by default "beta", or the only one of the matrix.
        values: instead of ``value``, names of several values. The first is the main one: imputation, transform,
            "missing" and :meth:`to_numpy` are about it. Items have the others as stored, NaN where missing.
        min_coverage: cells of the main value whose coverage is lower, or missing, count as missing.
        coverage: name of the value table with the coverage.
        coverage_mask: do not change these cells; items have "covered", (features,) bool, instead.
        columns: columns of the matrix's metadata. Numbers are float32, whole numbers without missing values int64,
            truth values bool; text is int64, the index in ``categories``, -1 where missing.
        generation: generation to open, by number or tag; by default the latest.
        impute: replacement for missing values: one number, or one per feature. ``train.feature_means()`` uses only
            training samples. By default missing values stay NaN.
        transform: function applied after imputation, such as :func:`m_values`; takes and returns (..., features). With
            spawned workers it must be a module-level function or a ``functools.partial`` of one.
        cache_dir: folder on a fast local disk for a cache shared by all processes of the host.
        cache_limit: size limit of that cache, for example "200GB".

    Attributes:
        matrix: the matrix.
        sample_ids: id of each item, in order.
        value: name of the main value.
        values: names of all values.
        metadata: ``pyarrow.Table`` with a row per item, as ``WideMatrix.samples`` returns it; None without ``columns``.
        categories: texts of each text column: those of all samples of the generation, sorted.

    Raises:
        ZarrCoreError: there is no such matrix, generation, sample, feature, value or column, or ``impute`` has a wrong
            shape.

    Examples:
        >>> import numpy as np
        >>> matrix = WideMatrix.create("betas", ["cg1", "cg2"], {"beta": "float32"})
        >>> matrix.append("study_1", ["person_1"], {"beta": np.array([[0.1, np.nan]], np.float32)})
        True
        >>> MatrixDataset("betas")[0]["missing"]
        tensor([False,  True])
    """

    def __init__(
        self,
        matrix: WideMatrix | str | os.PathLike[str],
        sample_ids: Sequence[str] | None = None,
        feature_ids: FeatureSelection | Sequence[str] | Sequence[int] | np.ndarray | None = None,
        *,
        value: str | None = None,
        values: Sequence[str] | None = None,
        min_coverage: float | None = None,
        coverage: str = "coverage",
        coverage_mask: bool = False,
        columns: Sequence[str] | None = None,
        generation: int | str | None = None,
        impute: float | np.ndarray | Tensor | None = None,
        transform: Callable[[Tensor], Tensor] | None = None,
        cache_dir: str | os.PathLike[str] | None = None,
        cache_limit: int | str = DEFAULT_LIMIT,
    ) -> None:
        if isinstance(matrix, WideMatrix):
            if generation is not None or cache_dir is not None:
                raise ZarrCoreError(
                    "generation and cache_dir apply when a matrix is opened: pass its path or URL, not an open matrix"
                )
            self.matrix = matrix._fixed()
        else:
            self.matrix = WideMatrix.open(matrix, generation, cache_dir=cache_dir, cache_limit=cache_limit)
        check_names("sample_ids", sample_ids)
        check_names("values", values)
        self.values = [self.matrix.table_name(value)] if values is None else list(values)
        if not self.values or len(set(self.values)) < len(self.values):
            raise ZarrCoreError("values must be names of value tables, each once")
        for name in self.values:
            if name in ITEM_NAMES:
                raise ZarrCoreError(f"items have another tensor {name!r}; read this value table by matrix.read")
        self.value = self.values[0]
        axis = self.matrix.feature_ids
        if not (feature_ids is None or isinstance(feature_ids, FeatureSelection)):
            check_names("feature_ids", feature_ids)
            positions = axis.positions(feature_ids)
            feature_ids = FeatureSelection(positions, axis.ids[positions], axis.ids[positions])
        self._selection = feature_ids
        # In the encoding of this axis, as a selection may be of another matrix; reading a batch then encodes nothing.
        self._columns = None if feature_ids is None else axis.ids[axis.positions(feature_ids.columns)]
        self.min_coverage, self.coverage = min_coverage, coverage
        self.coverage_mask = boolean("coverage_mask", coverage_mask)
        if min_coverage is not None:
            check_number("min_coverage", min_coverage)
        elif coverage_mask:
            raise ZarrCoreError("coverage_mask needs min_coverage")
        self.transform = transform
        self.sample_ids = list(self.matrix.sample_ids if sample_ids is None else sample_ids)
        # Reads no value, but reports unknown samples and values now instead of during an epoch.
        for name in self.values if min_coverage is None else [*self.values, coverage]:
            self.matrix.read(self.sample_ids, self.matrix.feature_ids[:0], name)
        self.metadata: Any = None
        self.categories: dict[str, list[str]] = {}
        self._labels: dict[str, Tensor] = {}
        if columns is not None:
            self._read_metadata(columns)
        self._impute = None if impute is None else self._imputed_values(impute)

    def __repr__(self) -> str:
        values = "+".join(self.values)
        return (
            f"<{type(self).__name__} {self.matrix.url}, generation {self.matrix.generation}, value {values}: "
            f"{len(self):,} samples x {self.n_features:,} features>"
        )

    def __len__(self) -> int:
        return len(self.sample_ids)

    @property
    def feature_ids(self) -> np.ndarray:
        """Feature ids in the order of an item's columns."""
        return np.asarray(self.matrix.feature_ids) if self._selection is None else self._selection.feature_ids

    @property
    def n_features(self) -> int:
        """Number of features of an item."""
        return self.matrix.shape[1] if self._selection is None else len(self._selection)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        return MatrixDataset.__getitems__(self, [index])[0]  # not a subclass's, which may be made of items

    def __getitems__(self, indices: Sequence[int]) -> Batch:
        """Read a whole batch at once; DataLoader calls this instead of ``__getitem__``.

        Returns:
            The items, which are views of the batch tensors that :func:`collate` returns.
        """
        if not len(indices):
            return Batch()
        places = [range(len(self))[index] for index in indices]
        sample_ids = [self.sample_ids[place] for place in places]
        cells, covered = self._cells(sample_ids)
        values = _float32(cells, self.value)
        missing = torch.isnan(values)
        if self._impute is not None:
            values = torch.where(missing, self._impute, values)
        if self.transform is not None:
            values = self.transform(values)
        tensors = {self.value: values, "missing": missing, "sample": torch.tensor(places)}
        if self.coverage_mask and covered is not None:
            tensors["covered"] = torch.from_numpy(covered)
        for name in self.values[1:]:
            tensors[name] = _float32(self._combined(self.matrix.read(sample_ids, self._columns, name)), name)
        for name, labels in self._labels.items():
            tensors[name] = labels[places]
        return Batch(tensors=tensors)

    @property
    def fingerprint(self) -> str:
        """Identifies the selected cells; independent of location and later appends.

        It contains the digests of the batches that hold the samples: a reinstated sample may have other values. So it
        also changes after another sample of these batches is retired.
        """
        digest = hashlib.blake2b(json.dumps(self.sample_ids).encode(), digest_size=8)
        chosen = self._selection
        digest.update(b"all" if chosen is None else np.ascontiguousarray(self._columns).data)
        if chosen is not None and chosen.starts is not None:
            digest.update(chosen.starts.tobytes())
        if self.min_coverage is not None:
            covered = [self.coverage, self.min_coverage, self.coverage_mask]
            digest.update(json.dumps(covered, default=np.generic.item).encode())
        if self.metadata is not None:  # unlike cells, metadata can change
            digest.update(json.dumps(self.metadata.to_pydict(), default=str).encode())
        if self.categories:  # a text that only another sample has changes the numbers of all texts
            digest.update(json.dumps(self.categories).encode())
        chosen_samples, held = set(self.sample_ids), []
        for name, ids in self.matrix.batches.items():
            if not chosen_samples.isdisjoint(ids):
                held.append(self.matrix.batch_digests[name])
        content = hashlib.blake2b(json.dumps(sorted(held)).encode(), digest_size=8).hexdigest()
        values = "+".join(self.values)
        return (
            f"matrix {self.matrix.matrix_id}, {values}, {len(self):,} samples x {self.n_features:,} features "
            f"{digest.hexdigest()}, content {content}"
        )

    @property
    def lineage(self) -> dict[str, str]:
        """The data of a training run as tags, for ``mlflow.set_tags`` and the like: place, generation and content."""
        tags = {
            "store": self.matrix.url,
            "generation": self.matrix.generation,
            "fingerprint": self.fingerprint,
        }
        return {f"zarr_core.{name}": str(value) for name, value in tags.items()}

    def to_numpy(self) -> np.ndarray:
        """All values, (samples, features) of the stored dtype, NaN where missing.

        Neither imputed nor transformed: in scikit-learn the pipeline does that, fitted in each fold.
        """
        return self._cells(self.sample_ids)[0]

    def to_memmap(self, path: str | os.PathLike[str]) -> np.memmap[Any, Any]:
        """The array of :meth:`to_numpy` as a memory-mapped ``.npy`` file, for arrays larger than memory.

        The file is written once. A later call for the same cells compares it with its checksum and reuses it; a file
        that is incomplete or damaged is written again. Safe with any number of processes.

        Args:
            path: path of the file on a local disk; ``<path>.json`` describes its content.

        Raises:
            ZarrCoreError: ``path`` is a file that this method did not write.
        """

        def fill(start: int, rows: np.ndarray) -> None:
            rows[...] = self._cells(self.sample_ids[start : start + len(rows)])[0]

        return memory_mapped(path, self.fingerprint, (len(self), self.n_features), self.matrix.values[self.value], fill)

    def feature_means(self) -> np.ndarray:
        """Mean of each feature over the samples, (features,) float64; NaN for a feature without values.

        Reads blocks of rows, so the memory needed does not grow with the number of samples.
        """
        total, count = np.zeros(self.n_features), np.zeros(self.n_features, np.int64)
        for rows in row_blocks((len(self), self.n_features), np.dtype(self.matrix.values[self.value]).itemsize):
            values, _ = self._cells(self.sample_ids[rows])
            observed = ~np.isnan(values)
            total += np.where(observed, values, 0).sum(axis=0, dtype=np.float64)
            count += observed.sum(axis=0)
        means = np.full(self.n_features, np.nan)
        np.divide(total, count, out=means, where=count > 0)
        return means

    def covered_features(self, min_coverage: float, share: float = 1.0) -> np.ndarray | FeatureSelection:
        """The features that enough samples cover, for the ``feature_ids`` of another dataset.

        Reads blocks of rows, so the memory needed does not grow with the number of samples.

        Args:
            min_coverage: least coverage of a sample; a missing one is lower.
            share: least share of the samples with that coverage, from 0 to 1.

        Returns:
            (n,) names in the order of :attr:`feature_ids`; a :class:`FeatureSelection` if these are not the names of
            single columns. A feature that is the mean of several columns is covered if one of them is.

        Raises:
            UnknownFieldError: the matrix has no table :attr:`coverage`.
        """
        check_number("min_coverage", min_coverage)
        if not 0 <= share <= 1:
            raise ZarrCoreError(f"share is {share!r}; it must be from 0 to 1")
        self.matrix.read(self.sample_ids, self.matrix.feature_ids[:0], self.coverage)  # names a table that is not there
        count = np.zeros(self.n_features, np.int64)
        for rows in row_blocks((len(self), self.n_features), np.dtype(self.matrix.values[self.coverage]).itemsize):
            count += self._any(
                self.matrix.read(self.sample_ids[rows], self._columns, self.coverage) >= min_coverage
            ).sum(axis=0)
        # A quotient equals the share that names it; 0.55 * 100 is more than 55.
        enough = count / len(self) >= share if len(self) else np.ones(self.n_features, bool)
        if self._selection is not None and not self._selection.is_plain:
            return self._selection.part(enough)
        found: np.ndarray = self.feature_ids[enough]
        return found

    def _cells(self, sample_ids: Sequence[str]) -> tuple[np.ndarray, np.ndarray | None]:
        """Cells of the main value, without those of low coverage; and which are covered, None if any coverage will do.

        With ``coverage_mask``, also the cells of low coverage.
        """
        cells = self.matrix.read(sample_ids, self._columns, self.value)
        if self.min_coverage is None:
            return self._combined(cells), None
        covered = self.matrix.read(sample_ids, self._columns, self.coverage) >= self.min_coverage  # not if NaN
        if not self.coverage_mask:
            cells[~covered] = np.nan
        return self._combined(cells), self._any(covered)

    def _combined(self, cells: np.ndarray) -> np.ndarray:
        return cells if self._selection is None else self._selection.combine(cells)

    def _any(self, cells: np.ndarray) -> np.ndarray:
        return cells if self._selection is None else self._selection.any(cells)

    def _read_metadata(self, columns: Sequence[str]) -> None:
        """Read columns of metadata; logs samples without a value."""
        for name in columns:
            if name in (*self.values, *ITEM_NAMES):
                raise ZarrCoreError(f"items have the column {name!r} under the name of another tensor; rename it")
        self.metadata = self.matrix.samples(columns, self.sample_ids)
        everything = self.matrix.samples(columns)
        for name in columns:
            column = self.metadata[name]
            self._labels[name], categories = label_tensor(name, column, everything[name])
            if categories is not None:
                self.categories[name] = categories
            if column.null_count:
                without = np.array(self.sample_ids)[column.is_null().to_numpy()]
                few = ", ".join(without[:5])
                logger.warning("%s: %d samples have no %s, such as %s", self.matrix.url, len(without), name, few)

    def _imputed_values(self, impute: float | np.ndarray | Tensor) -> Tensor:
        try:
            check_labels(impute, lambda: self.feature_ids)
            fill = _float32(plain_array(impute, masked_is_nan=True), "impute")
        except ValueError as error:
            raise ZarrCoreError(f"impute {error}") from error
        if fill.shape not in ((), (self.n_features,)):
            raise ZarrCoreError(
                f"impute has shape {tuple(fill.shape)}; expected one number or one per feature ({self.n_features:,},)"
            )
        without = torch.isnan(fill).reshape(-1).nonzero()
        if len(without):
            feature = "" if not fill.ndim else f" (for example {self.feature_ids[int(without[0])]})"
            raise ZarrCoreError(
                f"impute is NaN for {len(without):,} features{feature}; pass numbers, or omit them with feature_ids"
            )
        return fill


def label_tensor(name: str, column: Any, everything: Any) -> tuple[Tensor, list[str] | None]:
    """A column of metadata as a tensor, and the categories of text.

    Categories and dtype are those of ``everything``, the column for all samples.
    """
    import pyarrow as pa

    kind = column.type
    if pa.types.is_string(kind):
        categories = sorted(set(everything.drop_null().to_pylist()))
        number = {text: n for n, text in enumerate(categories)}
        return torch.tensor([-1 if text is None else number[text] for text in column.to_pylist()]), categories
    whole = pa.types.is_boolean(kind) or pa.types.is_integer(kind)
    if not (whole or pa.types.is_floating(kind) or pa.types.is_decimal(kind) or pa.types.is_null(kind)):
        raise ZarrCoreError(f"column {name!r} is of type {kind}; a tensor holds numbers, truth values and text")
    values = column.to_pylist()
    if whole and not everything.null_count:
        if max(values, default=0) > np.iinfo(np.int64).max:
            raise ZarrCoreError(f"column {name!r}: int64 does not hold {max(values)}; store the column as text")
        return torch.tensor(values, dtype=torch.bool if pa.types.is_boolean(kind) else torch.int64), None
    numbers = _float32(np.array(values, dtype=np.float64), f"column {name!r}")  # None becomes NaN
    for value, number in zip(values, numbers.tolist(), strict=True):
        if whole and value is not None and value != number:
            reason = f"float32 rounds {value}, and it is float32 as some samples have no value"
            raise ZarrCoreError(f"column {name!r}: {reason}; complete the column, or store it as text")
    return numbers, None


def _float32(values: np.ndarray, name: str) -> Tensor:
    """Values as float32; raises ZarrCoreError for a number that would be infinite."""
    with np.errstate(over="ignore"):
        stored = values.astype(np.float32, copy=False)
    if values.dtype == np.float64:
        beyond = np.isinf(stored) & np.isfinite(values)
        if beyond.any():
            way_out = "tensors of a MatrixDataset are float32; matrix.read and matrix.samples give the number"
            raise ZarrCoreError(f"{name}: float32 does not hold {values[beyond][0]:.6g}; {way_out}")
    return torch.from_numpy(stored)


def m_values(betas: TensorOrArray, offset: float = M_VALUE_OFFSET) -> TensorOrArray:
    """M-values, log2(beta / (1 - beta)), of methylation betas (Du et al. 2010, doi:10.1186/1471-2105-11-587).

    Args:
        betas: shares of methylated DNA, any shape, a floating-point tensor or array, such as the result of
            ``MatrixLoader.load``; NaN stays NaN, and masked elements become NaN.
        offset: betas are clamped to [offset, 1 - offset]; array normalisation gives some outside [0, 1]. The result
            lies within ±log2(1 / offset - 1), 9.97 by default.

    Returns:
        A tensor or array of the same shape and dtype.

    Raises:
        ZarrCoreError: ``betas`` is neither, or ``offset`` is not between 0 and 0.5.

    Examples:
        >>> import numpy as np
        >>> m_values(np.array([0.5, 0.8]))
        array([0., 2.])
    """
    if not 0 < offset < 0.5:
        raise ZarrCoreError(f"offset is {offset!r}; it must be between 0 and 0.5")
    if isinstance(betas, np.ndarray) and betas.dtype.kind == "f":
        try:
            betas = plain_array(betas, masked_is_nan=True)
        except ValueError as error:
            raise ZarrCoreError(f"betas: {error}") from error
        clipped = np.clip(betas, offset, 1 - offset)
        return np.asarray(np.log2(clipped / (1 - clipped)))
    if isinstance(betas, Tensor) and betas.is_floating_point():
        inside = betas.clamp(offset, 1 - offset)
        return torch.log2(inside / (1 - inside))
    found = getattr(betas, "dtype", type(betas).__name__)
    raise ZarrCoreError(f"betas must be a floating-point tensor or NumPy array, not {found}")
