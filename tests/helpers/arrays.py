"""Comparison of what readers return."""

from __future__ import annotations

import numpy as np


def assert_equal(one: dict[str, np.ndarray], other: dict[str, np.ndarray]) -> None:
    assert list(one) == list(other)
    for name, values in one.items():
        assert values.dtype == other[name].dtype
        np.testing.assert_array_equal(values, other[name])
