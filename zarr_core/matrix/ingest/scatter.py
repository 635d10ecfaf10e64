"""Long rows to a wide buffer: each value goes to the cell of its sample and feature, whose positions the query joined.

Each cell is counted. The buffer itself remembers which cells a row has reached: NaNs of two payloads tell a cell that
no row reached from one whose row holds no value, so the count costs no second array and no pass over the rows. A cell
that no row reached is NaN as numpy writes it, which is what stays in cells without a value; no row can bring the other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from zarr_core.errors import WarehouseError

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True)
class WideBlock:
    """What the rows of one batch and one value become, and how its cells are called.

    Attributes:
        batch_id: the batch.
        value: name of the value, "beta".
        sample_ids: sample of each row of the block.
        feature_ids: feature of each column.
        dtype: of the cells, a float.
    """

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
    """A filled block.

    Attributes:
        values: (samples, features) of the block's dtype, NaN where the warehouse has no row or no value.
        rows: rows that came, each of which reached a cell of its own.
        without_value: those of them whose value is null or NaN.
    """

    values: np.ndarray
    rows: int
    without_value: int


def scatter(read_rows: Callable[[], Iterable[pa.RecordBatch]], block: WideBlock) -> Scattered:
    """Fill a block from the rows of a warehouse; memory is the block's own and that of one record batch.

    Args:
        read_rows: starts the rows anew, as ``Unloaded.rows`` gives them: columns ``sample`` and ``feature``, whole
            numbers that count into the block, ``value``, and, where a feature is outside the axis, ``outside`` with
            its id. Called a second time only to find the cell that has two rows.
        block: what to fill.

    Raises:
        WarehouseError: two rows for one cell, a row of an unknown sample or feature, a sample without rows, or a value
            that the block's dtype cannot hold.
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
        _refuse_double(read_rows(), block)
    if 0 in reached:
        sample_id = block.sample_ids[reached.index(0)]
        raise WarehouseError(f"batch {block.batch_id}: no {block.value} row of its sample {sample_id} came; load again")
    if n_without:
        for row in values:
            row[row == unreached | 1] = unreached
    return Scattered(values.view(block.dtype), n_rows, n_without)


def _flat_positions(rows: pa.RecordBatch, block: WideBlock) -> np.ndarray:
    """Index of each row's cell in the block read as one row after another."""
    n_samples, n_features = block.shape
    if rows.column("sample").null_count or rows.column("feature").null_count:
        _refuse_outsider(rows, block)
    samples = rows.column("sample").to_numpy()
    features = rows.column("feature").to_numpy()
    if samples.dtype.kind not in "iu" or features.dtype.kind not in "iu":
        raise WarehouseError(
            f"batch {block.batch_id}: samples and features came as {samples.dtype} and {features.dtype}, "
            "whole numbers were asked for"
        )
    if len(rows) and (
        samples.min() < 0 or samples.max() >= n_samples or features.min() < 0 or features.max() >= n_features
    ):
        _refuse_outsider(rows, block)
    flat = np.empty(len(rows), np.int64)
    np.multiply(samples, n_features, out=flat, dtype=np.int64, casting="unsafe")
    np.add(flat, features, out=flat, casting="unsafe")
    return flat


def _value_bits(rows: pa.RecordBatch, block: WideBlock, no_value: np.unsignedinteger[Any]) -> tuple[np.ndarray, int]:
    """The values as the block's dtype, seen as whole numbers; and how many of them are missing."""
    import pyarrow as pa

    column = rows.column("value")
    if pa.types.is_decimal(column.type):
        column = column.cast(pa.float64())
    if not (pa.types.is_integer(column.type) or pa.types.is_floating(column.type)):
        raise WarehouseError(f"batch {block.batch_id}: {block.value} is of type {column.type}, which is no number")
    values = column.to_numpy(zero_copy_only=False)  # nulls become NaN
    if pa.types.is_integer(column.type):
        unfit = np.abs(values.astype(np.float64)) > 2 ** (np.finfo(block.dtype).nmant + 1)  # it holds all up to there
        if unfit.any():
            _refuse_value(rows, int(np.argmax(unfit)), block)
    if values.dtype != block.dtype:
        with np.errstate(over="ignore"):
            stored = values.astype(block.dtype)
        unfit = np.isinf(stored) & ~np.isinf(values)
        if unfit.any():
            _refuse_value(rows, int(np.argmax(unfit)), block)
        values = stored
    missing = np.isnan(values)
    n_missing = int(np.count_nonzero(missing))
    return np.where(missing, no_value, _bits(values)) if n_missing else _bits(values), n_missing


def _bits(values: np.ndarray) -> np.ndarray:
    return values.view(f"u{values.itemsize}")


def _refuse_value(rows: pa.RecordBatch, number: int, block: WideBlock) -> NoReturn:
    value = rows.column("value")[number].as_py()
    raise WarehouseError(f"{_name_of(rows, number, block)}: {block.dtype} cannot hold its value {value}")


def _refuse_outsider(rows: pa.RecordBatch, block: WideBlock) -> NoReturn:
    n_samples, n_features = block.shape
    samples, features = rows.column("sample").to_pylist(), rows.column("feature").to_pylist()
    for number, (sample, feature) in enumerate(zip(samples, features, strict=True)):
        if sample is None or not 0 <= sample < n_samples:
            raise WarehouseError(
                f"batch {block.batch_id}: a row of a sample that was not asked for came (number {sample})"
            )
        if feature is None or not 0 <= feature < n_features:
            raise WarehouseError(
                f"{_name_of(rows, number, block)} is not on the matrix's axis of {n_features:,} features; make a "
                "matrix whose axis holds it, or leave its rows out of the warehouse's table"
            )
    raise AssertionError("called without an outsider")


def _refuse_double(batches: Iterable[pa.RecordBatch], block: WideBlock) -> NoReturn:
    """Look for the cell that two rows reach."""
    reached = np.zeros(block.shape[0] * block.shape[1], bool)
    for rows in batches:
        flat = _flat_positions(rows, block)
        order = np.argsort(flat, kind="stable")
        again = reached[flat]
        again[order[1:]] |= flat[order[1:]] == flat[order[:-1]]
        if again.any():
            raise WarehouseError(
                f"{_name_of(rows, int(np.argmax(again)), block)} has more than one {block.value} row; was the batch "
                "loaded twice? Nothing of it was taken: remove the doubled rows from the warehouse and load again"
            )
        reached[flat] = True
    raise WarehouseError(f"batch {block.batch_id}: its {block.value} rows changed while they were read; load again")


def _name_of(rows: pa.RecordBatch, number: int, block: WideBlock) -> str:
    """Batch, sample and feature of a row, as far as it has them."""
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
