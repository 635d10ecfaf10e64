"""A wide matrix as memory-mapped ``.npy`` files and as Parquet, and the rows that every export of it writes."""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from tqdm import tqdm

from zarr_core._util.arguments import check_names
from zarr_core._util.extras import extra
from zarr_core.datasets import MatrixDataset
from zarr_core.datasets.memory_map import description, row_blocks
from zarr_core.errors import MatrixError, ZarrCoreError
from zarr_core.matrix import WideMatrix
from zarr_core.matrix.store.axis import FeatureAxis
from zarr_core.matrix.store.sample_table import named_columns
from zarr_core.storage import local_path
from zarr_core.storage.backends.local import remove_leftovers
from zarr_core.storage.temporary import add_temp_suffix

if TYPE_CHECKING:
    import pyarrow

# A list in Arrow has at most 2^31 - 1 values, and so has the list column of a block of rows.
_MAX_FEATURES = 2**31 - 1


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
        batch_of = matrix._state.batch_of
        self.batches = [batch_of[sample_id] for sample_id in self.sample_ids]

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
    finally:
        temporary.unlink(missing_ok=True)


def export_npy(rows: MatrixRows, out: str | os.PathLike[str], *, progress: bool = False) -> Path:
    """Write ``<value>.npy`` for each value table, ``samples.txt`` and ``features.txt`` into a local folder.

    ``numpy.load(file, mmap_mode="r")`` is (samples, features) of the stored dtype, NaN where missing.
    ``metadata.parquet`` has the metadata of each sample, if the matrix has any.

    ``<value>.npy.json`` describes its content. A later call with equal cells compares each file with its checksum and
    keeps it. If the samples or features differ from those of an earlier export into the folder, the tables and the
    ``metadata.parquet`` of that export are deleted. The latter is, too, if the matrix has no metadata.

    Args:
        rows: the cells.
        out: the folder.
        progress: show a progress bar on stderr.

    Returns:
        The folder.

    Raises:
        ZarrCoreError: ``out`` is not local, a file of that name exists and was not written by this library, or the
            name of a sample or feature has a line break.
        CorruptChunkError: stored bytes are missing or damaged.
    """
    folder = local_path(out)
    metadata = rows.metadata({"sample", "batch"})
    names = {"samples.txt": rows.sample_ids, "features.txt": rows.features}
    if (folder / "samples.txt").exists():
        is_same = all(_has_names(folder / name, ids) for name, ids in names.items())
        if not (metadata and is_same):
            (folder / "metadata.parquet").unlink(missing_ok=True)
        if not is_same:
            for table in folder.glob("*.npy"):  # of an earlier export
                if description(table).exists():
                    table.unlink()
                    description(table).unlink()
    for name, ids in names.items():  # before the tables: an export that fails leaves none under names of others
        with new_file(folder / name) as path, path.open("wb") as file:
            file.writelines(_lines(ids))
    for value in tqdm(rows.values, unit="table", desc="export", disable=not progress):
        dataset = MatrixDataset(rows.matrix, rows.sample_ids, rows.feature_ids, value=value)
        dataset.to_memmap(folder / f"{value}.npy")
    if metadata:
        import pyarrow as pa
        import pyarrow.parquet as pq

        with new_file(folder / "metadata.parquet") as path:
            pq.write_table(pa.table({"sample": rows.sample_ids, "batch": rows.batches, **metadata}), path)
    return folder


def _lines(names: Sequence[str] | FeatureAxis | np.ndarray) -> Iterator[bytes]:
    """Names as lines of UTF-8, many at a time; raises ZarrCoreError for a name of several lines."""
    for first in range(0, len(names), 65_536):
        block = np.asarray(names[first : first + 65_536]).tolist()
        lines = "".join(f"{name}\n" for name in block)
        if "\r" in lines or lines.count("\n") > len(block):
            broken = next(name for name in map(str, block) if "\n" in name or "\r" in name)
            raise ZarrCoreError(
                f"{broken!r:.80} has a line break, so it is not a line of a text file; export to parquet"
            )
        yield lines.encode()


def _has_names(file: Path, names: Sequence[str] | FeatureAxis | np.ndarray) -> bool:
    if not file.exists():
        return False
    with file.open("rb") as opened:
        for lines in _lines(names):
            if opened.read(len(lines)) != lines:
                return False
        return not opened.read(1)


def export_parquet(rows: MatrixRows, out: str | os.PathLike[str], *, progress: bool = False) -> Path:
    """Write ``samples.parquet`` and ``features.parquet`` into a local folder.

    ``samples.parquet`` has a row per sample: ``sample``, ``batch``, and for each value table a list of as many numbers
    as there are features, NaN where missing. A column per feature would make a footer of gigabytes.
    ``features.parquet`` has the names of the features, in the order of the lists. Memory: a block of 64 MiB per value.

    Args:
        rows: the cells.
        out: the folder.
        progress: show a progress bar on stderr.

    Returns:
        The folder.

    Raises:
        ZarrCoreError: ``out`` is not local.
        MatrixError: pyarrow is not installed.
        CorruptChunkError: stored bytes are missing or damaged.
    """
    with extra("exports", "Parquet needs pyarrow", MatrixError):
        import pyarrow as pa
        import pyarrow.parquet as pq
    folder, width = local_path(out), len(rows.features)
    if width > _MAX_FEATURES:
        raise MatrixError(f"{width:,} features are more than a list of Parquet holds: {_MAX_FEATURES:,}")
    lists = {}
    for value in rows.values:
        lists[value] = pa.list_(pa.from_numpy_dtype(rows.dtype(value)), width)
    described = {"sample": pa.array(rows.sample_ids), "batch": pa.array(rows.batches)}
    described |= rows.metadata({*described, *lists})
    kinds = {name: column.type for name, column in described.items()} | lists
    schema = pa.schema(kinds.items(), {"zarr_core": json.dumps(rows.origin)})
    samples = folder / "samples.parquet"
    # Both files appear at the end, the names first: no export that fails or dies leaves cells under names of others.
    with new_file(samples) as path, new_file(folder / "features.parquet") as names:
        pq.write_table(pa.table({"feature": pa.array(rows.features)}), names)
        with pq.ParquetWriter(path, schema, use_dictionary=False) as writer:
            for block in rows.blocks(progress):
                columns = [column[block] for column in described.values()]
                for value, kind in lists.items():
                    cells = pa.array(rows.read(block, value).reshape(-1))
                    columns.append(pa.FixedSizeListArray.from_arrays(cells, type=kind))
                writer.write_batch(pa.record_batch(columns, schema=schema))
        samples.unlink(missing_ok=True)  # of an earlier export
    return folder
