"""The HTML page of a shootout, and its figures."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from operator import itemgetter
from typing import Any

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from zarr_core._util.units import format_size
from zarr_core.reports.pages import DRAWN, FULL, MUTED, PT, STYLE, as_svg, bare_bars, render
from zarr_core.shootout.candidates import COLUMNS, LOSSY, OURS
from zarr_core.shootout.verdict import format_rate

Row = Mapping[str, Any]
_COLOURS = (DRAWN, FULL, PT, MUTED)


def render_page(report: dict[str, Any]) -> str:
    """The content of ``shootout.json`` as one HTML document."""
    facts, tiers, verdict = report["workload"], list(report["tiers"]), report["verdict"]
    named = verdict["setting"]
    words: dict[str, str] = facts["reads"]
    by_reads: dict[str, list[Row]] = defaultdict(list)
    for row in report["measurements"]:
        by_reads[row["reads"]].append(row)
    main = by_reads[named["reads"]]
    formats = {}
    for reads, text in words.items():
        figure = rates_chart(_by_the_trainer(by_reads[reads]), tiers, itemgetter("format"), text)
        if figure:
            formats[text] = as_svg(figure)
    stores = [row for row in _by_the_trainer(main) if row["format"] in (OURS, LOSSY)]
    figures = {
        "settings": rates_chart(stores, tiers, _settings, "settings"),
        "loaders": rates_chart(_loaders(main), tiers, _loader, "loaders"),
        "waiting": waiting_chart(verdict["by_tier"]),
    }
    return render(
        "shootout/page.html.j2",
        report=report,
        verdict=verdict,
        headline=verdict["headline"].partition(f", on {named['tier']}. ")[0],
        where=named["tier"],
        what=words[named["reads"]],
        unit=facts["unit"],
        cards=_cards(report, named, main),
        formats=formats,
        figures={name: figure and as_svg(figure) for name, figure in figures.items()},
        footprint=_footprint_table(report),
        measurements=_measurement_table(report),
        tiers=_tier_table(report),
        workload=_workload_facts(report),
    )


def _by_the_trainer(rows: Sequence[Row]) -> list[Row]:
    """Without workers and threads."""
    return [row for row in rows if not row["workers"] and not row["threads"]]


def _settings(row: Row) -> str:
    settings: str = row["settings"]
    return f"{settings}{LOSSY.removeprefix(OURS)}" if row["format"] == LOSSY else settings


def _loader(row: Row) -> str:
    return f"{row['format']}, {row['loader']}"


def _loaders(rows: Sequence[Row]) -> list[Row]:
    """Settings that were also measured with workers or threads."""
    candidate = itemgetter("tier", "format", "settings")
    compared = {candidate(row) for row in rows if row["workers"] or row["threads"]}
    return [row for row in rows if candidate(row) in compared]


def _cards(report: dict[str, Any], named: Row, rows: Sequence[Row]) -> list[tuple[str, str]]:
    what = report["workload"]["reads"][named["reads"]]
    rate = f"{what} per second on {named['tier']}, in batches of {report['batch_size']}"
    cards = [(format_rate(named["median"]), rate)]
    own = {OURS, COLUMNS, LOSSY}
    left_out = own if named["format"] in own else {named["format"], LOSSY}
    others = [row for row in rows if row["tier"] == named["tier"] and row["format"] not in left_out]
    if others:
        fastest = max(others, key=itemgetter("median"))
        times = f"{named['median'] / fastest['median']:.2f}x"
        cards.append((times, f"the speed of {fastest['format']} there, the fastest other format"))
    return [*cards, (format_size(named["bytes"]), f"per sample, in {named['inodes']:.3g} inodes")]


def _footprint_table(report: dict[str, Any]) -> list[list[str]]:
    samples = report["workload"]["samples_total"]
    header = ["format", "bytes per sample", "objects per sample", "inodes per sample", f"inodes of {samples:,} samples"]
    rows: dict[str, list[str]] = {}
    for row in report["measurements"]:
        name, inodes = row["format"], row["inodes"]
        if row["codec"]:
            if name not in (OURS, COLUMNS, LOSSY):  # reads the very files of ours
                continue
            name = f"{COLUMNS if name == COLUMNS else OURS}, {_settings(row)}"
        counts = [f"{row['objects']:.3g}", f"{inodes:.3g}", f"{inodes * samples:,.0f}"]
        rows.setdefault(name, [name, format_size(row["bytes"]), *counts])
    return [header, *rows.values()]


def _measurement_table(report: dict[str, Any]) -> list[list[str]]:
    facts = report["workload"]
    table = [["setting", "tier", "reads", "per second", "quartiles", "turns", "first epoch", "requests per item"]]
    for row in sorted(report["measurements"], key=lambda row: (row["reads"], row["tier"], -row["median"])):
        setting = f"{_loader(row)}, {_settings(row)}".removesuffix(", ")
        quartiles = f"{format_rate(row['low'])} to {format_rate(row['high'])}"
        first = format_rate(row["first"]) if row["first"] else "–"
        requests = f"{row['requests']:.3g}" if row["requests"] is not None else "–"
        where, reads, rate, turns = row["tier"], facts["reads"][row["reads"]], format_rate(row["median"]), row["turns"]
        table.append([setting, where, reads, rate, quartiles, str(turns or "–"), first, requests])
    return table


def _tier_table(report: dict[str, Any]) -> list[list[str]]:
    table = [["tier", "place", "bytes free", "inodes free", "first epoch", "written at"]]
    rates = report["copied_bytes_per_second"]
    for name, tier in report["tiers"].items():
        cold = "from the device" if tier["local"] else "from the service"
        if tier["local"] and not tier["dropped_from_cache"]:
            cold = "not measured: files stay in memory"
        free = tier.get("inodes_free")
        written = f"{format_size(rates[name])}/s" if name in rates else "–"
        size = format_size(tier["bytes_free"]) if "bytes_free" in tier else "–"
        table.append([name, tier["url"], size, f"{free:,}" if free else "–", cold, written])
    return table


def _workload_facts(report: dict[str, Any]) -> dict[str, str]:
    facts = report["workload"]
    return {
        "source": facts["source"],
        "samples measured": f"{facts['samples']:,} of {facts['samples_total']:,}",
        "size": f"{format_size(facts['bytes_raw'])} uncompressed",
        **facts["described"],
        "batch": f"{report['batch_size']} samples, in the stored dtypes, with one thread of torch",
        "budget": f"{report['budget_seconds']:,.0f} s",
        **report["environment"],
    }


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
