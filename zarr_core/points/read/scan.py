"""Reads whole arrays chunk by chunk in bounded memory, for verification and statistics.

Training reads a few chunks per sample through ``zarr_core.points.read.reader`` instead.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from zarr_core._util.threads import map_in_threads
from zarr_core.errors import CorruptChunkError
from zarr_core.format.array_metadata import ArrayLayout
from zarr_core.format.ranges import MAX_READ_BYTES, coalesce
from zarr_core.format.shards import ChunkRange, chunk_ranges, decode_chunk
from zarr_core.storage import Storage


@dataclass(frozen=True, eq=False)
class ChunkRead:
    """One chunk of an array, or the reason why it cannot be read.

    Attributes:
        number: the chunk's number in the array; None if the whole shard cannot be read.
        shard: number of the shard that holds it.
        rows: its points without padding, (<= chunk_points, dim); None if ``problem`` is not "".
        problem: what is wrong with the stored bytes, or "".
        start, length: of its bytes in the shard; 0 for a chunk that was not written.
    """

    number: int | None
    shard: int
    rows: np.ndarray | None
    problem: str = ""
    start: int = 0
    length: int = 0


def read_chunks(storage: Storage, path: str, layout: ArrayLayout, read_concurrency: int = 1) -> Iterator[ChunkRead]:
    """Read all chunks of an array in order. A damaged chunk is reported in its place; reading goes on after it.

    Args:
        storage, path, layout: the array, by its path below the root ("samples/run_1/<digest>/surface/pressure").
        read_concurrency: requests in flight.

    Memory: 8 MiB per request in flight, or one chunk if that is larger.
    """

    def fetch(group: list[ChunkRange]) -> list[ChunkRead]:
        shard, first, stop = group[0].shard, group[0].start, group[-1].stop
        try:
            data = storage.read(f"{path}/{layout.shard_key(shard)}", first, stop)
        except OSError as error:
            return [ChunkRead(chunk.number, shard, None, f"cannot be read: {error}") for chunk in group]
        return [_decoded(layout, chunk, data[chunk.start - first : chunk.stop - first]) for chunk in group]

    for shard in range(layout.n_shards):
        name = f"{path}/{layout.shard_key(shard)}"
        ranges: list[ChunkRange] = []
        try:
            size = storage.size(name)
            end = size - layout.index_bytes
            ranges = chunk_ranges(layout, shard, storage.read(name, max(end, 0), size), end)
        except CorruptChunkError as error:
            yield ChunkRead(None, shard, None, str(error))
            continue
        except FileNotFoundError:
            if layout.checksum:
                yield ChunkRead(None, shard, None, "the object is missing")
                continue
        except OSError as error:
            yield ChunkRead(None, shard, None, f"cannot be read: {error}")
            continue
        number = shard * layout.chunks_per_shard
        stop = min(number + layout.chunks_per_shard, layout.n_chunks)
        groups = coalesce(ranges, max_bytes=MAX_READ_BYTES)
        if read_concurrency > 1:
            fetched = map_in_threads(fetch, groups, read_concurrency, read_concurrency - 1)
        else:
            fetched = map(fetch, groups)
        for reads in fetched:
            for read in reads:
                assert read.number is not None
                yield from (_not_written(layout, missing, shard) for missing in range(number, read.number))
                yield read
                number = read.number + 1
        yield from (_not_written(layout, missing, shard) for missing in range(number, stop))


def _not_written(layout: ArrayLayout, number: int, shard: int) -> ChunkRead:
    if layout.checksum:
        return ChunkRead(number, shard, None, "not in the shard's index")
    # zarr-python writes no chunks and no shards that hold only the fill value. This library writes all of them, with
    # checksums.
    n_rows = min(layout.chunk_points, layout.n_points - number * layout.chunk_points)
    return ChunkRead(number, shard, np.zeros((n_rows, layout.dim), layout.dtype))


def _decoded(layout: ArrayLayout, chunk: ChunkRange, data: bytes) -> ChunkRead:
    try:
        rows = decode_chunk(layout, data)
    except CorruptChunkError as error:
        return ChunkRead(chunk.number, chunk.shard, None, str(error))
    rows = rows[: layout.n_points - chunk.number * layout.chunk_points]
    return ChunkRead(chunk.number, chunk.shard, rows, "", chunk.start, chunk.stop - chunk.start)
