"""The end of a shootout: the leading settings are measured again, in turns, and these rates decide."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from itertools import chain

from zarr_core.shootout.candidates import OURS
from zarr_core.shootout.measurement import Measurement, Measurements
from zarr_core.shootout.planner import Step

# How many settings of a tier are compared at most, and how close to the fastest they are.
_FINALISTS, _CLOSE = 8, 0.25
# Turns of all of them, and turns at most.
_TURNS_OF_ALL, _TURNS = 3, 10
# Seconds that are planned for a turn of a setting at least.
_LEAST = 0.01


def leaders(found: Measurements) -> Measurements:
    """The leading settings of a tier and its leading stores, the fastest of either first."""
    leading = _leading(found)
    stores = _leading(found.where(format=OURS))
    ordered = Measurements()
    for m in [*leading[:1], *stores[:1], *leading, *stores]:
        if m not in ordered:
            ordered.append(m)
    return ordered


def _leading(found: Measurements) -> list[Measurement]:
    leading = found.fastest[:_FINALISTS]
    return [m for m in leading if m.median >= _CLOSE * leading[0].median]


class Turns:
    """Measures leading settings in turn, and again those that cannot be told from the best of their kind.

    Turns meet the same load of the machine. Rates from before the turns do not count: the one that was measured at the
    quietest time would lead. Stores are compared with stores, since the best one is named, too. Every second turn is in
    reverse: what one leaves behind, such as workers that end, would otherwise always slow down the next.

    Args:
        measure: is given a setting and the time at which the budget ends, and returns rates.
        clock: monotonic time in seconds.

    Attributes:
        left_out: what took no part in the turns, and the reason.
    """

    def __init__(
        self, measure: Callable[[Measurement, float], list[float]], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._measure, self._clock = measure, clock
        self.left_out: list[tuple[str, str]] = []

    def begin(self, groups: Sequence[Measurements], end: float) -> Iterable[Step]:
        """The first turn; later ones follow from it.

        Args:
            groups: settings of each tier, important ones first: as many take part as three turns have time for, but at
                least two.
            end: time at which the turns end.
        """
        finalists = [Measurements(group) for group in groups if group]
        while _TURNS_OF_ALL * sum(map(_seconds, chain(*finalists))) > end - self._clock():
            longest = max(finalists, key=len)
            if len(longest) <= 2:
                break
            m = longest.pop()
            self.left_out.append((f"turns of {m.setting}, on {m.tier}", "the budget has no time for three turns of it"))
        yield from self.steps(finalists, 1)

    def steps(self, finalists: Sequence[Measurements], turn: int) -> Iterable[Step]:
        """One turn of all, and the choice of the next one."""
        for number, group in enumerate(finalists):
            for place, m in enumerate(group if turn % 2 else group[::-1]):
                yield self._again((5, turn, number, place), m)
        yield Step((5, turn, len(finalists)), "choice of finalists", lambda _: self._next_turn(finalists, turn))

    def _next_turn(self, finalists: Sequence[Measurements], turn: int) -> Iterable[Step]:
        every = list(chain(*finalists))
        missing = [m for m in every if not m.turns]
        if missing:  # the budget is used, or one of them failed
            few = f"{len(missing)} of {len(every)} leading settings were not measured again"
            self.left_out.append(("turns of the leading settings", f"{few}: the budget was used, or they failed"))
            return
        for m in every:
            m.rates, m.compared = m.turns, True
        if turn >= _TURNS_OF_ALL:
            for group in finalists:
                stores = group.where(format=OURS)
                for m in group:
                    rivals = stores if m.format == OURS else group
                    m.compared = m.high >= rivals.fastest[0].low
        left = [group.where(compared=True) for group in finalists]
        if turn < _TURNS and max(map(len, left), default=0) > 1:
            yield from self.steps(left, turn + 1)

    def _again(self, priority: tuple[int, ...], m: Measurement) -> Step:
        def work(end: float) -> None:
            m.turns += self._measure(m, end)

        name = f"again: {m.setting}, on {m.tier}"
        return Step(priority, name, work, name, _seconds(m), repeats=True)


def _seconds(m: Measurement) -> float:
    """What a turn of it is expected to take."""
    return max(m.took, _LEAST)
