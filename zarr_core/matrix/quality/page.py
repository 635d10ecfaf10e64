"""The HTML page of a quality report."""

from __future__ import annotations

from statistics import fmean

from zarr_core._util.units import format_count
from zarr_core.matrix.quality import figures
from zarr_core.matrix.quality.measure import Report, missing_share
from zarr_core.reports.charts import as_svg
from zarr_core.reports.templates import render

_MOST_SAMPLES = 200
_OUTLIER = "{sample} of {batch} {reason}: {found:.4g}, batch median {usual:.4g}"
_SAMPLE_NUMBERS = ("distance", "mean", "q05", "median", "q95", "coverage")


def render_page(report: Report) -> str:
    """The report as one HTML document.

    Args:
        report: the content of ``quality.json``.
    """
    batches = report["batches"]
    without_coverage = [name for name, batch in batches.items() if not batch["coverage"]]
    has_coverage = report["coverage"] is not None and len(without_coverage) < len(batches)
    svg = {}
    if batches:
        svg["distributions"] = as_svg(figures.distributions(report))
        svg["missing"] = as_svg(figures.missingness(report))
        svg["samples"] = as_svg(figures.samples_chart(report))
        if has_coverage:
            svg["coverage"] = as_svg(figures.coverage_chart(report))
    return render(
        "matrix/quality/page.html.j2",
        report=report,
        missing_share=missing_share(report),
        verdict=verdict(report),
        counted=format_count,
        svg=svg,
        cards=_cards(report) if batches else [],
        outliers=list(map(_OUTLIER.format_map, report["outliers"])),
        batch_rows=_batch_rows(report),
        sample_columns=("sample", "batch", "missing", *_SAMPLE_NUMBERS),
        sample_rows=_sample_rows(report),
        most_samples=_MOST_SAMPLES,
        most_batches=figures.MOST_BATCHES,
        without_coverage=without_coverage,
    )


def verdict(report: Report) -> str:
    """Whether samples stand out, in a few words."""
    far = {found["sample"] for found in report["outliers"]}
    return f"{format_count(len(far), 'samples')} far from the rest of the batch" if far else "no sample stands out"


def _cards(report: Report) -> list[tuple[str, str]]:
    """The large numbers, each with its caption."""
    values = beyond = covered = cells = 0
    reads = 0.0
    missing = []
    for batch in report["batches"].values():
        beyond += batch["below"] + batch["above"]
        for sample in batch["samples"].values():
            values += sample["values"]
            missing.append(sample["missing"])
        if batch["coverage"]:
            covered += 1
            cells += batch["coverage"]["cells"]
            reads += batch["coverage"]["mean"] * batch["coverage"]["cells"]
    cards = [
        (f"{values:,}", f"values of {report['value']}, {1 - missing_share(report):.1%} of the cells"),
        (f"{fmean(missing):.2%}", "of the features that its batch measures are missing in the mean sample"),
        (f"{beyond:,}", "values below 0 or above 1, stored unchanged"),
    ]
    if covered:
        with_coverage = format_count(covered, "batches")
        cards.append((f"{reads / cells:.1f}", f"reads per cell, in the {with_coverage} with coverage"))
    return cards


def _batch_rows(report: Report) -> list[list[str]]:
    rows = []
    for batch_id, batch in report["batches"].items():
        means = [sample["mean"] for sample in batch["samples"].values() if sample["mean"] is not None]
        row = [batch_id, f"{len(batch['samples']):,}", f"{batch['missing'] / batch['cells']:.1%}"]
        row += map("{:,}".format, batch["features"].values())
        row.append(f"{fmean(means):.4f}" if means else "–")
        row.append(f"{batch['coverage']['mean']:.1f}" if batch["coverage"] else "–")
        rows.append(row)
    return rows


def _sample_rows(report: Report) -> list[list[str]]:
    """Figures of each sample, the latest batch first."""
    rows = []
    for batch_id, batch in reversed(report["batches"].items()):
        for sample_id, sample in batch["samples"].items():
            row = [sample_id, batch_id, f"{sample['missing']:.2%}"]
            row += map(_number, map(sample.get, _SAMPLE_NUMBERS))
            rows.append(row)
    return rows


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.4g}"
