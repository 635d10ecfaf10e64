"""The benchmark of the two layouts runs, on samples that are too small to tell anything."""

from __future__ import annotations

from pathlib import Path

from benchmarks.layouts import LAYOUTS, measure_reads, measure_small
from benchmarks.synthetic import make_source


def test_every_layout_is_measured(tmp_path: Path) -> None:
    reads = measure_reads(tmp_path, samples=1, points=20_000, rounds=1)
    small = measure_small(make_source(tmp_path / "small", 2, 100), tmp_path, rounds=1)
    for measured in (*reads, small):
        assert measured.seconds.keys() == set(LAYOUTS)
        assert measured.ratio > 0
        assert len(measured.row(1)) == 6
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "large", "large-directory", "large-packed", "small", "synthetic.yaml"
    ]  # fmt: skip
