"""Scatter long rows into a wide array: each value goes to the cell of its sample and feature.

The query has joined the positions. Every cell is counted, and the array itself records which cells have a row: NaNs
with two different payloads distinguish a cell without a row from a cell whose row has no value. So counting needs no
second array and no second pass over the rows. In the result every missing cell is the NaN that NumPy writes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from zarr_core.errors import BatchError, WarehouseError

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True)
class WideBlock:
    """Names of the rows and columns of the wide array for one batch and one value, and its dtype, a float."""

    batch_id: str
    value: str
    sample_ids: Sequence[str]
    feature_ids: Sequence[str]
    dtype: str = "float32"

    @property
    def shape(self) -> tuple[int, int]:
        """(samples, features)."""
        return len(self.sample_ids), len(self.feature_ids)


@dataclass(frozen=True, eq=False)
class Scattered:
    """Result of :func:`scatter`.

    Attributes:
        values: (samples, features) of the block's dtype, NaN where the warehouse has no row or no value.
        rows: number of rows; each row has a cell of its own.
        without_value: number of rows whose value is null or NaN.
    """

    values: np.ndarray
    rows: int
    without_value: int


def scatter(read_rows: Callable[[], Iterable[pa.RecordBatch]], block: WideBlock) -> Scattered:
    """Fill a wide array with the rows of a warehouse. Memory: the array and one record batch.

    ``read_rows`` returns the rows from the start, with the columns of ``Unloaded.rows``. It is called again only to
    find a cell that has two rows.

    Raises:
        WarehouseError: a cell has two rows, a sample or feature is unknown, a sample has no rows, or a value does not
            fit in the block's dtype.
    """
    unreached = _bits(np.full(1, np.nan, block.dtype))[0]
    values = np.full(block.shape, unreached)
    cells = values.reshape(-1)
    n_rows = n_without = 0
    for rows in read_rows():
        bits, without = _value_bits(rows, block, no_value=unreached | 1)
        cells[_flat_positions(rows, block)] = bits
        n_rows += len(bits)
        n_without += without
    reached = [int(np.count_nonzero(row != unreached)) for row in values]
    if sum(reached) != n_rows:
        _raise_duplicate(read_rows(), block)
    if 0 in reached:
        sample_id = block.sample_ids[reached.index(0)]
        text = f"no {block.value} row of its sample {sample_id} was returned; load again"
        raise WarehouseError(f"batch {block.batch_id}: {text}")
    if n_without:
        for row in values:
            row[row == unreached | 1] = unreached
    return Scattered(values.view(block.dtype), n_rows, n_without)


def _flat_positions(rows: pa.RecordBatch, block: WideBlock) -> np.ndarray:
    """Index of each row's cell in the flattened array."""
    if rows.column("sample").null_count or rows.column("feature").null_count:
        _raise_unknown(rows, block)
    samples, features = rows.column("sample").to_numpy(), rows.column("feature").to_numpy()
    if samples.dtype.kind not in "iu" or features.dtype.kind not in "iu":
        kinds = f"{samples.dtype} and {features.dtype}"
        raise WarehouseError(f"batch {block.batch_id}: samples and features have dtypes {kinds}, expected integers")
    places = samples.astype(np.int64, copy=False), features.astype(np.int64, copy=False)
    try:
        flat: np.ndarray = np.ravel_multi_index(places, block.shape)
    except ValueError:  # a position is outside
        _raise_unknown(rows, block)
    return flat


def _value_bits(rows: pa.RecordBatch, block: WideBlock, no_value: np.unsignedinteger[Any]) -> tuple[np.ndarray, int]:
    """The bits of the values in the block's dtype, and the number of missing values."""
    import pyarrow as pa

    column = rows.column("value")
    whole = pa.types.is_integer(column.type)
    if pa.types.is_decimal(column.type):
        whole = column.type.scale <= 0  # how databases without integers store counts
        column = column.cast(pa.float64())
    elif pa.types.is_null(column.type):  # the type of a Parquet column whose file has no value
        column = column.cast(pa.float64())
    if not (whole or pa.types.is_floating(column.type)):
        raise BatchError(f"batch {block.batch_id}: {block.value} is of type {column.type}, not a number")
    values = column.to_numpy(zero_copy_only=False)  # nulls become NaN
    with np.errstate(over="ignore"):
        stored = values.astype(block.dtype, copy=False)
    if whole:
        exact = 2 ** (np.finfo(block.dtype).nmant + 1)  # the dtype represents all integers up to this one
        rounded = values.astype(np.float64)
        unfit = np.abs(rounded) > exact
        for doubtful in np.flatnonzero(np.abs(rounded) == exact):  # 2**53 + 1 is rounded to 2**53
            unfit[doubtful] = rows.column("value")[int(doubtful)].as_py() != int(rounded[doubtful])
    else:
        unfit = np.isinf(stored)  # too large for the dtype, or infinite in the warehouse: a matrix takes neither
    if unfit.any():
        number = int(np.argmax(unfit))
        value = rows.column("value")[number].as_py()
        raise BatchError(f"{_name_of(rows, number, block)}: a cell of {block.dtype} cannot hold its value {value}")
    missing = np.isnan(stored)
    n_missing = int(np.count_nonzero(missing))
    return np.where(missing, no_value, _bits(stored)) if n_missing else _bits(stored), n_missing


def _bits(values: np.ndarray) -> np.ndarray:
    return values.view(f"u{values.itemsize}")


def _raise_unknown(rows: pa.RecordBatch, block: WideBlock) -> NoReturn:
    """Raise BatchError for the first row whose sample or feature is not in the block."""
    n_samples, n_features = block.shape
    for number, row in enumerate(rows.to_pylist()):
        sample, feature = row["sample"], row["feature"]
        if sample is None or not 0 <= sample < n_samples:
            raise WarehouseError(f"batch {block.batch_id}: a row of a sample that was not requested (number {sample})")
        if feature is None or not 0 <= feature < n_features:
            raise BatchError(
                f"{_name_of(rows, number, block)} is not on the matrix's axis of {n_features:,} features; copy "
                "the matrix to an axis that has it (WideMatrix.reindex), or remove its rows from the warehouse's table"
            )
    raise AssertionError("every sample and feature is in the block")


def _raise_duplicate(batches: Iterable[pa.RecordBatch], block: WideBlock) -> NoReturn:
    """Raise WarehouseError for the first cell with two rows."""
    reached = np.zeros(block.shape[0] * block.shape[1], bool)
    for rows in batches:
        flat = _flat_positions(rows, block)
        order = np.argsort(flat, kind="stable")
        again = reached[flat]
        again[order[1:]] |= flat[order[1:]] == flat[order[:-1]]
        if again.any():
            raise BatchError(
                f"{_name_of(rows, int(np.argmax(again)), block)} has more than one {block.value} row; was the batch "
                "loaded twice? Nothing of it was kept: remove the duplicate rows from the warehouse and load again"
            )
        reached[flat] = True
    raise WarehouseError(f"batch {block.batch_id}: its {block.value} rows changed while they were read; load again")


def _name_of(rows: pa.RecordBatch, number: int, block: WideBlock) -> str:
    """Batch, sample and feature of a row, for messages."""
    sample, feature = rows.column("sample")[number].as_py(), rows.column("feature")[number].as_py()
    names = [f"batch {block.batch_id}"]
    if sample is not None and 0 <= sample < block.shape[0]:
        names.append(f"sample {block.sample_ids[sample]}")
    if feature is not None and 0 <= feature < block.shape[1]:
        names.append(f"feature {block.feature_ids[feature]}")
    elif "outside" in rows.schema.names:
        names.append(f"feature {rows.column('outside')[number].as_py()}")
    else:
        names.append(f"feature number {feature}")
    return ", ".join(names)
