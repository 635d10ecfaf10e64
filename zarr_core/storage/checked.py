"""Reads that are checked as they arrive, and whole shards. Damage from a network, or a cache, is fetched once more.

A checksum that does not match may be the fault of the transfer or of a cached copy. So the bytes are discarded from
every cache and fetched again; what is damaged a second time is damaged where it is stored.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import pairwise
from typing import Any, TypeVar

import numpy as np

from zarr_core.errors import CorruptChunkError
from zarr_core.format.array_metadata import ArrayLayout
from zarr_core.format.ranges import MAX_READ_BYTES, coalesce
from zarr_core.format.shards import ChunkRange, check_chunk, chunk_ranges
from zarr_core.storage.byte_ranges import Objects, Request
from zarr_core.storage.storage import Storage

T = TypeVar("T")


def fetch_checked(
    objects: Objects,
    requests: Sequence[Request],
    use: Callable[[int, np.ndarray | Exception], None],
    also_discard: Callable[[int], Iterable[Request]] = lambda _: (),
) -> None:
    """Fetch byte ranges together and use each as it arrives; fetch those that are damaged once more.

    Args:
        objects, requests: where and what to fetch.
        use: takes the number of a request and its bytes (uint8, valid during the call), or the error that ``objects``
            reported. It raises CorruptChunkError where the bytes are damaged or missing and the request is worth a
            second attempt; any other error ends the fetch. The error should name everything that a person needs.
        also_discard: further requests whose cached bytes to forget when this one is damaged.

    Raises:
        CorruptChunkError: from ``use``, for a local file at once, otherwise for the second attempt.
    """
    damaged: list[int] = []
    for number, data in enumerate(objects.fetch(requests)):
        try:
            use(number, data)
        except CorruptChunkError:
            if not objects.remote:
                raise
            damaged.append(number)
    if not damaged:
        return
    again = [requests[number] for number in damaged]
    objects.discard([*again, *{other for number in damaged for other in also_discard(number)}])
    for number, data in zip(damaged, objects.fetch(again), strict=True):
        use(number, data)


def check_parts(
    parts: Iterable[Any], start: int, stop: int, check: Callable[[Any, bytes], object], data: bytes
) -> bytes:
    """Check the bytes that were read from ``[start, stop)`` of an object; returns them.

    Args:
        parts: what has a checksum of its own in the range, as a chunk, with ``start`` and ``stop`` in the object.
        check: takes a part and its bytes; raises CorruptChunkError, with the part and its place, if they are damaged.

    Raises:
        CorruptChunkError: fewer bytes were read, or a part is damaged.
    """
    if len(data) != stop - start:
        raise CorruptChunkError(f"bytes {start} to {stop}: only {len(data)} bytes were read")
    for part in parts:
        check(part, data[part.start - start : part.stop - start])
    return data


def read_checked(storage: Storage, name: str, start: int, stop: int, decode: Callable[[bytes], T]) -> T:
    """Decode bytes ``[start, stop)`` of an object; read them once more if they are damaged and came over a network.

    ``decode`` makes the result from the bytes, which may be fewer than requested; it raises CorruptChunkError where
    they are damaged. Raises that error as :func:`fetch_checked`, and OSError if the bytes cannot be read.
    """
    try:
        return decode(storage.read(name, start, stop))
    except CorruptChunkError:
        if storage.is_local:
            raise
    return decode(storage.read(name, start, stop))


class StoredShard:
    """A shard object, whose index is read at once.

    Args:
        storage, name: where it is.
        layout: of its array.
        number: of the shard in its array.
        size: of the object; asked for if None.
        sparse: whether chunks may be missing. Without checksums another program wrote them, and they may.

    Attributes:
        size: bytes of the object.
        chunks: ranges of its chunks, in stored order.

    Raises:
        FileNotFoundError: there is no such object.
        CorruptChunkError: the index is damaged, or a chunk is missing.
    """

    def __init__(
        self,
        storage: Storage,
        name: str,
        layout: ArrayLayout,
        number: int = 0,
        *,
        size: int | None = None,
        sparse: bool = False,
    ) -> None:
        self._storage, self._name, self._layout = storage, name, layout
        self.size = storage.size(name) if size is None else size
        end = max(self.size - layout.index_bytes, 0)

        def decode(index: bytes) -> tuple[list[ChunkRange], bytes]:
            chunks = chunk_ranges(layout, number, index, end)
            if layout.checksum and not sparse:
                _check_complete(layout, number, chunks)
            return chunks, index

        if layout.sharded:
            self.chunks, self._index = read_checked(storage, name, end, self.size, decode)
        else:
            self.chunks, self._index = decode(b"")
        self.chunks.sort(key=lambda chunk: chunk.start)
        if any(chunk.start < before.stop for before, chunk in pairwise(self.chunks)):
            raise CorruptChunkError("shard index: names bytes that overlap")

    def pieces(self) -> Iterator[bytes]:
        """The bytes of the object in pieces of at most 8 MiB, or one chunk; each is checked before it is yielded.

        Raises:
            CorruptChunkError: names the chunk.
        """
        position = 0
        for group in coalesce(self.chunks, max_gap=self.size, max_bytes=MAX_READ_BYTES):
            # Bytes between chunks belong to the object and are copied as well.
            yield self._read(position, group[-1].stop, group)
            position = group[-1].stop
        end = self.size - len(self._index)
        if position < end:
            yield self._read(position, end, ())
        yield self._index

    def _read(self, start: int, stop: int, chunks: Sequence[ChunkRange]) -> bytes:
        check = partial(check_parts, chunks, start, stop, self._check)
        return read_checked(self._storage, self._name, start, stop, check)

    def _check(self, chunk: ChunkRange, data: bytes) -> None:
        try:
            check_chunk(self._layout, data)
        except CorruptChunkError as error:
            where = f"chunk {chunk.number} (bytes {chunk.start} to {chunk.stop})"
            raise CorruptChunkError(f"{where}: {error}") from error


def is_intact(storage: Storage, name: str, layout: ArrayLayout, number: int = 0, *, sparse: bool = False) -> bool:
    """Whether a shard is there, with all its chunks undamaged; the arguments are those of :class:`StoredShard`."""
    try:
        for _ in StoredShard(storage, name, layout, number, sparse=sparse).pieces():
            pass
    except (CorruptChunkError, OSError):
        return False
    return True


def _check_complete(layout: ArrayLayout, number: int, chunks: Sequence[ChunkRange]) -> None:
    """Raise CorruptChunkError if a chunk of a shard is not in its index."""
    first = number * layout.chunks_per_shard
    stop = min(first + layout.chunks_per_shard, layout.n_chunks)
    found = {chunk.number for chunk in chunks}
    for expected in range(first, stop):
        if expected not in found:
            raise CorruptChunkError(f"chunk {expected}: not in the shard's index")
