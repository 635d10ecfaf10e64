"""Peak memory per feature, each step in a process of its own. ``benchmarks/matrix_memory.py`` measures 28 million."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from benchmarks.matrix_memory import append, create, load, measure, write_inputs
from zarr_core.matrix import WideMatrix
from zarr_core.warehouses import DuckDBWarehouse, join

FEATURES, SAMPLES = 1_000_000, 8


@pytest.mark.slow
def test_memory_is_bounded_by_names_and_batch(tmp_path: Path) -> None:
    write_inputs(tmp_path, FEATURES, SAMPLES, long=False)
    created, _ = measure(create, tmp_path, SAMPLES)
    # Measured: 39 bytes per feature and 73 MB for the reader of Parquet. Python strings take 70 bytes per name more.
    assert created < 50 * FEATURES + 90e6
    wide = SAMPLES * FEATURES * 4 * 2
    appended, _ = measure(append, tmp_path, SAMPLES)
    assert appended < 1.5 * wide  # measured: 1.04, the tables and a piece of a shard


def load_one_sample(root: Path) -> None:
    """Import and allocate what takes as much memory for one sample as for any number.

    From here on, features are searched on the axis, as for tens of millions of features.
    """
    join._JOINED_FEATURES = 0
    feature_ids = WideMatrix.open(root / "matrix").feature_ids
    with DuckDBWarehouse(f"{root}/long/*/*.parquet").unload({"b": ["s0"]}, ["beta"], feature_ids) as unloaded:
        assert sum(map(len, unloaded.rows("b", "beta"))) == len(feature_ids)


@pytest.mark.slow
def test_load_streams_the_rows(tmp_path: Path) -> None:
    features, samples = 400_000, 8
    write_inputs(tmp_path, features, samples, long=True, group=1 << 16)
    create(tmp_path, samples)
    loaded, _ = measure(load, tmp_path, samples, partial(load_one_sample, tmp_path))
    # Measured: the wide tables and 25 to 55 MB of DuckDB. All rows of a value together take 90 MB more.
    assert loaded < 1.5 * (samples * features * 4 * 2) + 60e6
