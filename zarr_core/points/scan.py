"""Every chunk of a stored array, one after another, in bounded memory: what reads all of a store goes through here.

Training never does; it reads a few chunks through ``zarr_core.points.reader``.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from zarr_core.errors import CorruptChunkError
from zarr_core.format.array_metadata import ArrayLayout
from zarr_core.format.shards import decode_chunk, decode_shard_index
from zarr_core.storage import Storage

# Neighbouring chunks are fetched in one request up to this size: few round trips, and still little memory.
_SPAN_BYTES = 8 << 20

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")


@dataclass(frozen=True, eq=False)
class ChunkRead:
    """One chunk of an array, or why it cannot be had.

    Attributes:
        number: the chunk's place in the array, None where a whole shard cannot be read.
        shard: the shard that holds it.
        rows: its points without padding, (<= chunk_points, dim); None if ``problem`` is not "".
        problem: what is wrong with the stored bytes, or "".
    """

    number: int | None
    shard: int
    rows: np.ndarray | None
    problem: str = ""


@dataclass(frozen=True)
class _Span:
    """Neighbouring chunks of a shard that one request fetches: (chunk number, offset, length) of each."""

    shard: int
    pieces: list[tuple[int, int, int]]

    @property
    def start(self) -> int:
        return self.pieces[0][1]

    @property
    def stop(self) -> int:
        return self.pieces[-1][1] + self.pieces[-1][2]


def read_chunks(storage: Storage, path: str, layout: ArrayLayout, read_concurrency: int = 1) -> Iterator[ChunkRead]:
    """Read an array whole, chunk by chunk in order; damage is reported in its place and never hides what follows.

    Args:
        storage: the store.
        path: the array below the store's root ("samples/run_1/<digest>/surface/pressure").
        layout: of the array.
        read_concurrency: requests in flight.

    Memory: 8 MiB for each request in flight, or one chunk where that is larger.
    """

    def fetch(span: _Span | ChunkRead) -> list[ChunkRead]:
        if isinstance(span, ChunkRead):
            return [span]
        try:
            data = storage.read(f"{path}/{layout.shard_key(span.shard)}", span.start, span.stop)
        except OSError as error:
            return [ChunkRead(number, span.shard, None, f"cannot be read: {error}") for number, _, _ in span.pieces]
        return [
            _decoded(layout, number, span.shard, data[start - span.start : start - span.start + length])
            for number, start, length in span.pieces
        ]

    for shard in range(layout.n_shards):
        try:
            spans = _spans(layout, shard, _shard_index(storage, path, layout, shard))
        except CorruptChunkError as error:
            yield ChunkRead(None, shard, None, str(error))
            continue
        except FileNotFoundError:
            if layout.checksum:
                yield ChunkRead(None, shard, None, "the object is missing")
            else:
                first = shard * layout.chunks_per_shard
                last = min(first + layout.chunks_per_shard, layout.n_chunks)
                yield from (_absent(layout, number, shard) for number in range(first, last))
            continue
        except OSError as error:
            yield ChunkRead(None, shard, None, f"cannot be read: {error}")
            continue
        for reads in _in_order(fetch, spans, read_concurrency):
            yield from reads


def _shard_index(storage: Storage, path: str, layout: ArrayLayout, shard: int) -> np.ndarray:
    name = f"{path}/{layout.shard_key(shard)}"
    size = storage.size(name)
    index = decode_shard_index(layout, storage.read(name, max(0, size - layout.index_bytes), size))
    present = index[:, 0] != np.uint64(2**64 - 1)
    if np.any(index[present].astype(object).sum(axis=1) > size - layout.index_bytes):
        raise CorruptChunkError("shard index: names bytes beyond the end of the object")
    return index


def _spans(layout: ArrayLayout, shard: int, index: np.ndarray) -> list[_Span | ChunkRead]:
    """Requests that fetch a shard's chunks in order; in the place of a chunk that is not there, what to make of it."""
    first = shard * layout.chunks_per_shard
    spans: list[_Span | ChunkRead] = []
    for entry in range(min(layout.chunks_per_shard, layout.n_chunks - first)):
        start, length = (int(value) for value in index[entry])
        if start == 2**64 - 1:
            spans.append(_absent(layout, first + entry, shard))
            continue
        piece = (first + entry, start, length)
        last = spans[-1] if spans else None
        if isinstance(last, _Span) and last.stop == start and start + length - last.start <= _SPAN_BYTES:
            last.pieces.append(piece)
        else:
            spans.append(_Span(shard, [piece]))
    return spans


def _absent(layout: ArrayLayout, number: int, shard: int) -> ChunkRead:
    if layout.checksum:
        return ChunkRead(number, shard, None, "not in the shard's index")
    # zarr-python leaves out chunks, and whole shards, that hold the fill value alone. This library writes them, with
    # their checksums.
    n_rows = min(layout.chunk_points, layout.n_points - number * layout.chunk_points)
    return ChunkRead(number, shard, np.zeros((n_rows, layout.dim), layout.dtype))


def _decoded(layout: ArrayLayout, number: int, shard: int, data: bytes) -> ChunkRead:
    try:
        rows = decode_chunk(layout, data)
    except CorruptChunkError as error:
        return ChunkRead(number, shard, None, str(error))
    return ChunkRead(number, shard, rows[: layout.n_points - number * layout.chunk_points])


def _in_order(function: Callable[[_Item], _Result], items: Iterable[_Item], concurrency: int) -> Iterator[_Result]:
    """``map`` by threads, a bounded number of items ahead of the consumer."""
    if concurrency <= 1:
        yield from map(function, items)
        return
    with ThreadPoolExecutor(concurrency) as pool:
        running: deque[Future[_Result]] = deque()
        for item in items:
            running.append(pool.submit(function, item))
            if len(running) == concurrency:
                yield running.popleft().result()
        while running:
            yield running.popleft().result()
