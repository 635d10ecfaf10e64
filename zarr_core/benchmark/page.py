"""The HTML page of a benchmark report."""

from __future__ import annotations

from typing import Any

from zarr_core._util.units import format_size
from zarr_core.benchmark import figures, wording
from zarr_core.benchmark.wording import readable_count, readable_points, readable_share
from zarr_core.reports.charts import as_svg
from zarr_core.reports.templates import render


def render_page(report: dict[str, Any], picture: dict[str, Any] | None) -> str:
    """The report as one HTML document.

    Args:
        report: the content of ``report.json``.
        picture: arguments of :func:`figures.sample_figure`; None if no sample has a scalar on its surface.
    """
    total = report["reads"]["total"]
    share = readable_share(total["drawn"]["bytes"] / total["pt"]["bytes"])
    return render(
        "benchmark/page.html.j2",
        report=report,
        headline=wording.headline(report).partition(share),
        headline_detail=wording.headline_detail(report),
        equivalence=wording.equivalence_sentence(report),
        cards=_cards(report),
        figures={
            "sample": as_svg(figures.sample_figure(**picture)) if picture else None,
            "bytes": as_svg(figures.bytes_chart(report)),
            "throughput": as_svg(figures.throughput_chart(report)),
            "fields": as_svg(figures.fields_chart(report)),
        },
        bytes_table=[wording.BYTES_HEADER, *wording.bytes_rows(report)],
        throughput_table=[wording.THROUGHPUT_HEADER, *wording.throughput_rows(report)],
        throughput_note=wording.throughput_note(report),
        fields_table=_fields_table(report["fields"]),
        store_facts=_store_facts(report),
    )


def _cards(report: dict[str, Any]) -> list[tuple[str, str]]:
    """The large numbers with their captions."""
    reads, throughput, store = report["reads"], report["throughput"], report["store"]
    total = reads["total"]
    faster = throughput["drawn"]["samples_per_s"] / throughput["pt"]["samples_per_s"]
    return [
        (
            f"{total['pt']['bytes'] / total['drawn']['bytes']:.1f}x",
            "fewer bytes per training step than loading the .pt files",
        ),
        (
            readable_count(total["drawn"]["requests"]),
            f"requests per sample for {len(reads['fields'])} fields, "
            f"{readable_count(reads['first']['drawn']['requests'])} at the "
            "first read of a sample",
        ),
        (
            wording.stored_share(report),
            "of the source's size: "
            f"{format_size(store['bytes_stored'])} stored for {format_size(store['bytes_source'])} of .pt files",
        ),
        (
            f"{faster:.1f}x",
            f"the samples per second of the .pt files ({throughput['drawn']['samples_per_s']:,.0f} instead of "
            f"{throughput['pt']['samples_per_s']:,.0f})",
        ),
    ]


def _fields_table(fields: dict[str, Any]) -> list[list[str]]:
    """Header and one row per field, with the components of a vector on lines of their own."""
    columns = {"mean": "mean", "std": "std", "min": "min", "max": "max", "rms_error": "RMS error / std"}
    rows = [[name, field["dtype"], *(_moment(field.get(key)) for key in columns)] for name, field in fields.items()]
    return [["field", "stored as", *columns.values()], *rows]


def _moment(value: float | list[float] | None) -> str:
    if value is None:
        return "–"
    return "\n".join(f"{x:.4g}" for x in value) if isinstance(value, list) else f"{value:.4g}"


def _store_facts(report: dict[str, Any]) -> dict[str, str]:
    store = report["store"]
    points = ", ".join(f"{domain} {low:,} to {high:,}" for domain, (low, high) in store["points"].items())
    return {
        "store": store["root"],
        "dataset": f"{store['dataset_name']} ({store['dataset_kind']})",
        "samples": f"{store['samples']:,}"
        + (f", {store['quarantined']:,} in quarantine" if store["quarantined"] else ""),
        "generation": str(store["generation"]),
        "points per sample": points,
        "chunk": ", ".join(f"{domain} {n:,} points" for domain, n in store["chunk_points"].items()),
        "codec": store["codec"],
        "shuffle seed": str(store["shuffle_seed"]),
        "points per draw": readable_points(report["reads"]["num_points"]),
    }
