"""Runs measurements in the order of their importance until a budget of time is used."""

from __future__ import annotations

import heapq
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from zarr_core.errors import ZarrCoreError


@dataclass(frozen=True)
class Step:
    """One measurement, or the choice of the next ones.

    Attributes:
        priority: steps run in ascending order.
        name: for the progress bar and the list of what was not measured.
        work: is given the time at which the budget for it ends, and returns further steps.
        kind: steps of one kind take about equally long.
        guess: seconds that the first of its kind may take; 0 for a choice, which is always made.
        repeats: whether it repeats an earlier measurement: it is not named if it does not fit.
    """

    priority: tuple[int, ...]
    name: str
    work: Callable[[float], Iterable[Step] | None]
    kind: str = "choice"
    guess: float = 0.0
    repeats: bool = False


class Planner:
    """Runs steps within a budget.

    A step runs only if what steps of its kind took, or its guess, still fits into the budget. So the budget is exceeded
    at most by what one step takes longer than the longest of its kind before. Steps of a priority may have a part of
    the time only, so that less important ones fit, too.

    Args:
        seconds: the budget.
        clock: monotonic time in seconds.
        show: called before each step with its name, the numbers of steps done and known, and the seconds left.
        parts: part of the time that is left when :meth:`run` is called, after which no more steps of a priority run,
            by the first number of the priority; 1 for others.

    Attributes:
        not_run: name of each step that did not run or failed, and the reason.
    """

    def __init__(
        self,
        seconds: float,
        clock: Callable[[], float] = time.monotonic,
        show: Callable[[str, int, int, float], None] = lambda *_: None,
        parts: Mapping[int, float] = MappingProxyType({}),
    ) -> None:
        self._clock, self._show, self._parts = clock, show, parts
        self.end = clock() + seconds
        self.not_run: list[tuple[str, str]] = []
        self._queue: list[tuple[tuple[int, ...], int, Step]] = []
        self._added = self._done = 0
        self._took: dict[str, float] = {}

    def add(self, steps: Iterable[Step]) -> None:
        """Add steps to be run."""
        for step in steps:
            heapq.heappush(self._queue, (step.priority, self._added, step))
            self._added += 1

    def run(self) -> None:
        """Run all steps that fit. An error of this library or of the system in a step is the reason in ``not_run``."""
        start = self._clock()
        while self._queue:
            step = heapq.heappop(self._queue)[-1]
            began, part = self._clock(), self._parts.get(step.priority[0], 1)
            stop = self.end if part == 1 else start + part * (self.end - start)
            needed = self._took.get(step.kind, step.guess)
            if step.guess and needed > stop - began:
                if not step.repeats:
                    left = max(stop - began, 0)
                    reason = f"about {needed:.1f} s are needed, and {left:.1f} s of the budget were left"
                    reason += " for this kind of measurement" * (part < 1)
                    self.not_run.append((step.name, reason))
                continue
            self._show(step.name, self._done, self._added, self.end - began)
            try:
                self.add(step.work(stop) or ())
            except (ZarrCoreError, OSError, MeasurementError) as error:
                self.not_run.append((step.name, " ".join(str(error).split())))
            self._done += 1
            self._took[step.kind] = max(self._took.get(step.kind, 0.0), self._clock() - began)


class MeasurementError(Exception):
    """A format could not be written or read; the message names the cause."""
