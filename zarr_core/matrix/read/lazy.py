"""The cells of a matrix as dask and xarray see them: an array that is read when it is used."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from zarr_core._util.extras import extra
from zarr_core.errors import MatrixError
from zarr_core.matrix.store.axis import FeatureAxis
from zarr_core.matrix.store.state import MatrixState

if TYPE_CHECKING:
    import dask.array
    import pyarrow
    import xarray

# Upper limit of a block, unless one row is larger.
_BLOCK_BYTES = 128 << 20
# More feature names than this are a coordinate without an index, because an index holds each as a Python string.
_INDEXED_FEATURES = 1 << 22


class Cells:
    """One value table of a state as an array-like of (samples, features), NaN where missing.

    Nothing is read before it is indexed; then by ``read``, which is ``WideMatrix.read``.
    """

    ndim = 2

    def __init__(self, read: Callable[..., np.ndarray], state: MatrixState, axis: FeatureAxis, value: str) -> None:
        self._read, self._axis, self._value = read, axis, value
        self._sample_ids = list(state.rows)
        self.shape = len(self._sample_ids), len(axis)
        self.dtype = np.dtype(state.values[value])

    def __getitem__(self, key: Any) -> np.ndarray:
        """Cells at a pair of integers, slices and integer arrays, each for its own axis."""
        rows, columns = (np.arange(length)[part] for length, part in zip(self.shape, key, strict=True))
        sample_ids = [self._sample_ids[row] for row in np.atleast_1d(rows)]
        whole = isinstance(key[1], slice) and np.array_equal(columns, np.arange(self.shape[1]))
        features = None if whole else self._axis.ids[np.atleast_1d(columns)]
        return self._read(sample_ids, features, self._value).reshape((*rows.shape, *columns.shape))


def row_blocks(state: MatrixState, value: str) -> Iterator[int]:
    """Numbers of rows that divide the samples into blocks: the samples of a shard, or parts of it up to 128 MiB.

    A block never reaches beyond a shard, so no two blocks read the same bytes.
    """
    row_bytes = state.axis.length * np.dtype(state.values[value]).itemsize
    step = max(1, _BLOCK_BYTES // row_bytes)
    for batch in state.batches.values():
        for first in range(0, len(batch.sample_ids), state.shard_rows):
            rows = min(state.shard_rows, len(batch.sample_ids) - first)
            yield from (min(step, rows - start) for start in range(0, rows, step))


def to_dask(cells: Cells, state: MatrixState, value: str) -> dask.array.Array:
    """The cells as a dask array; see ``WideMatrix.to_dask``."""
    with extra("views", "to_dask needs dask", MatrixError):
        import dask.array as da
    # dask takes arrays of one name for equal. A staged copy has the id of its matrix, but generations of its own.
    content = [(batch_id, batch.digest, batch.sample_ids) for batch_id, batch in state.batches.items()]
    digest = hashlib.blake2b(json.dumps(content).encode(), digest_size=16).hexdigest()
    name = f"{value}-{state.matrix_id}-{digest}"
    chunks = tuple(row_blocks(state, value)) or (0,), (cells.shape[1],)
    meta = np.empty((0, 0), cells.dtype)
    return da.from_array(cells, chunks, name=name, asarray=False, meta=meta)


def to_xarray(
    tables: Mapping[str, Cells],
    state: MatrixState,
    axis: FeatureAxis,
    metadata: Mapping[str, pyarrow.Array],
    url: str,
    chunked: bool,
) -> xarray.Dataset:
    """The value tables as an xarray dataset; see ``WideMatrix.to_xarray``."""
    with extra("views", "to_xarray needs xarray", MatrixError):
        import xarray as xr
    from zarr_core._util.lazy_arrays import LazyArray, lazy_variable

    coordinates: dict[str, Any] = {"sample": list(state.rows), "batch": ("sample", list(state.batch_of.values()))}
    for name, column in metadata.items():
        coordinates[name] = ("sample", _as_numpy(column))
    indexed = len(axis) <= _INDEXED_FEATURES
    if indexed:
        coordinates["feature"] = np.asarray(axis)
    variables = {}
    for value, cells in tables.items():
        array = LazyArray(cells.shape, cells.dtype, cells.__getitem__, lists=True)
        blocks = (tuple(row_blocks(state, value)) or (0,), -1) if chunked else None
        variables[value] = lazy_variable(("sample", "feature"), array, blocks=blocks)
    attributes = {"store": url, "generation": state.generation, "matrix_id": state.matrix_id}
    dataset = xr.Dataset(variables, coordinates, attributes)
    if indexed:
        return dataset
    names = LazyArray((len(axis),), axis[:1].dtype, lambda key: axis[key[0]])
    variable = {"feature": lazy_variable(["feature"], names)}
    return dataset.assign_coords(xr.Coordinates(variable, indexes={}))


def _as_numpy(column: pyarrow.Array) -> np.ndarray:
    """The values; whole numbers with nulls as floats, or as objects if a float would round one of them."""
    import pyarrow as pa

    if pa.types.is_integer(column.type) and column.null_count:
        try:
            column.cast(pa.float64())
        except pa.ArrowInvalid:
            return np.array(column.to_pylist(), object)
    return np.asarray(column.to_numpy(zero_copy_only=False))
