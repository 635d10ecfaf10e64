"""The HTML page of a benchmark report."""

from __future__ import annotations

from html import escape
from typing import Any

from zarr_core.benchmark import figures, wording
from zarr_core.benchmark.wording import readable_bytes, readable_points, readable_share
from zarr_core.reports.charts import as_svg
from zarr_core.reports.html import card, chart, document, head, numbers, pairs, problems, table


def render_page(report: dict[str, Any], picture: dict[str, Any] | None) -> str:
    """The report as one HTML document.

    Args:
        report: what ``report.json`` holds.
        picture: arguments of :func:`figures.sample_figure`, or None where the store has no surface scalar to show.
    """
    sections = [
        _head(report),
        _numbers(report),
        _problems(report),
        _picture(report, picture),
        _bytes(report),
        _throughput(report),
        _fields(report),
        _facts(report),
    ]
    return document(
        f"{report['store']['dataset_name']}: {wording.headline(report)}",
        sections,
        f"Measured {report['created']}. The same numbers for programs: report.json.",
    )


def _head(report: dict[str, Any]) -> str:
    store, equivalence = report["store"], report["equivalence"]
    before, share, after = wording.headline(report).partition(
        readable_share(report["reads"]["total"]["drawn"]["bytes"] / report["reads"]["total"]["pt"]["bytes"])
    )
    return head(
        f"{store['dataset_name']} · {store['samples']:,} samples · generation {store['generation']}",
        f"{escape(before)}<em>{escape(share)}</em>{escape(after)}",
        f"{wording.headline_detail(report)}.",
        wording.equivalence_sentence(report),
        equivalence["ok"],
    )


def _numbers(report: dict[str, Any]) -> str:
    reads, throughput, store = report["reads"], report["throughput"], report["store"]
    total = reads["total"]
    faster = throughput["drawn"]["samples_per_s"] / throughput["pt"]["samples_per_s"]
    cards = [
        (
            f"{total['pt']['bytes'] / total['drawn']['bytes']:.1f}x",
            "fewer bytes a training step than loading the .pt files",
        ),
        (
            wording.readable_count(total["drawn"]["requests"]),
            f"requests a sample for {len(reads['fields'])} fields, "
            f"{wording.readable_count(reads['first']['drawn']['requests'])} when a "
            "reader meets it first",
        ),
        (
            wording.stored_share(report),
            "of the source's size: "
            f"{readable_bytes(store['bytes_stored'])} stored for {readable_bytes(store['bytes_source'])} of .pt files",
        ),
        (
            f"{faster:.1f}x",
            f"the samples a second of the .pt files ({throughput['drawn']['samples_per_s']:,.0f} against "
            f"{throughput['pt']['samples_per_s']:,.0f})",
        ),
    ]
    return numbers(cards)


def _problems(report: dict[str, Any]) -> str:
    found = report["equivalence"]["problems"]
    if not found:
        return ""
    more = f"and {len(found) - 50} more, see report.json" if len(found) > 50 else ""
    return problems("What differs", more, found[:50])


def _picture(report: dict[str, Any], picture: dict[str, Any] | None) -> str:
    if picture is None:
        return ""
    svg = as_svg(figures.sample_figure(**picture))
    return card(
        f"One sample: {report['picture']}",
        "The points of a sample were shuffled when the store was written, so a contiguous run of chunks is a uniform "
        "subset of it: what training sees has the shape of the whole.",
        chart(svg, "surface of one sample, all points beside one draw"),
    )


def _bytes(report: dict[str, Any]) -> str:
    reads = report["reads"]
    return card(
        "Bytes a sample, by field",
        f"Mean of {reads['samples']} samples, counted below the reader. A .pt file counts as one request. The last "
        "line includes the metadata that is fetched when a reader meets a sample for the first time.",
        chart(as_svg(figures.bytes_chart(report)), "bytes per sample by field"),
        table(wording.BYTES_HEADER, wording.bytes_rows(report), strong=-2),
    )


def _throughput(report: dict[str, Any]) -> str:
    return card(
        "Samples a second",
        wording.throughput_note(report),
        chart(as_svg(figures.throughput_chart(report)), "samples per second"),
        table(wording.THROUGHPUT_HEADER, wording.throughput_rows(report)),
    )


def _fields(report: dict[str, Any]) -> str:
    fields = report["fields"]
    rows = [
        [name, field["dtype"], *(_numbers_text(field[key]) for key in ("mean", "std", "min", "max"))]
        for name, field in fields.items()
    ]
    return card(
        "What the fields hold",
        "Distribution of a uniform subset of the measured samples between the 0.1 and 99.9 percentiles, each component "
        "scaled to its own peak. Below: moments of every point of the measured samples.",
        chart(as_svg(figures.fields_chart(report)), "histograms of all fields"),
        table(("field", "stored as", "mean", "std", "min", "max"), rows),
    )


def _numbers_text(value: float | list[float] | None) -> str:
    if value is None:
        return "–"
    return "\n".join(f"{x:.4g}" for x in value) if isinstance(value, list) else f"{value:.4g}"


def _facts(report: dict[str, Any]) -> str:
    store = report["store"]
    points = ", ".join(f"{domain} {low:,} to {high:,}" for domain, (low, high) in store["points"].items())
    facts = {
        "store": store["root"],
        "dataset": f"{store['dataset_name']} ({store['dataset_kind']})",
        "samples": f"{store['samples']:,}"
        + (f", {store['quarantined']:,} in quarantine" if store["quarantined"] else ""),
        "generation": str(store["generation"]),
        "points a sample": points,
        "chunk": ", ".join(f"{domain} {n:,} points" for domain, n in store["chunk_points"].items()),
        "codec": store["codec"],
        "shuffle seed": str(store["shuffle_seed"]),
        "a draw": readable_points(report["reads"]["num_points"]),
    }
    return (
        '<div class="two">'
        + card("The store", "As its manifest has it.", pairs(facts))
        + card("The machine", "Ratios travel better than absolute times.", pairs(report["environment"]))
        + "</div>"
        + card("Measure again", "", f"<pre>{escape(report['command'])}</pre>")
    )
