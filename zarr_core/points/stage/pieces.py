"""Stored bytes of samples that are copied as they are, each checked on its way."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import NamedTuple

from zarr_core.errors import CorruptChunkError
from zarr_core.format.ranges import MAX_READ_BYTES, coalesce
from zarr_core.points.store.mesh import check_mesh_object
from zarr_core.storage import Storage
from zarr_core.storage.checked import check_parts, read_checked

# Ranges of a sample that each worker reads at the same time.
_READS = 4
# Unwanted bytes between two pieces that cost less than another request.
_MAX_GAP = 1 << 18


class Piece(NamedTuple):
    """A chunk with its checksum, or a small object of a sample's group.

    Attributes:
        object: name of the object that holds it.
        start, stop: its bytes in that object.
        name: in the sample's group, as an entry of an archive is called.
    """

    object: str
    start: int
    stop: int
    name: str


def read_pieces(storage: Storage, pieces: Iterable[Piece]) -> Iterator[tuple[str, bytes]]:
    """Name and bytes of each piece, in the order of objects and positions. Memory: four ranges of at most 8 MiB.

    Raises:
        CorruptChunkError: a piece is damaged.
        FileNotFoundError: an object is missing.
    """
    groups = coalesce(sorted(pieces), max_gap=_MAX_GAP, max_bytes=MAX_READ_BYTES)
    with ThreadPoolExecutor(_READS) as threads:
        for first in range(0, len(groups), _READS):
            for found in threads.map(partial(_read, storage), groups[first : first + _READS]):
                yield from found


def _read(storage: Storage, group: Sequence[Piece]) -> list[tuple[str, bytes]]:
    start, stop = group[0].start, group[-1].stop
    check = partial(check_parts, group, start, stop, check_piece)
    data = read_checked(storage, group[0].object, start, stop, check)
    found = []
    for piece in group:
        found.append((piece.name, data[piece.start - start : piece.stop - start]))
    return found


def check_piece(piece: Piece, data: bytes) -> None:
    """Raise CorruptChunkError if the bytes of a piece are damaged."""
    try:
        check_mesh_object(piece.name, data)
    except CorruptChunkError as error:
        raise CorruptChunkError(f"{error} (bytes {piece.start} to {piece.stop} of {piece.object})") from error
