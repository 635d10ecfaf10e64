"""The benchmark of error bounds reads every store in turn, on samples that are too small to tell anything."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from benchmarks.error_bounds import FLOAT16, best_ratio, epoch_of, in_turns, rows_of, settings
from tests.helpers.small_source import KIND, write_source
from zarr_core.convert import convert


def test_stores_with_bounds_are_compared_with_float16(tmp_path: Path) -> None:
    source = write_source(tmp_path / "source")
    make = {}
    for number, (name, chosen) in enumerate(settings().items()):
        assert convert(KIND, tmp_path / str(number), root=source, **chosen).ok
        make[name] = partial(epoch_of, str(tmp_path / str(number)), 0, 1, {"collate": "list"})
    prepared: list[str] = []
    found = in_turns(make, 2, prepared.append)
    assert prepared == [*settings()] * 3, "the first round is left out"
    rows = rows_of(found, 3, "disk")
    assert rows[0][0] == f"disk: {FLOAT16}"
    assert rows[0][2] == 1
    assert best_ratio(rows) == max(row[2] for row in rows[1:])
