"""Objects inside of archives: the name of an archive of the packed layout, a slash, and the name of an entry.

With it, whatever reads the objects of a sample's group by name reads a packed sample as well.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from zarr_core.errors import CorruptChunkError
from zarr_core.format.packed import FIRST_BYTES, SUFFIX, PackedGroup, Place, head_bytes, parse_head
from zarr_core.storage.backends import ObjectInfo

_NAME = re.compile(rf"(?P<archive>samples/.+/[0-9a-f]{{16}}{re.escape(SUFFIX)})(?:/(?P<entry>.*))?")
# Archives whose heads are kept.
_KEPT = 16


def is_archive(name: str) -> bool:
    """Whether an object of this name is an archive."""
    return name.endswith(SUFFIX) and _NAME.fullmatch(name) is not None


def is_entry(name: str) -> bool:
    """Whether a name is that of an archive's entry, or of a folder of entries."""
    if f"{SUFFIX}/" not in name:
        return False
    found = _NAME.fullmatch(name)
    return found is not None and bool(found["entry"])


class Archives:
    """The archives below one root. ``read`` returns bytes of an object there, ``info`` its size and version."""

    def __init__(self, read: Callable[[str, int, int], bytes], info: Callable[[str], ObjectInfo]) -> None:
        self._read, self._info = read, info
        self._kept: dict[str, tuple[str, PackedGroup]] = {}

    def read(self, name: str, start: int | None = None, stop: int | None = None) -> bytes:
        """Bytes ``[start, stop)`` of an entry.

        Raises:
            FileNotFoundError: there is no such archive or entry.
            CorruptChunkError: the head of the archive is damaged.
        """
        archive, entry = _split(name)
        known = self._kept.get(archive)
        group = self._open(archive)[0] if known is None else known[1]
        place = _place(group, archive, entry)
        first = min(start or 0, place.size)
        last = place.size if stop is None else max(first, min(stop, place.size))
        if first >= last:
            return b""  # some services refuse empty ranges
        return self._read(archive, place.start + first, place.start + last)

    def info(self, name: str) -> ObjectInfo:
        """Size of an entry, version and time of its archive; errors as :meth:`read`."""
        archive, entry = _split(name)
        group, info = self._open(archive)
        return info._replace(size=_place(group, archive, entry).size)

    def infos(self, prefix: str) -> dict[str, ObjectInfo]:
        """All entries of an archive, or those below a folder in it, sorted by name; none if there is no archive."""
        archive, folder = _split(prefix)
        try:
            group, info = self._open(archive)
        except FileNotFoundError:
            return {}
        found = {}
        for entry, place in sorted(group.entries.items()):
            if not folder or entry == folder or entry.startswith(f"{folder}/"):
                found[f"{archive}/{entry}"] = info._replace(size=place.size)
        return found

    def forget(self, archive: str) -> None:
        """Read the head of an archive again when it is needed: the object was written."""
        self._kept.pop(archive, None)

    def _open(self, archive: str) -> tuple[PackedGroup, ObjectInfo]:
        """The group in an archive, and the size and version of the archive now."""
        info = self._info(archive)
        version, group = self._kept.get(archive, ("", None))
        if group is None or version != info.version:
            group = self._parsed(archive, info.size)
            if len(self._kept) >= _KEPT:
                self._kept.clear()
            self._kept[archive] = info.version, group
        return group, info

    def _parsed(self, archive: str, size: int) -> PackedGroup:
        try:
            first = self._read(archive, 0, FIRST_BYTES)
            head = head_bytes(first)
            if head > len(first):
                first += self._read(archive, len(first), head)
            group = parse_head(first)
            if group.size != size:
                raise CorruptChunkError(f"{archive} has {size:,} bytes, its head says {group.size:,}")
            group.entries  # noqa: B018  # damage shows here, not later
        except ValueError as error:
            raise CorruptChunkError(f"{archive} cannot be read: {error}") from error
        return group


def _split(name: str) -> tuple[str, str]:
    found = _NAME.fullmatch(name)
    assert found is not None
    return found["archive"], found["entry"] or ""


def _place(group: PackedGroup, archive: str, entry: str) -> Place:
    if entry not in group.entries:
        raise FileNotFoundError(f"{archive} has no entry {entry!r}")
    return group.entries[entry]
