"""Plans reads as plain data: which byte ranges to fetch, and where the rows of each chunk go. Engines execute them.

This library's shards store their chunks in order and without gaps, so the neighbouring chunks of a draw are one range.
Shards of other writers may need several ranges.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from zarr_core.errors import CorruptChunkError
from zarr_core.format.array_metadata import ArrayLayout
from zarr_core.format.ranges import MAX_READ_BYTES, coalesce
from zarr_core.format.shards import ChunkIndex, decode_into
from zarr_core.points.read.sampling import Draw

# Unwanted bytes between two wanted chunks are fetched if they are at most this many, to save a request.
MAX_GAP_BYTES = 1 << 20


class RowSpan(NamedTuple):
    """Rows ``[first, last)`` of a chunk, and the output row where they begin."""

    first: int
    last: int
    to: int


class PlannedChunk(NamedTuple):
    """Bytes ``[start, stop)`` of a shard that hold a chunk, and the rows that are wanted of it.

    The first three values are those of ``coalesce``.
    """

    shard: int
    start: int
    stop: int
    chunk: int
    rows: list[RowSpan]


@lru_cache(64)  # the fields of a domain share their draw
def wanted_rows(runs: tuple[tuple[int, int], ...], chunk_points: int) -> list[tuple[int, list[RowSpan]]]:
    """Wanted rows by chunk number; chunks and the rows of each in ascending order."""
    wanted: dict[int, list[RowSpan]] = {}
    row = 0
    for chunk, first, last in chunk_spans(runs, chunk_points):
        wanted.setdefault(chunk, []).append(RowSpan(first, last, row))
        row += last - first
    for spans in wanted.values():
        spans.sort()
    return sorted(wanted.items())


def chunk_spans(runs: tuple[tuple[int, int], ...], chunk_points: int) -> list[tuple[int, int, int]]:
    """Runs of points cut at the ends of chunks, in the order of the output: (number of the chunk, first row, end)."""
    spans = []
    for start, stop in runs:
        while start < stop:
            chunk, first = divmod(start, chunk_points)
            last = min(first + stop - start, chunk_points)
            spans.append((chunk, first, last))
            start += last - first
    return spans


def plan_read(
    layout: ArrayLayout, index: ChunkIndex, drawn: Draw, max_gap: int = MAX_GAP_BYTES
) -> tuple[list[list[PlannedChunk]], list[PlannedChunk]]:
    """Plan the read of a draw. The array has all points of the draw.

    Args:
        layout, index: of the array. Its chunks count, which may differ from those that the draw was made for.
        drawn: the points.
        max_gap: unwanted bytes between two chunks that are fetched to save a request, at most.

    Returns:
        The wanted chunks of each byte range, in stored order: from the start of the first to the stop of the last, at
        most ``MAX_READ_BYTES`` if there are several. And the wanted chunks that were not written: zeros, if the writer
        leaves out such chunks.
    """
    per_shard = layout.chunks_per_shard
    starts, lengths = index
    chunks: list[PlannedChunk] = []
    missing: list[PlannedChunk] = []
    for chunk, rows in wanted_rows(drawn.runs, layout.chunk_points):
        start = starts[chunk]
        planned = PlannedChunk(chunk // per_shard, start, start + lengths[chunk], chunk, rows)
        (missing if start < 0 else chunks).append(planned)
    # A large field is several ranges, which a remote store sends at the same time.
    return coalesce(chunks, max_gap, MAX_READ_BYTES), missing


def unpack(
    layout: ArrayLayout, chunks: Sequence[PlannedChunk], data: np.ndarray, out: np.ndarray, scratch: np.ndarray
) -> None:
    """Decode the chunks of a fetched range, and copy the wanted rows to the output.

    Args:
        layout, chunks: the array, and the wanted chunks in the range.
        data: the bytes of the range, uint8.
        out: (rows, dim) of the stored dtype, C-contiguous. A chunk that is wanted whole is decoded in place.
        scratch: (chunk_points, dim) of the stored dtype, for chunks that are wanted in part.

    Raises:
        CorruptChunkError: bytes are missing or damaged; names the chunk.
    """
    origin = chunks[0].start
    for shard, start, stop, chunk, rows in chunks:
        stored = data[start - origin : stop - origin]
        first, last, to = rows[0]
        try:
            if last - first == layout.chunk_points:
                decode_into(layout, stored, out[to : to + last])
                continue
            decode_into(layout, stored, scratch)
        except CorruptChunkError as error:
            where = f"bytes {start} to {stop} of {layout.object_key(shard)}"
            raise CorruptChunkError(f"chunk {chunk} ({where}): {error}") from error
        for first, last, to in rows:
            out[to : to + last - first] = scratch[first:last]
