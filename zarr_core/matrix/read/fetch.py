"""Fetch chunks of shards by byte range, for both copies of a matrix.

The index of a shard costs one request and is kept in memory. Neighbouring chunks are fetched as one range.
"""

from __future__ import annotations

import math
import threading
import time
from array import array
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from zarr_core._util.units import format_size
from zarr_core.errors import CorruptChunkError, StoreError
from zarr_core.format.array_metadata import CHECKSUM_BYTES
from zarr_core.format.shards import ChunkIndex, decode_into, decode_shard_index, is_intact
from zarr_core.matrix.store.copies import ChunkLayout, Copy
from zarr_core.storage.byte_ranges import CountingObjects, JoinedObjects, LocalObjects, Objects, Request
from zarr_core.storage.checked import fetch_checked
from zarr_core.storage.local_files import LOOK_AGAIN, Identity, MappedChunks

_INDEX_BYTES = 64 << 20  # memory limit of the shard indices, per reading process
_INDEX_ENTRY_BYTES = 25  # offset, length, place in a map, whether it is verified
# Size limit of one request. Remote: a long row is spread over several connections. Local: the buffer stays in the
# processor's cache.
_RANGE_BYTES = {True: 16 << 20, False: 256 << 10}
_BATCH_BYTES = 256 << 20  # limit of the bytes in flight together
# Cost of a request in bytes that could be fetched in the same time: 20 ms over a network with 64 requests in flight,
# or the system calls and interpreter time of a small local read.
_REQUEST_BYTES = 64 << 10


class WantedChunk(NamedTuple):
    """A chunk to fetch, and where its cells go.

    Attributes:
        shard, number: full name of its object, and index in it.
        inside, to: indices of the wanted cells in the chunk and in the output, along each axis.
        whole: whether all cells of the chunk are wanted, in order.
        label: what they are, for messages.
    """

    shard: str
    number: int
    inside: tuple[Any, Any]
    to: tuple[Any, Any]
    whole: bool
    label: str


class KnownShard(NamedTuple):
    """What a process knows of a shard.

    Attributes:
        ranges: byte ranges of its chunks.
        mapped: the chunks in a map of the file, in stored order; None if they are to be read.
        identity: of the file that is mapped.
        slots: by chunk number, the place of the chunk in ``mapped``; negative for a chunk that is not stored.
    """

    ranges: ChunkIndex
    mapped: MappedChunks | None
    identity: Identity
    slots: array[int]


@dataclass
class ReadCost:
    """Number of requests, and the bytes that they fetched."""

    requests: int = 0
    bytes: int = 0

    @property
    def weight(self) -> int:
        """Single number for comparing costs, in bytes."""
        return self.bytes + self.requests * _REQUEST_BYTES

    def __str__(self) -> str:
        return f"{self.requests:,} requests, {format_size(self.bytes)}"


class ChunkFetcher:
    """Fetches chunks of one matrix, for any number of threads. Must not be used in a fork of the process.

    Args:
        objects, url: objects below the root of the matrix, and its URL for messages.
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
        self._shards: OrderedDict[str, KnownShard] = OrderedDict()
        self._index_bytes = 0
        # Mapped shards whose files were seen to be whole since a second before ``_look_again``.
        self._whole: dict[tuple[str, int], KnownShard] = {}
        self._look_again = -math.inf
        # The chunks of their samples by value, with the copy that they belong to.
        self._mapped_rows: dict[str, tuple[Copy, dict[str, list[np.ndarray]]]] = {}
        self._lock = threading.Lock()

    def read(self, layout: ChunkLayout, chunks: Sequence[WantedChunk], out: np.ndarray) -> ReadCost:
        """Fetch chunks and copy their cells to ``out``, whose axes are those of the layout; NaN where none is stored.

        Args:
            layout, chunks: of one array, sorted by shard and number.

        Returns:
            The cost, including shard indices (and concurrent reads of other threads).

        Raises:
            CorruptChunkError: stored bytes are missing, or damaged in a second attempt as well.
            StoreError: the bytes cannot be fetched.
        """
        requests, n_bytes = self._counter.requests, self._counter.bytes
        shards = self._known_shards(layout, chunks)
        scratch = np.empty(layout.chunk, layout.dtype)

        def verified(chunk: WantedChunk) -> None:
            shard = shards[chunk.shard]
            if shard.mapped is None or self._files is None:
                return
            if self._files.identity(chunk.shard) == shard.identity:  # else what was read has replaced what is mapped
                shard.mapped.verified[chunk.number] = 1

        def place(chunk: WantedChunk, data: np.ndarray) -> None:
            cells = _destination(chunk, layout, out)
            decode_into(layout.flat, data, scratch if cells is None else cells)
            verified(chunk)
            if cells is not None:
                return
            first, second = chunk.to
            if isinstance(first, int):  # NumPy indexes one axis at a time faster than two
                out[first][second] = scratch[chunk.inside[0]][chunk.inside[1]]
            else:
                out[chunk.to] = scratch[chunk.inside]

        for batch in _batches(chunks, shards, out):
            left = []
            for chunk, request in batch:
                if layout.flat.is_straight and self._read_directly(request, _destination(chunk, layout, out)):
                    verified(chunk)
                else:
                    left.append((chunk, request))
            self._fetch(left, place)
        return ReadCost(self._counter.requests - requests, self._counter.bytes - n_bytes)

    def _read_directly(self, request: Request, cells: np.ndarray | None) -> bool:
        """Read a local chunk into its destination. False if that is impossible or fails; fetching reports the error."""
        if self._files is None or cells is None or request.size != cells.nbytes + CHECKSUM_BYTES:
            return False
        stored = cells.view(np.uint8).reshape(-1)
        checksum = np.empty(CHECKSUM_BYTES, np.uint8)
        try:
            done = self._files.read_into(request.key, request.start, (stored, checksum))
        except OSError:
            return False
        if done != request.size or not is_intact(stored, checksum):
            return False
        self._counter.count(request, done)
        return True

    def _fetch(
        self, wanted: Sequence[tuple[WantedChunk, Request]], use: Callable[[WantedChunk, np.ndarray], None]
    ) -> None:
        """Fetch a byte range for each chunk and use the bytes; errors name the chunk."""

        def use_one(number: int, data: np.ndarray | Exception) -> None:
            chunk, request = wanted[number]
            what = f"{self.url}: {chunk.label}"
            where = chunk.shard if request.start < 0 else f"chunk {chunk.number} of {chunk.shard}"
            if isinstance(data, FileNotFoundError):
                raise CorruptChunkError(f"{what}: {chunk.shard} is committed but missing") from data
            try:
                if isinstance(data, CorruptChunkError):
                    raise data
                if isinstance(data, Exception):
                    text = f"{what}: {request} cannot be fetched: {type(data).__name__}: {data}"
                    raise StoreError(text) from data
                use(chunk, data)
            except CorruptChunkError as error:
                raise CorruptChunkError(f"{what}: {where}: {error}") from error

        fetch_checked(self._objects, [request for _, request in wanted], use_one)

    def mapped(self, copy: Copy, value: str, number: int) -> KnownShard | None:
        """A shard of the row-major copy whose verified chunks may be copied from a map; None if it must be read."""
        self._forget_old_sizes()
        shard = self._whole.get((value, number))
        if shard is None:
            shard = self._shards.get(copy.shard_name(value, number))
            if shard is None or shard.mapped is None or shard.mapped.file_size() < shard.mapped.size:
                return None
            self._whole[value, number] = shard
        return shard

    def mapped_rows(self, copy: Copy, value: str) -> dict[str, list[np.ndarray]]:
        """By sample, the chunks that may be copied from maps now: what its caller found by :meth:`mapped` and kept."""
        self._forget_old_sizes()
        of_copy, rows = self._mapped_rows.get(value, (None, {}))
        if of_copy is not copy:
            rows = {}
            self._mapped_rows[value] = copy, rows
        return rows

    def _forget_old_sizes(self) -> None:
        """Let the sizes of mapped files be looked at again, if that was ``LOOK_AGAIN`` seconds ago."""
        now = time.monotonic()
        if now >= self._look_again:
            self._whole, self._mapped_rows = {}, {}
            self._look_again = now + LOOK_AGAIN

    def _known_shards(self, layout: ChunkLayout, chunks: Sequence[WantedChunk]) -> dict[str, KnownShard]:
        """The shards by name."""
        wanted = {chunk.shard: chunk for chunk in chunks}
        with self._lock:
            found = {name: self._shards[name] for name in wanted if name in self._shards}
            for name in found:
                self._shards.move_to_end(name)

        def use(chunk: WantedChunk, data: np.ndarray) -> None:
            index = ChunkIndex.from_shards(layout.flat, [decode_shard_index(layout.flat, data.tobytes())])
            found[chunk.shard] = self._keep(chunk.shard, self._map(chunk.shard, layout, index))

        missing = [chunk for name, chunk in wanted.items() if name not in found]
        self._fetch([(chunk, Request(chunk.shard, -layout.flat.index_bytes)) for chunk in missing], use)
        return found

    def _map(self, name: str, layout: ChunkLayout, index: ChunkIndex) -> KnownShard:
        """Map a shard, if it is a local file of uncompressed chunks of one row."""
        starts, lengths = np.asarray(index.starts), np.asarray(index.lengths)
        cells, dtype = layout.flat.chunk_points, np.dtype(layout.dtype)
        size, stored = cells * dtype.itemsize + CHECKSUM_BYTES, starts >= 0
        slots = starts // size
        mapped = None
        identity: Identity = ()
        in_order = (lengths[stored] == size).all() and (slots[stored] == np.arange(stored.sum())).all()
        if self._files is not None and layout.flat.is_straight and layout.chunk[0] == 1 and stored.any() and in_order:
            file = self._files.map(name)
            identity = file.identity if file else ()
            mapped = MappedChunks.of(file, int(stored.sum()), (cells,), dtype, bytearray(len(starts)))
        return KnownShard(index, mapped, identity, array("q", slots.tobytes()))

    def _keep(self, name: str, shard: KnownShard) -> KnownShard:
        """Keep a shard unless another thread has done so, and drop the oldest if they need too much memory."""
        with self._lock:
            if name in self._shards:
                return self._shards[name]
            self._shards[name] = shard
            self._index_bytes += _INDEX_ENTRY_BYTES * len(shard.slots)
            while self._index_bytes > _INDEX_BYTES and len(self._shards) > 1:
                _, dropped = self._shards.popitem(last=False)
                self._index_bytes -= _INDEX_ENTRY_BYTES * len(dropped.slots)
            return shard


def _destination(chunk: WantedChunk, layout: ChunkLayout, out: np.ndarray) -> np.ndarray | None:
    """The part of the output that a chunk can be decoded into; None if it has other cells, or gaps between them."""
    if not chunk.whole:
        return None
    cells: np.ndarray = out[chunk.to]
    in_place = cells.ndim and cells.flags.c_contiguous and cells.dtype == layout.dtype  # one cell would be a copy
    return cells if in_place else None


def _batches(
    chunks: Sequence[WantedChunk], shards: Mapping[str, KnownShard], out: np.ndarray
) -> Iterator[list[tuple[WantedChunk, Request]]]:
    """Chunks that may be in memory together, with their byte ranges. Cells of chunks that are not stored become NaN."""
    batch: list[tuple[WantedChunk, Request]] = []
    size = 0
    for chunk in chunks:
        index = shards[chunk.shard].ranges
        start, length = index.starts[chunk.number], index.lengths[chunk.number]
        if start < 0:
            out[chunk.to] = np.nan
            continue
        if batch and size + length > _BATCH_BYTES:
            yield batch
            batch, size = [], 0
        batch.append((chunk, Request(chunk.shard, start, start + length)))
        size += length
    if batch:
        yield batch
