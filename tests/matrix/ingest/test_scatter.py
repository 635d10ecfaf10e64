"""Long rows to a wide block: every cell compared with a dict, and invalid rows."""

from __future__ import annotations

import decimal
from collections.abc import Iterable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from zarr_core.errors import BatchError, WarehouseError
from zarr_core.matrix.ingest.scatter import Scattered, WideBlock, scatter

SAMPLES, FEATURES = ["s0", "s1", "s2"], ["f0", "f1", "f2", "f3", "f4"]
BLOCK = WideBlock("b7", "beta", SAMPLES, FEATURES)
# A row for each sample, so that none is without.
FIRST = [(0, 0, 0.5), (1, 0, 0.25), (2, 0, 0.125)]
NAN_OF_AN_EMPTY_CELL = np.array([0x7FC00000], "<u4").view("<f4")[0]

Row = tuple[int | None, int | None, Any]


def batch_of(rows: Iterable[Row], kind: pa.DataType | None = None, **more: pa.Array) -> pa.RecordBatch:
    samples, features, values = zip(*rows, strict=True)
    columns = {
        "sample": pa.array(samples, pa.int32()),
        "feature": pa.array(features, pa.int32()),
        "value": pa.array(values, kind or pa.float32(), from_pandas=False),
    }
    return pa.record_batch({**columns, **more})


def scattered(*batches: pa.RecordBatch, block: WideBlock = BLOCK) -> Scattered:
    return scatter(lambda: batches, block)


@st.composite
def long_rows(draw: st.DrawFn) -> tuple[list[Row], int]:
    cells = [(sample, feature) for sample in range(len(SAMPLES)) for feature in range(len(FEATURES))]
    others = draw(st.sets(st.sampled_from([cell for cell in cells if cell[1] != 0])))
    chosen = draw(st.permutations([*others, *[(sample, 0) for sample in range(len(SAMPLES))]]))
    special = [None, float("nan"), -0.0, 1e-45, float(NAN_OF_AN_EMPTY_CELL)]
    value = st.one_of(st.floats(width=32, allow_infinity=False), st.sampled_from(special))
    return [(*cell, draw(value)) for cell in chosen], draw(st.integers(1, len(chosen)))


@given(long_rows())
def test_cells_equal_those_of_a_dict(given_rows: tuple[list[Row], int]) -> None:
    rows, size = given_rows
    done = scattered(*[batch_of(rows[start : start + size]) for start in range(0, len(rows), size)])
    expected = np.full((len(SAMPLES), len(FEATURES)), np.nan, np.float32)
    for sample, feature, value in rows:
        expected[sample, feature] = np.nan if value is None else value
    assert done.values.dtype == np.float32
    assert np.array_equal(done.values, expected, equal_nan=True)
    # One NaN bit pattern is stored, so that the same measurements give the same bytes.
    assert np.all(done.values.view(np.uint32)[np.isnan(done.values)] == 0x7FC00000)
    assert np.array_equal(np.signbit(done.values)[~np.isnan(expected)], np.signbit(expected)[~np.isnan(expected)])
    assert done.rows == len(rows)
    assert done.without_value == sum(value is None or np.isnan(value) for *_, value in rows)


@given(long_rows(), st.data())
def test_a_second_row_for_a_cell_is_named(given_rows: tuple[list[Row], int], data: st.DataObject) -> None:
    rows, size = given_rows
    sample, feature, _ = data.draw(st.sampled_from(rows))
    doubled = list(rows)
    value = data.draw(st.sampled_from([None, 0.5, float("nan")]))
    doubled.insert(data.draw(st.integers(0, len(rows))), (sample, feature, value))
    batches = [batch_of(doubled[start : start + size]) for start in range(0, len(doubled), size)]
    with pytest.raises(WarehouseError, match=f"batch b7, sample s{sample}, feature f{feature} has more than one beta"):
        scattered(*batches)


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        (pa.int32(), [3, None, 2**24]),
        (pa.int64(), [3, None, -(2**24)]),
        (pa.uint8(), [3, None, 255]),
        (pa.float16(), [0.5, None, 2.0]),
        (pa.float64(), [0.1, None, -1e30]),
        (pa.float64(), [0.1, None, 1e-60]),
        (pa.decimal128(9, 4), [decimal.Decimal("0.1"), None, decimal.Decimal("12.5")]),
        (pa.decimal128(38, 0), [3, None, -(2**24)]),
        (pa.null(), [None, None, None]),
    ],
)
def test_values_of_any_number_type(kind: pa.DataType, values: list[Any]) -> None:
    if kind == pa.float16():
        values = [value if value is None else np.float16(value) for value in values]
    rows = [(sample, 1, value) for sample, value in enumerate(values)]
    done = scattered(batch_of(rows, kind))
    expected = np.array([np.nan if value is None else float(value) for value in values]).astype("float32")
    assert np.array_equal(done.values[:, 1], expected, equal_nan=True)
    assert done.without_value == values.count(None)


@pytest.mark.parametrize(
    ("kind", "value", "message"),
    [
        (pa.int32(), 2**24 + 1, "cannot hold its value 16777217"),
        (pa.decimal128(38, 0), 2**24 + 1, "cannot hold its value 16777217"),
        (pa.float64(), -1e300, "cannot hold its value -1e[+]300"),
        (pa.float32(), float("inf"), "sample s0, feature f1.* cannot hold its value inf"),
        (pa.float64(), float("-inf"), "sample s0, feature f1.* cannot hold its value -inf"),
        (pa.string(), "0.5", "of type string, not a number"),
        (pa.bool_(), True, "of type bool"),
    ],
)
def test_values_that_do_not_fit_are_refused(kind: pa.DataType, value: Any, message: str) -> None:
    with pytest.raises(BatchError, match=f"batch b7.*{message}"):  # to load the batch again fails again
        scattered(batch_of([(0, 1, value)], kind))


@pytest.mark.parametrize(("dtype", "largest"), [("float16", 2**11), ("float32", 2**24), ("float64", 2**53)])
def test_cells_of_any_float_type(dtype: str, largest: int) -> None:
    """Nothing passes through a narrower type, and what the type cannot hold is refused."""
    block = WideBlock("b7", "beta", ["s0"], FEATURES, dtype)
    done = scattered(batch_of([(0, 0, 0.1), (0, 1, None), (0, 3, float("nan"))], pa.float64()), block=block)
    expected = np.array([[0.1, np.nan, np.nan, np.nan, np.nan]]).astype(dtype)
    assert done.values.dtype == dtype
    np.testing.assert_array_equal(done.values, expected)
    assert done.values[:, 1:].tobytes() == expected[:, 1:].tobytes()
    assert (done.rows, done.without_value) == (3, 2)
    assert scattered(batch_of([(0, 2, largest)], pa.int64()), block=block).values[0, 2] == largest
    with pytest.raises(WarehouseError, match=f"feature f2: a cell of {dtype} cannot hold its value {2 * largest}"):
        scattered(batch_of([(0, 2, 2 * largest)], pa.int64()), block=block)
    with pytest.raises(WarehouseError, match="feature f0 has more than one beta row"):
        scattered(batch_of([(0, 0, 0.1), (0, 0, None)], pa.float64()), block=block)


@pytest.mark.parametrize("kind", [pa.int64(), pa.uint64(), pa.decimal128(38, 0)])
@pytest.mark.parametrize("others", [[2], [2, None]])
def test_the_first_whole_number_that_float64_rounds_is_refused(kind: pa.DataType, others: list[Any]) -> None:
    block = WideBlock("b7", "beta", ["s0"], FEATURES, "float64")
    rows = [(0, feature, value) for feature, value in enumerate([2**53, 2**53 + 1, *others])]
    with pytest.raises(WarehouseError, match="feature f1: a cell of float64 cannot hold its value 9007199254740993"):
        scattered(batch_of(rows, kind), block=block)


def test_a_value_that_does_not_fit_is_named() -> None:
    rows = batch_of([(0, 1, 1.0), (2, 3, 1e39)], pa.float64())
    with pytest.raises(WarehouseError, match="sample s2, feature f3"):
        scattered(rows)


@pytest.mark.parametrize("kind", [pa.int8(), pa.uint16(), pa.int64(), pa.uint64()])
def test_positions_of_any_whole_number_type(kind: pa.DataType) -> None:
    rows = pa.record_batch(
        {"sample": pa.array([2, 0, 1], kind), "feature": pa.array([4, 0, 1], kind), "value": pa.array([1.0, 2.0, 3.0])}
    )
    done = scattered(rows)
    assert [done.values[2, 4], done.values[0, 0], done.values[1, 1]] == [1, 2, 3]


def test_positions_beyond_32_bits_of_cells() -> None:
    # 3 x 2**31 cells would take 24 GB; the positions alone are what could overflow.
    from zarr_core.matrix.ingest.scatter import _flat_positions

    block = WideBlock("b", "beta", SAMPLES, range(2**31))  # type: ignore[arg-type]
    assert _flat_positions(batch_of([(2, 2**31 - 1, 0.5)]), block).tolist() == [3 * 2**31 - 1]


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ((1, 5, 0.5), "batch b7, sample s1, feature number 5 is not on the matrix's axis"),
        ((1, -1, 0.5), "batch b7, sample s1, feature number -1 is not on the matrix's axis"),
        ((3, 1, 0.5), "batch b7: a row of a sample that was not requested .number 3"),
        ((-1, 1, 0.5), "a sample that was not requested .number -1"),
        ((None, 1, 0.5), "a sample that was not requested .number None"),
    ],
)
def test_rows_from_outside_are_named(row: Row, message: str) -> None:
    with pytest.raises(WarehouseError, match=message):
        scattered(batch_of([*FIRST, row]))


def test_a_feature_outside_the_axis_is_named_by_its_id() -> None:
    outside = pa.array([None, None, None, "cg99"])
    with pytest.raises(WarehouseError, match="batch b7, sample s1, feature cg99 is not on the matrix's axis"):
        scattered(batch_of([*FIRST, (1, None, 0.5)], outside=outside))


def test_a_sample_without_rows_is_refused() -> None:
    with pytest.raises(WarehouseError, match="batch b7: no beta row of its sample s1 was returned"):
        scattered(batch_of([FIRST[0], FIRST[2]]))


def test_rows_that_change_between_two_readings_are_refused() -> None:
    readings = iter([[batch_of([*FIRST, FIRST[0]])], [batch_of(FIRST)]])
    with pytest.raises(WarehouseError, match="changed while they were read"):
        scatter(lambda: next(readings), BLOCK)


def test_rows_are_streamed() -> None:
    """Each record batch is let go before the next is made."""
    import weakref

    alive: list[weakref.ref[pa.RecordBatch]] = []

    def rows() -> Iterable[pa.RecordBatch]:
        for sample in range(len(SAMPLES)):
            batch = batch_of([(sample, 1, 0.5)])
            alive.append(weakref.ref(batch))
            yield batch
            del batch
            assert sum(ref() is not None for ref in alive) <= 1

    assert scatter(rows, BLOCK).rows == 3
