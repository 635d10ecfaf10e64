"""Figures of a shootout, from the content of ``shootout.json``."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from zarr_core.reports.charts import DRAWN, FULL, MUTED, PT, STYLE, bare_bars
from zarr_core.shootout.verdict import format_rate

_COLOURS = (DRAWN, FULL, PT, MUTED)
Row = Mapping[str, Any]


def rates_chart(rows: Sequence[Row], tiers: Sequence[str], name: Callable[[Row], str], label: str) -> Figure | None:
    """Samples per second with quartiles as error bars: a row per name, a column per tier.

    Args:
        rows: measurements; of two with the same name and tier, the faster one is shown.
        tiers: names of the tiers.
        name: of a measurement's group.
        label: tells the figure from others on the page.

    Returns:
        None if there are no rows.
    """
    best: dict[str, dict[str, Row]] = {}
    for row in sorted(rows, key=lambda row: -row["median"]):
        best.setdefault(name(row), {}).setdefault(row["tier"], row)
    if not best:
        return None
    with rc_context(STYLE):
        figure = Figure(figsize=(8.6, 0.5 + 0.3 * len(best)), layout="constrained")
        # An axis of its own for each tier: rates of disks and buckets differ a hundredfold.
        for at, tier in enumerate(tiers):
            axes = figure.add_subplot(1, len(tiers), at + 1, label=f"{label} {tier}")
            longest = 0.0
            for place, of_group in enumerate(best.values()):
                if tier in of_group:
                    _add_bar(axes, place, of_group[tier], _COLOURS[at % len(_COLOURS)])
                    longest = max(longest, of_group[tier]["high"])
            axes.set_xlim(0, 1.2 * longest or 1.2)
            bare_bars(axes, [""] * len(best) if at else list(best))
            if len(tiers) > 1:
                axes.set_title(tier, loc="left", fontsize=10, color=MUTED)
    return figure


def _add_bar(axes: Axes, place: int, row: Row, colour: str) -> None:
    """The rate of a measurement with its quartiles."""
    median, low, high = row["median"], row["low"], row["high"]
    quartiles = {"ecolor": MUTED, "elinewidth": 1, "capsize": 2}
    axes.barh(place, median, height=0.66, color=colour, xerr=[[median - low], [high - median]], error_kw=quartiles)
    axes.annotate(
        format_rate(median), (high, place), (6, 0), textcoords="offset points", va="center", fontsize=8.5, color=MUTED
    )


def waiting_chart(by_tier: Mapping[str, Row]) -> Figure | None:
    """Milliseconds per sample of the best setting of each tier: decoding and copying, and waiting for storage."""
    names, decoding, waiting, texts = [], [], [], []
    for tier, row in by_tier.items():
        later = "each epoch" if row["cold"] else "later epochs"
        for epoch, rate in (("first epoch", row["first"]), (later, row["median"])):
            if rate and row["memory"]:
                names.append(f"{tier}, {epoch}")
                decoding.append(min(1000 / row["memory"], 1000 / rate))
                waiting.append(1000 / rate - decoding[-1])
                texts.append(f"{1000 / rate:.3g} ms")
    if not names:
        return None
    with rc_context(STYLE):
        figure = Figure(figsize=(8.6, 0.6 + 0.4 * len(names)), layout="constrained")
        axes = figure.add_subplot(label="waiting")
        places = range(len(names))
        axes.barh(places, decoding, height=0.6, color=FULL, label="decoding and copying")
        found = axes.barh(places, waiting, left=decoding, height=0.6, color=DRAWN, label="waiting for storage")
        axes.bar_label(found, labels=texts, padding=5, fontsize=8.5, color=MUTED)
        axes.margins(x=0.14)
        bare_bars(axes, names)
        figure.legend(loc="outside upper left", ncols=2, frameon=False, handlelength=1, handleheight=1)
    return figure
