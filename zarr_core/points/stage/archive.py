"""Copies a packed sample as it is: one object, read from its first to its last byte, each entry checked."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial

from zarr_core.errors import CorruptChunkError
from zarr_core.format.packed import PackedGroup, parse_head
from zarr_core.format.ranges import MAX_READ_BYTES, coalesce
from zarr_core.points.stage.pieces import Piece, check_piece
from zarr_core.points.stage.task import Item, StageTask
from zarr_core.points.store.manifest import SampleEntry
from zarr_core.storage import ObjectInfo, Storage
from zarr_core.storage.archives import is_archive
from zarr_core.storage.checked import check_parts, read_checked
from zarr_core.storage.temporary import strip_temp_suffix


class StoredArchive:
    """The archive of a sample. One request reads all of an archive of up to 8 MiB.

    Args:
        storage: the store.
        relpath: path of the archive below the store's root.
        head: bytes of its head.

    Attributes:
        size: bytes of the archive.

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
        check = partial(check_parts, entries, start, stop, check_piece)
        if stop <= len(self._first):
            try:
                return check(self._first[start:stop])
            except CorruptChunkError:
                if self._storage.is_local:
                    raise
        return read_checked(self._storage, self._relpath, start, stop, check)


class ArchiveCopy:
    """One packed sample to copy.

    Args:
        task, item: as for :func:`zarr_core.points.stage.store.stage_sample`.
    """

    def __init__(self, task: StageTask, item: Item) -> None:
        self._task, self._item = task, item
        self._entry = item[1]
        self._head: bytes | None = None
        self._present: dict[str, ObjectInfo | None] = {}

    def copy(self) -> tuple[SampleEntry, int, int]:
        """Copy the archive unless the copy has it: the entry, bytes copied and bytes kept."""
        relpath = self._task.choose_name(self._item, self._entry.relpath, self._is_another)
        entry = replace(self._entry, relpath=relpath)
        present = self._find(relpath)
        if present is not None and self._holds(relpath, present.size):
            return entry, 0, present.size
        remove_leftovers(self._task.target, relpath)
        archive = StoredArchive(self._task.source, self._entry.relpath, self._entry.head)
        return entry, self._task.target.write(relpath, archive.pieces()), 0

    def _find(self, relpath: str) -> ObjectInfo | None:
        """What the copy has at a path now; asked once."""
        if relpath not in self._present:
            self._present[relpath] = self._task.target.find(relpath)
        return self._present[relpath]

    def _source_head(self) -> bytes:
        if self._head is None:
            self._head = self._task.source.read(self._entry.relpath, 0, self._entry.head)
        return self._head

    def _is_another(self, relpath: str) -> bool:
        """Whether the copy has another archive at this path; False for a damaged one, which is repaired."""
        if self._find(relpath) is None:
            return False
        head = self._task.target.read(relpath, 0, self._entry.head)
        try:
            parse_head(head)
        except ValueError:
            return False
        return head != self._source_head()

    def _holds(self, relpath: str, size: int) -> bool:
        """Whether the copy has all bytes of the archive, which are read unless a manifest of the copy names it."""
        trusted = self._item[2] == relpath and not self._task.check
        if trusted:
            return size == parse_head(self._source_head()).size
        return is_whole(self._task.target, relpath, self._entry.head)


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
