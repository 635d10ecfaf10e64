"""Figures of a shootout, from the content of ``shootout.json``."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from matplotlib import rc_context
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
    best: dict[tuple[str, str], Row] = {}
    for row in sorted(rows, key=lambda row: row["median"]):
        best[name(row), row["tier"]] = row
    if not best:
        return None
    fastest = {group: max(row["median"] for (g, _), row in best.items() if g == group) for group, _ in best}
    groups = sorted(fastest, key=lambda group: -fastest[group])
    with rc_context(STYLE):
        figure = Figure(figsize=(8.6, 0.5 + 0.3 * len(groups)), layout="constrained")
        # An axis of its own for each tier: rates of disks and buckets differ a hundredfold.
        for at, tier in enumerate(tiers):
            axes = figure.add_subplot(1, len(tiers), at + 1, label=f"{label} {tier}")
            present = [(place, best[group, tier]) for place, group in enumerate(groups) if (group, tier) in best]
            rates = [row["median"] for _, row in present]
            errors = [
                [row["median"] - row["low"] for _, row in present],
                [row["high"] - row["median"] for _, row in present],
            ]
            axes.barh(
                [place for place, _ in present],
                rates,
                height=0.66,
                color=_COLOURS[at % len(_COLOURS)],
                xerr=errors,
                error_kw={"ecolor": MUTED, "elinewidth": 1, "capsize": 2},
            )
            for place, row in present:
                axes.annotate(
                    format_rate(row["median"]),
                    (row["high"], place),
                    (6, 0),
                    textcoords="offset points",
                    va="center",
                    fontsize=8.5,
                    color=MUTED,
                )
            axes.set_xlim(0, 1.2 * max((row["high"] for _, row in present), default=1))
            bare_bars(axes, groups if not at else [""] * len(groups))
            if len(tiers) > 1:
                axes.set_title(tier, loc="left", fontsize=10, color=MUTED)
    return figure


def waiting_chart(by_tier: Mapping[str, Row]) -> Figure | None:
    """Milliseconds per sample of the best setting of each tier: decoding and copying, and waiting for storage."""
    bars = []
    for tier, row in by_tier.items():
        if not row["memory"]:
            continue
        decoding = 1000 / row["memory"]
        later = "each epoch" if row["cold"] else "later epochs"
        for epoch, rate in (("first epoch", row["first"]), (later, row["median"])):
            if rate:
                bars.append((f"{tier}, {epoch}", min(decoding, 1000 / rate), max(0.0, 1000 / rate - decoding)))
    if not bars:
        return None
    names, decoding_ms, waiting_ms = zip(*bars, strict=True)
    with rc_context(STYLE):
        figure = Figure(figsize=(8.6, 0.6 + 0.4 * len(bars)), layout="constrained")
        axes = figure.add_subplot(label="waiting")
        axes.barh(range(len(bars)), decoding_ms, height=0.6, color=FULL, label="decoding and copying")
        found = axes.barh(
            range(len(bars)), waiting_ms, left=decoding_ms, height=0.6, color=DRAWN, label="waiting for storage"
        )
        texts = [f"{one + other:.3g} ms" for _, one, other in bars]
        axes.bar_label(found, labels=texts, padding=5, fontsize=8.5, color=MUTED)
        axes.margins(x=0.14)
        bare_bars(axes, list(names))
        figure.legend(loc="outside upper left", ncols=2, frameon=False, handlelength=1, handleheight=1)
    return figure
