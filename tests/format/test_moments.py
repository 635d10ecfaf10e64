"""Moments of fields: what rounding can make of them, and what it cannot."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from zarr_core.format.moments import FieldMoments, MomentsAccumulator
from zarr_core.points.store.group import recorded_moments

#: Offset and spread of a component: planes, constants, and offsets much larger than the spread.
COMPONENTS = st.tuples(
    st.floats(-6e4, 6e4, width=16),
    st.sampled_from([0.0, 0.0, 2.0**-24, 1e-7, 1e-3, 1.0, 100.0]),
)


def in_blocks(values: np.ndarray, rows: int) -> FieldMoments:
    accumulator = MomentsAccumulator()
    for start in range(0, len(values), rows):
        accumulator.add(values[start : start + rows])
    return accumulator.result()


@pytest.mark.slow
@given(
    components=st.lists(COMPONENTS, min_size=1, max_size=3),
    n=st.sampled_from([1, 2, 7, 1000, 20_000]),
    rows=st.sampled_from([1, 3, 64, 4096, 100_000]),
    dtype=st.sampled_from(["float16", "float32", "float64"]),
    seed=st.integers(0, 99),
)
@example(components=[(0.1, 0.0), (1e4 / 3, 0.0)], n=20_000, rows=3, dtype="float32", seed=0)
@example(components=[(0.3, 0.0)], n=1, rows=1, dtype="float16", seed=0)
def test_the_order_of_sums_makes_no_difference(
    components: list[tuple[float, float]], n: int, rows: int, dtype: Any, seed: int
) -> None:
    rows = max(rows, n // 500)
    rng = np.random.default_rng(seed)
    columns = [offset + spread * rng.uniform(-1, 1, n) for offset, spread in components]
    values = np.clip(np.stack(columns, axis=1), -65504, 65504).astype(dtype)
    recorded = recorded_moments({"moments": {"field": in_blocks(values, n).to_json()}})["field"]
    merged = [FieldMoments.of(part) for part in np.array_split(rng.permutation(values), min(n, 5))]
    total = merged[0]
    for part in merged[1:]:
        total = total.merge(part)
    for taken in (in_blocks(values, rows), total):
        assert taken.differing(recorded) == []


@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize("offset", [0.0, 0.1, 1000.0])
@pytest.mark.parametrize("spread", [0.0, 1.0])
def test_one_other_value_makes_a_difference(dtype: Any, offset: float, spread: float) -> None:
    values = (offset + spread * np.random.default_rng(0).uniform(-1, 1, (5000, 1))).astype(dtype)
    changed = values.copy()
    changed[17] = changed[17] * np.asarray(1.01, dtype) + np.asarray(0.01, dtype)
    found = FieldMoments.of(changed).differing(FieldMoments.of(values))
    assert {"mean", "m2", "log_mean", "log_m2"} <= set(found)
    assert FieldMoments.of(values[1:]).differing(FieldMoments.of(values)) == ["count"]
