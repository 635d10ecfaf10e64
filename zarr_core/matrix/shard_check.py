"""Reads a shard of a matrix whole and compares every chunk with its checksum, piece by piece."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np

from zarr_core.errors import CorruptChunkError
from zarr_core.format.ranges import MAX_READ_BYTES, coalesce
from zarr_core.format.shards import check_chunk, decode_shard_index
from zarr_core.matrix.store.layout import ChunkLayout
from zarr_core.storage import Storage
from zarr_core.storage.checked import read_checked


class ShardRanges(NamedTuple):
    """The index of a shard.

    Attributes:
        chunks: (shard, start, stop) of each stored chunk, in order and without gaps.
        tail: the bytes of the index, the last of the object.
    """

    chunks: Sequence[tuple[str, int, int]]
    tail: bytes

    @property
    def size(self) -> int:
        """Bytes of the object."""
        return (self.chunks[-1][2] if self.chunks else 0) + len(self.tail)


def read_ranges(storage: Storage, layout: ChunkLayout, name: str) -> ShardRanges:
    """The byte ranges of a shard's chunks.

    Raises:
        FileNotFoundError: there is no such shard.
        CorruptChunkError: its index is damaged.
    """
    size = storage.size(name)
    tail = size - layout.flat.index_bytes

    def decode(data: bytes) -> tuple[np.ndarray, bytes]:
        return decode_shard_index(layout.flat, data).view("<i8"), bytes(data)

    index, data = read_checked(storage, name, max(0, tail), size, decode)
    present = index[index[:, 0] >= 0]
    ends = present.sum(axis=1)
    starts = np.concatenate([np.zeros(1, ends.dtype), ends])  # of each chunk, and of the index
    if (present[:, 0] != starts[:-1]).any() or starts[-1] != tail:
        raise CorruptChunkError("shard index: the chunks do not fill the object without gaps")
    return ShardRanges([(name, start, start + length) for start, length in present.tolist()], data)


def checked_pieces(storage: Storage, layout: ChunkLayout, shard: ShardRanges) -> Iterator[bytes]:
    """The bytes of a shard in pieces of at most 8 MiB, or one chunk; each is checked before it is yielded.

    Raises:
        CorruptChunkError: names the bytes of the damaged chunk.
    """
    for group in coalesce(shard.chunks, max_bytes=MAX_READ_BYTES):
        name, start, stop = group[0][0], group[0][1], group[-1][2]
        yield read_checked(storage, name, start, stop, partial(_checked, layout, group))
    yield shard.tail


def _checked(layout: ChunkLayout, chunks: Sequence[tuple[str, int, int]], data: bytes) -> bytes:
    """The bytes of neighbouring chunks; raises CorruptChunkError for the first that is damaged."""
    first = chunks[0][1]
    for _, start, stop in chunks:
        try:
            check_chunk(layout.flat, data[start - first : stop - first])
        except CorruptChunkError as error:
            raise CorruptChunkError(f"bytes {start} to {stop}: {error}") from error
    return data
