"""The HTML page of a benchmark report, and its figures, from the content of ``report.json``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from matplotlib import rc_context
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.lines import Line2D

from zarr_core._util.units import format_size
from zarr_core.benchmark.wording import WAYS, Wording
from zarr_core.reports.pages import DRAWN, FULL, INK, MUTED, PT, STYLE, as_svg, bare_bars, render

_WAY_COLOURS = (PT, FULL, DRAWN)
_COMPONENTS = {"x": DRAWN, "y": FULL, "z": MUTED}


def render_page(report: dict[str, Any], picture: dict[str, Any] | None) -> str:
    """The report as one HTML document.

    Args:
        report: the content of ``report.json``.
        picture: arguments of :func:`sample_figure`; None if no sample has a scalar on its surface.
    """
    words = Wording(report)
    return render(
        "benchmark/page.html.j2",
        report=report,
        words=words,
        headline=words.headline.partition(words.share),
        figures={
            "sample": as_svg(sample_figure(**picture)) if picture else None,
            "bytes": as_svg(bytes_chart(report)),
            "throughput": as_svg(throughput_chart(report)),
            "fields": as_svg(fields_chart(report)),
        },
    )


def bytes_chart(report: Mapping[str, Any]) -> Figure:
    """Bytes per sample by field, one bar per way of reading."""
    fields, names = report["reads"]["fields"], Wording(report).ways
    thickness = 0.8 / len(WAYS)
    with rc_context(STYLE):
        height = 0.5 + len(fields) * (0.2 + 0.21 * len(WAYS))
        figure = Figure(figsize=(8.6, height), layout="constrained")
        axes = figure.add_subplot(label="bytes")
        places = np.arange(len(fields))
        for at, (way, colour) in enumerate(zip(WAYS, _WAY_COLOURS, strict=True)):
            values = [ways[way]["bytes"] for ways in fields.values()]
            offset = (at - (len(WAYS) - 1) / 2) * thickness
            bars = axes.barh(places + offset, values, height=thickness * 0.86, color=colour, label=names[way])
            axes.bar_label(bars, fmt=format_size, padding=4, fontsize=8.5, color=MUTED)
        axes.margins(x=0.14)
        bare_bars(axes, list(fields))
        figure.legend(loc="outside upper left", ncols=len(WAYS), frameon=False, handlelength=1, handleheight=1)
    return figure


def throughput_chart(report: Mapping[str, Any]) -> Figure:
    """Samples per second, one bar per way of reading."""
    rates = [report["throughput"][way]["samples_per_s"] for way in WAYS]
    with rc_context(STYLE):
        figure = Figure(figsize=(8.6, 0.2 + 0.44 * len(WAYS)), layout="constrained")
        axes = figure.add_subplot(label="samples per second")
        bars = axes.barh(range(len(WAYS)), rates, height=0.62, color=_WAY_COLOURS)
        axes.bar_label(bars, fmt="{:,.0f}", padding=5, color=INK, fontweight="bold")
        axes.margins(x=0.1)
        bare_bars(axes, list(Wording(report).ways.values()))
    return figure


def sample_figure(
    whole: tuple[np.ndarray, np.ndarray], drawn: tuple[np.ndarray, np.ndarray], *, n_points: int, label: str
) -> Figure:
    """A sample's surface coloured by a scalar: the whole sample beside one draw.

    Args:
        whole: points (n, 3) and scalar values (n,) of the sample or a large subset of it.
        drawn: points (T, 3) and scalar values (T,) of one draw of T points.
        n_points: number of points of the sample.
        label: name of the scalar.
    """
    colours = ScalarMappable(Normalize(*np.percentile(whole[1], (1, 99))), "turbo")
    panels = {f"all {n_points:,} points": whole, f"one draw of {len(drawn[0]):,} points": drawn}
    seen = _seen_from_front(whole[0])
    low, high = seen.min(axis=0)[:2], seen.max(axis=0)[:2]
    margin = 0.03 * (high - low).max()
    with rc_context(STYLE):
        figure = Figure(figsize=(10.4, 4.2), layout="constrained")
        all_axes = []
        for column, (title, (points, values)) in enumerate(panels.items(), start=1):
            axes = figure.add_subplot(1, 2, column, label=f"sample {column}")
            all_axes.append(axes)
            seen = _seen_from_front(points)
            order = np.argsort(seen[:, 2])  # near points are drawn over far ones
            axes.scatter(
                seen[order, 0],
                seen[order, 1],
                c=colours.to_rgba(values[order]),
                s=float(np.clip(90_000 / len(points), 1.5, 20)),
                linewidths=0,
                rasterized=True,
            )
            axes.set(xlim=(low[0] - margin, high[0] + margin), ylim=(low[1] - margin, high[1] + margin), aspect="equal")
            axes.set_axis_off()
            axes.set_title(title, color=INK, fontsize=11)
        bar = figure.colorbar(
            colours,
            ax=all_axes,
            orientation="horizontal",
            fraction=0.035,
            aspect=70,
            pad=0.03,
            extend="both",
            label=label,
        )
        bar.ax.set_label("colours")
        bar.outline.set_visible(False)
        bar.ax.tick_params(length=0, colors=MUTED)
    return figure


def _seen_from_front(points: np.ndarray) -> np.ndarray:
    """Points (n, 3) in the coordinates of a viewer in front of, beside and above the body: right, up, towards."""
    azimuth, elevation = np.radians(-128), np.radians(24)
    towards = np.array([np.cos(elevation) * np.cos(azimuth), np.cos(elevation) * np.sin(azimuth), np.sin(elevation)])
    right = np.array([-np.sin(azimuth), np.cos(azimuth), 0.0])
    turned: np.ndarray = points.astype(np.float64) @ np.stack([right, np.cross(towards, right), towards], axis=1)
    return turned


def fields_chart(report: Mapping[str, Any]) -> Figure:
    """Small multiples: a histogram per field and component."""
    columns = 4
    n_rows = -(-len(report["fields"]) // columns)
    with rc_context(STYLE):
        figure = Figure(figsize=(10.4, 1.85 * n_rows + 0.35), layout=ConstrainedLayoutEngine(wspace=0.06, hspace=0.1))
        for at, (field, facts) in enumerate(report["fields"].items(), start=1):
            axes = figure.add_subplot(n_rows, columns, at, label=f"histogram {field}")
            edges = np.asarray(facts["histogram"]["edges"])
            for component, counts in facts["histogram"]["counts"].items():
                colour = _COMPONENTS.get(component, DRAWN)
                share = np.asarray(counts) / max(1, *counts)
                axes.stairs(share, edges, color=colour, lw=1.3)
                axes.stairs(share, edges, color=colour, alpha=0.16, fill=True)
            axes.set_title(field, fontsize=9.5, loc="left", color=INK)
            axes.set_yticks([])
            axes.set_ylim(0, 1.08)
            axes.margins(x=0.06)
            axes.locator_params(axis="x", nbins=4)
            axes.tick_params(axis="x", labelsize=8, length=2)
        handles = [Line2D([], [], color=colour, lw=5, label=name) for name, colour in _COMPONENTS.items()]
        look: dict[str, Any] = {"frameon": False, "handlelength": 0.6, "fontsize": 9}
        figure.legend(handles=handles, loc="outside upper right", ncols=3, **look)
    return figure
