"""The HTML page of a benchmark report."""

from __future__ import annotations

from typing import Any

from zarr_core.benchmark import figures
from zarr_core.benchmark.wording import Wording
from zarr_core.reports.charts import as_svg
from zarr_core.reports.templates import render


def render_page(report: dict[str, Any], picture: dict[str, Any] | None) -> str:
    """The report as one HTML document.

    Args:
        report: the content of ``report.json``.
        picture: arguments of :func:`figures.sample_figure`; None if no sample has a scalar on its surface.
    """
    words = Wording(report)
    return render(
        "benchmark/page.html.j2",
        report=report,
        words=words,
        headline=words.headline.partition(words.share),
        figures={
            "sample": as_svg(figures.sample_figure(**picture)) if picture else None,
            "bytes": as_svg(figures.bytes_chart(report)),
            "throughput": as_svg(figures.throughput_chart(report)),
            "fields": as_svg(figures.fields_chart(report)),
        },
    )
