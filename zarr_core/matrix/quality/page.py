"""The HTML page of a quality report."""

from __future__ import annotations

from typing import Any

from zarr_core.matrix.quality import figures
from zarr_core.reports.charts import as_svg
from zarr_core.reports.templates import render

_MOST_SAMPLES = 200
_SAMPLE_NUMBERS = ("distance", "mean", "q05", "median", "q95", "coverage")


def render_page(report: dict[str, Any]) -> str:
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
        counted=_counted,
        svg=svg,
        cards=_cards(report) if batches else [],
        outliers=[
            f"{o['sample']} of {o['batch']} {o['reason']}: {o['found']:.4g}, batch median {o['usual']:.4g}"
            for o in report["outliers"]
        ],
        batch_rows=_batch_rows(report),
        sample_columns=("sample", "batch", "missing", *_SAMPLE_NUMBERS),
        sample_rows=_sample_rows(report),
        most_samples=_MOST_SAMPLES,
        most_batches=figures.MOST_BATCHES,
        without_coverage=without_coverage,
    )


def verdict(report: dict[str, Any]) -> str:
    """Whether samples stand out, in a few words."""
    far = {found["sample"] for found in report["outliers"]}
    return f"{_counted(len(far), 'sample')} far from the rest of the batch" if far else "no sample stands out"


def missing_share(report: dict[str, Any]) -> float:
    """Share of missing cells in all cells."""
    batches = report["batches"].values()
    return float(sum(batch["missing"] for batch in batches) / max(1, sum(batch["cells"] for batch in batches)))


def _cards(report: dict[str, Any]) -> list[tuple[str, str]]:
    """The large numbers, each with its caption."""
    batches = report["batches"].values()
    samples = [sample for batch in batches for sample in batch["samples"].values()]
    values = sum(sample["values"] for sample in samples)
    beyond = sum(batch["below"] + batch["above"] for batch in batches)
    missing = sum(sample["missing"] for sample in samples) / len(samples)
    cards = [
        (f"{values:,}", f"values of {report['value']}, {1 - missing_share(report):.1%} of the cells"),
        (f"{missing:.2%}", "of the features that its batch measures are missing in the mean sample"),
        (f"{beyond:,}", "values below 0 or above 1, stored unchanged"),
    ]
    covered = [batch["coverage"] for batch in batches if batch["coverage"]]
    if covered:
        mean = sum(c["mean"] * c["cells"] for c in covered) / sum(c["cells"] for c in covered)
        with_coverage = _counted(len(covered), "batch", "batches")
        cards.append((f"{mean:.1f}", f"reads per cell, in the {with_coverage} with coverage"))
    return cards


def _batch_rows(report: dict[str, Any]) -> list[list[str]]:
    rows = []
    for batch_id, batch in report["batches"].items():
        means = [sample["mean"] for sample in batch["samples"].values() if sample["mean"] is not None]
        shares = [f"{len(batch['samples']):,}", f"{batch['missing'] / batch['cells']:.1%}"]
        counts = [f"{number:,}" for number in batch["features"].values()]
        mean = f"{sum(means) / len(means):.4f}" if means else "–"
        coverage = f"{batch['coverage']['mean']:.1f}" if batch["coverage"] else "–"
        rows.append([batch_id, *shares, *counts, mean, coverage])
    return rows


def _sample_rows(report: dict[str, Any]) -> list[list[str]]:
    """Figures of each sample, the latest batch first."""
    return [
        [sample_id, batch_id, f"{sample['missing']:.2%}", *(_number(sample.get(name)) for name in _SAMPLE_NUMBERS)]
        for batch_id, batch in reversed(report["batches"].items())
        for sample_id, sample in batch["samples"].items()
    ]


def _counted(number: int, one: str, more: str = "") -> str:
    return f"{number:,} {one if number == 1 else more or one + 's'}"


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.4g}"
