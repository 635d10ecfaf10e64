"""Chunks and shards as bytes, and the index of a shard. An array without shards has one chunk in each object.

A shard is one object: consecutive chunks, each compressed and followed by its crc32c, then the index of their byte
ranges (``sharding_indexed`` of the Zarr v3 specification).
"""

from __future__ import annotations

import base64
from array import array
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import google_crc32c
import numpy as np

from zarr_core.errors import CorruptChunkError
from zarr_core.format.array_metadata import CHECKSUM_BYTES, ArrayLayout

#: Offset and length that a shard index holds for a chunk that was not written.
MISSING_CHUNK = 2**64 - 1


def encode_chunk(layout: ArrayLayout, points: np.ndarray) -> bytes:
    """Compressed bytes, without checksum, of up to ``chunk_points`` rows of the stored dtype, padded with zeros."""
    if len(points) < layout.chunk_points:
        padded = np.zeros((layout.chunk_points, layout.dim), layout.dtype)
        padded[: len(points)] = points
        points = padded
    return layout.codec.encode(np.ascontiguousarray(points))


def encode_shard(
    layout: ArrayLayout, chunks: Iterable[np.ndarray | None], lengths: list[int] | None = None
) -> Iterator[bytes]:
    """One shard object, piece by piece, from the rows of its chunks in order; ``lengths`` receives their stored sizes.

    None stands for a chunk that is not stored and reads as the fill value.
    """
    stored: list[int] = []
    for points in chunks:
        if points is None:
            stored.append(0)
            continue
        data = encode_chunk(layout, points)
        stored.append(len(data) + (CHECKSUM_BYTES if layout.checksum else 0))
        yield data
        if layout.checksum:
            yield crc32c_bytes(data)
    if lengths is not None:
        lengths.extend(stored)
    if layout.sharded:
        yield shard_index(layout, stored)


def shard_index(layout: ArrayLayout, lengths: Sequence[int]) -> bytes:
    """The index of a shard whose chunks lie in order and without gaps, from their stored bytes.

    A length of 0 is that of a chunk that is not stored. Those after the last length are not stored either.
    """
    index = np.full((layout.chunks_per_shard, 2), MISSING_CHUNK, "<u8")
    offset = 0
    for number, length in enumerate(lengths):
        if length:
            index[number] = offset, length
            offset += length
    packed = index.tobytes()
    return packed + crc32c_bytes(packed)


def decode_shard_index(layout: ArrayLayout, tail: bytes) -> np.ndarray:
    """Byte ranges of a shard's chunks from the last ``index_bytes`` of the object; raises CorruptChunkError.

    Returns:
        (chunks_per_shard, 2) uint64: offset and length; both MISSING_CHUNK for a chunk that was not written.
    """
    if len(tail) != layout.index_bytes or not passes_checksum(tail):
        raise CorruptChunkError("shard index: checksum mismatch")
    return np.frombuffer(tail[:-CHECKSUM_BYTES], "<u8").reshape(-1, 2)


class ChunkRange(NamedTuple):
    """Bytes ``[start, stop)`` of a shard, which hold the chunk ``number`` of the array."""

    shard: int
    start: int
    stop: int
    number: int


def chunk_ranges(layout: ArrayLayout, shard: int, tail: bytes, end: int) -> list[ChunkRange]:
    """Byte ranges of the chunks that a shard holds, from its last ``index_bytes`` and the position of its index.

    Raises CorruptChunkError if that is damaged, or a range exceeds ``end``.
    """
    if not layout.sharded:
        return [ChunkRange(shard, 0, end, shard)]
    first = shard * layout.chunks_per_shard
    ranges = []
    for number, (start, length) in enumerate(decode_shard_index(layout, tail).tolist(), start=first):
        if number == layout.n_chunks:
            break
        if start == MISSING_CHUNK:
            continue
        if start + length > end:
            raise CorruptChunkError("shard index: names bytes beyond the end of the object")
        ranges.append(ChunkRange(shard, start, start + length, number))
    return ranges


class ChunkIndex(NamedTuple):
    """Byte ranges of the chunks of an array, relative to the start of their shards.

    Attributes:
        starts: by chunk number; -1 for a chunk that was not written. A ``range`` where all are at equal distances.
        lengths: stored bytes by chunk number, checksum included; 0 for a chunk that was not written.
    """

    starts: Sequence[int]
    lengths: Sequence[int]

    @classmethod
    def regular(cls, start: int, step: int, length: int, count: int) -> ChunkIndex:
        """Index of ``count`` chunks of equal length, ``step`` bytes apart."""
        return cls(range(start, start + count * step, step) if step else [start] * count, [length] * count)

    @classmethod
    def of(cls, starts: np.ndarray, lengths: np.ndarray) -> ChunkIndex:
        """Index of int64 positions and lengths."""
        return cls(array("q", starts.tobytes()), array("q", lengths.tobytes()))

    @classmethod
    def from_lengths(cls, layout: ArrayLayout, lengths: Sequence[int]) -> ChunkIndex:
        """Index of chunks stored in order and without gaps; raises ValueError if their number is not the layout's."""
        if len(lengths) != layout.n_chunks:
            raise ValueError(f"{len(lengths)} chunk lengths of an array with {layout.n_chunks} chunks")
        sizes = np.asarray(lengths, np.int64)
        starts = np.cumsum(sizes) - sizes
        starts -= starts[np.arange(len(sizes)) // layout.chunks_per_shard * layout.chunks_per_shard]
        return cls.of(starts, sizes)

    @classmethod
    def from_shards(cls, layout: ArrayLayout, shards: Sequence[np.ndarray | None]) -> ChunkIndex:
        """From the index of each shard, as returned by :func:`decode_shard_index`; None for a missing shard."""
        absent = np.full((layout.chunks_per_shard, 2), MISSING_CHUNK, "<u8")
        entries = [absent if shard is None else shard for shard in shards]
        ranges = np.concatenate(entries)[: layout.n_chunks].astype("<u8").view("<i8")
        ranges[(ranges == -1).all(axis=1)] = (-1, 0)
        if (ranges < (-1, 0)).any() or ((ranges[:, 0] == -1) & (ranges[:, 1] != 0)).any():
            raise CorruptChunkError("shard index: impossible offsets or lengths")
        return cls.of(ranges[:, 0], ranges[:, 1])

    def check_within(self, end: int) -> None:
        """Raise ValueError if a chunk ends after ``end``, or two chunks share bytes."""
        last = len(self.starts) - 1
        # At equal distances, the first two chunks and the last tell all.
        numbers = {0, min(1, last), last} if isinstance(self.starts, range) else range(last + 1)
        before = 0
        for start, length in sorted((self.starts[number], self.lengths[number]) for number in numbers):
            if start < before:
                raise ValueError("overlap")
            before = start + length
        if before > end:
            raise ValueError("lie outside of the archive")


def pack_lengths(lengths: Sequence[int] | np.ndarray) -> str:
    """Chunk lengths as text for a group's attributes: base64 of little-endian uint32."""
    return base64.b64encode(np.asarray(lengths, "<u4").tobytes()).decode("ascii")


def unpack_lengths(text: str) -> list[int]:
    """Decode chunk lengths; raises ValueError."""
    lengths: list[int] = np.frombuffer(base64.b64decode(text, validate=True), "<u4").tolist()
    return lengths


def decode_chunk(layout: ArrayLayout, data: bytes | np.ndarray) -> np.ndarray:
    """Rows of one chunk, (chunk_points, dim) in the stored dtype, padding included; raises CorruptChunkError."""
    try:
        points = np.empty((layout.chunk_points, layout.dim), np.dtype(layout.dtype).newbyteorder("<"))
    except (MemoryError, ValueError) as error:  # ValueError: exceeds the address space
        raise CorruptChunkError(f"{layout.chunk_points} points of a chunk do not fit in memory") from error
    decode_into(layout, data, points)
    return points


def decode_into(layout: ArrayLayout, data: bytes | np.ndarray, out: np.ndarray) -> None:
    """Decode one chunk (an array of it is uint8) into (chunk_points, dim) rows of the stored dtype, C-contiguous.

    Raises CorruptChunkError for a wrong checksum, or bytes that do not decode; the rows are then undefined.
    """
    if layout.checksum:
        if not passes_checksum(data):
            raise CorruptChunkError("checksum mismatch")
        data = data[:-CHECKSUM_BYTES]
    try:
        layout.codec.decode(data, out)
    except (RuntimeError, ValueError) as error:
        raise CorruptChunkError(f"cannot be decoded: {error}") from error


def check_chunk(layout: ArrayLayout, data: bytes) -> None:
    """Raise CorruptChunkError if a chunk is damaged: by its checksum, or by decoding if it has none."""
    if not layout.checksum:
        decode_chunk(layout, data)
    elif not passes_checksum(data):
        raise CorruptChunkError("checksum mismatch")


def is_intact(payload: np.ndarray, checksum: np.ndarray) -> bool:
    """Whether the payload of an uncompressed chunk matches its checksum (four bytes)."""
    return crc32c_bytes(payload) == checksum.tobytes()


def passes_checksum(chunk: bytes | np.ndarray) -> bool:
    """Whether a stored chunk has a payload that matches the checksum at its end."""
    return len(chunk) > CHECKSUM_BYTES and crc32c_bytes(chunk[:-CHECKSUM_BYTES]) == bytes(chunk[-CHECKSUM_BYTES:])


def crc32c_bytes(data: bytes | np.ndarray) -> bytes:
    """The checksum of some bytes as it is stored: little-endian."""
    return int(google_crc32c.value(data)).to_bytes(CHECKSUM_BYTES, "little")
