"""The HTML page of a shootout."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from zarr_core._util.units import format_size
from zarr_core.reports.charts import as_svg
from zarr_core.reports.templates import render
from zarr_core.shootout.candidates import OURS
from zarr_core.shootout.figures import rates_chart, waiting_chart

Row = Mapping[str, Any]


def render_page(report: dict[str, Any]) -> str:
    """The content of ``shootout.json`` as one HTML document."""
    rows, tiers, verdict = report["measurements"], list(report["tiers"]), report["verdict"]
    named = verdict["setting"]
    headline: str = verdict["headline"].partition(f", on {named['tier']}. ")[0]
    draws = [row for row in rows if row["reads"] == "draws"]
    plain = [row for row in draws if not row["workers"]]
    stores = [row for row in plain if row["format"] == OURS]
    loaders = _loaders(draws)
    figures = {
        "draws": rates_chart(plain, tiers, _format, "draws"),
        "samples": rates_chart([row for row in rows if row["reads"] == "samples"], tiers, _format, "whole samples"),
        "settings": rates_chart(stores, tiers, _settings, "settings"),
        "loaders": rates_chart(loaders, tiers, _loader, "loaders"),
        "waiting": waiting_chart(verdict["by_tier"]),
    }
    return render(
        "shootout/page.html.j2",
        report=report,
        verdict=verdict,
        headline=headline,
        where=named["tier"],
        cards=_cards(report, named),
        figures={name: figure and as_svg(figure) for name, figure in figures.items()},
        footprint=_footprint_table(report),
        measurements=_measurement_table(rows),
        tiers=_tier_table(report),
        workload=_workload_facts(report),
    )


def _format(row: Row) -> str:
    return str(row["format"])


def _settings(row: Row) -> str:
    return f"{row['codec']}, {row['chunk_points']:,} points"


def _loader(row: Row) -> str:
    more = "" if row["prefetch"] == 2 else f", prefetch_factor {row['prefetch']}"
    plural = "" if row["workers"] == 1 else "s"
    return f"{row['format']}, {row['workers']} worker{plural}{more}{', pinned' if row['pin'] else ''}"


def _loaders(draws: Sequence[Row]) -> list[Row]:
    """Settings that were also measured with workers."""

    def key(row: Row) -> tuple[Any, ...]:
        return row["tier"], row["format"], row["codec"], row["chunk_points"]

    with_workers = {key(row) for row in draws if row["workers"]}
    return [row for row in draws if key(row) in with_workers]


def _cards(report: dict[str, Any], named: Row) -> list[tuple[str, str]]:
    what = "draws" if named["reads"] == "draws" else "whole samples"
    cards = [(f"{named['median']:,.0f}", f"{what} per second on {named['tier']}, in batches of {report['batch_size']}")]
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
        name = f"{row['format']}, {_settings(row)}" if row["codec"] else row["format"]
        if name in seen or (row["codec"] and row["format"] != OURS):
            continue
        seen.add(name)
        inodes = row["inodes"]
        counts = [f"{row['objects']:.3g}", f"{inodes:.3g}", f"{inodes * samples:,.0f}"]
        rows.append([name, format_size(row["bytes"]), *counts])
    return [header, *rows]


def _measurement_table(rows: Sequence[Row]) -> list[list[str]]:
    header = ["setting", "tier", "reads", "per second", "quartiles", "first epoch", "requests per sample"]
    table = [
        [
            _loader(row) + (f", {_settings(row)}" if row["codec"] else ""),
            row["tier"],
            row["reads"],
            f"{row['median']:,.0f}",
            f"{row['low']:,.0f} to {row['high']:,.0f}",
            f"{row['first']:,.0f}" if row["first"] else "–",
            f"{row['requests']:.3g}" if row["requests"] is not None else "–",
        ]
        for row in sorted(rows, key=lambda row: (row["reads"], row["tier"], -row["median"]))
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
    points = ", ".join(f"{domain} {low:,} to {high:,}" for domain, (low, high) in facts["points"].items())
    drawn = ", ".join(f"{domain} {count:,}" for domain, count in facts["num_points"].items())
    return {
        "source": facts["source"],
        "samples measured": f"{facts['samples']:,}"
        + (f" of {facts['samples_total']:,}" if facts["samples_total"] else ""),
        "size": f"{format_size(facts['bytes_raw'])} uncompressed",
        "points per sample": points,
        "points per draw": drawn,
        "batch": f"{report['batch_size']} samples",
        "budget": f"{report['budget_seconds']:,.0f} s",
        **report["environment"],
    }
