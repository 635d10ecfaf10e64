"""Compares the sizes that compressed chunks claim with their layout, before another library decodes the chunks.

A decoder allocates what the header of a frame claims, up to 2 GiB with Blosc. Where it cannot, TensorStore ends the
process, and so it does where the central directory of an archive is damaged, which is compared as well.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from zarr_core._util.documents import parse_json
from zarr_core.errors import CorruptChunkError, StoreError
from zarr_core.format.array_metadata import ArrayLayout
from zarr_core.format.packed import check_directory, parse_head
from zarr_core.format.shards import ChunkRange, chunk_ranges
from zarr_core.points.read.engines import FieldRead
from zarr_core.storage import Storage

_HEADER_BYTES = 18
_CHECKSUM_BYTES = 4
_ARRAYS = 4096


class FrameSizes:
    """Checks frames of a store. Keeps the shard indices of the arrays that were read last.

    Args:
        storage: the store.
    """

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._known = lru_cache(_ARRAYS)(self._open)
        self._check_archive = lru_cache(_ARRAYS)(self._compare_directory)

    def check(self, read: FieldRead) -> bool:
        """Whether the layout of the array is one that this library writes: the others are not checked.

        Raises:
            CorruptChunkError: a chunk of the read claims another size than its layout has.
        """
        try:
            if read.entry.head:
                self._check_archive(read.entry.relpath, read.entry.head)
            known = self._known(read.path)
            if known is None:
                return False
            layout, chunks = known
            start, stop = read.drawn.span
            for number in range(start // layout.chunk_points, -(-stop // layout.chunk_points)):
                if number in chunks:
                    self._check_chunk(read.path, layout, chunks[number])
        except (ValueError, CorruptChunkError) as error:
            raise read.unreadable(error) from error
        except FileNotFoundError:
            pass  # the engine reports what is missing
        return True

    def _compare_directory(self, archive: str, head: int) -> None:
        group = parse_head(self._storage.read(archive, 0, head))
        check_directory(group, self._storage.read(archive, group.directory_start, group.size))

    def _open(self, path: str) -> tuple[ArrayLayout, dict[int, ChunkRange]] | None:
        try:
            layout = ArrayLayout.from_zarr_json(parse_json(self._storage.read(f"{path}/zarr.json")))
        except StoreError:
            return None
        if layout.codec.name == "pcodec" or layout.codec.scale is not None:  # TensorStore has no such codecs
            return None
        chunks = {}
        for shard in range(layout.n_shards):
            name = f"{path}/{layout.shard_key(shard)}"
            size = self._storage.size(name)
            end = size - layout.index_bytes
            found = chunk_ranges(layout, shard, self._storage.read(name, max(end, 0), size), end)
            chunks.update({chunk.number: chunk for chunk in found})
        return layout, chunks

    def _check_chunk(self, path: str, layout: ArrayLayout, chunk: ChunkRange) -> None:
        frame = chunk.stop - chunk.start - (_CHECKSUM_BYTES if layout.checksum else 0)
        if frame <= 0:
            raise ValueError(f"chunk {chunk.number} is empty")
        header = self._storage.read(
            f"{path}/{layout.shard_key(chunk.shard)}", chunk.start, chunk.start + min(frame, _HEADER_BYTES)
        )
        claimed = layout.codec.decoded_bytes(header, frame)
        expected = layout.chunk_points * layout.dim * np.dtype(layout.dtype).itemsize
        if claimed != expected:
            raise ValueError(f"chunk {chunk.number} decodes to {claimed} bytes where {expected} belong")
