"""The packed layout: a sample's group as one uncompressed ZIP64 archive, whose head tells where everything lies.

The first entry is the group's ``zarr.json``, with the positions of all other entries in its attributes. It and its
header are the head of the archive, which one request reads. Then follow the chunks, ordered like row groups: chunk 0 of
every field of a domain, chunk 1 of every field, and so on. A draw of one chunk is one byte range for all fields. Every
chunk begins at a multiple of 64 bytes, and chunks of equal length lie at equal distances. See
``docs/packed_format.md``.
"""

from __future__ import annotations

import base64
import re
import struct
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from zarr_core._util.cached import cached_property
from zarr_core._util.documents import DocumentError, expect, parse_json, to_json
from zarr_core.errors import SourceError
from zarr_core.format.names import check_relative_path
from zarr_core.format.object_names import ATTRIBUTES_KEY, ZARR_JSON
from zarr_core.format.shards import ChunkIndex, pack_lengths

#: End of the name of an object that holds a sample's group.
SUFFIX = ".zip"
#: The positions of all entries, in the attributes of the group.
PACKED_KEY = "packed"
#: Bytes of an archive that are read to find the size of its head; they hold the head of most samples.
FIRST_BYTES = 1 << 16

# Multiples at which chunks begin: copies of aligned memory are faster.
_ALIGNMENT = 64
# Limits of what a reader accepts, so that damage claims no memory: bytes of a head and of an archive.
MAX_HEAD = 1 << 28
_MAX_END = 1 << 48

# Structures of ZIP. Times are the first that ZIP can name, so that equal samples have equal bytes.
_LOCAL = struct.Struct("<4sHHHHHIIIHH")
_CENTRAL = struct.Struct("<4sHHHHHHIIIHHHHHII")
_CENTRAL_EXTRA = struct.Struct("<HHQ")
_END_64 = struct.Struct("<4sQHHIIQQQQ")
_LOCATOR = struct.Struct("<4sIQI")
_END = struct.Struct("<4sHHHHIIH")
_VERSION, _UNIX, _DATE, _MODE = 45, 3 << 8, 0x21, 0o644 << 16
_UNKNOWN_16, _UNKNOWN_32 = 0xFFFF, 0xFFFFFFFF
# Extra field of a local header that moves the data to their place: that of Android's zipalign, with the alignment.
_PADDING = struct.Struct("<HHH")
_PADDING_ID = 0xD935

_CHUNK = re.compile(r"(?P<array>(?P<domain>[^/_][^/]*)/[^/]+)/c/(?P<number>\d+)/0")


class Entry(NamedTuple):
    """An entry of an archive: its name in the group, as "volume/velocity/c/0/0", its bytes, and their CRC-32."""

    name: str
    size: int
    crc32: int


class Place(NamedTuple):
    """Where an entry lies in the archive: its first byte, and how many it has."""

    start: int
    size: int


@dataclass(frozen=True)
class PackedGroup:
    """What the head of an archive tells: the content of the group's ``zarr.json``, and the bytes of the head."""

    document: Mapping[str, Any]
    head: int

    @cached_property
    def _record(self) -> dict[str, Any]:
        attributes = expect(dict, self.document.get("attributes"), "attributes")
        recorded = expect(dict, attributes.get(ATTRIBUTES_KEY), f"attribute {ATTRIBUTES_KEY!r}")
        return expect(dict, recorded.get(PACKED_KEY), PACKED_KEY)

    @cached_property
    def size(self) -> int:
        """Bytes of the archive; raises DocumentError, as all that follows."""
        return self.head + _position(self._record.get("bytes"), "bytes")

    def chunks_of(self, array: str, count: int | None = None) -> ChunkIndex:
        """Where the chunks of an array lie in the archive.

        Their number is compared before memory is allocated; without ``count``, as many as fit in the archive may be.
        """
        what = f"chunks of {array!r}"
        packed = expect(dict, self._record.get("chunks"), "chunks").get(array)
        most = (self.size - self.head) // (_LOCAL.size + _CENTRAL.size)
        index = _unpack_places(packed, what, most if count is None else count, self.head)
        if count not in (None, len(index.starts)):
            raise DocumentError(f"the archive names {len(index.starts):,} chunks of {array!r}, which has {count:,}")
        try:
            index.check_within(self.size)
        except ValueError as error:
            raise DocumentError(f"{what} {error}") from error
        return index

    @property
    def directory_start(self) -> int:
        """Position of the central directory, after the last entry."""
        last = next(reversed(self.entries.values()))
        return last.start + last.size

    @cached_property
    def entries(self) -> dict[str, Place]:
        """Where each entry lies, by name, in the order of the archive."""
        found = {ZARR_JSON: Place(_header_bytes(ZARR_JSON), self.head - _header_bytes(ZARR_JSON))}
        for array in expect(dict, self._record.get("chunks"), "chunks"):
            index = self.chunks_of(_checked_name(array))
            for number, (start, length) in enumerate(zip(index.starts, index.lengths, strict=True)):
                found[chunk_name(array, number)] = Place(start, length)
        for name, place in expect(dict, self._record.get("objects"), "objects").items():
            if len(expect(list, place, f"place of {name!r}")) != 2:
                raise DocumentError(f"place of {name!r}: {place!r:.40}")
            start, size = _position(place[0], name), _position(place[1], name)
            found[_checked_name(name)] = Place(self.head + start, size)
        entries = dict(sorted(found.items(), key=lambda item: item[1]))
        end = 0
        for name, place in entries.items():
            if place.start < end:
                raise DocumentError(f"{name!r} overlaps what is before it")
            end = place.start + place.size
        if end > self.size:
            raise DocumentError(f"{name!r} lies outside of the archive")
        return entries


def check_directory(group: PackedGroup, stored: bytes) -> None:
    """Compare the central directory, all that follows the last entry, with the head, but for checksums of entries.

    Other readers of ZIP files trust it, and may end the process if it is damaged. Raises DocumentError.
    """
    headers: list[bytes] = []
    at = end = 0
    for name, place in group.entries.items():
        crc32 = int.from_bytes(stored[at + 16 : at + 20], "little")
        headers.append(_central_header(Entry(name, place.size, crc32), end))
        at += len(headers[-1])
        end = place.start + place.size
    if _directory(headers, end) != stored:
        raise DocumentError("its central directory is damaged")


def chunk_name(array: str, number: int) -> str:
    """Name of a chunk's entry."""
    return f"{array}/c/{number}/0"


def head_size(document_bytes: int) -> int:
    """Bytes of the head of an archive whose ``zarr.json`` has this size."""
    return _header_bytes(ZARR_JSON) + document_bytes


def head_bytes(data: bytes) -> int:
    """Bytes of the head of an archive, from its first ones; raises DocumentError if it does not begin as one."""
    if len(data) < _LOCAL.size:
        raise DocumentError(f"an archive has more than {len(data)} bytes")
    signature, _, _, method, _, _, _, size, stored, name, extra = _LOCAL.unpack_from(data)
    expected = ZARR_JSON.encode()
    if (signature, method, name, extra) != (b"PK\3\4", 0, len(expected), 0) or size != stored or size > MAX_HEAD:
        raise DocumentError(f"the archive does not begin with its {ZARR_JSON}")
    if data[_LOCAL.size : _LOCAL.size + name] != expected:
        raise DocumentError(f"the first entry of the archive is not {ZARR_JSON}")
    return int(_LOCAL.size + name + size)


def parse_head(data: bytes) -> PackedGroup:
    """What the head of an archive tells; raises DocumentError if it is damaged."""
    head = head_bytes(data)
    if len(data) < head:
        raise DocumentError(f"the head has {head} bytes, only {len(data)} were read")
    stored = data[_header_bytes(ZARR_JSON) : head]
    if zlib.crc32(stored) != _LOCAL.unpack_from(data)[6]:
        raise DocumentError(f"{ZARR_JSON}: checksum mismatch")
    return PackedGroup(expect(dict, parse_json(stored), "the document"), head)


def in_order(entries: Iterable[Entry], fields: Sequence[str]) -> list[Entry]:
    """Entries, without the group's ``zarr.json``, in the order of an archive: chunks like row groups, then the others.

    ``fields`` are names of arrays, those of a domain next to each other.
    """
    rank = {array: number for number, array in enumerate(fields)}
    domains = list(dict.fromkeys(array.partition("/")[0] for array in fields))

    def order(entry: Entry) -> tuple[int, int, int, str]:
        chunk = _CHUNK.fullmatch(entry.name)
        if chunk is None or chunk["array"] not in rank:
            return len(domains), 0, 0, entry.name
        return domains.index(chunk["domain"]), int(chunk["number"]), rank[chunk["array"]], ""

    return sorted(entries, key=order)


class Archive:
    """The bytes of an archive around those of its entries, which are :func:`in_order`.

    The positions are added to the document, the content of the group's ``zarr.json``. ``size`` is that of the archive.
    """

    def __init__(self, document: dict[str, Any], entries: Sequence[Entry]) -> None:
        self.entries = entries
        self._starts = _starts(entries)
        last = self._starts[-1] + entries[-1].size if entries else 0
        directory = sum(_central_bytes(entry.name) for entry in entries) + _central_bytes(ZARR_JSON)
        ends = _END_64.size + _LOCATOR.size + _END.size
        document["attributes"][ATTRIBUTES_KEY][PACKED_KEY] = self._record(last + directory + ends)
        content = to_json(document)
        # Spaces after the document, so that aligned positions after the head are aligned in the archive.
        content += b" " * (-(_header_bytes(ZARR_JSON) + len(content)) % _ALIGNMENT)
        if len(content) > MAX_HEAD:
            raise DocumentError(f"{ZARR_JSON} has {len(content):,} bytes; readers accept at most {MAX_HEAD:,}")
        self._root = Entry(ZARR_JSON, len(content), zlib.crc32(content))
        self.head = _local_header(self._root, _header_bytes(ZARR_JSON)) + content
        self.size = len(self.head) + last + directory + ends

    def headers(self) -> Iterator[bytes]:
        """The bytes before each entry, in their order."""
        end = 0
        for entry, start in zip(self.entries, self._starts, strict=True):
            yield _local_header(entry, start - end)
            end = start + entry.size

    @property
    def directory(self) -> bytes:
        """The central directory, which ends the archive."""
        headers = [_central_header(self._root, 0)]
        end = len(self.head)
        for entry, start in zip(self.entries, self._starts, strict=True):
            headers.append(_central_header(entry, end))
            end = len(self.head) + start + entry.size
        return _directory(headers, end)

    def _record(self, body: int) -> dict[str, Any]:
        chunks: dict[str, list[tuple[int, int]]] = {}
        objects = {}
        for entry, start in zip(self.entries, self._starts, strict=True):
            chunk = _CHUNK.fullmatch(entry.name)
            if chunk is None:
                objects[entry.name] = [start, entry.size]
            else:
                chunks.setdefault(chunk["array"], []).append((start, entry.size))
        packed = {array: _pack_places(places) for array, places in chunks.items()}
        return {"bytes": body, "chunks": packed, "objects": objects}


def _starts(entries: Sequence[Entry]) -> list[int]:
    """Where the data of each entry begin, relative to the end of the head."""
    # Chunks of an array have equal room for their headers, whatever the digits of their numbers.
    room: dict[str, int] = {}
    for entry in entries:
        room[_owner(entry.name)] = max(room.get(_owner(entry.name), 0), _header_bytes(entry.name) + _PADDING.size)
    starts = []
    end = 0
    for entry in entries:
        start = end + room[_owner(entry.name)]
        start += -start % _ALIGNMENT
        starts.append(start)
        end = start + entry.size
    return starts


def _owner(name: str) -> str:
    chunk = _CHUNK.fullmatch(name)
    return name if chunk is None else chunk["array"]


def _checked_name(name: str) -> str:
    try:
        return check_relative_path(name)
    except SourceError as error:
        raise DocumentError(str(error)) from error


def _header_bytes(name: str) -> int:
    return _LOCAL.size + len(name)


def _central_bytes(name: str) -> int:
    return _CENTRAL.size + len(name) + _CENTRAL_EXTRA.size


def _local_header(entry: Entry, size: int) -> bytes:
    """The header of an entry, which fills ``size`` bytes before its data."""
    name, padding = entry.name.encode(), size - _header_bytes(entry.name)
    fixed = _LOCAL.pack(b"PK\3\4", _VERSION, 0, 0, 0, _DATE, entry.crc32, entry.size, entry.size, len(name), padding)
    extra = b""
    if padding:
        extra = _PADDING.pack(_PADDING_ID, padding - 4, _ALIGNMENT).ljust(padding, b"\0")
    return fixed + name + extra


def _directory(headers: Sequence[bytes], at: int) -> bytes:
    """A central directory at a position: the headers of all entries, and the records that end the archive."""
    size, count = sum(map(len, headers)), len(headers)
    end_64 = _END_64.pack(b"PK\6\6", 44, _UNIX | _VERSION, _VERSION, 0, 0, count, count, size, at)
    locator = _LOCATOR.pack(b"PK\6\7", 0, at + size, 1)
    end = _END.pack(b"PK\5\6", 0, 0, _UNKNOWN_16, _UNKNOWN_16, _UNKNOWN_32, _UNKNOWN_32, 0)
    return b"".join([*headers, end_64, locator, end])


def _central_header(entry: Entry, start: int) -> bytes:
    name = entry.name.encode()
    sizes = entry.crc32, entry.size, entry.size, len(name), _CENTRAL_EXTRA.size
    fixed = _CENTRAL.pack(b"PK\1\2", _UNIX | _VERSION, _VERSION, 0, 0, 0, _DATE, *sizes, 0, 0, 0, _MODE, _UNKNOWN_32)
    return fixed + name + _CENTRAL_EXTRA.pack(1, 8, start)


def _pack_places(places: Sequence[tuple[int, int]]) -> list[int] | dict[str, str]:
    """Positions and lengths of an array's chunks: [first position, distance, length, chunks] if they are regular."""
    starts, lengths = np.asarray(places, np.int64).T
    step = int(starts[1] - starts[0]) if len(starts) > 1 else 0
    if (np.diff(starts) == step).all() and (lengths == lengths[0]).all():
        return [int(starts[0]), step, int(lengths[0]), len(starts)]
    packed = base64.b64encode(starts.astype("<u8").tobytes()).decode("ascii")
    return {"starts": packed, "lengths": pack_lengths(lengths)}


def _unpack_places(packed: Any, what: str, most: int, origin: int) -> ChunkIndex:
    """Positions, from ``origin`` on, and lengths of at most ``most`` chunks."""
    try:
        if isinstance(packed, list):
            start, step, length, count = (_position(value, what) for value in packed)
            if not 0 < count <= most or start + step * count > _MAX_END:
                raise DocumentError(f"{what}: {count:,} chunks, {step:,} bytes apart")
            return ChunkIndex.regular(origin + start, step, length, count)
        starts = np.frombuffer(base64.b64decode(packed["starts"], validate=True), "<u8").astype(np.int64)
        lengths = np.frombuffer(base64.b64decode(packed["lengths"], validate=True), "<u4").astype(np.int64)
    except (KeyError, TypeError, ValueError) as error:
        raise DocumentError(f"{what} cannot be read: {error!r}") from error
    if len(starts) != len(lengths) or (len(starts) and not 0 <= starts.min() <= starts.max() <= _MAX_END):
        raise DocumentError(f"{what} cannot be read: positions and lengths do not agree")
    return ChunkIndex.of(origin + starts, lengths)


def _position(value: Any, what: str) -> int:
    if type(value) is not int or not 0 <= value <= _MAX_END:
        raise DocumentError(f"{what}: {value!r:.40} is not a number of bytes")
    return value
