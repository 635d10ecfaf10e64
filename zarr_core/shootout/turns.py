"""The end of a shootout: the leading settings are measured again, in turns, and these rates decide."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence

from zarr_core.shootout.candidates import OURS
from zarr_core.shootout.planner import Step
from zarr_core.shootout.verdict import Measurement, best_of

# How many settings of a tier are compared at most, and how close to the fastest they are.
_FINALISTS, _CLOSE = 8, 0.25
# Turns of all of them, and turns at most.
_TURNS_OF_ALL, _TURNS = 3, 10
# Seconds that are planned for a turn of a setting at least.
_LEAST = 0.01


def leaders(found: Sequence[Measurement]) -> list[Measurement]:
    """The leading settings of a tier and its leading stores, the fastest of either first."""
    leading = _leading(found)
    stores = _leading([m for m in found if m.format == OURS])
    ordered: list[Measurement] = []
    for m in [*leading[:1], *stores[:1], *leading, *stores]:
        if m not in ordered:
            ordered.append(m)
    return ordered


def _leading(found: Sequence[Measurement]) -> list[Measurement]:
    leading = sorted(found, key=lambda m: -m.median)[:_FINALISTS]
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

    def begin(self, groups: Sequence[Sequence[Measurement]], end: float) -> Iterable[Step]:
        """The first turn; later ones follow from it.

        Args:
            groups: settings of each tier, important ones first: as many take part as three turns have time for, but at
                least two.
            end: time at which the turns end.
        """
        finalists = [list(group) for group in groups if group]
        while _TURNS_OF_ALL * sum(_seconds(m) for group in finalists for m in group) > end - self._clock():
            longest = max(finalists, key=len)
            if len(longest) <= 2:
                break
            m = longest.pop()
            self.left_out.append((f"turns of {m.setting}, on {m.tier}", "the budget has no time for three turns of it"))
        yield from self.steps(finalists, 1)

    def steps(self, finalists: list[list[Measurement]], turn: int) -> Iterable[Step]:
        """One turn of all, and the choice of the next one."""
        for number, group in enumerate(finalists):
            for place, m in enumerate(group if turn % 2 else group[::-1]):
                yield self._again((5, turn, number, place), m)

        def next_turn(_: float) -> Iterable[Step]:
            every = [m for group in finalists for m in group]
            if missing := [m for m in every if not m.turns]:  # the budget is used, or one of them failed
                few = f"{len(missing)} of {len(every)} leading settings were not measured again"
                self.left_out.append(("turns of the leading settings", f"{few}: the budget was used, or they failed"))
                return
            for m in every:
                m.rates, m.compared = m.turns, True
            for group in finalists if turn >= _TURNS_OF_ALL else ():
                for m in group:
                    m.compared = m.high >= best_of(n for n in group if m.format != OURS or n.format == OURS).low
            left = [[m for m in group if m.compared] for group in finalists]
            if turn < _TURNS and any(len(group) > 1 for group in left):
                yield from self.steps(left, turn + 1)

        yield Step((5, turn, len(finalists)), "choice of finalists", "choice", 0, next_turn)

    def _again(self, priority: tuple[int, ...], m: Measurement) -> Step:
        def work(end: float) -> None:
            m.turns += self._measure(m, end)

        name = f"again: {m.setting}, on {m.tier}"
        return Step(priority, name, name, _seconds(m), work, repeats=True)


def _seconds(m: Measurement) -> float:
    """What a turn of it is expected to take."""
    return max(m.took, _LEAST)
