"""Divides cells along an axis of an array into the parts that lie in one chunk each."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from zarr_core.matrix.store.copies import Copy


class Part(NamedTuple):
    """Cells along one axis that lie in one chunk.

    Attributes:
        number: number of the chunk along the axis.
        inside: indices of the cells in the chunk: an integer, a slice or an array.
        to: their indices in the output, likewise.
        whole: whether they are all cells of the chunk, in order.
    """

    number: int
    inside: Any
    to: Any
    whole: bool


def feature_parts(copy: Copy, value: str, columns: np.ndarray | None, to: np.ndarray | None = None) -> list[Part]:
    """The chunks of a copy that hold features.

    Args:
        copy, value: the array.
        columns: (features,) indices of the features; None: all of them.
        to: (features,) their columns in the output; by default in the given order.
    """
    layout = copy.layouts[value]
    length, width = layout.shape[layout.feature_axis], layout.chunk[layout.feature_axis]
    if columns is None:
        return list(_run(0, length, 0, width))
    if to is None and length <= width:
        return [Part(0, as_slice(columns), slice(0, len(columns)), False)]
    return list(parts(columns, np.arange(len(columns)) if to is None else to, width))


def parts(positions: np.ndarray, to: np.ndarray, width: int) -> Iterator[Part]:
    """Positions along an axis by chunk, in ascending order of the chunks.

    Args:
        positions: (n,) on the axis.
        to: (n,) their indices in the output.
        width: cells of a chunk along the axis.
    """
    if width == 1:
        order = np.argsort(positions, kind="stable")
        for position, place in zip(positions[order].tolist(), to[order].tolist(), strict=True):
            yield Part(position, 0, place, True)
        return
    cells, places = as_slice(positions), as_slice(to)
    if isinstance(cells, slice) and isinstance(places, slice):
        yield from _run(cells.start, cells.stop, places.start, width)
        return
    order = np.argsort(positions, kind="stable")
    positions, to = positions[order], to[order]
    numbers = positions // width
    cuts = np.flatnonzero(numbers[1:] != numbers[:-1]) + 1
    for first, last in pairwise([0, *cuts.tolist(), len(positions)]):
        number = int(numbers[first])
        cells, places = as_slice(positions[first:last] - number * width), as_slice(to[first:last])
        both_slices = isinstance(cells, slice) and isinstance(places, slice)
        yield Part(number, cells, places, both_slices and last - first == width)


def _run(start: int, stop: int, to: int, width: int) -> Iterator[Part]:
    """Parts of consecutive cells ``[start, stop)``, which go to consecutive places of the output from ``to`` on."""
    for number in range(start // width, -(-stop // width)):
        first, last = max(start, number * width), min(stop, (number + 1) * width)
        inside = slice(first - number * width, last - number * width)
        yield Part(number, inside, slice(to + first - start, to + last - start), last - first == width)


def as_slice(indices: np.ndarray) -> slice | np.ndarray:
    """Consecutive indices as a slice, which selects cells without copying them."""
    start, stop = int(indices[0]), int(indices[-1]) + 1
    if stop - start == len(indices) and (len(indices) == 1 or bool((indices[1:] > indices[:-1]).all())):
        return slice(start, stop)
    return indices


def outer(first: Any, second: Any) -> tuple[Any, Any]:
    """Index of the cells at every pair of two parts."""
    if isinstance(first, np.ndarray) and isinstance(second, np.ndarray):
        first, second = np.ix_(first, second)
    return first, second
