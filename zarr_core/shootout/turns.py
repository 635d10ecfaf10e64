"""The end of a shootout: the leading settings are measured again, in turns, and these rates decide."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import chain

from zarr_core.shootout.budget import Budget
from zarr_core.shootout.candidates import OURS
from zarr_core.shootout.measurement import Measurement, Measurements

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


def take_turns(groups: Sequence[Measurements], budget: Budget, measure: Callable[[Measurement, float], None]) -> None:
    """Measure leading settings in turn, and again those that cannot be told from the best of their kind.

    Turns meet the same load of the machine. Rates from before the turns do not count: the one that was measured at the
    quietest time would lead. Stores are compared with stores, since the best one is named, too. Every second turn is in
    reverse: what one leaves behind, such as workers that end, would otherwise always slow down the next.

    Args:
        groups: settings of each tier, important ones first: as many take part as three turns have time for, but at
            least two.
        budget: ends the turns; names what took no part in them.
        measure: is given a setting and the time at which the budget ends, and adds rates to its ``turns``.
    """
    finalists = _finalists(groups, budget)
    for turn in range(1, _TURNS + 1):
        for group in finalists:
            for m in group if turn % 2 else group[::-1]:
                name = f"again: {m.setting}, on {m.tier}"
                budget.take(name, name, _seconds(m), partial(measure, m), is_repeated=True)
        every = list(chain(*finalists))
        missing = [m for m in every if not m.turns]
        if missing:  # the budget is used, or one of them failed
            few = f"{len(missing)} of {len(every)} leading settings were not measured again"
            budget.left_out.append(("turns of the leading settings", f"{few}: the budget was used, or they failed"))
            return
        for m in every:
            m.rates, m.compared = m.turns, True
        if turn >= _TURNS_OF_ALL:
            for group in finalists:
                stores = group.where(format=OURS)
                for m in group:
                    rivals = stores if m.format == OURS else group
                    m.compared = m.high >= rivals.fastest[0].low
        finalists = [group.where(compared=True) for group in finalists]
        if max(map(len, finalists), default=0) <= 1:
            return


def _finalists(groups: Sequence[Measurements], budget: Budget) -> list[Measurements]:
    """As many of each group as three turns have time for."""
    finalists = [Measurements(group) for group in groups if group]
    while _TURNS_OF_ALL * sum(map(_seconds, chain(*finalists))) > budget.left:
        longest = max(finalists, key=len)
        if len(longest) <= 2:
            break
        m = longest.pop()
        reason = "the budget has no time for three turns of it"
        budget.left_out.append((f"turns of {m.setting}, on {m.tier}", reason))
    return finalists


def _seconds(m: Measurement) -> float:
    """What a turn of it is expected to take."""
    return max(m.took, _LEAST)
