"""Dataset over a wide matrix: its rows as tensors, or as one array for scikit-learn."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Sequence
from typing import Any, overload

import numpy as np
import torch
from torch import Tensor

from zarr_core._util.arguments import check_names
from zarr_core.datasets.batch import Batch, BatchDataset, BatchItem
from zarr_core.datasets.memory_map import memory_mapped, row_blocks
from zarr_core.errors import ZarrCoreError
from zarr_core.matrix import WideMatrix
from zarr_core.storage.disk_cache import DEFAULT_LIMIT

#: Default distance from 0 and 1 to which :func:`m_values` clamps.
M_VALUE_OFFSET = 0.001


class MatrixDataset(BatchDataset):
    """Samples of a wide matrix, as dicts of tensors.

    An item has three tensors: the value under its own name, for example "beta", (features,) float32; "missing",
    (features,) bool, true where the matrix has no value, imputed or not; and "sample", the item's index in
    ``sample_ids``, for looking up labels. A DataLoader with ``batch_size`` gets whole batches (items, features), each
    from one read. Items do not depend on the epoch: nothing is drawn.

    Args:
        matrix: a matrix, or its path or URL. Reads use the generation at which it was opened.
        sample_ids: samples in the order of the items; by default all, in row order.
        feature_ids: features in the order of the columns; by default all, in axis order.
        value: name of the value to read.
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
        value: name of the value.

    Raises:
        ZarrCoreError: there is no such matrix, generation, sample, feature or value, or ``impute`` has a wrong shape.
    """

    def __init__(
        self,
        matrix: WideMatrix | str | os.PathLike[str],
        sample_ids: Sequence[str] | None = None,
        feature_ids: Sequence[str] | Sequence[int] | np.ndarray | None = None,
        *,
        value: str = "beta",
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
            self.matrix = matrix
        else:
            self.matrix = WideMatrix.open(matrix, generation, cache_dir=cache_dir, cache_limit=cache_limit)
        check_names("sample_ids", sample_ids)
        check_names("feature_ids", feature_ids)
        self.value = value
        self.transform = transform
        self.sample_ids = list(self.matrix.sample_ids if sample_ids is None else sample_ids)
        self._feature_ids = None if feature_ids is None else self._encoded(feature_ids)
        # Reads no value, but reports unknown samples and values now instead of during an epoch.
        self.matrix.read(self.sample_ids, self.matrix.feature_ids[:0], value)
        self._impute = None if impute is None else self._imputed_values(impute)

    def __repr__(self) -> str:
        return (
            f"<{type(self).__name__} {self.matrix.url}, generation {self.matrix.generation}, value {self.value}: "
            f"{len(self):,} samples x {self.n_features:,} features>"
        )

    def __len__(self) -> int:
        return len(self.sample_ids)

    @property
    def feature_ids(self) -> np.ndarray:
        """Feature ids in the order of an item's columns."""
        chosen = self._feature_ids
        if chosen is None:
            return np.asarray(self.matrix.feature_ids)
        return np.char.decode(chosen, "utf-8") if chosen.dtype.kind == "S" else chosen

    @property
    def n_features(self) -> int:
        """Number of features of an item."""
        return self.matrix.shape[1] if self._feature_ids is None else len(self._feature_ids)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        return MatrixDataset.__getitems__(self, [index])[0]  # not a subclass's, which may be made of items

    def __getitems__(self, indices: Sequence[int]) -> Batch:
        """Read a whole batch at once; DataLoader calls this instead of ``__getitem__``.

        Returns:
            The items, which are views of the batch tensors that :func:`collate` returns.
        """
        if not len(indices):
            return Batch([], None)
        places = [range(len(self))[index] for index in indices]
        values = torch.from_numpy(self._read([self.sample_ids[place] for place in places])).float()
        missing = torch.isnan(values)
        if self._impute is not None:
            values = torch.where(missing, self._impute, values)
        if self.transform is not None:
            values = self.transform(values)
        tensors = {self.value: values, "missing": missing, "sample": torch.tensor(places)}
        items = [BatchItem({name: tensor[n] for name, tensor in tensors.items()}) for n in range(len(places))]
        return Batch(items, tensors)

    @property
    def fingerprint(self) -> str:
        """Identifies the selected cells, which never change; independent of location and later appends."""
        digest = hashlib.blake2b(json.dumps(self.sample_ids).encode(), digest_size=8)
        digest.update(b"all" if self._feature_ids is None else np.ascontiguousarray(self._feature_ids).data)
        return (
            f"matrix {self.matrix.matrix_id}, {self.value}, {len(self):,} samples x {self.n_features:,} features "
            f"{digest.hexdigest()}"
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
        return self._read(self.sample_ids)

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
            self._read(self.sample_ids[start : start + len(rows)], out=rows)

        return memory_mapped(path, self.fingerprint, (len(self), self.n_features), self._dtype, fill)

    def feature_means(self) -> np.ndarray:
        """Mean of each feature over the samples, (features,) float64; NaN for a feature without values.

        Reads blocks of rows, so the memory needed does not grow with the number of samples.
        """
        total, count = np.zeros(self.n_features), np.zeros(self.n_features, np.int64)
        for rows in row_blocks((len(self), self.n_features), np.dtype(self._dtype).itemsize):
            values = self._read(self.sample_ids[rows])
            observed = ~np.isnan(values)
            total += np.where(observed, values, 0).sum(axis=0, dtype=np.float64)
            count += observed.sum(axis=0)
        means = np.full(self.n_features, np.nan)
        np.divide(total, count, out=means, where=count > 0)
        return means

    @property
    def _dtype(self) -> str:
        return self.matrix.values[self.value]

    def _read(self, sample_ids: Sequence[str], out: np.ndarray | None = None) -> np.ndarray:
        return self.matrix.read(sample_ids, self._feature_ids, self.value, out)

    def _encoded(self, feature_ids: Sequence[str] | Sequence[int] | np.ndarray) -> np.ndarray:
        """The ids in the encoding of the axis, so that reading a batch does not encode them again."""
        axis = self.matrix.feature_ids
        names: np.ndarray = axis.ids[axis.positions(feature_ids)]
        return names

    def _imputed_values(self, impute: float | np.ndarray | Tensor) -> Tensor:
        fill = torch.as_tensor(impute, dtype=torch.float32)
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


@overload
def m_values(betas: Tensor, offset: float = ...) -> Tensor: ...


@overload
def m_values(betas: np.ndarray, offset: float = ...) -> np.ndarray: ...


def m_values(betas: Tensor | np.ndarray, offset: float = M_VALUE_OFFSET) -> Tensor | np.ndarray:
    """M-values, log2(beta / (1 - beta)), of methylation betas (Du et al. 2010, doi:10.1186/1471-2105-11-587).

    Args:
        betas: shares of methylated DNA, any shape, a floating-point tensor or array, such as the result of
            ``MatrixLoader.load``; NaN stays NaN.
        offset: betas are clamped to [offset, 1 - offset]; array normalisation gives some outside [0, 1]. The result
            lies within ±log2(1 / offset - 1), 9.97 by default.

    Returns:
        A tensor or array of the same shape and dtype.

    Raises:
        ZarrCoreError: ``betas`` is neither, or ``offset`` is not between 0 and 0.5.
    """
    if not 0 < offset < 0.5:
        raise ZarrCoreError(f"offset is {offset!r}; it must be between 0 and 0.5")
    if isinstance(betas, np.ndarray) and betas.dtype.kind == "f":
        clipped = np.clip(betas, offset, 1 - offset)
        return np.asarray(np.log2(clipped / (1 - clipped)))
    if isinstance(betas, Tensor) and betas.is_floating_point():
        inside = betas.clamp(offset, 1 - offset)
        return torch.log2(inside / (1 - inside))
    found = getattr(betas, "dtype", type(betas).__name__)
    raise ZarrCoreError(f"betas must be a floating-point tensor or NumPy array, not {found}")
