"""What a read costs and where its bytes go, as plain data: made by pure functions, executed by the engines.

A plan says which byte range of which shard is fetched, where in that range each chunk lies, and which rows of the
chunk land where in the output. Chunks of this library's shards lie in order and without gaps, so that the
neighbouring chunks of a draw are one range; other writers' shards may need several.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np

from zarr_core.errors import CorruptChunkError
from zarr_core.format.array_metadata import ArrayLayout
from zarr_core.format.shards import ChunkIndex, decode_into
from zarr_core.points.sampling import Draw

# Bytes that nobody asked for are fetched along where they are fewer than this and save a request.
MAX_GAP_BYTES = 1 << 20


class Copy(NamedTuple):
    """Rows ``[first, last)`` of a chunk, and the row of the output where they begin."""

    first: int
    last: int
    to: int


class Piece(NamedTuple):
    """A chunk within a byte range: its number, its first byte and length there, and what of it is wanted."""

    chunk: int
    start: int
    length: int
    copies: list[Copy]


class ByteRange(NamedTuple):
    """Bytes ``[start, stop)`` of a shard, and the wanted chunks in them."""

    shard: int
    start: int
    stop: int
    pieces: list[Piece]


class ReadPlan(NamedTuple):
    """All that one field of one draw takes.

    Attributes:
        rows: rows of the output.
        ranges: what to fetch, in stored order.
        absent: copies from chunks that were not written: zeros, if the writer leaves such out.
    """

    rows: int
    ranges: list[ByteRange]
    absent: list[Piece]


@lru_cache(8)  # the fields of a sample share their draw
def _copies(runs: tuple[tuple[int, int], ...], chunk_points: int) -> tuple[dict[int, list[Copy]], int]:
    """What is wanted of each chunk, and how many rows that is."""
    wanted: dict[int, list[Copy]] = {}
    row = 0
    for start, stop in runs:
        while start < stop:
            chunk = start // chunk_points
            first = start - chunk * chunk_points
            last = min(first + stop - start, chunk_points)
            wanted.setdefault(chunk, []).append(Copy(first, last, row))
            row += last - first
            start += last - first
    return wanted, row


def plan_read(layout: ArrayLayout, index: ChunkIndex, drawn: Draw, max_gap: int = MAX_GAP_BYTES) -> ReadPlan:
    """Plan the read of a draw.

    Args:
        layout: of the array; its chunks, not those that the draw was made for, decide.
        index: of the array.
        drawn: the points; within the array.
        max_gap: fetch chunks that are not wanted if they are fewer bytes than this and join two ranges.
    """
    per_shard = layout.chunks_per_shard
    wanted, row = _copies(drawn.runs, layout.chunk_points)
    ranges: list[ByteRange] = []
    absent: list[Piece] = []
    shard, begin, end = -1, 0, 0
    pieces: list[Piece] = []
    for chunk in sorted(wanted) if len(wanted) > 1 else wanted:
        start, length = index.starts[chunk], index.lengths[chunk]
        if start < 0:
            absent.append(Piece(chunk, 0, 0, wanted[chunk]))
            continue
        if chunk // per_shard != shard or not 0 <= start - end <= max_gap:
            if pieces:
                ranges.append(ByteRange(shard, begin, end, pieces))
            shard, begin, pieces = chunk // per_shard, start, []
        pieces.append(Piece(chunk, start - begin, length, wanted[chunk]))
        end = start + length
    if pieces:
        ranges.append(ByteRange(shard, begin, end, pieces))
    return ReadPlan(row, ranges, absent)


def unpack(layout: ArrayLayout, fetched: ByteRange, data: np.ndarray, out: np.ndarray, scratch: np.ndarray) -> None:
    """Decode the chunks of a fetched range, and put the wanted rows in their places.

    Args:
        layout: of the array.
        fetched: the range.
        data: its bytes, uint8.
        out: (rows, dim), C-contiguous. A whole chunk is decoded right into it where the dtype is the stored one.
        scratch: (chunk_points, dim) of the stored dtype, for chunks that are cut.

    Raises:
        CorruptChunkError: bytes are missing or damaged; names the chunk.
    """
    for chunk, start, length, copies in fetched.pieces:
        first, last, to = copies[0]
        try:
            if last - first == layout.chunk_points and out.dtype == scratch.dtype:
                decode_into(layout, data[start : start + length], out[to : to + last])
                continue
            decode_into(layout, data[start : start + length], scratch)
        except CorruptChunkError as error:
            where = f"bytes {fetched.start + start} to {fetched.start + start + length}"
            raise CorruptChunkError(f"chunk {chunk} ({where} of {layout.shard_key(fetched.shard)}): {error}") from error
        for first, last, to in copies:
            out[to : to + last - first] = scratch[first:last]
