"""Exports a wide matrix to AnnData's ``.h5ad``.

Source: https://anndata.readthedocs.io/en/latest/fileformat-prose.html, encoding version 0.1.0 of the file.
Written with h5py, a block of rows at a time: the ``anndata`` library takes whole arrays, and wants an older pandas.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from zarr_core.errors import MatrixError
from zarr_core.exports.matrix_rows import MatrixRows, new_file

# Cells of an HDF5 chunk along each axis: 1 MiB of float32, so that a backed AnnData reads rows and columns.
_CHUNK = (16, 16_384)


def export_h5ad(rows: MatrixRows, out: str | os.PathLike[str], *, progress: bool = False) -> Path:
    """Write an ``.h5ad`` file for ``anndata.read_h5ad``, scanpy and other tools of AnnData.

    ``X`` is the first value table, and each further one a layer, (samples, features) of the stored dtype, NaN where
    missing. ``obs`` is indexed by sample and has the column ``batch``; ``var`` is indexed by feature.
    ``uns["zarr_core"]`` names store and generation. Memory: a block of 64 MiB.

    Args:
        rows: the cells.
        out: the file.
        progress: show a progress bar on stderr.

    Returns:
        The file.

    Raises:
        MatrixError: h5py is not installed.
        CorruptChunkError: stored bytes are missing or damaged.
    """
    try:
        import h5py
    except ImportError as error:
        raise MatrixError("h5ad needs h5py: pip install 'zarr-core[exports]'") from error
    about = {"store": rows.matrix.url, "generation": str(rows.matrix.generation), "matrix_id": rows.matrix.matrix_id}
    with new_file(out) as path, h5py.File(path, "w") as file:
        _encode(file, "anndata", "0.1.0")
        _write_table(file, "obs", rows.sample_ids, {"batch": rows.batches})
        _write_table(file, "var", rows.features, {})
        for name in ("layers", "obsm", "obsp", "uns", "varm", "varp"):
            _encode(file.create_group(name), "dict", "0.1.0")
        _encode(file["uns"].create_group("zarr_core"), "dict", "0.1.0")
        for key, text in about.items():
            file["uns/zarr_core"][key] = text
            _encode(file["uns/zarr_core"][key], "string", "0.2.0")
        chunks = tuple(min(pair) for pair in zip(_CHUNK, rows.shape, strict=True))
        arrays: dict[str, Any] = {}
        for value in rows.values:
            name = f"layers/{value}" if arrays else "X"
            arrays[value] = file.create_dataset(name, rows.shape, rows.dtype(value), chunks=chunks)
            _encode(arrays[value], "array", "0.2.0")
        for block in rows.blocks(progress):
            for value, array in arrays.items():
                array[block] = rows.read(block, value)
    return Path(out)


def _write_table(file: Any, name: str, index: Sequence[Any] | np.ndarray, columns: Mapping[str, Sequence[str]]) -> None:
    """A data frame of strings."""
    import h5py

    group = file.create_group(name)
    _encode(group, "dataframe", "0.2.0")
    group.attrs["_index"] = "_index"
    group.attrs["column-order"] = np.array(list(columns), h5py.string_dtype())
    for key, values in {"_index": index, **columns}.items():
        array = group.create_dataset(key, (len(values),), h5py.string_dtype())
        for first in range(0, len(values), 65_536):
            array[first : first + 65_536] = [str(one) for one in values[first : first + 65_536]]
        _encode(array, "string-array", "0.2.0")


def _encode(node: Any, kind: str, version: str) -> None:
    node.attrs["encoding-type"], node.attrs["encoding-version"] = kind, version
