"""Arrays of any library become plain ones with the same meaning, or are refused."""

from __future__ import annotations

import re

import numpy as np
import pytest

from tests.helpers.odd_arrays import ODD, odd_arrays
from zarr_core._util.plain_arrays import check_labels, plain_array, plain_tensor

PLAIN = np.arange(1, 7, dtype=np.float32).reshape(3, 2)
LABELS = {"table in another order", "columns in another order"}


@pytest.mark.parametrize("name", ODD)
def test_an_array_becomes_a_plain_one_of_the_same_meaning_or_is_refused(name: str) -> None:
    make, expected = odd_arrays(PLAIN)[name]
    values = make()
    if name in LABELS:
        with pytest.raises(ValueError, match=r"^is a \w+ with labels such as 9, which are not"):
            check_labels(values, tuple, tuple)
        return
    check_labels(values, tuple, tuple)
    if expected is None:
        with pytest.raises(ValueError, match="^(is|has) "):
            plain_array(values)
        return
    found = plain_array(values, masked_is_nan=True)
    assert type(found) is np.ndarray
    assert found.dtype == np.float32
    assert found.dtype.isnative
    np.testing.assert_array_equal(found, expected)
    if "masked" in name and np.isnan(expected).any():
        with pytest.raises(ValueError, match=r"is a masked array, and its mask is not stored \([12] of"):
            plain_array(values)


def test_whole_numbers_have_no_missing_value() -> None:
    with pytest.raises(ValueError, match="1 of 2 values"):
        plain_array(np.ma.array([1, 2], mask=[True, False]), masked_is_nan=True)
    np.testing.assert_array_equal(plain_array([1.0, np.ma.masked], masked_is_nan=True), [1.0, np.nan])


def test_the_message_names_the_way_out() -> None:
    odd = odd_arrays(PLAIN)
    assert list(odd) == list(ODD)
    for name, message in {
        "sparse": "is a csr_array of object, not an array of numbers; pass values.toarray()",
        "structured": "is a structured array of value, not an array of numbers; pass one of its fields, such as values",
        "unit": "is a WithUnit, and a plain array does not keep what this class means; pass np.asarray(values)",
        "quantity": "has a unit, which is not stored; pass values.magnitude",
        "table with missing truth values": "pass values.to_numpy(dtype, na_value=float('nan'))",
    }.items():
        with pytest.raises(ValueError, match=re.escape(message)):
            plain_array(odd[name][0]())


def test_tensors_only() -> None:
    with pytest.raises(ValueError, match="is a MaskedArray, not a tensor"):
        plain_tensor(np.ma.array([1.0]))


def test_labels_must_be_those_of_the_axis_in_its_order() -> None:
    import pandas as pd
    import xarray as xr

    rows, columns = ["a", "b", "c"], ["x", "y"]
    for table in (
        pd.DataFrame(PLAIN, rows, columns),
        pd.DataFrame(PLAIN, columns=columns),
        pd.DataFrame(PLAIN)[1:],
        xr.DataArray(PLAIN, {"s": rows, "f": columns}, ("s", "f")),
        xr.DataArray(PLAIN, {"s": [0, 1, 2]}, ("s", "f")),
        PLAIN,
        PLAIN.tolist(),
    ):
        check_labels(table, lambda: rows, lambda: columns)
    for table in (
        pd.DataFrame(PLAIN, rows[::-1], columns),
        pd.DataFrame(PLAIN, rows, columns[::-1]),
        xr.DataArray(PLAIN, {"s": rows[::-1]}, ("s", "f")),
        pd.Series(PLAIN[:, 0], [5, 3, 4]),
    ):
        with pytest.raises(ValueError, match=r"is a \w+ with labels such as .*select them in this order.*to_numpy"):
            check_labels(table, lambda: rows, lambda: columns)
