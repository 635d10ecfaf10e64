"""Formats of a wide matrix: this library's, and its exports."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from zarr_core import exports
from zarr_core.exports.matrix import MatrixRows
from zarr_core.matrix import WideMatrix
from zarr_core.shootout.formats import Arrays, Format
from zarr_core.shootout.formats.files import counting


@dataclass(frozen=True)
class Cells:
    """Which cells to read.

    Attributes:
        ids: numbers of the rows; of the features if ``by_feature``.
        features: (features,) numbers of the features of each row; None for all.
        by_feature: whether an item is a feature of all samples.
    """

    ids: Sequence[int]
    features: np.ndarray | None = None
    by_feature: bool = False


class _Table(Format):
    """Cells of a matrix with one value table.

    Attributes:
        export: the function of :mod:`zarr_core.exports` that writes the format.
        file: that it writes; all of the folder if empty.
    """

    remote = False
    export = file = ""

    def prepare(self, samples: WideMatrix, folder: Path) -> None:
        getattr(exports, self.export)(MatrixRows(samples), folder / self.file)

    def open(self, place: str | Path, draws: Cells) -> None:
        self._draws = draws
        self._open(str(place))

    def read_batch(self, items: Sequence[tuple[int, int]]) -> Arrays:
        """The cells of all items, (samples, features)."""
        numbers = np.array([number for number, _ in items])
        if self._draws.by_feature:
            return {"cells": self._cells(None, numbers)}
        return {"cells": self._cells(numbers, self._draws.features)}

    def _open(self, place: str) -> None:
        raise NotImplementedError

    def _cells(self, rows: np.ndarray | None, features: np.ndarray | None) -> np.ndarray:
        """Cells of rows and features by number; None for all."""
        raise NotImplementedError


class Matrix(_Table):
    """A ``WideMatrix``.

    Args:
        settings: of the copy that :meth:`prepare` makes.
        columns: whether it has a column-major copy.
    """

    remote = True

    def __init__(self, settings: dict[str, Any] | None = None, columns: bool = False) -> None:
        self._settings, self._columns = settings or {}, columns

    def prepare(self, samples: WideMatrix, folder: Path) -> None:
        matrix = samples.reindex(folder / "matrix", **self._settings)
        if self._columns:
            matrix.derive_columns()

    def _open(self, place: str) -> None:
        self._objects = objects = counting(f"{place}/matrix")
        factory = None if objects is None else lambda _: objects
        self._matrix = WideMatrix.open(f"{place}/matrix", objects_factory=factory)
        self._ids, self._names = self._matrix.sample_ids, self._matrix.feature_ids.ids
        (self._value,) = self._matrix.values

    def _cells(self, rows: np.ndarray | None, features: np.ndarray | None) -> np.ndarray:
        ids = self._ids if rows is None else [self._ids[row] for row in rows.tolist()]
        cells = self._matrix.read(ids, None if features is None else self._names[features], self._value)
        if self._objects is not None:
            self.requests = self._objects.requests
        return cells


class ZarrPython(Matrix):
    """The row-major array of the same matrix in zarr-python."""

    def _open(self, place: str) -> None:
        import zarr

        from zarr_core.storage.zarr_stores import make_store

        matrix = WideMatrix.open(f"{place}/matrix")
        (value,) = matrix.values
        self._rows = np.array(list(matrix.rows.values()))
        self._array: Any = zarr.open_array(make_store(f"{place}/matrix"), path=f"{value}.zarr", mode="r")

    def _cells(self, rows: np.ndarray | None, features: np.ndarray | None) -> np.ndarray:
        chosen = self._rows if rows is None else self._rows[rows]
        found: np.ndarray = self._array.oindex[chosen, slice(None) if features is None else features]
        return found


class Npy(_Table):
    """``zarr-core export npy``, mapped into memory."""

    export = "export_npy"

    def _open(self, place: str) -> None:
        (file,) = Path(place).glob("*.npy")
        self._array: np.ndarray = np.load(file, mmap_mode="r")

    def _cells(self, rows: np.ndarray | None, features: np.ndarray | None) -> np.ndarray:
        if rows is None:
            return np.asarray(self._array[:, features])
        return np.asarray(self._array[rows] if features is None else self._array[np.ix_(rows, features)])


class H5ad(_Table):
    """``zarr-core export h5ad``, read with h5py: one slice per row or column, as its lists of indices are slower."""

    export, file = "export_h5ad", "matrix.h5ad"

    def _open(self, place: str) -> None:
        import h5py

        self._array = h5py.File(Path(place, "matrix.h5ad"), "r")["X"]

    def _cells(self, rows: np.ndarray | None, features: np.ndarray | None) -> np.ndarray:
        if rows is None:
            assert features is not None
            return np.stack([self._array[:, feature] for feature in features], axis=1)
        found = np.stack(list(map(self._array.__getitem__, rows)))
        return found if features is None else found[:, features]


class Parquet(_Table):
    """``zarr-core export parquet``: the row groups that hold the samples are read whole."""

    export = "export_parquet"
    without_threads = "pyarrow crashes if threads share a file"

    def _open(self, place: str) -> None:
        import pyarrow.parquet as pq

        self._file = pq.ParquetFile(Path(place, "samples.parquet"), memory_map=True)
        groups = range(self._file.num_row_groups)
        self._lengths = np.array([self._file.metadata.row_group(group).num_rows for group in groups])

    def _cells(self, rows: np.ndarray | None, features: np.ndarray | None) -> np.ndarray:
        rows = np.arange(self._lengths.sum()) if rows is None else rows
        ends = self._lengths.cumsum()
        groups, of_row = np.unique(np.searchsorted(ends, rows, side="right"), return_inverse=True)
        skipped = ends[groups] - self._lengths[groups].cumsum()  # rows of other groups before each of these
        column = self._file.read_row_groups(groups, [self._file.schema_arrow.names[-1]]).column(0).combine_chunks()
        cells: np.ndarray = column.flatten().to_numpy().reshape(len(column), -1)
        cells = cells[rows - skipped[of_row]]
        return cells if features is None else cells[:, features]
