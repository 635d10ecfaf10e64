"""Exports a wide matrix to memory-mapped ``.npy`` files."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from tqdm import tqdm

from zarr_core.datasets import MatrixDataset
from zarr_core.datasets.memory_map import description
from zarr_core.exports.matrix_rows import MatrixRows, new_file
from zarr_core.matrix.store.axis import FeatureAxis
from zarr_core.storage import local_path


def export_npy(rows: MatrixRows, out: str | os.PathLike[str], *, progress: bool = False) -> Path:
    """Write ``<value>.npy`` for each value table, ``samples.txt`` and ``features.txt`` into a local folder.

    ``numpy.load(file, mmap_mode="r")`` is (samples, features) of the stored dtype, NaN where missing.
    ``metadata.parquet`` has the metadata of each sample, if the matrix has any.

    ``<value>.npy.json`` describes its content. A later call with equal cells compares each file with its checksum and
    keeps it. If the samples or features differ from those of an earlier export into the folder, the other tables of
    that export are deleted. Its ``metadata.parquet`` is deleted if the matrix has no metadata.

    Args:
        rows: the cells.
        out: the folder.
        progress: show a progress bar on stderr.

    Returns:
        The folder.

    Raises:
        ZarrCoreError: ``out`` is not local, or a file of that name exists and was not written by this library.
        CorruptChunkError: stored bytes are missing or damaged.
    """
    folder = local_path(out)
    metadata = rows.metadata({"sample", "batch"})
    names = {"samples.txt": rows.sample_ids, "features.txt": rows.features}
    if (folder / "samples.txt").exists():
        if not metadata:
            (folder / "metadata.parquet").unlink(missing_ok=True)
        if not all(_has_names(folder / name, ids) for name, ids in names.items()):
            _remove_tables(folder, rows.values)
    for value in tqdm(rows.values, unit="table", desc="export", disable=not progress):
        dataset = MatrixDataset(rows.matrix, rows.sample_ids, rows.feature_ids, value=value)
        dataset.to_memmap(folder / f"{value}.npy")
    for name, ids in names.items():
        with new_file(folder / name) as path, path.open("wb") as file:
            file.writelines(_lines(ids))
    if metadata:
        import pyarrow as pa
        import pyarrow.parquet as pq

        with new_file(folder / "metadata.parquet") as path:
            pq.write_table(pa.table({"sample": rows.sample_ids, "batch": rows.batches, **metadata}), path)
    return folder


def _lines(names: Sequence[str] | FeatureAxis | np.ndarray) -> Iterator[bytes]:
    """Names as lines of UTF-8, many at a time."""
    for first in range(0, len(names), 65_536):
        yield "".join(f"{name}\n" for name in np.asarray(names[first : first + 65_536]).tolist()).encode()


def _has_names(file: Path, names: Sequence[str] | FeatureAxis | np.ndarray) -> bool:
    """Whether the file lists the names."""
    if not file.exists():
        return False
    with file.open("rb") as opened:
        for lines in _lines(names):
            if opened.read(len(lines)) != lines:
                return False
        return not opened.read(1)


def _remove_tables(folder: Path, kept: Sequence[str]) -> None:
    """Delete the tables of an earlier export, except those that are written again."""
    for file in folder.glob("*.npy"):
        if file.stem not in kept and description(file).exists():
            file.unlink()
            description(file).unlink()
