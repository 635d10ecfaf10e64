"""The time that a shootout may take, and what there was no time for."""

from __future__ import annotations

import time
from collections.abc import Callable

from zarr_core.errors import ZarrCoreError


class Budget:
    """Takes measurements within a budget of time.

    A measurement is taken only if what those of its kind took, or its guess, still fits. So the budget is exceeded at
    most by what one takes longer than the longest of its kind before. Less important ones get time if those before
    them may have a part of it only.

    Args:
        seconds: the budget.
        clock: monotonic time in seconds.
        show: called before each measurement with its name and the seconds left.

    Attributes:
        left_out: name of each measurement that was not taken or failed, and the reason.
        stop: time of the clock at which the measurements that follow end.
    """

    def __init__(
        self,
        seconds: float,
        clock: Callable[[], float] = time.monotonic,
        show: Callable[[str, float], None] = lambda *_: None,
    ) -> None:
        self._clock, self._show = clock, show
        self._start = clock()
        self._end = self.stop = self._start + seconds
        self._is_part = False
        self._took: dict[str, float] = {}
        self.left_out: list[tuple[str, str]] = []

    def allow(self, part: float) -> None:
        """Let the measurements that follow take place until this part of the time is over."""
        self.stop = self._start + part * (self._end - self._start)
        self._is_part = part < 1

    @property
    def left(self) -> float:
        """Seconds for the measurements that follow."""
        return max(self.stop - self._clock(), 0.0)

    def take(
        self, name: str, kind: str, guess: float, measure: Callable[[float], object], is_repeated: bool = False
    ) -> None:
        """Take a measurement if it fits. An error of this library or of the system is the reason in ``left_out``.

        Args:
            name: for the progress bar and ``left_out``.
            kind: those of one kind take about equally long.
            guess: seconds that the first of its kind may take.
            measure: is given the time of the clock at which to end.
            is_repeated: whether it repeats an earlier one: it is not named if it does not fit.
        """
        began, needed = self._clock(), self._took.get(kind, guess)
        if needed > self.stop - began:
            if not is_repeated:
                reason = f"about {needed:.1f} s are needed, and {self.left:.1f} s of the budget were left"
                reason += " for this kind of measurement" * self._is_part
                self.left_out.append((name, reason))
            return
        self._show(name, self._end - began)
        try:
            measure(self.stop)
        except (ZarrCoreError, OSError, MeasurementError) as error:
            self.left_out.append((name, " ".join(str(error).split())))
        self._took[kind] = max(self._took.get(kind, 0.0), self._clock() - began)


class MeasurementError(Exception):
    """A format could not be written or read; the message names the cause."""
