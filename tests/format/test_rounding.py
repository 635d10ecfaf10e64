"""The measured error of a stored dtype."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from zarr_core.format.rounding import RoundingAccumulator, RoundingError
from zarr_core.points.store.group import recorded_rounding


def measured(source: np.ndarray, dtype: str, blocks: int = 1) -> RoundingError:
    accumulator = RoundingAccumulator(source.shape[1])
    stored = source.astype(dtype)
    for part, whole in zip(np.array_split(stored, blocks), np.array_split(source, blocks), strict=True):
        accumulator.add(part, np.ascontiguousarray(whole - part))
    return accumulator.result(stored.astype(np.float64).std(axis=0, ddof=min(len(stored) - 1, 1)))


@pytest.mark.parametrize("rows", [1, 5, 1023, 1024, 5000])
@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_it_is_the_error_of_every_value(rows: int, dtype: str) -> None:
    source = np.random.default_rng(rows).normal(size=(rows, 3)) * (1, 30, 1e-7)
    stored = source.astype(dtype).astype(np.float64)
    found = measured(source, dtype, blocks=min(rows, 3))
    with np.errstate(divide="ignore", invalid="ignore"):
        std = stored.std(axis=0, ddof=min(rows - 1, 1))
        expected = np.sqrt(((stored - source) ** 2).mean(axis=0)) / std, np.abs(stored - source).max(axis=0) / std
    np.testing.assert_allclose(found.rms, expected[0], rtol=1e-6)
    np.testing.assert_allclose(found.max, expected[1], rtol=1e-6)
    np.testing.assert_array_equal(found.zeroed, ((stored == 0) & (source != 0)).mean(axis=0))


def test_zeros_of_the_source_are_not_lost_values() -> None:
    source = np.array([0.0, 0.0, -0.0, 1e-9, -1e-9, 3.0, 4.0, 5.0])[:, None]
    assert measured(source, "float16").zeroed[0] == 2 / 5


def test_it_survives_json() -> None:
    error = measured(np.random.default_rng(0).normal(size=(100, 2)), "float16")
    again = recorded_rounding({"rounding": {"field": error.to_json()}})["field"]
    np.testing.assert_allclose(again.rms, error.rms, rtol=1e-3)
    assert not error.exceeds(again)
    assert RoundingError(error.rms * 1.01, error.max, error.zeroed).exceeds(again)


@pytest.mark.parametrize("magnitude", [1e-40, 1e-30, 1e-12, 1e12, 1e24, 1e36])
def test_squares_that_are_no_float32_numbers_are_summed(magnitude: float) -> None:
    stored, difference = np.ones((700, 2), np.float32), np.full((700, 2), magnitude, np.float32)
    accumulator = RoundingAccumulator(2)
    accumulator.add(stored, difference)
    np.testing.assert_allclose(accumulator.result(np.ones(2)).rms, difference[0], rtol=1e-5)


@pytest.mark.parametrize(
    "data", [{}, {"rms": 1}, {"rms": ["x"], "max": [0], "zeroed": [0]}, {"rms": [0], "max": [0, 1], "zeroed": [0]}]
)
def test_invalid_records_are_refused(data: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="rounding: field"):
        recorded_rounding({"rounding": {"field": data}})
