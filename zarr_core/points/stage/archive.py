"""Stored bytes that are copied as they are, each piece checked on its way; whole archives, and parts of groups."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import cache, partial
from typing import NamedTuple

from zarr_core.errors import CorruptChunkError
from zarr_core.format.packed import PackedGroup, parse_head
from zarr_core.format.ranges import MAX_READ_BYTES, coalesce
from zarr_core.points.stage.task import Item, StagedSample, StageTask
from zarr_core.points.store.mesh import check_mesh_object
from zarr_core.storage import Storage
from zarr_core.storage.archives import is_archive
from zarr_core.storage.checked import check_parts, read_checked
from zarr_core.storage.temporary import strip_temp_suffix

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
    check = partial(check_parts, group, start, stop, _check_piece)
    data = read_checked(storage, group[0].object, start, stop, check)
    found = []
    for piece in group:
        found.append((piece.name, data[piece.start - start : piece.stop - start]))
    return found


def _check_piece(piece: Piece, data: bytes) -> None:
    try:
        check_mesh_object(piece.name, data)
    except CorruptChunkError as error:
        raise CorruptChunkError(f"{error} (bytes {piece.start} to {piece.stop} of {piece.object})") from error


class StoredArchive:
    """The archive of a sample. One request reads all of an archive of up to 8 MiB.

    Raises:
        FileNotFoundError: there is no such object.
        CorruptChunkError: the head is damaged.
    """

    def __init__(self, storage: Storage, relpath: str, head: int) -> None:
        self._storage, self._relpath, self._head_bytes = storage, relpath, head
        self._first_bytes = max(head, MAX_READ_BYTES)
        self._first, self._group = read_checked(storage, relpath, 0, self._first_bytes, self._parsed)
        self.size = self._group.size

    def _parsed(self, data: bytes) -> tuple[bytes, PackedGroup]:
        try:
            group = parse_head(data)
            group.entries  # noqa: B018  # damage shows here
            size = group.size
        except ValueError as error:
            raise CorruptChunkError(f"{self._relpath} cannot be read: {error}") from error
        if len(data) != min(size, self._first_bytes) or group.head != self._head_bytes:
            said = f"{size:,} bytes, and a head of {self._head_bytes:,}"
            raise CorruptChunkError(f"{self._relpath} has not {said}, as its head and the manifest say")
        return data, group

    def pieces(self) -> Iterator[bytes]:
        """The bytes of the archive in pieces of at most 8 MiB, or one entry; each is checked before it is yielded.

        Raises:
            CorruptChunkError: names the entry.
        """
        entries = []
        for name, place in self._group.entries.items():
            entries.append(Piece(self._relpath, place.start, place.start + place.size, name))
        end = 0
        for group in coalesce(entries, max_gap=self.size, max_bytes=MAX_READ_BYTES):
            yield self._read(end, group[-1].stop, group)
            end = group[-1].stop
        yield self._read(end, self.size, [])

    def _read(self, start: int, stop: int, entries: list[Piece]) -> bytes:
        check = partial(check_parts, entries, start, stop, _check_piece)
        if stop <= len(self._first):
            try:
                return check(self._first[start:stop])
            except CorruptChunkError:
                if self._storage.is_local:
                    raise
        return read_checked(self._storage, self._relpath, start, stop, check)


def copy_archive(task: StageTask, item: Item) -> StagedSample:
    """Copy a packed sample as it is, unless the copy has it."""
    sample_id, entry, known = item
    source, target = task.source, task.target
    find = cache(target.find)
    source_head = cache(partial(source.read, entry.relpath, 0, entry.head))

    def is_another(relpath: str) -> bool:
        """Whether the copy has another archive at this path; False for a damaged one, which is repaired."""
        if find(relpath) is None:
            return False
        head = target.read(relpath, 0, entry.head)
        try:
            parse_head(head)
        except ValueError:
            return False
        return head != source_head()

    relpath = task.choose_name(item, entry.relpath, is_another)
    staged = replace(entry, relpath=relpath)
    present = find(relpath)
    if present is not None:
        if known == relpath and not task.check:
            is_there = present.size == parse_head(source_head()).size
        else:
            is_there = is_whole(target, relpath, entry.head)
        if is_there:
            return StagedSample(sample_id, staged, kept=present.size)
    remove_leftovers(target, relpath)
    archive = StoredArchive(source, entry.relpath, entry.head)
    return StagedSample(sample_id, staged, copied=target.write(relpath, archive.pieces()))


def is_whole(storage: Storage, relpath: str, head: int) -> bool:
    """Whether an archive is there, with all its entries undamaged."""
    try:
        archive = StoredArchive(storage, relpath, head)
        for _ in archive.pieces():
            pass
    except (CorruptChunkError, OSError):
        return False
    return storage.size(relpath) == archive.size


def remove_leftovers(target: Storage, relpath: str) -> None:
    """Delete temporary files of killed copies of a group. The lock of a local target excludes other writers."""
    if not target.is_local:
        return
    is_folder = not is_archive(relpath)
    names = []
    for stored in target.objects(relpath if is_folder else relpath.rpartition("/")[0], recursive=is_folder):
        if strip_temp_suffix(stored.name)[1]:
            names.append(stored.name)
    target.delete(names)
