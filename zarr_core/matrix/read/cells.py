"""Reads cells of a matrix: from maps of local files, or from the cheaper of the row-major and the column-major copy.

Both copies hold the same cells: one in chunks of many features of a sample, the other in chunks of some features of
many samples. Along each axis, the cells to read are divided into the parts that lie in one chunk.

Maps serve later epochs over row-major data without codec that fit into memory: each cell is copied once. The chunks
must have been read, and their checksums compared, before. What cannot be copied is read.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Iterator, Sequence
from itertools import chain, pairwise
from typing import Any, NamedTuple

import numpy as np

from zarr_core.matrix.read.fetch import ChunkFetcher, KnownShard, ReadCost, WantedChunk
from zarr_core.matrix.store.copies import Copy
from zarr_core.matrix.store.state import MatrixState
from zarr_core.storage.local_files import AT_ONCE_BYTES

logger = logging.getLogger(__name__)


class Part(NamedTuple):
    """Cells along one axis that lie in one chunk.

    Attributes:
        number: number of the chunk along the axis.
        inside, to: indices of the cells in the chunk and in the output: an integer, a slice or an array.
        whole: whether they are all cells of the chunk, in order.
    """

    number: int
    inside: Any
    to: Any
    whole: bool


def feature_parts(copy: Copy, value: str, columns: np.ndarray | None, to: np.ndarray | None = None) -> list[Part]:
    """The chunks of a copy that hold features, by their (features,) indices; None: all of them.

    ``to`` are their columns in the output, by default in the given order.
    """
    layout = copy.layouts[value]
    length, width = layout.shape[layout.feature_axis], layout.chunk[layout.feature_axis]
    if columns is None:
        return list(_run(0, length, 0, width))
    if to is None and length <= width:
        return [Part(0, as_slice(columns), slice(0, len(columns)), False)]
    return list(parts(columns, np.arange(len(columns)) if to is None else to, width))


def parts(positions: np.ndarray, to: np.ndarray, width: int) -> Iterator[Part]:
    """(n,) positions along an axis by chunk, in the order of the chunks; ``to`` are their places in the output."""
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


def read_cells(
    fetcher: ChunkFetcher,
    state: MatrixState,
    value: str,
    sample_ids: Sequence[str],
    positions: tuple[np.ndarray, np.ndarray],
    columns: np.ndarray | None,
    out: np.ndarray,
) -> None:
    """Read features of samples, which may repeat.

    Args:
        positions: (samples,) each, where the samples lie in the row-major and the column-major copy; -1: not there.
        columns: (features,) indices of the features; None: all of them.
        out: (samples, features) of the stored dtype.
    """
    rows, transposed = state.row_copy, state.column_copy
    in_rows, in_columns = positions
    to = np.arange(len(sample_ids))
    if columns is not None and state.column_blocks:
        held = np.flatnonzero(in_columns >= 0)
        by_rows = _expected_cost(rows, value, in_rows[held], columns)
        by_columns = _expected_cost(transposed, value, in_columns[held], columns)
        if by_columns.weight < by_rows.weight:
            logger.debug("%s: about %s, and %s from rows", fetcher.url, by_columns, by_rows)
            read_copy(fetcher, transposed, value, sample_ids, feature_parts(transposed, value, columns), out, held)
            to = np.flatnonzero(in_columns < 0)
    features = feature_parts(rows, value, columns)
    if len(to):
        to = copy_mapped(fetcher, rows, value, in_rows[to], to, features, out)
    if len(to):
        read_copy(fetcher, rows, value, sample_ids, features, out, to)


def read_copy(
    fetcher: ChunkFetcher,
    copy: Copy,
    value: str,
    sample_ids: Sequence[str],
    features: Sequence[Part],
    out: np.ndarray,
    rows: np.ndarray | None = None,
) -> None:
    """Read samples that one copy holds, each once; what that cost is logged at debug level.

    Args:
        sample_ids: sample of each row of the output.
        features: returned by :func:`feature_parts`.
        out: (rows, features) of the stored dtype. Whole chunks are decoded in place if its rows are contiguous.
        rows: the rows of the output to read; by default all.
    """
    started = time.perf_counter()
    layout = copy.layouts[value]
    by_rows = layout.sample_axis == 0
    path, (down, across) = copy.path(value), layout.chunks
    rows = np.arange(len(sample_ids)) if rows is None else rows
    positions = [copy.positions[sample_ids[row]] for row in rows.tolist()]
    distinct, firsts, again = np.unique(positions, return_index=True, return_inverse=True)
    places = rows[firsts]
    chunks: list[WantedChunk] = []
    for samples in parts(distinct, places, layout.chunk[layout.sample_axis]):
        read = [samples.to] if isinstance(samples.to, int) else np.r_[samples.to].tolist()
        more = f" and {len(read) - 1} others" if len(read) > 1 else ""
        label = f"{value} of sample {sample_ids[read[0]]!r}{more}"
        for part in features:
            one, other = (samples, part) if by_rows else (part, samples)
            shard = f"{path}/c/{one.number // down}/{other.number // across}"
            number = one.number % down * across + other.number % across
            inside, to = outer(one.inside, other.inside), outer(one.to, other.to)
            chunks.append(WantedChunk(shard, number, inside, to, one.whole and other.whole, label))
    cost = fetcher.read(layout, chunks, out if by_rows else out.T)
    if len(places) < len(rows):
        out[rows] = out[places[again]]
    ms = (time.perf_counter() - started) * 1e3
    text = "%s: %s of %d samples x %d features from %s: %s, %.1f ms"
    logger.debug(text, fetcher.url, value, len(places), out.shape[1], "rows" if by_rows else "columns", cost, ms)


def _expected_cost(copy: Copy, value: str, positions: np.ndarray, columns: np.ndarray) -> ReadCost:
    """Estimated cost of reading features at some positions of a copy, from the average size of the chunks."""
    layout = copy.layouts[value]
    height, width = layout.chunk[layout.sample_axis], layout.chunk[layout.feature_axis]
    chunks_across = math.ceil(layout.shape[layout.feature_axis] / width)
    across = np.unique(columns // width)
    runs = 1 + int(np.count_nonzero(np.diff(across) > 1))  # neighbouring chunks of a shard are one request
    along = np.unique(positions // height)
    expected = ReadCost()
    for block in copy.blocks:
        first, length = block.first // height, math.ceil(len(block.sample_ids) / height)
        count = int(np.count_nonzero((along >= first) & (along < first + length)))
        chunk_bytes = block.bytes[value] / (length * chunks_across)
        expected.requests += count * runs
        expected.bytes += round(count * len(across) * chunk_bytes)
    return expected


def copy_rows(
    fetcher: ChunkFetcher,
    copy: Copy,
    value: str,
    sample_ids: Sequence[str],
    columns: np.ndarray | None,
    out: np.ndarray,
) -> bool:
    """Copy samples of the row-major copy to ``out``, all of them at once.

    False, without a copy, if a sample must be read or has missing chunks, or if there is too much for one copy; also
    for fewer columns than samples.
    """
    if out.nbytes > AT_ONCE_BYTES or not out.flags.c_contiguous:
        return False
    if columns is not None and (len(columns) < len(sample_ids) or copy.layouts[value].chunks[1] > 1):
        return False
    known = fetcher.mapped_rows(copy, value)
    rows: list[list[np.ndarray]] = []
    for sample_id in sample_ids:
        row = known.get(sample_id)
        if row is None:
            row = _mapped_row(fetcher, copy, value, sample_id)
            if row is None:
                return False
            known[sample_id] = row
        rows.append(row)
    if columns is None:
        np.concatenate(list(chain.from_iterable(rows)), out=out.reshape(-1))
    else:
        for (whole,), cells in zip(rows, out, strict=True):
            whole.take(columns, out=cells, mode="clip")  # other modes copy twice
    return True


def _mapped_row(fetcher: ChunkFetcher, copy: Copy, value: str, sample_id: str) -> list[np.ndarray] | None:
    """The chunks of a sample; None if one of them must be read or is missing."""
    layout = copy.layouts[value]
    height, across, width = layout.shard[0], layout.chunks[1], layout.chunk[1]
    number, row = divmod(copy.positions.get(sample_id, -1), height)
    shard = fetcher.mapped(copy, value, number)
    if shard is None or shard.mapped is None:
        return None
    _, _, chunks, verified = shard.mapped
    pieces = []
    for chunk in range(row * across, (row + 1) * across):
        if not verified[chunk]:
            return None
        pieces.append(chunks[shard.slots[chunk]])
    pieces[-1] = pieces[-1][: layout.shape[1] - (across - 1) * width]  # the last chunk may be wider than its features
    return pieces


def copy_mapped(
    fetcher: ChunkFetcher,
    copy: Copy,
    value: str,
    positions: np.ndarray,
    to: np.ndarray,
    features: Sequence[Part],
    out: np.ndarray,
) -> np.ndarray:
    """Copy the samples at some positions of the row-major copy to rows ``to`` of the output.

    Returns:
        The rows of the output that must be read: a chunk was not verified yet, or its file is not mapped.
    """
    layout = copy.layouts[value]
    height, across = layout.shard[0], layout.chunks[1]
    if out.shape[1] < len(to):
        cells = [(number, _indices(inside).tolist(), _indices(to).tolist()) for number, inside, to, _ in features]
        rest: list[np.ndarray] = []
        for samples in parts(positions, to, height):
            shard = fetcher.mapped(copy, value, samples.number)
            if shard is None or not _copy_features(shard, samples, across, cells, out):
                rest.append(np.array([_indices(samples.inside) + samples.number * height, _indices(samples.to)]))
        if not rest:
            return np.empty(0, np.int64)
        positions, to = np.concatenate(rest, axis=1)
    left: list[int] = []
    for place, position in zip(to.tolist(), positions.tolist(), strict=True):
        number, row = divmod(position, height)
        shard = fetcher.mapped(copy, value, number)
        if shard is None or not _copy_sample(shard, row * across, features, out[place]):
            left.append(place)
    return np.array(left, np.int64)


def _copy_sample(shard: KnownShard, first: int, features: Sequence[Part], cells: np.ndarray) -> bool:
    """Copy features of one sample, whose first chunk has a number; False if a chunk was not verified yet."""
    assert shard.mapped is not None
    _, _, chunks, verified = shard.mapped
    for number, inside, to, _ in features:
        slot = shard.slots[first + number]
        if slot < 0:
            cells[to] = np.nan
        elif not verified[first + number]:
            return False
        elif isinstance(inside, slice) or not isinstance(to, slice):
            cells[to] = chunks[slot, inside]
        else:
            chunks[slot].take(inside, out=cells[to], mode="clip")  # other modes copy twice
    return True


def _copy_features(
    shard: KnownShard, samples: Part, across: int, features: Sequence[tuple[int, list[int], list[int]]], out: np.ndarray
) -> bool:
    """Copy a few features of many samples: chunk, cells in it and columns. False if a chunk was not verified yet."""
    assert shard.mapped is not None
    stored, verified, rows = shard.mapped.chunks, shard.mapped.verified, samples.inside
    if shard.slots[len(stored) - 1] != len(stored) - 1:  # a chunk before it is not stored
        return False
    for number, inside, to in features:
        if isinstance(rows, slice):
            chunks: Any = slice(rows.start * across + number, rows.stop * across, across)
            is_verified = 0 not in verified[chunks]
        else:
            chunks = rows * across + number
            is_verified = bool(np.asarray(verified)[chunks].all())
        if not is_verified:
            return False
        for cell, place in zip(inside, to, strict=True):
            out[samples.to, place] = stored[:, cell][chunks]
    return True


def _indices(chosen: Any) -> np.ndarray:
    """An integer, a slice or an array of indices as an array."""
    indices: np.ndarray = chosen if isinstance(chosen, np.ndarray) else np.r_[chosen]
    return indices
