"""Resuming in the middle of a long epoch: milliseconds and memory until the first batch, wherever the run was.

``python -m benchmarks.resume``
"""

from __future__ import annotations

import time
import tracemalloc

from benchmarks import environment
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
    print(environment.describe())
    print(f"{SAMPLES:,} samples in batches of {BATCH}; at most 10 ms and 1 MB are wanted")
    for position in (0, SAMPLES // BATCH // 2, SAMPLES // BATCH - 1):
        resume(position)
        times = []
        for _ in range(20):
            started = time.perf_counter()
            resume(position)
            times.append(time.perf_counter() - started)
        tracemalloc.start()
        resume(position)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        print(
            f"at batch {position:6,}: median {sorted(times)[10] * 1e3:.2f} ms, worst {max(times) * 1e3:.2f} ms, "
            f"peak {peak / 1e6:.2f} MB"
        )


if __name__ == "__main__":
    main()
