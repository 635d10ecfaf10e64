"""Text of a benchmark report: headline, console tables, Markdown summary, readable numbers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from zarr_core._util.command_line import table
from zarr_core._util.units import format_size

# The three ways to get a training sample, in the order of every table and figure.
WAYS = ("pt", "full", "drawn")


def readable_share(share: float) -> str:
    """A ratio as a percentage with at least two significant digits: ``9.2 %``, ``64 %``."""
    return f"{100 * share:.2g} %" if share < 0.0995 else f"{100 * share:.0f} %"


def readable_count(mean: float) -> str:
    """A mean count with at most one decimal: ``7``, ``14.6``."""
    return f"{mean:.1f}".removesuffix(".0")


def readable_points(num_points: Mapping[str, int]) -> str:
    """``4,096 surface + 4,096 volume points``."""
    return " + ".join(f"{n:,} {domain}" for domain, n in num_points.items()) + " points"


def way_names(report: Mapping[str, Any]) -> dict[str, str]:
    """Names of the three ways in this report."""
    return {
        "pt": ".pt files, then subsample",
        "full": "store, whole sample",
        "drawn": f"store, {readable_points(report['reads']['num_points'])}",
    }


def headline(report: Mapping[str, Any]) -> str:
    """The main result in one sentence."""
    total = report["reads"]["total"]
    share = total["drawn"]["bytes"] / total["pt"]["bytes"]
    return f"A training step reads {readable_share(share)} of the bytes"


def headline_detail(report: Mapping[str, Any]) -> str:
    """The byte counts behind the headline's percentage."""
    total = report["reads"]["total"]
    return (
        f"{format_size(total['drawn']['bytes'])} instead of {format_size(total['pt']['bytes'])} of .pt files "
        f"for a sample of {readable_points(report['reads']['num_points'])}, in "
        f"{readable_count(total['drawn']['requests'])} requests"
    )


def equivalence_sentence(report: Mapping[str, Any]) -> str:
    """Whether the measured samples equal their source files."""
    equivalence = report["equivalence"]
    if equivalence["ok"]:
        samples = equivalence["samples"]
        return (
            f"{'All ' if samples > 1 else ''}{samples} checked {'samples equal' if samples > 1 else 'sample equals'} "
            f"the source, {equivalence['how']}"
        )
    problems = equivalence["problems"]
    return f"{len(problems)} problem{'s' * (len(problems) > 1)} found when comparing the store with its source"


def stored_share(report: Mapping[str, Any]) -> str:
    """Stored bytes of the measured samples as a share of their source files."""
    return readable_share(report["store"]["bytes_stored"] / report["store"]["bytes_source"])


def throughput_note(report: Mapping[str, Any]) -> str:
    """How the samples per second were measured, and how to read them."""
    measured = report["throughput"]
    note = (
        f"One process, one thread, one sample after another, {measured['pt']['reads']} reads per way in turns; "
        f"{'files in the page cache' if report['local'] else 'over the network'}. The first and last way return the "
        "same number of points."
    )
    if report["local"] and measured["drawn"]["samples_per_s"] < measured["pt"]["samples_per_s"]:
        size = format_size(report["reads"]["total"]["pt"]["bytes"])
        note += (
            f" Copying {size} within memory takes less time than the reader's work per request; on a network, the "
            "bytes and requests above determine the time."
        )
    return note


def bytes_rows(report: Mapping[str, Any]) -> list[list[str]]:
    """Bytes and requests per sample: one row per field, the sum, and the first read of a sample."""
    reads = report["reads"]
    lines = [*reads["fields"].items(), ("sum", reads["total"]), ("first read of a sample", reads["first"])]
    rows = []
    for name, ways in lines:
        cells = [name]
        for way in WAYS:
            cells += [format_size(ways[way]["bytes"]), readable_count(ways[way]["requests"])]
        share = readable_share(ways["drawn"]["bytes"] / ways["pt"]["bytes"]) if ways["pt"]["bytes"] else "–"
        rows.append([*cells, share])
    return rows


BYTES_HEADER = ("per sample", ".pt", "requests", "whole", "requests", "drawn", "requests", "drawn / .pt")


def throughput_rows(report: Mapping[str, Any]) -> list[list[str]]:
    """Samples per second and milliseconds per sample, one row per way."""
    names, measured = way_names(report), report["throughput"]
    return [
        [
            names[way],
            f"{measured[way]['samples_per_s']:,.1f}",
            f"{measured[way]['p50_ms']:.2f}",
            f"{measured[way]['p99_ms']:.2f}",
            f"{measured[way]['samples_per_s'] / measured['pt']['samples_per_s']:.2f}x",
        ]
        for way in WAYS
    ]


THROUGHPUT_HEADER = ("one process, one thread", "samples/s", "p50 ms", "p99 ms", "relative to .pt")


def console_text(report: Mapping[str, Any]) -> str:
    """The report for a terminal."""
    environment = ", ".join(f"{key} {value}" for key, value in report["environment"].items())
    parts = [
        equivalence_sentence(report) + ("" if report["equivalence"]["ok"] else ":"),
        *(f"  {problem}" for problem in report["equivalence"]["problems"]),
        "",
        table([BYTES_HEADER, *bytes_rows(report)]),
        "",
        table([THROUGHPUT_HEADER, *throughput_rows(report)]),
        "",
        f"environment: {environment}",
        f"{headline(report)}: {headline_detail(report)}.",
    ]
    return "\n".join(parts)


def headline_markdown(report: Mapping[str, Any]) -> str:
    """A summary of less than 1,000 characters, which Dagster renders in place."""
    names, total, measured = way_names(report), report["reads"]["total"], report["throughput"]
    store = report["store"]
    lines = [
        f"**{headline(report)}.** {equivalence_sentence(report)}.",
        "",
        "| per sample | bytes | requests | samples/s | p50 ms |",
        "|:--|--:|--:|--:|--:|",
        *(
            f"| {names[way]} | {format_size(total[way]['bytes'])} | {readable_count(total[way]['requests'])} "
            f"| {measured[way]['samples_per_s']:,.0f} | {measured[way]['p50_ms']:.1f} |"
            for way in WAYS
        ),
        "",
        f"{store['samples']:,} samples, generation {store['generation']}, {store['codec']}: "
        f"{stored_share(report)} of the source's size.",
    ]
    return "\n".join(lines)
