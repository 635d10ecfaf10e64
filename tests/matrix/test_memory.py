"""Peak memory per feature, each step in a process of its own. ``benchmarks/matrix_memory.py`` measures 28 million."""

from __future__ import annotations

from pathlib import Path

from benchmarks.matrix_memory import measure, write_inputs

FEATURES, SAMPLES = 1_000_000, 8


def test_memory_is_bounded_by_names_and_batch(tmp_path: Path) -> None:
    write_inputs(tmp_path, FEATURES, SAMPLES, long=False)
    created, _ = measure("create", tmp_path, SAMPLES)
    # Measured: 39 bytes per feature and 73 MB for the reader of Parquet. Python strings take 70 bytes per name more.
    assert created < 50 * FEATURES + 90e6
    wide = SAMPLES * FEATURES * 4 * 2
    appended, _ = measure("append", tmp_path, SAMPLES)
    assert appended < 1.5 * wide  # measured: 1.04, the tables and a piece of a shard
