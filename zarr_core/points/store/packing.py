"""Collects the objects of a sample's group and arranges them as one archive.

A conversion loads one field after another, while the archive has their chunks side by side. So encoded objects wait in
a temporary file of this machine, or in memory while they are few.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from tempfile import SpooledTemporaryFile, TemporaryDirectory
from typing import Any

import numpy as np

from zarr_core.format.packed import Archive, Entry, in_order
from zarr_core.format.ranges import MAX_READ_BYTES
from zarr_core.storage import Storage
from zarr_core.storage.temporary import scratch

# Encoded bytes of a sample that are kept in memory; more are written to a temporary file.
_IN_MEMORY = 32 << 20
_COPY_BYTES = 1 << 20


class Packing:
    """The objects of one group, to become the archive ``relpath``."""

    def __init__(self, relpath: str) -> None:
        self.relpath = relpath
        self._entries: dict[str, Entry] = {}
        self._places: dict[str, int] = {}
        self._file = SpooledTemporaryFile(_IN_MEMORY)  # noqa: SIM115  # closed by close()

    def close(self) -> None:
        """Delete the temporary file."""
        with scratch():  # writes what waits in a buffer
            self._file.close()

    def write(self, name: str, pieces: Iterable[bytes]) -> int:
        """Take an object, named as in a folder at the archive's path; returns its bytes."""
        size = crc32 = 0
        own_name = name.removeprefix(f"{self.relpath}/")
        self._places[own_name] = self._file.tell()
        for piece in pieces:
            with scratch():
                self._file.write(piece)
            size += len(piece)
            crc32 = zlib.crc32(piece, crc32)
        self._entries[own_name] = Entry(own_name, size, crc32)  # the group of meshes is written once per domain
        return size

    def arrange(self, group: dict[str, Any], fields: Sequence[str]) -> Archive:
        """The archive of all objects; their positions are added to ``group``. Arrays are in the order of ``fields``."""
        return Archive(group, in_order(self._entries.values(), fields))

    def read(self, name: str) -> Iterator[bytes]:
        """The bytes of an object, named as in the archive."""
        with scratch():
            self._file.seek(self._places[name])
        left = self._entries[name].size
        while left:
            piece = self._file.read(min(left, _COPY_BYTES))
            left -= len(piece)
            yield piece

    def pieces(self, archive: Archive) -> Iterator[bytes]:
        """The bytes of an archive from :meth:`arrange`."""
        yield archive.head
        for entry, header in zip(archive.entries, archive.headers(), strict=True):
            yield header
            yield from self.read(entry.name)
        yield archive.directory


@contextmanager
def on_this_machine(storage: Storage, relpath: str) -> Iterator[Storage]:
    """A store on this machine with an archive: the same one, or a temporary one that the archive is fetched to.

    It is fetched by ranges of 8 MiB. Reads of its entries one by one would be a request each.
    """
    if storage.is_local:
        yield storage
        return
    with TemporaryDirectory() as folder:
        place = Storage(folder)
        with suppress(FileNotFoundError):
            place.write(relpath, _ranges(storage, relpath))
        yield place


def _ranges(storage: Storage, name: str) -> Iterator[bytes]:
    start = 0
    while True:
        data = storage.read(name, start, start + MAX_READ_BYTES)
        yield data
        start += len(data)
        if len(data) < MAX_READ_BYTES:
            return


def is_stored(storage: Storage, name: str, start: int, pieces: Iterable[bytes]) -> bool:
    """Whether an object has these bytes, from a position to its end. It is read by ranges of about 8 MiB."""
    end = 0
    try:
        for block in _blocks(pieces):
            first = max(start - end, 0)
            if first < len(block) and storage.read(name, end + first, end + len(block)) != block[first:]:
                return False
            end += len(block)
        return storage.size(name) == end
    except OSError:  # missing or not readable
        return False


def was_cut_off(storage: Storage, name: str, pieces: Iterable[bytes]) -> bool:
    """Whether an object has the first of these bytes, and zeros or nothing after them, as after a power cut."""
    if not storage.exists(name):
        return False
    end = 0
    is_cut = False
    for block in _blocks(pieces):
        stored = storage.read(name, end, end + len(block))
        end += len(block)
        if not is_cut and stored != block:
            is_cut = True
            shared = min(len(stored), len(block))
            differs = np.frombuffer(stored, np.uint8, shared) != np.frombuffer(block, np.uint8, shared)
            stored = stored[int(differs.argmax()) if differs.any() else shared :]
        if is_cut and stored.count(0) < len(stored):
            return False
    return storage.size(name) <= end


def _blocks(pieces: Iterable[bytes]) -> Iterator[bytes]:
    """The same bytes in longer pieces."""
    waiting: list[bytes] = []
    size = 0
    for piece in pieces:
        if size + len(piece) > MAX_READ_BYTES:
            yield b"".join(waiting)
            waiting, size = [], 0
        waiting.append(piece)
        size += len(piece)
    yield b"".join(waiting)
