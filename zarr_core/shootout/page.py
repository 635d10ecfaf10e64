"""The HTML page of a shootout."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from zarr_core._util.units import format_size
from zarr_core.reports.charts import as_svg
from zarr_core.reports.templates import render
from zarr_core.shootout.candidates import COLUMNS, OURS
from zarr_core.shootout.figures import rates_chart, waiting_chart
from zarr_core.shootout.verdict import format_rate

Row = Mapping[str, Any]


def render_page(report: dict[str, Any]) -> str:
    """The content of ``shootout.json`` as one HTML document."""
    rows, tiers, verdict = report["measurements"], list(report["tiers"]), report["verdict"]
    named = verdict["setting"]
    headline: str = verdict["headline"].partition(f", on {named['tier']}. ")[0]
    words: dict[str, str] = report["workload"]["reads"]
    plain = [row for row in rows if not row["workers"]]
    main = [row for row in rows if row["reads"] == named["reads"]]
    stores = [row for row in main if row["format"] == OURS and not row["workers"]]
    formats = {
        text: rates_chart([row for row in plain if row["reads"] == reads], tiers, _format, text)
        for reads, text in words.items()
    }
    figures = {
        "settings": rates_chart(stores, tiers, partial(_settings, report["workload"]["unit"]), "settings"),
        "loaders": rates_chart(_loaders(main), tiers, _loader, "loaders"),
        "waiting": waiting_chart(verdict["by_tier"]),
    }
    return render(
        "shootout/page.html.j2",
        report=report,
        verdict=verdict,
        headline=headline,
        where=named["tier"],
        what=words[named["reads"]],
        unit=report["workload"]["unit"],
        cards=_cards(report, named),
        formats={text: as_svg(figure) for text, figure in formats.items() if figure},
        figures={name: figure and as_svg(figure) for name, figure in figures.items()},
        footprint=_footprint_table(report),
        measurements=_measurement_table(report),
        tiers=_tier_table(report),
        workload=_workload_facts(report),
    )


def _format(row: Row) -> str:
    return str(row["format"])


def _settings(unit: str, row: Row) -> str:
    return f"{row['codec']}, {row[f'chunk_{unit}']:,} {unit}"


def _loader(row: Row) -> str:
    more = "" if row["prefetch"] == 2 else f", prefetch_factor {row['prefetch']}"
    plural = "" if row["workers"] == 1 else "s"
    return f"{row['format']}, {row['workers']} worker{plural}{more}{', pinned' if row['pin'] else ''}"


def _loaders(rows: Sequence[Row]) -> list[Row]:
    """Settings that were also measured with workers."""

    def key(row: Row) -> tuple[Any, ...]:
        return (
            row["tier"],
            row["format"],
            *(value for name, value in row.items() if name.startswith(("codec", "chunk_"))),
        )

    with_workers = {key(row) for row in rows if row["workers"]}
    return [row for row in rows if key(row) in with_workers]


def _cards(report: dict[str, Any], named: Row) -> list[tuple[str, str]]:
    what = report["workload"]["reads"][named["reads"]]
    cards = [
        (format_rate(named["median"]), f"{what} per second on {named['tier']}, in batches of {report['batch_size']}")
    ]
    plain = [
        row
        for row in report["measurements"]
        if row["reads"] == named["reads"] and row["format"] == ".pt" and row["tier"] == named["tier"]
    ]
    if plain and named["format"] != ".pt":
        cards.append((f"{named['median'] / plain[0]['median']:.1f}x", "the speed of .pt files there"))
    cards.append((format_size(named["bytes"]), f"per sample, in {named['inodes']:.3g} inodes"))
    return cards


def _footprint_table(report: dict[str, Any]) -> list[list[str]]:
    samples = report["workload"]["samples_total"] or report["workload"]["samples"]
    header = ["format", "bytes per sample", "objects per sample", "inodes per sample", f"inodes of {samples:,} samples"]
    rows, seen = [], set()
    for row in report["measurements"]:
        name = f"{row['format']}, {_settings(report['workload']['unit'], row)}" if row["codec"] else row["format"]
        if name in seen or (row["codec"] and row["format"] not in (OURS, COLUMNS)):
            continue
        seen.add(name)
        inodes = row["inodes"]
        counts = [f"{row['objects']:.3g}", f"{inodes:.3g}", f"{inodes * samples:,.0f}"]
        rows.append([name, format_size(row["bytes"]), *counts])
    return [header, *rows]


def _measurement_table(report: dict[str, Any]) -> list[list[str]]:
    facts = report["workload"]
    header = ["setting", "tier", "reads", "per second", "quartiles", "first epoch", "requests per item"]
    table = [
        [
            _loader(row) + (f", {_settings(facts['unit'], row)}" if row["codec"] else ""),
            row["tier"],
            facts["reads"][row["reads"]],
            format_rate(row["median"]),
            f"{format_rate(row['low'])} to {format_rate(row['high'])}",
            format_rate(row["first"]) if row["first"] else "–",
            f"{row['requests']:.3g}" if row["requests"] is not None else "–",
        ]
        for row in sorted(report["measurements"], key=lambda row: (row["reads"], row["tier"], -row["median"]))
    ]
    return [header, *table]


def _tier_table(report: dict[str, Any]) -> list[list[str]]:
    header = ["tier", "place", "bytes free", "inodes free", "first epoch"]
    rates = report["copied_bytes_per_second"]
    rows = []
    for name, tier in report["tiers"].items():
        cold = "from the service" if not tier["local"] else "from the device"
        if tier["local"] and not tier["dropped_from_cache"]:
            cold = "not measured: files stay in memory"
        free = tier.get("inodes_free")
        written = f"{format_size(rates[name])}/s" if name in rates else "–"
        size = format_size(tier["bytes_free"]) if "bytes_free" in tier else "–"
        rows.append([name, tier["url"], size, f"{free:,}" if free else "–", cold, written])
    return [[*header, "written at"], *rows]


def _workload_facts(report: dict[str, Any]) -> dict[str, str]:
    facts = report["workload"]
    return {
        "source": facts["source"],
        "samples measured": f"{facts['samples']:,}"
        + (f" of {facts['samples_total']:,}" if facts["samples_total"] else ""),
        "size": f"{format_size(facts['bytes_raw'])} uncompressed",
        **facts["described"],
        "batch": f"{report['batch_size']} samples",
        "budget": f"{report['budget_seconds']:,.0f} s",
        **report["environment"],
    }
