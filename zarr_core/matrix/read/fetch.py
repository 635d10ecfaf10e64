"""Fetch chunks of shards by byte range, for both copies of a matrix.

The index of a shard costs one request and is kept in memory. Neighbouring chunks are fetched as one range.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from zarr_core._util.units import format_size
from zarr_core.errors import CorruptChunkError, StoreError
from zarr_core.format.array_metadata import CHECKSUM_BYTES
from zarr_core.format.shards import ChunkIndex, decode_shard_index, is_intact
from zarr_core.matrix.store.layout import ChunkLayout
from zarr_core.storage.byte_ranges import CountingObjects, JoinedObjects, LocalObjects, Objects, Request
from zarr_core.storage.checked import fetch_checked

_INDEX_BYTES = 64 << 20  # memory limit of the shard indices, per reading process
_INDEX_ENTRY_BYTES = 16
# Size limit of one request. Remote: a long row is spread over several connections. Local: the buffer stays in the
# processor's cache.
_RANGE_BYTES = {True: 16 << 20, False: 256 << 10}
_BATCH_BYTES = 256 << 20  # limit of the bytes in flight together
# Cost of a request in bytes that could be fetched in the same time: 20 ms over a network with 64 requests in flight,
# or the system calls and interpreter time of a small local read.
_REQUEST_BYTES = 64 << 10


class WantedChunk(NamedTuple):
    """A chunk to fetch.

    Attributes:
        shard: full name of its object.
        number: index in the shard.
        tag: number by which the caller finds the place of its cells.
    """

    shard: str
    number: int
    tag: int


@dataclass
class ReadCost:
    """Number of requests, and the bytes that they fetched."""

    requests: int = 0
    bytes: int = 0

    def add(self, requests: int, n_bytes: int) -> None:
        """Add requests and bytes."""
        self.requests += requests
        self.bytes += n_bytes

    @property
    def weight(self) -> int:
        """Single number for comparing costs, in bytes."""
        return self.bytes + self.requests * _REQUEST_BYTES

    def __str__(self) -> str:
        return f"{self.requests:,} requests, {format_size(self.bytes)}"


# Takes the tag of a chunk and its bytes (None: the chunk is not stored). Raises CorruptChunkError for damaged bytes.
Place = Callable[[int, np.ndarray | None], None]
# Takes the tag of a chunk that is stored without a codec. Returns the contiguous destination of its cells as uint8, or
# None if there is none.
Destination = Callable[[int], np.ndarray | None]
# Describes a tag in error messages.
Describe = Callable[[int], str]


class ChunkFetcher:
    """Fetches chunks of one matrix, for any number of threads. Must not be used in a fork of the process.

    Args:
        objects: objects below the root of the matrix.
        url: URL of the matrix, for messages.
        cached: wraps objects in a cache.
    """

    def __init__(self, objects: Objects, url: str, cached: Callable[[Objects], Objects] | None = None) -> None:
        #: What it was given, below all caches.
        self.objects = objects
        self._counter = CountingObjects(objects)
        self._files = objects if isinstance(objects, LocalObjects) and cached is None else None
        # Over a network a few unused bytes cost less than another request.
        joined = JoinedObjects(self._counter, _REQUEST_BYTES if objects.remote else 0, _RANGE_BYTES[objects.remote])
        self._objects, self.url = joined if cached is None else cached(joined), url
        self._indices: OrderedDict[str, ChunkIndex] = OrderedDict()
        self._index_bytes = 0
        self._lock = threading.Lock()

    def read(
        self,
        layout: ChunkLayout,
        chunks: Sequence[WantedChunk],
        place: Place,
        describe: Describe,
        destination: Destination | None = None,
    ) -> ReadCost:
        """Fetch chunks and pass each to ``place``, in any order.

        Args:
            layout: layout of their array.
            chunks: what to fetch, sorted by shard and number.
            place: writes the cells to the output.
            describe: describes a tag in error messages.
            destination: where chunks of local files are read directly; ``place`` gets all others.

        Returns:
            The cost, including shard indices (and concurrent reads of other threads).

        Raises:
            CorruptChunkError: stored bytes are missing, or damaged in a second attempt as well.
            StoreError: the bytes cannot be fetched.
        """
        requests, n_bytes = self._counter.requests, self._counter.bytes
        indices = self._shard_indices(layout, chunks, describe)
        for batch in _batches(chunks, indices, place):
            if destination is not None and self._files is not None:
                batch = [
                    (chunk, request)
                    for chunk, request in batch
                    if not self._read_directly(request, destination(chunk.tag))
                ]
            self._fetch_batch(batch, place, describe)
        return ReadCost(self._counter.requests - requests, self._counter.bytes - n_bytes)

    def _read_directly(self, request: Request, cells: np.ndarray | None) -> bool:
        """Read a local chunk into its destination. False if that is impossible or fails; fetching reports the error."""
        if self._files is None or cells is None or request.size != len(cells) + CHECKSUM_BYTES:
            return False
        checksum = np.empty(CHECKSUM_BYTES, np.uint8)
        try:
            if not self._files.read_into(request, (cells, checksum)) or not is_intact(cells, checksum):
                return False
        except OSError:
            return False
        self._counter.count(request, len(cells) + CHECKSUM_BYTES)
        return True

    def _fetch_batch(self, batch: Sequence[tuple[WantedChunk, Request]], place: Place, describe: Describe) -> None:
        requests = [request for _, request in batch]

        def use(number: int, data: np.ndarray | Exception) -> None:
            chunk, request = batch[number]
            if isinstance(data, Exception):
                raise self._error(f"chunk {chunk.number} of {chunk.shard}", chunk, request, describe, data) from data
            try:
                place(chunk.tag, data)
            except CorruptChunkError as error:
                where = f"chunk {chunk.number} of {chunk.shard}"
                raise CorruptChunkError(f"{self.url}: {describe(chunk.tag)}: {where}: {error}") from error

        fetch_checked(self._objects, requests, use)

    def _shard_indices(
        self, layout: ChunkLayout, chunks: Sequence[WantedChunk], describe: Describe
    ) -> dict[str, ChunkIndex]:
        """The index of each shard by name."""
        wanted = {chunk.shard: chunk for chunk in chunks}
        with self._lock:
            found = {shard: self._indices[shard] for shard in wanted if shard in self._indices}
            for shard in found:
                self._indices.move_to_end(shard)
        missing = [chunk for shard, chunk in wanted.items() if shard not in found]
        requests = [Request(chunk.shard, -layout.flat.index_bytes) for chunk in missing]

        def use(number: int, data: np.ndarray | Exception) -> None:
            chunk = missing[number]
            if isinstance(data, Exception):
                raise self._error(chunk.shard, chunk, requests[number], describe, data) from data
            try:
                index = ChunkIndex.from_shards(layout.flat, [decode_shard_index(layout.flat, data.tobytes())])
            except CorruptChunkError as error:
                raise CorruptChunkError(f"{self.url}: {describe(chunk.tag)}: {chunk.shard}: {error}") from error
            found[chunk.shard] = index
            self._keep(chunk.shard, index)

        fetch_checked(self._objects, requests, use)
        return found

    def _keep(self, shard: str, index: ChunkIndex) -> None:
        with self._lock:
            if shard in self._indices:
                return
            self._indices[shard] = index
            self._index_bytes += _INDEX_ENTRY_BYTES * len(index.starts)
            while self._index_bytes > _INDEX_BYTES and len(self._indices) > 1:
                self._index_bytes -= _INDEX_ENTRY_BYTES * len(self._indices.popitem(last=False)[1].starts)

    def _error(
        self, where: str, chunk: WantedChunk, request: Request, describe: Describe, error: Exception
    ) -> Exception:
        """The error to raise for a request that failed."""
        what = f"{self.url}: {describe(chunk.tag)}"
        if isinstance(error, CorruptChunkError):
            return CorruptChunkError(f"{what}: {where}: {error}")
        if isinstance(error, FileNotFoundError):
            return CorruptChunkError(f"{what}: {chunk.shard} is committed but missing")
        return StoreError(f"{what}: {request} cannot be fetched: {type(error).__name__}: {error}")


def _batches(
    chunks: Sequence[WantedChunk], indices: Mapping[str, ChunkIndex], place: Place
) -> Iterator[list[tuple[WantedChunk, Request]]]:
    """Chunks that may be in memory together, with their byte ranges. Chunks that are not stored are placed at once."""
    batch: list[tuple[WantedChunk, Request]] = []
    size = 0
    for chunk in chunks:
        index = indices[chunk.shard]
        start, length = index.starts[chunk.number], index.lengths[chunk.number]
        if start < 0:
            place(chunk.tag, None)
            continue
        if batch and size + length > _BATCH_BYTES:
            yield batch
            batch, size = [], 0
        batch.append((chunk, Request(chunk.shard, start, start + length)))
        size += length
    if batch:
        yield batch
