"""Resuming in the middle of a long epoch: milliseconds and memory until the first batch, wherever the run was.

``python -m benchmarks.resume``
"""

from __future__ import annotations

import argparse
import time
import tracemalloc

from benchmarks.result import Result, parse
from zarr_core.loader import EpochBatchSampler

SAMPLES = 1_000_000
BATCH = 64


def resume(position: int) -> None:
    """Make a sampler, load a state, take a batch."""
    sampler = EpochBatchSampler(SAMPLES, BATCH)
    sampler.load_state_dict(sampler.state_at(3, position))
    assert len(next(iter(sampler))) == BATCH


def main() -> None:
    """Measure at the start, in the middle and at the end."""
    parser = argparse.ArgumentParser(description=__doc__)
    result = Result("resume", "Resuming a long epoch", parse(parser))
    result.describe(f"{SAMPLES:,} samples in batches of {BATCH}, 20 times.")
    rows = []
    for position in (0, SAMPLES // BATCH // 2, SAMPLES // BATCH - 1):
        resume(position)
        times = []
        for _ in range(20):
            started = time.perf_counter()
            resume(position)
            times.append(1000 * (time.perf_counter() - started))
        tracemalloc.start()
        resume(position)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        rows.append((f"{position:,}", sorted(times)[10], max(times), peak / 1e6))
    result.add_table("Time to the first batch", ("at batch", "median, ms", "worst, ms", "peak, MB"), rows)
    result.add_target("worst time", max(row[2] for row in rows), "at most", 10, " ms")
    result.add_target("peak memory", max(row[3] for row in rows), "at most", 1, " MB")
    result.save()


if __name__ == "__main__":
    main()
