"""Pictures small enough for Dagster to show inline: it renders Markdown inline only below 1,000 characters."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from urllib.parse import quote

import numpy as np

_INLINE_CHARACTERS = 1000
# Fewest characters of a run of equal cells in a picture: M1,2h3.
_RUN_CHARACTERS = 6
# From low to high values, as in the report's figures.
_COLOURS = ("#34a", "#2ab", "#7d5", "#fb3", "#d31")


def silhouette(positions: np.ndarray, values: np.ndarray, title: str) -> str:
    """A sample from the side, coloured by a scalar, as a Markdown image with a strip of the colours and their values.

    Args:
        positions: some points of its surface, shape (n, 3).
        values: the scalar at each of them, shape (n,).
        title: the quantity that the colours show.
    """
    extent = np.ptp(positions, axis=0)
    across = int(extent.argmax())
    up = 2 if across != 2 else 1
    # Equal numbers of points per colour: most of a body has nearly the same pressure, and would look flat.
    ends = np.quantile(values, np.linspace(0, 1, len(_COLOURS) + 1))
    shown = " | ".join(f"{end:.3g}" for end in ends)
    # The UI does not wrap lines, and one that is wider than its column pushes the names of the metadata out of sight.
    lines = (f"{title}, blue to red:", shown, f"width {extent[across]:.3g}, height {extent[up]:.3g}")
    legend = "\n\n" + "  \n".join(lines)
    # The coarsest picture always fits: few cells have few runs of equal colour.
    for width in range(64, 7, -4):
        cells = _cells(positions[:, across], positions[:, up], values, ends[1:-1], width)
        runs = np.count_nonzero((np.diff(cells, prepend=-1) != 0) & (cells >= 0))
        if runs * _RUN_CHARACTERS < _INLINE_CHARACTERS:
            image = _image(cells, title) + legend
            if len(image) < _INLINE_CHARACTERS:
                return image
    return title + legend


def bars(shares: Sequence[tuple[str, float]], title: str) -> str:
    """Horizontal bars of shares of the longest, each with its label, as a Markdown image."""
    longest = max(share for _, share in shares)
    strokes, labels = [], []
    for row, (label, share) in enumerate(shares):
        y, length = 14 * row, max(1, round(100 * share / longest))
        strokes.append(f"<path d='M0,{y + 7}h{length}'/>")
        labels.append(f"<text x='{length + 3}' y='{y + 10}'>{label}</text>")
    svg = (
        f"<svg xmlns='http://www.w3.org/2000/svg' width='440' viewBox='0,0,260,{14 * len(shares)}'"
        f" font-family='sans-serif' font-size='8'><g stroke='#2ab' stroke-width='9'>{''.join(strokes)}</g>"
        f"{''.join(labels)}</svg>"
    )
    image = _markdown(svg, title)
    return image if len(image) < _INLINE_CHARACTERS else title


def _cells(across: np.ndarray, up: np.ndarray, values: np.ndarray, bounds: np.ndarray, width: int) -> np.ndarray:
    """Colour index of each cell of a grid, -1 for cells without a point; row 0 is the top."""
    size = max(float(np.ptp(across)), 1e-9) / width
    height = max(1, min(width, round(float(np.ptp(up)) / size)))
    column = np.minimum(((across - across.min()) / size).astype(int), width - 1)
    row = height - 1 - np.minimum(((up - up.min()) / size).astype(int), height - 1)
    place = row * width + column
    count = np.bincount(place, minlength=width * height)
    mean = np.bincount(place, weights=values, minlength=width * height) / np.maximum(count, 1)
    cells = np.where(count > 0, np.searchsorted(bounds, mean), -1).reshape(height, width)
    # An empty cell between others takes its neighbour's colour: not a hole, only a cell without a sampled point.
    inside = cells >= 0
    left = np.maximum.accumulate(np.where(inside, np.arange(width), 0), axis=1)
    between = np.logical_or.accumulate(inside, axis=1) & np.logical_or.accumulate(inside[:, ::-1], axis=1)[:, ::-1]
    return np.where(between, np.take_along_axis(cells, left, axis=1), cells)


def _image(cells: np.ndarray, title: str) -> str:
    """One path per colour, one stroke per run of equal cells; below them a strip of all colours."""
    height, width = cells.shape
    strokes = [""] * len(_COLOURS)
    for y, row in enumerate(cells):
        starts = [0, *(np.flatnonzero(np.diff(row)) + 1), width]
        for start, stop in pairwise(starts):
            if row[start] >= 0:
                strokes[row[start]] += f"M{start},{y}h{stop - start}"
    length = max(1, width // len(_COLOURS))
    for number in range(len(_COLOURS)):
        strokes[number] += f"M{number * length},{height + 1}h{length}"
    paths = "".join(f"<path stroke='{c}' d='{d}'/>" for c, d in zip(_COLOURS, strokes, strict=True))
    svg = f"<svg xmlns='http://www.w3.org/2000/svg' width='320' viewBox='0,-.5,{width},{height + 2}'>{paths}</svg>"
    return _markdown(svg, title)


def _markdown(svg: str, title: str) -> str:
    # Shorter than base64, because the characters of an SVG path need no escape.
    escaped = quote(svg, safe="/:=',.-")
    return f"![{title}](data:image/svg+xml,{escaped})"
