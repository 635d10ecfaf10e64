"""The benchmark of error bounds reads every store in turn, on samples that are too small to tell anything."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np
import pytest

from benchmarks.disk_limit import can_limit_reads, limited_reads
from benchmarks.error_bounds import FLOAT16, best_ratio, convert_all, enlarged, epoch_of, in_turns, rows_of, settings
from tests.helpers.small_source import KIND, load_field, write_source
from zarr_core.convert import convert
from zarr_core.points.read.reader import ZarrChunkReader


def test_large_samples_have_each_point_ten_times(tmp_path: Path) -> None:
    source = write_source(tmp_path / "source")
    stores, samples = convert_all(enlarged(source, tmp_path / "large"), tmp_path / "stores", "packed")
    assert (list(stores), samples) == (list(settings()), 3)
    reader = ZarrChunkReader(stores[FLOAT16])
    values = reader.read_sample("run_1")["surface_pressure"]
    original = load_field(source, "run_1", "surface_pressure").astype(values.dtype)
    assert np.array_equal(np.sort(values[:, 0]), np.sort(np.repeat(original.reshape(-1), 10)))


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


@pytest.mark.skipif(not can_limit_reads(), reason="needs root and control groups of block devices (Linux, version 1)")
def test_a_disk_is_limited_while_the_context_lasts(tmp_path: Path) -> None:
    def group() -> str:
        (line,) = (line for line in Path("/proc/self/cgroup").read_text().splitlines() if ":blkio:" in line)
        return line.rpartition(":")[2]

    before = group()
    with limited_reads(tmp_path, 10**9):
        limit = Path("/sys/fs/cgroup/blkio") / group().lstrip("/") / "blkio.throttle.read_bps_device"
        assert limit.read_text().split()[1:] == ["1000000000"]
    assert group() == before
    assert not limit.exists()
