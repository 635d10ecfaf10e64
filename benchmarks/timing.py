"""Timing of functions."""

from __future__ import annotations

import time
from collections.abc import Callable


def best_of(repeats: int, work: Callable[[], object], clock: Callable[[], float] = time.perf_counter) -> float:
    """Seconds of the fastest of several runs."""
    return best_in_turn(repeats, [work], clock)[0]


def best_in_turn(
    repeats: int, works: list[Callable[[], object]], clock: Callable[[], float] = time.perf_counter
) -> list[float]:
    """Seconds of the fastest run of each function. They take turns, so that other load affects all alike."""
    best = [float("inf")] * len(works)
    for _ in range(repeats):
        for number, work in enumerate(works):
            started = clock()
            work()
            best[number] = min(best[number], clock() - started)
    return best
