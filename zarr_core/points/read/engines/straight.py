"""Reads uncompressed chunks of local files straight into the output: no buffer in between, no copy.

A vectored read scatters a byte range of a file to the rows of the output, in the order in which a draw returns them. A
chunk is compared with its checksum when a process first reads it; later, only the wanted rows of it are read.
"""

from __future__ import annotations

from collections.abc import Sequence

import google_crc32c
import numpy as np

from zarr_core.errors import CorruptChunkError, TruncatedError
from zarr_core.format.array_metadata import CHECKSUM_BYTES
from zarr_core.points.read.engines.sample_metadata import KnownArray
from zarr_core.points.read.plan import RowSpan, wanted_rows
from zarr_core.points.read.sampling import Draw
from zarr_core.storage.byte_ranges import LocalObjects, Request

# Unwanted bytes that are read to save a system call: at least the checksum between two chunks.
_MAX_GAP = 4096
# Limits of one system call: 1,024 buffers (IOV_MAX) and 2 GiB.
_MAX_BUFFERS = 1000
_MAX_BYTES = 1 << 30
# Receives bytes that nobody looks at, from all threads.
_unwanted = memoryview(bytearray(_MAX_GAP))


class UnreadError(Exception):
    """Bytes that could not be read.

    Attributes:
        request: the bytes.
        cause: what prevented the read.
    """

    def __init__(self, request: Request, cause: Exception) -> None:
        super().__init__(request, cause)
        self.request, self.cause = request, cause


def read_straight(files: LocalObjects, array: KnownArray, drawn: Draw, target: np.ndarray, check: bool) -> None:
    """Read the points of a draw.

    Args:
        files: where to read.
        array: one that ``is_straight``.
        drawn: the points.
        target: receives them: (points, dim) of the stored dtype, C-contiguous.
        check: compare each chunk with its checksum, even if this process has done so before.

    Raises:
        CorruptChunkError: a chunk does not match its checksum.
        UnreadError: bytes cannot be read.
    """
    layout, verified, width = array.layout, array.verified, array.row_bytes
    assert array.index is not None
    starts, per_shard = array.index.starts, layout.chunks_per_shard
    out = memoryview(target).cast("B")  # type: ignore[arg-type]  # an array is a buffer since Python 3.12
    unverified: list[tuple[int, list[memoryview]]] = []
    # Neighbouring parts of a file are one system call.
    buffers: list[memoryview] = []
    shard = begin = end = 0
    for chunk, spans in wanted_rows(drawn.runs, layout.chunk_points):
        base = starts[chunk]
        if verified[chunk] and not check:
            parts = [(base + first * width, out[to * width : (to + last - first) * width]) for first, last, to in spans]
        else:
            pieces = _whole_chunk(array, spans, out)
            unverified.append((chunk, pieces))
            parts = []
            for piece in pieces:
                parts.append((base, piece))
                base += len(piece)
        for start, part in parts:
            gap = start - end
            if buffers and (
                not 0 <= gap <= _MAX_GAP
                or chunk // per_shard != shard
                or len(buffers) > _MAX_BUFFERS
                or end - begin > _MAX_BYTES
            ):
                _read(files, array, shard, begin, end, buffers)
                buffers = []
            if not buffers:
                shard, begin = chunk // per_shard, start
            elif gap:
                buffers.append(_unwanted[:gap])
            buffers.append(part)
            end = start + len(part)
    _read(files, array, shard, begin, end, buffers)
    for chunk, pieces in unverified:
        _verify(array, chunk, pieces)


def _whole_chunk(array: KnownArray, spans: Sequence[RowSpan], out: memoryview) -> list[memoryview]:
    """Memory for all bytes of a chunk: the wanted rows in the output, the others and the checksum elsewhere."""
    width = array.row_bytes
    pieces: list[memoryview] = []
    row = 0
    for first, last, to in spans:
        if first > row:
            pieces.append(_memory((first - row) * width))
        pieces.append(out[to * width : (to + last - first) * width])
        row = last
    rest = array.layout.chunk_points - row
    if rest:
        pieces.append(_memory(rest * width))
    pieces.append(_memory(CHECKSUM_BYTES))
    return pieces


def _memory(size: int) -> memoryview:
    """New memory with undefined content."""
    return memoryview(np.empty(size, np.uint8))  # type: ignore[arg-type]


def _read(
    files: LocalObjects, array: KnownArray, shard: int, begin: int, end: int, buffers: Sequence[memoryview]
) -> None:
    """Fill buffers with bytes ``[begin, end)`` of a shard."""
    try:
        done = files.read_into(array.shard_name(shard), begin, buffers)
    except FileNotFoundError as error:
        raise CorruptChunkError(f"{array.shard_name(shard)} is missing") from error
    except OSError as error:
        raise UnreadError(Request(array.shard_name(shard), begin, end), error) from error
    if done != end - begin:
        missing = TruncatedError(f"expected {end - begin} bytes, but only {done} are there")
        raise UnreadError(Request(array.shard_name(shard), begin, end), missing)


def _verify(array: KnownArray, chunk: int, pieces: Sequence[memoryview]) -> None:
    """Compare a chunk with its checksum, which is the last of its pieces."""
    *payload, stored = pieces
    checksum = 0
    for piece in payload:
        checksum = google_crc32c.extend(checksum, np.frombuffer(piece, np.uint8))
    if checksum != int.from_bytes(stored, "little"):
        assert array.index is not None
        start, length = array.index.starts[chunk], array.index.lengths[chunk]
        layout = array.layout
        where = f"bytes {start} to {start + length} of {layout.object_key(chunk // layout.chunks_per_shard)}"
        raise CorruptChunkError(f"chunk {chunk} ({where}): checksum mismatch")
    array.verified[chunk] = 1
