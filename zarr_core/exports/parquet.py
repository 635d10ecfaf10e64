"""Exports a wide matrix to Parquet: one row per sample."""

from __future__ import annotations

import json
import os
from pathlib import Path

from zarr_core._util.extras import extra
from zarr_core.errors import MatrixError
from zarr_core.exports.matrix_rows import MatrixRows, new_file
from zarr_core.storage import local_path

# A list in Arrow has at most 2^31 - 1 values, and so has the list column of a block of rows.
_MAX_FEATURES = 2**31 - 1


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
    with new_file(folder / "features.parquet") as path:
        pq.write_table(pa.table({"feature": pa.array(rows.features)}), path)
    with new_file(folder / "samples.parquet") as path, pq.ParquetWriter(path, schema, use_dictionary=False) as writer:
        for block in rows.blocks(progress):
            columns = [column[block] for column in described.values()]
            for value, kind in lists.items():
                cells = pa.array(rows.read(block, value).reshape(-1))
                columns.append(pa.FixedSizeListArray.from_arrays(cells, type=kind))
            writer.write_batch(pa.record_batch(columns, schema=schema))
    return folder
