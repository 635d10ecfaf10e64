"""The HTML page of a quality report."""

from __future__ import annotations

from typing import Any

from zarr_core.matrix.quality import figures
from zarr_core.reports.charts import as_svg
from zarr_core.reports.html import card, chart, document, head, numbers, pairs, problems, table

_MOST_SAMPLES = 200


def render_page(report: dict[str, Any]) -> str:
    """The report, as ``quality.json`` holds it, as one HTML document."""
    sections = [_head(report), *(_body(report) if report["batches"] else [])]
    return document(
        f"Quality of {report['url']}",
        sections,
        f"Measured {report['created']}. The same numbers for programs: quality.json.",
    )


def verdict(report: dict[str, Any]) -> str:
    """Whether samples stand out, in a few words."""
    far = {found["sample"] for found in report["outliers"]}
    return f"{_counted(len(far), 'sample')} far from the rest of the batch" if far else "no sample stands out"


def missing_share(report: dict[str, Any]) -> float:
    """Of all cells."""
    batches = report["batches"].values()
    return float(sum(batch["missing"] for batch in batches) / max(1, sum(batch["cells"] for batch in batches)))


def _body(report: dict[str, Any]) -> list[str]:
    return [
        _numbers(report),
        _outliers(report),
        _batches(report),
        _distributions(report),
        _missing(report),
        _samples(report),
        _coverage(report),
        _facts(report),
    ]


def _head(report: dict[str, Any]) -> str:
    eyebrow = f"wide matrix · {report['value']} · generation {report['generation']}"
    title = f"<em>{report['samples']:,}</em> samples of {report['features']:,} features"
    if not report["batches"]:
        return head(eyebrow, title, "Nothing has been loaded yet.", "nothing to object to", True)
    lead = (
        f"{_counted(len(report['batches']), 'batch', 'batches')}; {missing_share(report):.1%} of the cells are missing."
    )
    return head(eyebrow, title, lead, verdict(report), not report["outliers"])


def _numbers(report: dict[str, Any]) -> str:
    batches = report["batches"].values()
    samples = [sample for batch in batches for sample in batch["samples"].values()]
    values = sum(sample["values"] for sample in samples)
    beyond = sum(batch["below"] + batch["above"] for batch in batches)
    cards = [
        (f"{values:,}", f"values of {report['value']}, {1 - missing_share(report):.1%} of the cells"),
        (
            f"{sum(sample['missing'] for sample in samples) / len(samples):.2%}",
            "of what its batch measures is missing, in the mean sample",
        ),
        (f"{beyond:,}", "values below 0 or above 1, kept as they came"),
    ]
    covered = [batch["coverage"] for batch in batches if batch["coverage"]]
    if covered:
        mean = sum(c["mean"] * c["cells"] for c in covered) / sum(c["cells"] for c in covered)
        cards.append(
            (
                f"{mean:.1f}",
                f"reads a cell, in the {_counted(len(covered), 'batch', 'batches')} that tell their coverage",
            )
        )
    return numbers(cards)


def _outliers(report: dict[str, Any]) -> str:
    if not report["outliers"]:
        return ""
    found = [
        f"{o['sample']} of {o['batch']} {o['reason']}: {o['found']:.4g}, usual there is {o['usual']:.4g}"
        for o in report["outliers"]
    ]
    more = f" The first 50 of {len(found)}; all are in quality.json." if len(found) > 50 else ""
    note = "More than five robust standard deviations from the median of the batch, and by an amount that matters."
    return problems("Samples that stand out", note + more, found[:50])


def _batches(report: dict[str, Any]) -> str:
    rows = []
    for batch_id, batch in report["batches"].items():
        means = [sample["mean"] for sample in batch["samples"].values() if sample["mean"] is not None]
        coverage = f"{batch['coverage']['mean']:.1f}" if batch["coverage"] else "–"
        mean = f"{sum(means) / len(means):.4f}" if means else "–"
        counts = [f"{number:,}" for number in batch["features"].values()]
        rows.append(
            [
                batch_id,
                f"{len(batch['samples']):,}",
                f"{batch['missing'] / batch['cells']:.1%}",
                *counts,
                mean,
                coverage,
            ]
        )
    header = ("batch", "samples", "missing", "in every sample", "in some", "in none", "mean", "coverage")
    return card(
        "Batches",
        "Missing: of all features of the axis. Then features by whether samples of the batch have a value of them, the "
        "mean value, and the mean coverage in reads.",
        table(header, rows),
    )


def _distributions(report: dict[str, Any]) -> str:
    return card(
        f"How {report['value']} is distributed",
        "Each batch over all batches together (grey), with its number of samples. Methylation has two peaks; a batch "
        "whose peaks are elsewhere was normalised otherwise, or is of another tissue." + _only_the_latest(report),
        chart(as_svg(figures.distributions(report)), "histogram of each batch"),
    )


def _missing(report: dict[str, Any]) -> str:
    return card(
        "What is missing",
        "Along the axis of features, a row a batch: a dark block is what a platform does not measure."
        + _only_the_latest(report),
        chart(as_svg(figures.missingness(report)), "missing values along the axis, by batch"),
    )


def _samples(report: dict[str, Any]) -> str:
    rows = [
        [sample_id, batch_id, f"{sample['missing']:.2%}", *(_number(sample[name]) for name in _SAMPLE_NUMBERS)]
        for batch_id, batch in list(report["batches"].items())[::-1]
        for sample_id, sample in batch["samples"].items()
    ]
    note = "Missing: of what the batch measures. Distance: mean absolute difference from the batch's median profile."
    if len(rows) > _MOST_SAMPLES:
        note += f" The table has the latest {_MOST_SAMPLES} of {len(rows):,} samples; quality.json has all."
    return card(
        "Samples",
        note,
        chart(as_svg(figures.samples_chart(report)), "samples by missing values and distance from their batch"),
        '<details><summary class="note">All figures</summary>',
        table(("sample", "batch", "missing", *_SAMPLE_NUMBERS), rows[:_MOST_SAMPLES]),
        "</details>",
    )


_SAMPLE_NUMBERS = ("distance", "mean", "q05", "median", "q95", "coverage")


def _coverage(report: dict[str, Any]) -> str:
    without = [name for name, batch in report["batches"].items() if not batch["coverage"]]
    if report["coverage"] is None or len(without) == len(report["batches"]):
        return card("Coverage", "No batch tells how often its cells were measured.")
    note = "How many reads a cell was measured with, by share of cells."
    note += f" {_counted(len(without), 'batch', 'batches')} without: {', '.join(without[:6])}." if without else ""
    return card("Coverage", note, chart(as_svg(figures.coverage_chart(report)), "coverage of each batch"))


def _facts(report: dict[str, Any]) -> str:
    facts = {
        "matrix": report["url"],
        "id": report["matrix_id"],
        "generation": str(report["generation"]),
        "value": report["value"],
        "read for this report": ", ".join(report["measured_batches"]) or "no batch, all were known",
    }
    return card("The matrix", "No batch ever changes, so its figures are kept from report to report.", pairs(facts))


def _only_the_latest(report: dict[str, Any]) -> str:
    count = len(report["batches"])
    return f" The latest {figures.MOST_BATCHES} of {count}." if count > figures.MOST_BATCHES else ""


def _counted(number: int, one: str, more: str = "") -> str:
    return f"{number:,} {one if number == 1 else more or one + 's'}"


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.4g}"
