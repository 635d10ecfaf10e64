"""Read cells of a matrix, those of each sample from the cheaper of the row-major and the column-major copy.

Both copies hold the same cells: one in chunks of many features of a sample, the other in chunks of some features of
many samples. Along each axis, the cells to read are divided into the parts that lie in one chunk.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from zarr_core.matrix.read.fetch import ChunkFetcher, ReadCost, WantedChunk
from zarr_core.matrix.store.batch_names import among, outside
from zarr_core.matrix.store.copies import Copy
from zarr_core.matrix.store.state import MatrixState

logger = logging.getLogger(__name__)


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


def read_cells(
    fetcher: ChunkFetcher,
    state: MatrixState,
    value: str,
    places: Mapping[str, int],
    columns: np.ndarray | None,
    out: np.ndarray,
) -> None:
    """Read features of samples.

    Args:
        fetcher, state, value: matrix and value table to read.
        places: row of the output for each sample.
        columns: (features,) indices of the features; None: all of them.
        out: (rows, features) of the stored dtype.
    """
    rows, transposed = state.row_copy, state.column_copy
    features = feature_parts(rows, value, columns)
    held = among(places, transposed.positions)
    if columns is not None and held:
        by_rows = _expected_cost(rows, value, held, np.array([part.number for part in features]))
        across = np.unique(columns // transposed.layouts[value].chunk[0])
        by_columns = _expected_cost(transposed, value, held, across)
        if by_columns.weight < by_rows.weight:
            logger.debug("%s: about %s, and %s from rows", fetcher.url, by_columns, by_rows)
            there = {sample_id: places[sample_id] for sample_id in held}
            places = {sample_id: places[sample_id] for sample_id in outside(places, there)}
            read_copy(fetcher, transposed, value, there, feature_parts(transposed, value, columns), out)
    if places:
        read_copy(fetcher, rows, value, places, features, out)


def feature_parts(copy: Copy, value: str, columns: np.ndarray | None, to: np.ndarray | None = None) -> list[Part]:
    """The chunks of a copy that hold features.

    Args:
        copy, value: the array.
        columns: (features,) indices of the features; None: all of them.
        to: (features,) their columns in the output; by default in the given order.
    """
    layout = copy.layouts[value]
    length, width = layout.shape[layout.feature_axis], layout.chunk[layout.feature_axis]
    if columns is not None:
        return list(_parts(columns, np.arange(len(columns)) if to is None else to, width))
    found = []
    for start in range(0, length, width):
        count = min(width, length - start)
        found.append(Part(start // width, slice(0, count), slice(start, start + count), count == width))
    return found


def read_copy(
    fetcher: ChunkFetcher,
    copy: Copy,
    value: str,
    places: Mapping[str, int],
    features: Sequence[Part],
    out: np.ndarray,
) -> None:
    """Read samples that one copy holds into rows of an output array; what that cost is logged at debug level.

    Args:
        fetcher, copy, value: the array to read.
        places: row of the output for each sample.
        features: returned by :func:`feature_parts`.
        out: (rows, features) of the stored dtype. Whole chunks are decoded in place if its rows are contiguous.
    """
    started = time.perf_counter()
    layout = copy.layouts[value]
    by_rows = layout.sample_axis == 0
    path, (down, across) = copy.path(value), layout.chunks
    positions = np.array([copy.positions[sample_id] for sample_id in places], np.int64)
    to_rows = np.array(list(places.values()), np.int64)
    name_at = dict(zip(places.values(), places, strict=True))
    chunks: list[WantedChunk] = []
    for samples in _parts(positions, to_rows, layout.chunk[layout.sample_axis]):
        rows = [samples.to] if isinstance(samples.to, int) else np.r_[samples.to].tolist()
        more = f" and {len(rows) - 1} others" if len(rows) > 1 else ""
        label = f"{value} of sample {name_at[rows[0]]!r}{more}"
        for part in features:
            one, other = (samples, part) if by_rows else (part, samples)
            shard = f"{path}/c/{one.number // down}/{other.number // across}"
            number = one.number % down * across + other.number % across
            inside, to = _outer(one.inside, other.inside), _outer(one.to, other.to)
            chunks.append(WantedChunk(shard, number, inside, to, one.whole and other.whole, label))
    cost = fetcher.read(layout, chunks, out if by_rows else out.T)
    ms = (time.perf_counter() - started) * 1e3
    text = "%s: %s of %d samples x %d features from %s: %s, %.1f ms"
    logger.debug(text, fetcher.url, value, len(places), out.shape[1], "rows" if by_rows else "columns", cost, ms)


def _parts(positions: np.ndarray, to: np.ndarray, width: int) -> Iterator[Part]:
    """Positions along an axis by chunk, in ascending order of the chunks.

    Args:
        positions: (n,) on the axis.
        to: (n,) their indices in the output.
        width: cells of a chunk along the axis.
    """
    order = np.argsort(positions, kind="stable")
    if width == 1:
        for position, place in zip(positions[order].tolist(), to[order].tolist(), strict=True):
            yield Part(position, 0, place, True)
        return
    cuts = np.flatnonzero(np.diff(positions[order] // width)) + 1
    for of in np.split(order, cuts):
        number = int(positions[of[0]]) // width
        inside, places = _as_slice(positions[of] - number * width), _as_slice(to[of])
        both_slices = isinstance(inside, slice) and isinstance(places, slice)
        yield Part(number, inside, places, both_slices and len(of) == width)


def _as_slice(indices: np.ndarray) -> slice | np.ndarray:
    """Consecutive indices as a slice, which selects cells without copying them."""
    start, stop = int(indices[0]), int(indices[-1]) + 1
    if stop - start == len(indices) and (len(indices) == 1 or bool((np.diff(indices) == 1).all())):
        return slice(start, stop)
    return indices


def _outer(first: Any, second: Any) -> tuple[Any, Any]:
    """Index of the cells at every pair of two parts."""
    if isinstance(first, np.ndarray) and isinstance(second, np.ndarray):
        first, second = np.ix_(first, second)
    return first, second


def _expected_cost(copy: Copy, value: str, sample_ids: Collection[str], across: np.ndarray) -> ReadCost:
    """Estimated cost of :func:`read_copy`, from the average size of the chunks.

    Args:
        copy, value, sample_ids: what to read.
        across: (chunks,) numbers of the chunks along the features, ascending.
    """
    layout = copy.layouts[value]
    height = layout.chunk[layout.sample_axis]
    chunks_across = math.ceil(layout.shape[layout.feature_axis] / layout.chunk[layout.feature_axis])
    runs = 1 + int(np.count_nonzero(np.diff(across) > 1))  # neighbouring chunks of a shard are one request
    along = np.unique([copy.positions[sample_id] // height for sample_id in sample_ids])
    expected = ReadCost()
    for block in copy.blocks:
        first, length = block.first // height, math.ceil(len(block.sample_ids) / height)
        count = int(np.count_nonzero((along >= first) & (along < first + length)))
        chunk_bytes = block.bytes[value] / (length * chunks_across)
        expected.add(count * runs, round(count * len(across) * chunk_bytes))
    return expected
