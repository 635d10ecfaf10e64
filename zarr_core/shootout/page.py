"""The HTML page of a shootout."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from functools import partial
from operator import itemgetter
from typing import Any

from zarr_core._util.units import format_size
from zarr_core.reports.charts import as_svg
from zarr_core.reports.templates import render
from zarr_core.shootout.candidates import COLUMNS, LOSSY, OURS, Loader, store_settings
from zarr_core.shootout.case import number_of_samples
from zarr_core.shootout.figures import rates_chart, waiting_chart
from zarr_core.shootout.verdict import format_rate

Row = Mapping[str, Any]


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
        "settings": rates_chart(stores, tiers, partial(_settings, facts["unit"]), "settings"),
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


def _settings(unit: str, row: Row) -> str:
    settings = store_settings(row["codec"], row[f"chunk_{unit}"], unit, row["layout"])
    return f"{settings}{LOSSY.removeprefix(OURS)}" if row["format"] == LOSSY else settings


def _loader(row: Row) -> str:
    return f"{row['format']}, {Loader(row['workers'], row['prefetch'], row['pin'], row['threads']).words}"


def _loaders(rows: Sequence[Row]) -> list[Row]:
    """Settings that were also measured with workers or threads."""
    settings = ("tier", "format", "codec", "chunk_points", "chunk_features", "layout")
    groups: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        groups.setdefault(tuple(map(row.get, settings)), []).append(row)
    found: list[Row] = []
    for group in groups.values():
        if len(group) > len(_by_the_trainer(group)):
            found += group
    return found


def _cards(report: dict[str, Any], named: Row, rows: Sequence[Row]) -> list[tuple[str, str]]:
    what = report["workload"]["reads"][named["reads"]]
    rate = f"{what} per second on {named['tier']}, in batches of {report['batch_size']}"
    cards = [(format_rate(named["median"]), rate)]
    for row in rows:
        if row["format"] == ".pt" != named["format"] and row["tier"] == named["tier"]:
            cards.append((f"{named['median'] / row['median']:.1f}x", "the speed of .pt files there"))
            break
    return [*cards, (format_size(named["bytes"]), f"per sample, in {named['inodes']:.3g} inodes")]


def _footprint_table(report: dict[str, Any]) -> list[list[str]]:
    samples = number_of_samples(report["workload"])
    header = ["format", "bytes per sample", "objects per sample", "inodes per sample", f"inodes of {samples:,} samples"]
    rows: dict[str, list[str]] = {}
    for row in report["measurements"]:
        name, inodes = row["format"], row["inodes"]
        if row["codec"]:
            if name not in (OURS, COLUMNS, LOSSY):  # reads the very files of ours
                continue
            name = COLUMNS if name == COLUMNS else OURS
            name += f", {_settings(report['workload']['unit'], row)}"
        counts = [f"{row['objects']:.3g}", f"{inodes:.3g}", f"{inodes * samples:,.0f}"]
        rows.setdefault(name, [name, format_size(row["bytes"]), *counts])
    return [header, *rows.values()]


def _measurement_table(report: dict[str, Any]) -> list[list[str]]:
    facts = report["workload"]
    table = [["setting", "tier", "reads", "per second", "quartiles", "first epoch", "requests per item"]]
    for row in sorted(report["measurements"], key=lambda row: (row["reads"], row["tier"], -row["median"])):
        setting = _loader(row)
        if row["codec"]:
            setting += f", {_settings(facts['unit'], row)}"
        quartiles = f"{format_rate(row['low'])} to {format_rate(row['high'])}"
        first = format_rate(row["first"]) if row["first"] else "–"
        requests = f"{row['requests']:.3g}" if row["requests"] is not None else "–"
        rate = format_rate(row["median"])
        table.append([setting, row["tier"], facts["reads"][row["reads"]], rate, quartiles, first, requests])
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
    of_all = f" of {facts['samples_total']:,}" if facts["samples_total"] else ""
    return {
        "source": facts["source"],
        "samples measured": f"{facts['samples']:,}{of_all}",
        "size": f"{format_size(facts['bytes_raw'])} uncompressed",
        **facts["described"],
        "batch": f"{report['batch_size']} samples",
        "budget": f"{report['budget_seconds']:,.0f} s",
        **report["environment"],
    }
