"""The HTML page of a quality report, and its figures, from the content of ``quality.json``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import pairwise
from statistics import fmean
from typing import Any

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap, to_rgba
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine

from zarr_core._util.units import format_count
from zarr_core.matrix.quality.measure import COVERAGE_EDGES, HISTOGRAM_BINS, Report, missing_share
from zarr_core.reports.pages import DRAWN, FULL, INK, MUTED, PT, STYLE, as_svg, render

_MOST_SAMPLES = 200
_OUTLIER = "{sample} of {batch} {reason}: {found:.4g}, batch median {usual:.4g}"
_SAMPLE_NUMBERS = ("distance", "mean", "q05", "median", "q95", "coverage")
#: Number of batches that a figure shows: the latest ones.
MOST_BATCHES = 24
_COLUMNS = 4


def render_page(report: Report) -> str:
    """The report, the content of ``quality.json``, as one HTML document."""
    batches = report["batches"]
    without_coverage = [name for name, batch in batches.items() if not batch["coverage"]]
    has_coverage = report["coverage"] is not None and len(without_coverage) < len(batches)
    svg = {}
    if batches:
        svg["distributions"] = as_svg(distributions(report))
        svg["missing"] = as_svg(missingness(report))
        svg["samples"] = as_svg(samples_chart(report))
        if has_coverage:
            svg["coverage"] = as_svg(coverage_chart(report))
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
        most_batches=MOST_BATCHES,
        without_coverage=without_coverage,
    )


def verdict(report: Report) -> str:
    """Whether samples stand out, in a few words."""
    far = {found["sample"] for found in report["outliers"]}
    return f"{format_count(len(far), 'samples')} far from the rest of the batch" if far else "no sample stands out"


def _cards(report: Report) -> list[tuple[str, str]]:
    """The large numbers, each with its caption."""
    beyond = covered = cells = 0
    reads = 0.0
    samples: list[dict[str, Any]] = []
    for batch in report["batches"].values():
        beyond += batch["below"] + batch["above"]
        samples += batch["samples"].values()
        if batch["coverage"]:
            covered += 1
            cells += batch["coverage"]["cells"]
            reads += batch["coverage"]["mean"] * batch["coverage"]["cells"]
    values = sum(sample["values"] for sample in samples)
    missing = [sample["missing"] for sample in samples]
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
            for name in _SAMPLE_NUMBERS:
                number = sample.get(name)
                row.append("–" if number is None else f"{number:.4g}")
            rows.append(row)
    return rows


def shown(report: Mapping[str, Any]) -> dict[str, Any]:
    """The batches that the figures show."""
    return dict(list(report["batches"].items())[-MOST_BATCHES:])


def distributions(report: Mapping[str, Any]) -> Figure:
    """Histogram of each batch, in front of the histogram of all batches."""
    everything = np.sum([batch["histogram"] for batch in report["batches"].values()], axis=0)
    edges = np.linspace(0, 1, HISTOGRAM_BINS + 1)

    def draw(axes: Axes, batch_id: str, batch: Mapping[str, Any]) -> None:
        axes.stairs(_share(everything), edges, color=PT, alpha=0.35, fill=True)
        axes.stairs(_share(batch["histogram"]), edges, color=DRAWN, lw=1.4)
        axes.set_title(f"{batch_id} ({len(batch['samples'])})", fontsize=9.5, loc="left", color=INK)
        axes.set_yticks([])
        axes.set_ylim(0)
        axes.set_xticks([0, 0.5, 1])
        axes.tick_params(axis="x", labelsize=8, length=2)

    return _panels("distribution", shown(report), 1.75, draw)


def missingness(report: Mapping[str, Any]) -> Figure:
    """Share of missing cells along the axis, one row per batch; dark means missing."""
    batches = shown(report)
    shares = np.array([batch["missing_along_axis"] for batch in batches.values()])
    colours = LinearSegmentedColormap.from_list("missing", [to_rgba(FULL, 0.06), to_rgba(FULL)])
    with rc_context(STYLE):
        figure = Figure(figsize=(10.4, 0.9 + 0.3 * len(batches)), layout="constrained")
        axes = figure.add_subplot(label="missing along the axis")
        image = axes.pcolormesh(shares, cmap=colours, vmin=0, vmax=1, edgecolors="none", rasterized=True)
        names = [f"{name}  {batch['missing'] / batch['cells']:.1%}" for name, batch in batches.items()]
        axes.set_yticks(np.arange(len(batches)) + 0.5, names)
        axes.set_ylim(len(batches), 0)
        first, last = axes.set_xticks([0, shares.shape[1]], ["first feature", "last feature"])
        first.label1.set_horizontalalignment("left")
        last.label1.set_horizontalalignment("right")
        axes.tick_params(length=0)
        axes.spines["bottom"].set_visible(False)
        bar = figure.colorbar(image, ax=axes, fraction=0.02, pad=0.01, ticks=[0, 0.5, 1])
        bar.ax.set_label("share missing")
        bar.ax.set_yticklabels(["0%", "50%", "100%"])
        bar.outline.set_visible(False)
        bar.ax.tick_params(length=0, colors=MUTED)
    return figure


def samples_chart(report: Mapping[str, Any]) -> Figure:
    """Scatter plot of the samples: missing share and distance from the batch; samples that stand out are named."""
    far = {(found["batch"], found["sample"]) for found in report["outliers"]}
    usual: list[tuple[float, float]] = []
    named: dict[str, tuple[float, float]] = {}
    for batch_id, batch in report["batches"].items():
        for sample_id, sample in batch["samples"].items():
            if sample["distance"] is None:
                continue
            place = 100 * sample["missing"], sample["distance"]
            if (batch_id, sample_id) in far:
                named[sample_id] = place
            else:
                usual.append(place)
    with rc_context(STYLE):
        figure = Figure(figsize=(10.4, 3.6), layout="constrained")
        axes = figure.add_subplot(label="samples")
        for places, colour, size in ((usual, FULL, 22), (list(named.values()), DRAWN, 44)):
            x, y = np.array(places, float).reshape(-1, 2).T
            axes.scatter(x, y, s=size, color=colour, alpha=0.75, linewidths=0)
        for sample_id, place in list(named.items())[:12]:
            axes.annotate(sample_id, place, (6, 3), textcoords="offset points", fontsize=8.5, color=INK)
        axes.set_xlabel("missing, % of the features that the batch measures")
        axes.set_ylabel(f"distance from the batch's median, {report['value']}")
        axes.margins(0.08)
        axes.tick_params(length=2)
    return figure


def coverage_chart(report: Mapping[str, Any]) -> Figure:
    """Histogram of the coverage of each batch, as shares of its cells with a coverage."""
    batches = {name: batch["coverage"] for name, batch in shown(report).items() if batch["coverage"]}
    # Empty bins at the end are left out, because they would make the others narrow.
    totals = np.sum([coverage["histogram"] for coverage in batches.values()], axis=0)
    n_bins = 1 + int(np.flatnonzero(totals).max())
    labels = []
    for low, high in pairwise(COVERAGE_EDGES):
        labels.append(f"{low}" if high - low == 1 else f"{low}–{high - 1}")
    labels.append(f"≥{COVERAGE_EDGES[-1]}")

    def draw(axes: Axes, batch_id: str, coverage: Mapping[str, Any]) -> None:
        axes.bar(range(n_bins), _share(coverage["histogram"])[:n_bins], color=FULL, width=0.8)
        axes.set_title(f"{batch_id}, mean {coverage['mean']:.1f}", fontsize=9.5, loc="left", color=INK)
        axes.set_xticks(range(n_bins), labels[:n_bins], rotation=60, fontsize=8)
        axes.set_yticks([])
        axes.tick_params(axis="x", length=0)

    return _panels("coverage", batches, 2.1, draw)


def _panels(label: str, contents: Mapping[str, Any], height: float, draw: Callable[[Axes, str, Any], None]) -> Figure:
    """A figure with a panel for each batch."""
    n_rows = -(-len(contents) // _COLUMNS)
    with rc_context(STYLE):
        layout = ConstrainedLayoutEngine(wspace=0.05, hspace=0.1)
        figure = Figure(figsize=(10.4, height * n_rows + 0.2), layout=layout)
        for at, (batch_id, content) in enumerate(contents.items(), start=1):
            draw(figure.add_subplot(n_rows, _COLUMNS, at, label=f"{label} {batch_id}"), batch_id, content)
    return figure


def _share(counts: Any) -> np.ndarray:
    counts = np.asarray(counts, float)
    shares: np.ndarray = counts / max(1.0, counts.sum())
    return shares
