"""Collects the objects of a sample's group and arranges them as one archive.

A conversion loads one field after another, while the archive has their chunks side by side. So encoded objects wait in
a temporary file of this machine, or in memory while they are few.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator, Sequence
from tempfile import SpooledTemporaryFile
from types import TracebackType
from typing import Any

from zarr_core.format.packed import Archive, Entry, in_order

# Encoded bytes of a sample that are kept in memory; more are written to a temporary file.
_IN_MEMORY = 32 << 20
_COPY_BYTES = 1 << 20


class Packing:
    """The objects of one group. The temporary file is deleted when the context ends.

    Args:
        relpath: path of the archive below the store's root.
    """

    def __init__(self, relpath: str) -> None:
        self.relpath = relpath
        self._entries: dict[str, Entry] = {}
        self._places: dict[str, int] = {}
        self._file = SpooledTemporaryFile(_IN_MEMORY)  # noqa: SIM115  # closed by __exit__

    def __enter__(self) -> Packing:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._file.close()

    def write(self, name: str, pieces: Iterable[bytes]) -> int:
        """Take an object, named as in a folder at the archive's path; returns its bytes."""
        size = crc32 = 0
        own_name = name.removeprefix(f"{self.relpath}/")
        self._places[own_name] = self._file.tell()
        for piece in pieces:
            self._file.write(piece)
            size += len(piece)
            crc32 = zlib.crc32(piece, crc32)
        self._entries[own_name] = Entry(own_name, size, crc32)  # the group of meshes is written once per domain
        return size

    def arrange(self, group: dict[str, Any], fields: Sequence[str]) -> Archive:
        """The archive of all objects.

        Args:
            group: content of the group's ``zarr.json``, to which the positions are added.
            fields: names of the arrays of fields, in the order of the archive.
        """
        return Archive(group, in_order(self._entries.values(), fields))

    def read(self, name: str) -> Iterator[bytes]:
        """The bytes of an object, named as in the archive."""
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
