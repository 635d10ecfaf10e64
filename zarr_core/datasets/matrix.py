"""Training from a wide matrix: its rows as tensors, whole batches in one read; or as one array for scikit-learn."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from zarr_core.datasets.batch import Batch, BatchItem
from zarr_core.datasets.memory_map import memory_mapped, row_blocks
from zarr_core.errors import ZarrCoreError
from zarr_core.matrix import WideMatrix
from zarr_core.storage.disk_cache import DEFAULT_LIMIT

#: Distance that :func:`m_values` keeps from 0 and 1.
M_VALUE_OFFSET = 0.001


class MatrixDataset(Dataset[dict[str, Tensor]]):
    """Samples of a wide matrix, as dicts of tensors.

    An item has the value under its own name, "beta" (features,) float32; "missing" (features,) bool, true where the
    matrix has no value, whatever was filled in; and "sample", its place in ``sample_ids``, to look labels up by. A
    DataLoader with ``batch_size`` gets whole batches, read as one into one tensor: (items, features). Items are always
    the same: nothing is drawn.

    Args:
        matrix: a matrix, or its path or URL. Reads see the generation that it is opened at.
        sample_ids: which samples, in which order; by default all, in the order of the rows.
        feature_ids: which features, in which order; by default all.
        value: which table.
        generation: of the matrix to open: a number or a tag; by default the latest.
        impute: what to fill in where a value is missing: one number, or one for each feature, such as
            ``train.feature_means()``, which uses no sample that is not trained on. By default NaN stays.
        transform: what is done with the values after that, such as :func:`m_values`; takes and returns
            (..., features). A module-level function or a ``functools.partial`` of one, where workers are spawned.
        cache_dir: folder on a fast local disk where what was fetched is kept for all processes of the host.
        cache_limit: bytes to keep there, as in "200GB".

    Attributes:
        matrix: what is read.
        sample_ids: id of each item, in order.
        value: which table.

    Raises:
        ZarrCoreError: there is no such matrix, generation, sample, feature or value; or what to fill in does not fit.
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
                raise ZarrCoreError("generation and cache_dir go with the URL of a matrix, not with one that is open")
            self.matrix = matrix
        else:
            self.matrix = WideMatrix.open(matrix, generation, cache_dir=cache_dir, cache_limit=cache_limit)
        self.value = value
        self.transform = transform
        self.sample_ids = list(self.matrix.sample_ids if sample_ids is None else sample_ids)
        self._feature_ids = None if feature_ids is None else self._on_the_axis(feature_ids)
        # Nothing is read, but what is not there is named now and not in the middle of an epoch.
        self.matrix.read(self.sample_ids, self.matrix.feature_ids[:0], value)
        self._impute = None if impute is None else self._filling(impute)

    def __repr__(self) -> str:
        return (
            f"<{type(self).__name__} {self.matrix.url}, generation {self.matrix.generation}, value {self.value}: "
            f"{len(self):,} samples x {self.n_features:,} features>"
        )

    def __len__(self) -> int:
        return len(self.sample_ids)

    @property
    def feature_ids(self) -> np.ndarray:
        """Names of the features of an item, in order."""
        chosen = self._feature_ids
        if chosen is None:
            return np.asarray(self.matrix.feature_ids)
        return np.char.decode(chosen, "utf-8") if chosen.dtype.kind == "S" else chosen

    @property
    def n_features(self) -> int:
        """Features of an item."""
        return self.matrix.shape[1] if self._feature_ids is None else len(self._feature_ids)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: Sequence[int]) -> Batch:
        """A whole batch in one read; DataLoader calls this instead of ``__getitem__``.

        Returns:
            The items, and the batch that they are views of: collation takes that.
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
        """Which cells these are, wherever the matrix lies and whatever was appended since: no cell ever changes."""
        digest = hashlib.blake2b(json.dumps(self.sample_ids).encode(), digest_size=8)
        digest.update(b"all" if self._feature_ids is None else np.ascontiguousarray(self._feature_ids).data)
        return (
            f"matrix {self.matrix.matrix_id}, {self.value}, {len(self):,} samples x {self.n_features:,} features "
            f"{digest.hexdigest()}"
        )

    def to_numpy(self) -> np.ndarray:
        """All values at once, (samples, features) of the stored dtype, NaN where missing.

        Neither imputed nor transformed: in scikit-learn that is the pipeline's part, which learns it inside each fold.
        """
        return self._read(self.sample_ids)

    def to_memmap(self, path: str | os.PathLike[str]) -> np.memmap[Any, Any]:
        """What :meth:`to_numpy` gives, as a memory map of a ``.npy`` file, for what does not fit into memory.

        The file is written once. Asked for again, for the same cells, it is checked against its checksum and reused;
        what a killed process left, or what the disk damaged, is written anew. Safe from any number of processes.

        Args:
            path: of the file, on a local disk; ``<path>.json`` beside it says what it holds.

        Raises:
            ZarrCoreError: the file holds something else.
        """

        def fill(start: int, rows: np.ndarray) -> None:
            self._read(self.sample_ids[start : start + len(rows)], out=rows)

        return memory_mapped(path, self.fingerprint, (len(self), self.n_features), self._dtype, fill)

    def feature_means(self) -> np.ndarray:
        """Mean of each feature over these samples, (features,) float64; NaN where none of them has a value.

        Some rows are in memory at a time.
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

    def _on_the_axis(self, feature_ids: Sequence[str] | Sequence[int] | np.ndarray) -> np.ndarray:
        """The names as the axis keeps them, so that no batch has to encode them again."""
        axis = self.matrix.feature_ids
        names: np.ndarray = axis.ids[axis.positions(feature_ids)]
        return names

    def _filling(self, impute: float | np.ndarray | Tensor) -> Tensor:
        fill = torch.as_tensor(impute, dtype=torch.float32)
        if fill.shape not in ((), (self.n_features,)):
            raise ZarrCoreError(
                f"impute has shape {tuple(fill.shape)}; one number, or one of {self.n_features:,} features"
            )
        without = torch.isnan(fill).reshape(-1).nonzero()
        if len(without):
            feature = "" if not fill.ndim else f", such as {self.feature_ids[int(without[0])]}"
            raise ZarrCoreError(
                f"impute has no value for {len(without):,} features{feature}; leave them out (feature_ids), or give one"
            )
        return fill


def m_values(betas: Tensor, offset: float = M_VALUE_OFFSET) -> Tensor:
    """M-values, log2(beta / (1 - beta)), of methylated shares.

    Args:
        betas: any shape; NaN stays.
        offset: betas closer to 0 or 1, or beyond them as array normalisation makes some, are taken for this far from
            it. The result lies within plus and minus log2(1 / offset - 1), 9.97 by default.
    """
    inside = betas.clamp(offset, 1 - offset)
    return torch.log2(inside / (1 - inside))
