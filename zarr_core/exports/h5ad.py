"""Exports a wide matrix to AnnData's ``.h5ad``.

Source: https://anndata.readthedocs.io/en/latest/fileformat-prose.html, encoding version 0.1.0 of the file.
Written with h5py, a block of rows at a time: the ``anndata`` library takes whole arrays, and wants an older pandas.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from zarr_core._util.extras import extra
from zarr_core.errors import MatrixError
from zarr_core.exports.matrix import MatrixRows, new_file
from zarr_core.storage import local_path

if TYPE_CHECKING:
    import pyarrow

# Cells of an HDF5 chunk along each axis: 1 MiB of float32, so that a backed AnnData reads rows and columns.
_CHUNK = (16, 16_384)


def export_h5ad(rows: MatrixRows, out: str | os.PathLike[str], *, progress: bool = False) -> Path:
    """Write an ``.h5ad`` file for ``anndata.read_h5ad``, scanpy and other tools of AnnData.

    ``X`` is the first value table, and each further one a layer, (samples, features) of the stored dtype, NaN where
    missing. ``obs`` is indexed by sample and has the column ``batch`` and the metadata of the samples: numbers and
    truth values, nullable where some are null; text as categories, as AnnData writes it; times as text, and durations
    as in "90 s". ``var`` is indexed by feature. ``uns["zarr_core"]`` names store and generation. Memory: a block of 64
    MiB.

    Args:
        rows: the cells.
        out: the file.
        progress: show a progress bar on stderr.

    Returns:
        The file.

    Raises:
        ZarrCoreError: ``out`` is not local.
        MatrixError: h5py is not installed.
        CorruptChunkError: stored bytes are missing or damaged.
    """
    with extra("exports", "h5ad needs h5py", MatrixError):
        import h5py
    target = local_path(out)
    metadata = rows.metadata({"batch", "_index"}, slash="_")
    with new_file(target) as path, h5py.File(path, "w") as file:
        _encode(file, "anndata", "0.1.0")
        _write_strings(_new_table(file, "obs", rows.sample_ids, ["batch", *metadata]), "batch", rows.batches)
        for name, column in metadata.items():
            _write_column(file["obs"], name, column)
        _new_table(file, "var", rows.features, [])
        for name in ("layers", "obsm", "obsp", "uns", "varm", "varp"):
            _encode(file.create_group(name), "dict", "0.1.0")
        _encode(file["uns"].create_group("zarr_core"), "dict", "0.1.0")
        for key, text in rows.origin.items():
            file["uns/zarr_core"][key] = str(text)
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
    return target


def _new_table(file: Any, name: str, index: Sequence[Any] | np.ndarray, columns: Sequence[str]) -> Any:
    """The group of a data frame with its index; the columns are still to be written."""
    import h5py

    group = file.create_group(name)
    _encode(group, "dataframe", "0.2.0")
    group.attrs["_index"] = "_index"
    group.attrs["column-order"] = np.array(columns, h5py.string_dtype())
    _write_strings(group, "_index", index)
    return group


def _write_strings(group: Any, name: str, values: Sequence[Any] | np.ndarray) -> None:
    import h5py

    array = group.create_dataset(name, (len(values),), h5py.string_dtype())
    for first in range(0, len(values), 65_536):
        array[first : first + 65_536] = list(map(str, values[first : first + 65_536]))
    _encode(array, "string-array", "0.2.0")


def _write_column(group: Any, name: str, column: pyarrow.Array) -> None:
    """A column of a data frame, in the encoding that AnnData reads as its type, nulls included."""
    import pyarrow as pa
    import pyarrow.compute as pc

    whole, truth = pa.types.is_integer(column.type), pa.types.is_boolean(column.type)
    if pa.types.is_floating(column.type):
        wide = column.cast(pa.float32()) if column.type == pa.float16() else column  # pandas has no float16 of its own
        _write_array(group, name, wide.to_numpy(zero_copy_only=False))
    elif whole or truth:
        values = column.fill_null(0 if whole else False).to_numpy(zero_copy_only=False)
        if not column.null_count:
            _write_array(group, name, values)
            return
        nullable = group.create_group(name)
        _encode(nullable, "nullable-integer" if whole else "nullable-boolean", "0.1.0")
        _write_array(nullable, "values", values)
        _write_array(nullable, "mask", column.is_null().to_numpy(zero_copy_only=False))
    else:
        text = column.cast(pa.string())
        if pa.types.is_duration(column.type):  # Arrow writes the number alone
            text = pc.binary_join_element_wise(text, column.type.unit, " ")
        categories = sorted(set(text.drop_null().to_pylist()))
        codes = pc.index_in(text, value_set=pa.array(categories, pa.string())).fill_null(-1)
        categorical = group.create_group(name)
        _encode(categorical, "categorical", "0.2.0")
        categorical.attrs["ordered"] = False
        _write_strings(categorical, "categories", categories)
        _write_array(categorical, "codes", codes.to_numpy(zero_copy_only=False))


def _write_array(group: Any, name: str, values: np.ndarray) -> None:
    _encode(group.create_dataset(name, data=values), "array", "0.2.0")


def _encode(node: Any, kind: str, version: str) -> None:
    node.attrs["encoding-type"], node.attrs["encoding-version"] = kind, version
