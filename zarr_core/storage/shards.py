"""A shard read whole, piece by piece, with every chunk checked: to copy the shard, or to verify it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise

from zarr_core.errors import CorruptChunkError
from zarr_core.format.array_metadata import ArrayLayout
from zarr_core.format.ranges import MAX_READ_BYTES, coalesce
from zarr_core.format.shards import ChunkRange, check_chunk, chunk_ranges
from zarr_core.storage.checked import check_parts, read_checked
from zarr_core.storage.storage import Storage


@dataclass(frozen=True)
class StoredShard:
    """A shard object.

    Attributes:
        storage, name: where it is.
        layout: of its array.
        size: bytes of the object.
        chunks: ranges of its chunks, in stored order.
        index: the last bytes of the object.
    """

    storage: Storage
    name: str
    layout: ArrayLayout
    size: int
    chunks: Sequence[ChunkRange]
    index: bytes

    @classmethod
    def open(
        cls,
        storage: Storage,
        name: str,
        layout: ArrayLayout,
        number: int = 0,
        *,
        size: int | None = None,
        sparse: bool = False,
    ) -> StoredShard:
        """Read the index of a shard.

        Args:
            storage, name, layout: as the attributes.
            number: of the shard in its array.
            size: of the object; asked for if None.
            sparse: whether chunks may be missing. Without checksums another program wrote them, and they may.

        Raises:
            FileNotFoundError: there is no such object.
            CorruptChunkError: the index is damaged, or a chunk is missing.
        """
        size = storage.size(name) if size is None else size
        end = max(size - layout.index_bytes, 0)

        def decode(index: bytes) -> tuple[list[ChunkRange], bytes]:
            chunks = chunk_ranges(layout, number, index, end)
            if layout.checksum and not sparse:
                _check_complete(layout, number, chunks)
            return chunks, index

        if layout.sharded:
            chunks, index = read_checked(storage, name, end, size, decode)
        else:
            chunks, index = decode(b"")
        chunks.sort(key=lambda chunk: chunk.start)
        if any(chunk.start < before.stop for before, chunk in pairwise(chunks)):
            raise CorruptChunkError("shard index: names bytes that overlap")
        return cls(storage, name, layout, size, chunks, index)

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
        end = self.size - len(self.index)
        if position < end:
            yield self._read(position, end, ())
        yield self.index

    def _read(self, start: int, stop: int, chunks: Sequence[ChunkRange]) -> bytes:
        check = partial(check_parts, chunks, start, stop, self._check)
        return read_checked(self.storage, self.name, start, stop, check)

    def _check(self, chunk: ChunkRange, data: bytes) -> None:
        try:
            check_chunk(self.layout, data)
        except CorruptChunkError as error:
            where = f"chunk {chunk.number} (bytes {chunk.start} to {chunk.stop})"
            raise CorruptChunkError(f"{where}: {error}") from error


def is_intact(storage: Storage, name: str, layout: ArrayLayout, number: int = 0, *, sparse: bool = False) -> bool:
    """Whether a shard is there, with all its chunks undamaged; the arguments are those of :meth:`StoredShard.open`."""
    try:
        for _ in StoredShard.open(storage, name, layout, number, sparse=sparse).pieces():
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
