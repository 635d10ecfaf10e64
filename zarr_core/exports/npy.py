"""Exports a wide matrix to memory-mapped ``.npy`` files."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
from tqdm import tqdm

from zarr_core.datasets import MatrixDataset
from zarr_core.exports.matrix_rows import MatrixRows, local_path, new_file


def export_npy(rows: MatrixRows, out: str | os.PathLike[str], *, progress: bool = False) -> Path:
    """Write ``<value>.npy`` for each value table, ``samples.txt`` and ``features.txt`` into a local folder.

    ``numpy.load(file, mmap_mode="r")`` is (samples, features) of the stored dtype, NaN where missing.
    ``metadata.parquet`` has the metadata of each sample, if the matrix has any.

    ``<value>.npy.json`` describes its content. A later call with equal cells compares each file with its checksum and
    keeps it.

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
    for value in tqdm(rows.values, unit="table", desc="export", disable=not progress):
        dataset = MatrixDataset(rows.matrix, rows.sample_ids, rows.feature_ids, value=value)
        dataset.to_memmap(folder / f"{value}.npy")
    for name, names in (("samples", rows.sample_ids), ("features", rows.features)):
        with new_file(folder / f"{name}.txt") as path, path.open("w", encoding="utf-8") as file:
            for first in range(0, len(names), 65_536):
                file.write("".join(f"{one}\n" for one in np.asarray(names[first : first + 65_536]).tolist()))
    if metadata:
        import pyarrow as pa
        import pyarrow.parquet as pq

        with new_file(folder / "metadata.parquet") as path:
            pq.write_table(pa.table({"sample": rows.sample_ids, "batch": rows.batches, **metadata}), path)
    return folder
