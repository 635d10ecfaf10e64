"""Chunks of shards, fetched in waves of byte ranges: what both copies of a matrix are read with.

The index of a shard costs one request and is kept. Neighbouring chunks that are wanted are one range.
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
from zarr_core.format.shards import decode_shard_index, is_intact
from zarr_core.matrix.layout import GridLayout
from zarr_core.storage.byte_ranges import CountingObjects, JoinedObjects, LocalObjects, Objects, Request

_INDEX_BYTES = 64 << 20  # memory for shard indices, in every process that reads
# Of one request at most: a long row comes over several connections, or through a buffer that a processor's cache holds.
_RANGE_BYTES = {True: 16 << 20, False: 256 << 10}
_WAVE_BYTES = 256 << 20  # in flight together at most
# What a request costs, in bytes that could have been fetched instead: 20 ms over a network with 64 of them in flight,
# or the calls and the interpreter's work that a small local read takes.
_REQUEST_BYTES = 64 << 10


class ChunkRead(NamedTuple):
    """A chunk that is wanted.

    Attributes:
        shard: full name of its object.
        number: in the shard.
        tag: whatever the caller needs to put the cells in their place.
    """

    shard: str
    number: int
    tag: int


@dataclass
class Cost:
    """Requests, and the bytes that they fetched."""

    requests: int = 0
    bytes: int = 0

    def add(self, requests: int, n_bytes: int) -> None:
        """Count more in."""
        self.requests += requests
        self.bytes += n_bytes

    @property
    def weight(self) -> int:
        """What to compare costs by."""
        return self.bytes + self.requests * _REQUEST_BYTES

    def __str__(self) -> str:
        return f"{self.requests:,} requests, {format_size(self.bytes)}"


# Takes the tag of a chunk and its bytes (None: it was not stored), and raises CorruptChunkError.
Place = Callable[[int, np.ndarray | None], None]
# Takes the tag of a chunk that is stored without a codec; where its cells belong, as uint8, if that is one piece.
Room = Callable[[int], np.ndarray | None]
_Wanted = tuple[ChunkRead, Request]


class ChunkFetcher:
    """Fetches chunks of one matrix, for any number of threads. Belongs to the process that made it.

    Args:
        objects: below the root of the matrix.
        url: of the matrix, for messages.
        cached: lays a cache over objects.
    """

    def __init__(self, objects: Objects, url: str, cached: Callable[[Objects], Objects] | None = None) -> None:
        self._counter = CountingObjects(objects)
        self._files = objects if isinstance(objects, LocalObjects) and cached is None else None
        # Over a network a few bytes too many cost less than another request.
        joined = JoinedObjects(self._counter, _REQUEST_BYTES if objects.remote else 0, _RANGE_BYTES[objects.remote])
        self._objects, self._url = joined if cached is None else cached(joined), url
        self._indices: OrderedDict[str, np.ndarray] = OrderedDict()
        self._index_bytes = 0
        self._lock = threading.Lock()

    def read(
        self,
        layout: GridLayout,
        chunks: Sequence[ChunkRead],
        place: Place,
        name: Callable[[int], str],
        room: Room | None = None,
    ) -> Cost:
        """Fetch chunks and hand each to ``place``, in any order.

        Args:
            layout: of the array that they are in.
            chunks: what to fetch, sorted by shard and number.
            place: puts the cells where they belong.
            name: says what a tag stands for, for messages.
            room: where chunks of local files are read right into; ``place`` gets all others.

        Returns:
            What it cost, shard indices included (and what other threads fetched meanwhile).

        Raises:
            CorruptChunkError: stored bytes are missing or damaged, also when they were fetched again.
            StoreError: they cannot be reached.
        """
        requests, n_bytes = self._counter.requests, self._counter.bytes
        indices = self._shard_indices(layout, chunks, name)
        for wave in _waves(chunks, indices, place):
            if room is not None and self._files is not None:
                wave = [(chunk, request) for chunk, request in wave if not self._land(request, room(chunk.tag))]
            again = self._execute(wave, place, name, last=not self._objects.remote)
            if again:
                self._objects.discard([request for _, request in again])
                self._execute(again, place, name, last=True)
        return Cost(self._counter.requests - requests, self._counter.bytes - n_bytes)

    def _land(self, request: Request, cells: np.ndarray | None) -> bool:
        """Read a chunk right into its place. False where that cannot be, or went wrong: the usual way says why."""
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

    def _execute(self, wave: Sequence[_Wanted], place: Place, name: Callable[[int], str], last: bool) -> list[_Wanted]:
        """Fetch and place; what was damaged, or an error where this was the last try."""
        damaged = []
        fetched = self._objects.fetch([request for _, request in wave])
        for (chunk, request), data in zip(wave, fetched, strict=True):
            try:
                if isinstance(data, Exception):
                    raise data
                place(chunk.tag, data)
            except CorruptChunkError as error:
                if last:
                    where = f"chunk {chunk.number} of {chunk.shard}"
                    raise CorruptChunkError(f"{self._url}: {name(chunk.tag)}: {where}: {error}") from error
                damaged.append((chunk, request))
            except FileNotFoundError as error:
                raise self._missing(chunk, name) from error
            except OSError as error:
                raise self._unreachable(chunk.tag, request, name, error) from error
            except Exception as error:
                if not isinstance(data, Exception):
                    raise
                raise self._unreachable(chunk.tag, request, name, error) from error
        return damaged

    def _shard_indices(
        self, layout: GridLayout, chunks: Sequence[ChunkRead], name: Callable[[int], str]
    ) -> dict[str, np.ndarray]:
        """By shard (chunks, 2): first byte, -1 for a chunk that was not stored, and length of each chunk."""
        wanted = {chunk.shard: chunk for chunk in chunks}
        with self._lock:
            found = {shard: self._indices[shard] for shard in wanted if shard in self._indices}
            for shard in found:
                self._indices.move_to_end(shard)
        missing = [chunk for shard, chunk in wanted.items() if shard not in found]
        requests = [Request(chunk.shard, -layout.flat.index_bytes) for chunk in missing]
        for remote in (self._objects.remote, False):
            damaged = []
            for chunk, request, data in zip(missing, requests, self._objects.fetch(requests), strict=True):
                try:
                    if isinstance(data, Exception):
                        raise data
                    found[chunk.shard] = _decode_index(layout, data)
                except CorruptChunkError as error:
                    if not remote:
                        raise CorruptChunkError(f"{self._url}: {name(chunk.tag)}: {chunk.shard}: {error}") from error
                    damaged.append((chunk, request))
                except FileNotFoundError as error:
                    raise self._missing(chunk, name) from error
                except Exception as error:
                    raise self._unreachable(chunk.tag, request, name, error) from error
                else:
                    self._keep(chunk.shard, found[chunk.shard])
            if not damaged:
                break
            missing, requests = [chunk for chunk, _ in damaged], [request for _, request in damaged]
            self._objects.discard(requests)
        return found

    def _keep(self, shard: str, index: np.ndarray) -> None:
        with self._lock:
            if shard in self._indices:
                return
            self._indices[shard] = index
            self._index_bytes += index.nbytes
            while self._index_bytes > _INDEX_BYTES and len(self._indices) > 1:
                self._index_bytes -= self._indices.popitem(last=False)[1].nbytes

    def _missing(self, chunk: ChunkRead, name: Callable[[int], str]) -> CorruptChunkError:
        return CorruptChunkError(f"{self._url}: {name(chunk.tag)}: {chunk.shard} is committed but not there")

    def _unreachable(self, tag: int, request: Request, name: Callable[[int], str], error: Exception) -> StoreError:
        return StoreError(f"{self._url}: {name(tag)}: {request} cannot be fetched: {type(error).__name__}: {error}")


def _waves(chunks: Sequence[ChunkRead], indices: Mapping[str, np.ndarray], place: Place) -> Iterator[list[_Wanted]]:
    """Chunks that may be in memory together, and where they are; those that were not stored are placed at once."""
    wave: list[_Wanted] = []
    size = 0
    for chunk in chunks:
        start, length = indices[chunk.shard][chunk.number].tolist()
        if start < 0:
            place(chunk.tag, None)
            continue
        if wave and size + length > _WAVE_BYTES:
            yield wave
            wave, size = [], 0
        wave.append((chunk, Request(chunk.shard, start, start + length)))
        size += length
    if wave:
        yield wave


def _decode_index(layout: GridLayout, tail: np.ndarray) -> np.ndarray:
    index = decode_shard_index(layout.flat, tail.tobytes()).astype("<u8").view("<i8")
    if (index[index[:, 0] >= 0, 1] < 0).any():
        raise CorruptChunkError("shard index: names impossible lengths")
    return index
