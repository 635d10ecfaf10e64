"""Reads uncompressed chunks of local files straight into the output: no buffer in between, no copy.

A vectored read scatters a byte range of a file to the rows of the output, in the order in which a draw returns them. A
chunk is compared with its checksum when a process first reads it; later, only the wanted rows of it are read.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import google_crc32c
import numpy as np

from zarr_core.errors import CorruptChunkError, StoreError, TransferError
from zarr_core.format.array_metadata import CHECKSUM_BYTES
from zarr_core.points.read.engines import FieldRead
from zarr_core.points.read.engines.sample_metadata import KnownArray
from zarr_core.points.read.plan import RowSpan, wanted_rows
from zarr_core.storage.byte_ranges import LocalObjects, Request
from zarr_core.storage.retries import describe

# Unwanted bytes that are read to save a system call: at least the checksum between two chunks.
MAX_GAP = 4096
# Limits of one system call: 1,024 buffers (IOV_MAX) and 2 GiB.
_MAX_BUFFERS = 1000
_MAX_BYTES = 1 << 30
# Receives unwanted bytes, from all threads; it is never read.
_unwanted = memoryview(bytearray(MAX_GAP))


class StraightRead(NamedTuple):
    """A draw to be read.

    Attributes:
        array: one that ``is_straight``.
        target: receives the points: (points, dim) of the stored dtype, C-contiguous.
    """

    read: FieldRead
    array: KnownArray
    target: np.ndarray


class _Part(NamedTuple):
    """Bytes of an object from ``start`` on, and the memory that receives them."""

    start: int
    buffer: memoryview


def read_straight(files: LocalObjects, reads: Sequence[StraightRead]) -> None:
    """Read draws. Neighbouring bytes of a file, also of different arrays, are one system call.

    Raises:
        CorruptChunkError: a chunk is missing, or does not match its checksum.
        StoreError: bytes cannot be read.
    """
    try:
        _read_all(files, reads)
    except (CorruptChunkError, TransferError):
        for each in reads:  # one by one, so that the error names the field
            try:
                _read_all(files, [each])
            except CorruptChunkError as error:
                raise each.read.unreadable(error) from error
            except TransferError as error:
                raise StoreError(f"{each.read.where}: {error}") from error


def _read_all(files: LocalObjects, reads: Sequence[StraightRead]) -> None:
    wanted: dict[str, list[_Part]] = {}
    unverified: list[tuple[KnownArray, int, bytearray, list[memoryview]]] = []
    for read in reads:
        for name, chunk, parts, verified in _parts(files, read):
            wanted.setdefault(name, []).extend(parts)
            if verified is not None:
                unverified.append((read.array, chunk, verified, [part.buffer for part in parts]))
    calls: list[tuple[str, int, int, list[memoryview]]] = []
    for name, parts in wanted.items():
        parts.sort(key=lambda part: part.start)
        for begin, end, buffers in _calls(parts):
            calls.append((name, begin, end, buffers))
    # What was read before is probably in memory.
    if len(calls) > 1 and unverified:
        files.announce([Request(name, begin, end) for name, begin, end, _ in calls])
    for name, begin, end, buffers in calls:
        _read(files, name, begin, end, buffers)
    for array, chunk, verified, pieces in unverified:
        _verify(array, chunk, pieces)
        verified[chunk] = 1


def _parts(files: LocalObjects, read: StraightRead) -> Iterator[tuple[str, int, list[_Part], bytearray | None]]:
    """The parts of each chunk: name of its object, its number, and where to note that it matches its checksum.

    None instead if that is known.
    """
    field, array, target = read
    check = not field.entry.is_ours  # files of other programs may change
    layout, width = array.layout, array.row_bytes
    assert array.index is not None
    starts = array.index.starts
    out = memoryview(target).cast("B")  # type: ignore[arg-type]  # an array is a buffer since Python 3.12
    for chunk, spans in wanted_rows(field.drawn.runs, layout.chunk_points):
        base, shard = starts[chunk], chunk // layout.chunks_per_shard
        name = array.shard_name(shard)
        verified = array.verified(shard, files.identity(name))
        if verified[chunk] and not check:
            rows = [
                _Part(base + first * width, out[to * width : (to + last - first) * width]) for first, last, to in spans
            ]
            yield name, chunk, rows, None
            continue
        parts = []
        for piece in _whole_chunk(array, spans, out):
            parts.append(_Part(base, piece))
            base += len(piece)
        yield name, chunk, parts, verified


def _calls(parts: Iterable[_Part]) -> Iterator[tuple[int, int, list[memoryview]]]:
    """Neighbouring parts of an object as system calls: first byte, end, and buffers."""
    buffers: list[memoryview] = []
    begin = end = 0
    for start, buffer in parts:
        gap = start - end
        # A batch may draw from a sample twice, which overlaps.
        if buffers and (not 0 <= gap <= MAX_GAP or len(buffers) > _MAX_BUFFERS or end - begin > _MAX_BYTES):
            yield begin, end, buffers
            buffers = []
        if not buffers:
            begin = start
        elif gap:
            buffers.append(_unwanted[:gap])
        buffers.append(buffer)
        end = start + len(buffer)
    if buffers:
        yield begin, end, buffers


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


def _read(files: LocalObjects, name: str, begin: int, end: int, buffers: Sequence[memoryview]) -> None:
    """Fill buffers with bytes ``[begin, end)`` of an object."""
    try:
        done = files.read_into(name, begin, buffers)
    except FileNotFoundError as error:
        raise CorruptChunkError(f"{name} is missing") from error
    except OSError as error:
        raise TransferError(f"{Request(name, begin, end)} cannot be fetched: {describe(error)}") from error
    if done != end - begin:
        request = Request(name, begin, end)
        raise CorruptChunkError(f"{request}: expected {request.size} bytes, but only {done} are there")


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
