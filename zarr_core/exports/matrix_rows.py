"""Samples, features and blocks of rows of a matrix, as its exports need them."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from tqdm import tqdm

from zarr_core._util.arguments import check_names
from zarr_core.datasets.memory_map import row_blocks
from zarr_core.errors import ZarrCoreError
from zarr_core.matrix import WideMatrix
from zarr_core.matrix.store.axis import FeatureAxis
from zarr_core.matrix.store.sample_table import named_columns
from zarr_core.storage.backends.local import remove_leftovers
from zarr_core.storage.temporary import add_temp_suffix

if TYPE_CHECKING:
    import pyarrow


class MatrixRows:
    """The cells that an export writes.

    Args:
        matrix: open at the generation to be exported.
        values: names of the value tables; all by default.
        sample_ids: the rows; by default all, in row order.
        feature_ids: the columns; by default all, in axis order.

    Attributes:
        batches: batch of each row.
        features: (features,) names of the columns; slices of it are NumPy arrays.

    Raises:
        UnknownFieldError: the matrix has no such value table, sample or feature.
        ZarrCoreError: nothing is selected, or a sample is named twice.
    """

    def __init__(
        self,
        matrix: WideMatrix,
        values: Sequence[str] | None = None,
        sample_ids: Sequence[str] | None = None,
        feature_ids: Sequence[str] | Sequence[int] | np.ndarray | None = None,
    ) -> None:
        for name, given in (("values", values), ("sample_ids", sample_ids)):
            check_names(name, given)
        self.matrix = matrix
        self.values = list(matrix.values if values is None else values)
        self.sample_ids = list(matrix.sample_ids if sample_ids is None else sample_ids)
        axis = matrix.feature_ids
        places = None if feature_ids is None else axis.positions(feature_ids)
        #: For reads; None for all features.
        self.feature_ids = None if places is None else axis.ids[places]
        self.features: FeatureAxis | np.ndarray = axis if places is None else axis[places]
        if not self.sample_ids or not len(self.features) or not self.values:
            raise ZarrCoreError(f"{matrix.url}: no samples, features or value tables are selected")
        if len(set(self.sample_ids)) < len(self.sample_ids):
            raise ZarrCoreError("sample_ids names a sample twice")
        for value in self.values:
            matrix.read(self.sample_ids, axis.ids[:0], value)  # names what is unknown before anything is written
        of: dict[str, str] = {}
        for batch, ids in matrix.batches.items():
            of |= dict.fromkeys(ids, batch)
        self.batches = [of[sample_id] for sample_id in self.sample_ids]

    def metadata(self, taken: Collection[str], slash: str = "/") -> dict[str, pyarrow.Array]:
        """Metadata of the rows by column, without the ids; empty if the matrix has none.

        Args:
            taken: names of other columns; a column of metadata with one of them gets the prefix ``metadata_``.
            slash: replaces "/" in names.

        Raises:
            MatrixError: pyarrow is not installed.
            CorruptChunkError: a table is missing or damaged.
        """
        if not self.matrix.metadata_columns:
            return {}
        return named_columns(self.matrix.samples(sample_ids=self.sample_ids), taken, slash)

    @property
    def origin(self) -> dict[str, str | int]:
        """The store, its generation and the id of the matrix."""
        matrix = self.matrix
        return {"store": matrix.url, "generation": matrix.generation, "matrix_id": matrix.matrix_id}

    @property
    def shape(self) -> tuple[int, int]:
        """(samples, features)."""
        return len(self.sample_ids), len(self.features)

    def dtype(self, value: str) -> np.dtype:
        """Stored dtype of a value table."""
        return np.dtype(self.matrix.values[value])

    def read(self, rows: slice, value: str) -> np.ndarray:
        """(rows, features) of the stored dtype, NaN where missing."""
        return self.matrix.read(self.sample_ids[rows], self.feature_ids, value)

    def blocks(self, progress: bool) -> Iterator[slice]:
        """Slices of rows, each about 64 MiB per value table."""
        itemsize = max(self.dtype(value).itemsize for value in self.values)
        with tqdm(total=len(self.sample_ids), unit="sample", desc="export", disable=not progress) as bar:
            for rows in row_blocks(self.shape, itemsize):
                yield rows
                bar.update(rows.stop - rows.start)


@contextmanager
def new_file(target: Path) -> Iterator[Path]:
    """A temporary file that becomes ``target`` at the end, or is removed by an error.

    Those of earlier exports that were killed are deleted.

    Raises:
        ZarrCoreError: ``target`` is a folder.
    """
    if target.is_dir():
        raise ZarrCoreError(f"{target} is a folder; expected the name of a file")
    target.parent.mkdir(parents=True, exist_ok=True)
    remove_leftovers(str(target))
    temporary = Path(add_temp_suffix(str(target)))
    try:
        yield temporary
        os.replace(temporary, target)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
