"""Verification of a packed sample's archive: whether the bytes around its entries are those that belong there."""

from __future__ import annotations

import copy
import zlib

from zarr_core.errors import CorruptChunkError
from zarr_core.format.array_metadata import CHECKSUM_BYTES, MAX_CHUNK_BYTES
from zarr_core.format.object_names import ZARR_JSON
from zarr_core.format.packed import Archive, Entry, PackedGroup, in_order, parse_head
from zarr_core.format.shards import passes_checksum
from zarr_core.points.verify.report import SampleFindings
from zarr_core.storage import Storage

# Bytes of an entry's header and padding, at most.
_MAX_HEADER = 1 << 16
# Where a local header has the CRC-32 of its entry.
_CRC32 = slice(14, 18)


def check_archive(storage: Storage, relpath: str, head: int, found: SampleFindings) -> bool:
    """Compare the bytes around the entries of an archive with those that the entries and the document make.

    The entries themselves are not checked: those that are damaged by their own checksums are left to others.

    Args:
        storage: a local store.
        relpath: path of the archive below the store's root.
        head: bytes of its head, as the manifest says.
        found: gets the problems.

    Returns:
        Whether the entries can be found.

    Raises:
        FileNotFoundError: there is no such archive.
    """
    size = storage.size(relpath)
    data = storage.read(relpath, 0, head)
    try:
        group = parse_head(data)
        if (group.head, group.size) != (head, size):
            recorded = f"{group.size:,} and {head:,} are recorded"
            raise CorruptChunkError(f"it has {size:,} bytes, and a head of {group.head:,}; {recorded}")
        entries, headers = _entries(storage, relpath, group)
    except (CorruptChunkError, ValueError) as error:
        found.add("", f"its archive cannot be read: {error}")
        return False
    made = Archive(copy.deepcopy(dict(group.document)), entries)
    if (made.head, made.size) != (data, size):
        found.add("", "the head of its archive is not the one of its entries")
    for entry, header, expected in zip(entries, headers, made.headers(), strict=True):
        if header != expected:
            found.add("", f"{entry.name}: its header in the archive is not the one of its bytes")
    fields = [entry.name.removesuffix("/c/0/0") for entry in entries if entry.name.endswith("/c/0/0")]
    if [entry.name for entry in entries] != [entry.name for entry in in_order(entries, fields)]:
        found.add("", "the entries of its archive are not ordered by chunks")
    directory = made.directory
    if storage.read(relpath, max(size - len(directory), 0), size) != directory:
        found.add("", "the central directory of its archive is not the one of its entries")
    return True


def _entries(storage: Storage, relpath: str, group: PackedGroup) -> tuple[list[Entry], list[bytes]]:
    """All entries after the first one in their order, and the bytes before each; raises CorruptChunkError."""
    entries: list[Entry] = []
    headers: list[bytes] = []
    end = group.head
    for name, place in group.entries.items():
        if name == ZARR_JSON:
            continue
        if not 0 <= place.start - end <= _MAX_HEADER or place.size > MAX_CHUNK_BYTES + CHECKSUM_BYTES:
            raise CorruptChunkError(
                f"its head says that {name} has the bytes {place.start} to {place.start + place.size}"
            )
        header = storage.read(relpath, end, place.start)
        end = place.start + place.size
        data = storage.read(relpath, place.start, end)
        crc32 = zlib.crc32(data)
        if "/c/" in name and not passes_checksum(data):  # a damaged chunk is reported with its field
            crc32 = int.from_bytes(header[_CRC32], "little")
        entries.append(Entry(name, len(data), crc32))
        headers.append(header)
    return entries, headers
