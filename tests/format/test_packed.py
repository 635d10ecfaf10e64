"""Archives of the packed layout: their bytes are those of ``docs/packed_format.md``, and any ZIP reader opens them."""

from __future__ import annotations

import io
import json
import struct
import zipfile
import zlib
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.helpers.examples import examples
from zarr_core._util.documents import DocumentError, to_json
from zarr_core.format.object_names import ATTRIBUTES_KEY, ZARR_JSON
from zarr_core.format.packed import (
    PACKED_KEY,
    Archive,
    Entry,
    PackedGroup,
    chunk_name,
    head_bytes,
    in_order,
    parse_head,
)

FIELDS = ["surface/position", "surface/pressure", "volume/position"]


def document() -> dict[str, Any]:
    return {"node_type": "group", "attributes": {ATTRIBUTES_KEY: {"sample_id": "a"}}}


def pack(contents: dict[str, bytes], fields: Sequence[str] = FIELDS) -> bytes:
    """An archive of these objects."""
    entries = [Entry(name, len(data), zlib.crc32(data)) for name, data in contents.items()]
    archive = Archive(document(), in_order(entries, fields))
    pieces = [archive.head]
    for entry, header in zip(archive.entries, archive.headers(), strict=True):
        pieces += [header, contents[entry.name]]
    pieces.append(archive.directory)
    packed = b"".join(pieces)
    assert len(packed) == archive.size
    return packed


def chunks(array: str, sizes: Sequence[int]) -> dict[str, bytes]:
    return {chunk_name(array, number): bytes([number % 256]) * size for number, size in enumerate(sizes)}


SIZES = st.lists(st.integers(1, 200), min_size=1, max_size=12) | st.tuples(st.integers(1, 12), st.integers(1, 200)).map(
    lambda regular: [regular[1]] * regular[0]
)


@settings(max_examples=examples(60))
@given(
    st.tuples(SIZES, SIZES, SIZES),
    st.dictionaries(st.from_regex(r"(_mesh|surface)/[a-z]{1,9}/zarr\.json", fullmatch=True), st.binary(max_size=90)),
)
def test_the_head_tells_where_every_entry_lies(sizes: tuple[list[int], ...], others: dict[str, bytes]) -> None:
    contents = dict(others)
    for array, of_chunks in zip(FIELDS, sizes, strict=True):
        contents |= chunks(array, of_chunks)
    packed = pack(contents)
    group = parse_head(packed)
    assert (group.size, group.head % 64, group.head) == (len(packed), 0, head_bytes(packed[:30] + ZARR_JSON.encode()))
    assert set(group.entries) == {ZARR_JSON, *contents}
    for (_, before), (_, after) in pairwise(group.entries.items()):
        assert before.start + before.size < after.start
    for name, (start, size) in group.entries.items():
        if name != ZARR_JSON:
            assert packed[start : start + size] == contents[name]
            assert start % 64 == 0
    for array, of_chunks in zip(FIELDS, sizes, strict=True):
        found = [
            packed[start : start + length]
            for start, length in zip(*group.chunks_of(array, len(of_chunks)), strict=True)
        ]
        assert found == list(chunks(array, of_chunks).values())


@settings(max_examples=examples(30))
@given(st.tuples(SIZES, SIZES, SIZES))
def test_any_zip_reader_opens_an_archive(sizes: tuple[list[int], ...]) -> None:
    contents = {"surface/zarr.json": b"{}"}
    for array, of_chunks in zip(FIELDS, sizes, strict=True):
        contents |= chunks(array, of_chunks)
    packed = pack(contents)
    with zipfile.ZipFile(io.BytesIO(packed)) as archive:
        assert archive.testzip() is None
        assert archive.namelist()[0] == ZARR_JSON
        assert archive.namelist() == list(parse_head(packed).entries)
        assert {name: archive.read(name) for name in contents} == contents
        assert json.loads(archive.read(ZARR_JSON)) == parse_head(packed).document
        for info in archive.infolist():
            assert (info.compress_type, info.date_time, info.external_attr >> 16) == (0, (1980, 1, 1, 0, 0, 0), 0o644)


def test_chunks_lie_like_row_groups_and_everything_else_behind_them() -> None:
    contents = {"surface/zarr.json": b"", "_mesh/surface_points/c/0/0": b"m", "_mesh/zarr.json": b""}
    for array, count in zip(FIELDS, (11, 11, 2), strict=True):
        contents |= chunks(array, [5] * count)
    expected = [chunk_name(array, number) for number in range(11) for array in FIELDS[:2]]
    expected += [chunk_name(FIELDS[2], number) for number in range(2)]
    expected += ["_mesh/surface_points/c/0/0", "_mesh/zarr.json", "surface/zarr.json"]
    assert list(parse_head(pack(contents)).entries) == [ZARR_JSON, *expected]


def test_the_order_of_writing_does_not_matter() -> None:
    contents = chunks(FIELDS[0], [9, 4, 7]) | chunks(FIELDS[2], [3]) | {"volume/zarr.json": b"{}"}
    assert pack(dict(reversed(contents.items()))) == pack(contents)


def test_regular_chunks_are_four_numbers_whatever_their_digits() -> None:
    contents = chunks(FIELDS[0], [100] * 120) | chunks(FIELDS[1], [36] * 120) | chunks(FIELDS[2], [9, 8])
    recorded = parse_head(pack(contents)).document["attributes"][ATTRIBUTES_KEY][PACKED_KEY]["chunks"]
    start, step, length, count = recorded[FIELDS[0]]
    assert (step % 64, length, count) == (0, 100, 120)
    assert recorded[FIELDS[1]][1:] == [step, 36, 120]
    assert set(recorded[FIELDS[2]]) == {"starts", "lengths"}
    assert start < recorded[FIELDS[1]][0] < start + step


def test_the_bytes_are_those_of_the_page() -> None:
    """Written by hand from ``docs/packed_format.md``."""
    data = b"x" * 10
    packed = pack({chunk_name(FIELDS[0], 0): data})
    size = struct.unpack_from("<I", packed, 18)[0]
    head = 39 + size
    content = packed[39:head]
    assert packed[:39] == (
        struct.pack("<4sHHHHHIIIHH", b"PK\3\4", 45, 0, 0, 0, 0x21, zlib.crc32(content), size, size, 9, 0) + b"zarr.json"
    )
    record = {"bytes": len(packed) - head, "chunks": {FIELDS[0]: [64, 0, 10, 1]}, "objects": {}}
    expected = document()
    expected["attributes"][ATTRIBUTES_KEY][PACKED_KEY] = record
    assert content == to_json(expected) + b" " * (-(39 + len(to_json(expected))) % 64)
    name = b"surface/position/c/0/0"
    extra = struct.pack("<HHH", 0xD935, 64 - 30 - 22 - 4, 64).ljust(64 - 30 - 22, b"\0")
    header = struct.pack("<4sHHHHHIIIHH", b"PK\3\4", 45, 0, 0, 0, 0x21, zlib.crc32(data), 10, 10, 22, len(extra))
    assert packed[head : head + 74] == header + name + extra + data
    records = b""
    for own_name, own, at in ((b"zarr.json", content, 0), (name, data, head)):
        fixed = (b"PK\1\2", 0x032D, 45, 0, 0, 0, 0x21, zlib.crc32(own), len(own), len(own), len(own_name), 12, 0, 0, 0)
        records += struct.pack("<4sHHHHHHIIIHHHHHII", *fixed, 0o644 << 16, 0xFFFFFFFF) + own_name
        records += struct.pack("<HHQ", 1, 8, at)
    at = head + 74
    ends = struct.pack("<4sQHHIIQQQQ", b"PK\6\6", 44, 0x032D, 45, 0, 0, 2, 2, len(records), at)
    ends += struct.pack("<4sIQI", b"PK\6\7", 0, at + len(records), 1)
    ends += struct.pack("<4sHHHHIIH", b"PK\5\6", 0, 0, 0xFFFF, 0xFFFF, 0xFFFFFFFF, 0xFFFFFFFF, 0)
    assert packed[at:] == records + ends


@pytest.mark.slow
def test_archives_of_more_than_65535_entries() -> None:
    packed = pack(chunks(FIELDS[0], [1] * 70_000))
    with zipfile.ZipFile(io.BytesIO(packed)) as archive:
        assert len(archive.namelist()) == 70_001
        assert archive.read(chunk_name(FIELDS[0], 69_999)) == bytes([69_999 % 256])


class Sparse(io.RawIOBase):
    """A file of zeros, but for some pieces at their positions."""

    def __init__(self, pieces: dict[int, bytes], size: int) -> None:
        self._pieces, self._size, self._at = pieces, size, 0

    def seekable(self) -> bool:
        return True

    def readable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = 0) -> int:
        self._at = offset + (0, self._at, self._size)[whence]
        return self._at

    def read(self, size: int | None = -1) -> bytes:
        stop = self._size if size is None or size < 0 else min(self._at + size, self._size)
        data = bytearray(stop - self._at)
        for start, piece in self._pieces.items():
            first, last = max(start, self._at), min(start + len(piece), stop)
            if first < last:
                data[first - self._at : last - self._at] = piece[first - start : last - start]
        self._at = stop
        return bytes(data)


def test_archives_of_more_than_four_gigabytes() -> None:
    """Of seven chunks of one gigabyte, which are not made; the small last one is read."""
    large, last = 1 << 30, b"the last chunk"
    entries = [Entry(chunk_name(FIELDS[0], number), large, 0) for number in range(7)]
    entries.append(Entry(chunk_name(FIELDS[0], 7), len(last), zlib.crc32(last)))
    archive = Archive(document(), entries)
    pieces, at = {0: archive.head}, len(archive.head)
    for entry, header in zip(entries, archive.headers(), strict=True):
        pieces[at] = header + (last if entry.size < large else b"")
        at += len(header) + entry.size
    pieces[at] = archive.directory
    assert archive.size == at + len(archive.directory) > 7 << 30
    group = parse_head(archive.head)
    assert group.size == archive.size
    starts, lengths = group.chunks_of(FIELDS[0])
    assert starts[7] > 1 << 32
    file = Sparse(pieces, archive.size)
    file.seek(int(starts[7]))
    assert file.read(int(lengths[7])) == last
    with zipfile.ZipFile(Sparse(pieces, archive.size)) as opened:  # type: ignore[arg-type]
        assert opened.read(entries[7].name) == last
        assert [info.file_size for info in opened.infolist()[1:]] == [entry.size for entry in entries]


def with_record(**changes: Any) -> PackedGroup:
    record = {"bytes": 1000, "chunks": {}, "objects": {}} | changes
    return PackedGroup({"attributes": {ATTRIBUTES_KEY: {PACKED_KEY: record}}}, 64)


@pytest.mark.parametrize(
    "places",
    [
        [0, 10, 10],
        [0, 10, 10, 0],
        [0, 10, 10, -1],
        [-64, 10, 10, 2],
        [0, -10, 10, 2],
        [0, 0.5, 10, 2],
        [0, 10, True, 2],
        [0, 10, 10, 14],
        [991, 0, 10, 1],
        [0, 2**61, 10, 9],
        [0, 0, 2**62, 1],
        [2**62, 0, 1, 1],
        [0, 0, 0, 2**40],
        "AAAA",
        None,
        {},
        {"starts": "AAAAAAAAAAA="},
        {"starts": "AAAAAAAAAAA=", "lengths": "AAAAAAAA"},
        {"starts": "AAAAAAAAAAA=", "lengths": "AAAAAAAAAAA="},
        {"starts": "//////////8=", "lengths": "AAAAAA=="},
        {"starts": "AAAAAAAAAAA=", "lengths": "/////w=="},
        {"starts": "AAAAAAA", "lengths": "AAAAAA=="},
        {"starts": 7, "lengths": "AAAAAA=="},
        {"starts": "é", "lengths": "AAAAAA=="},
    ],
)
def test_positions_that_are_none_are_refused(places: Any) -> None:
    with pytest.raises(DocumentError):
        with_record(chunks={"surface/position": places}).chunks_of("surface/position")


@pytest.mark.parametrize(
    "objects",
    [{"a": [0, 1001]}, {"a": [-1, 5]}, {"a": [0]}, {"a": [0, 1, 2]}, {"a": 5}, {"../a": [0, 1]}, {"/a": [0, 1]}, []],
)
def test_objects_outside_of_the_archive_are_refused(objects: Any) -> None:
    with pytest.raises(DocumentError):
        with_record(objects=objects).entries  # noqa: B018


@pytest.mark.parametrize("changes", [{"bytes": -1}, {"bytes": "9"}, {"bytes": 2**63}, {"chunks": []}, {"objects": 1}])
def test_a_record_of_another_form_is_refused(changes: dict[str, Any]) -> None:
    group = with_record(**changes)
    with pytest.raises(DocumentError):
        group.size, group.entries  # noqa: B018


@pytest.mark.parametrize("places", [[0, 9, 10, 2], [0, 0, 1, 2]])
def test_chunks_of_an_array_that_overlap_are_refused(places: list[int]) -> None:
    with pytest.raises(DocumentError, match="overlap"):
        with_record(chunks={"surface/position": places}).chunks_of("surface/position", 2)


def test_a_claim_of_millions_of_chunks_takes_no_memory() -> None:
    """They would not fit in the archive."""
    group = with_record(bytes=1 << 40, chunks={"surface/position": [0, 1, 1, 1 << 22]})
    for claimed, count in ((group, 5), (with_record(chunks={"surface/position": [0, 1, 1, 1 << 22]}), None)):
        with pytest.raises(DocumentError, match=r"4,194,304 chunks"):
            claimed.chunks_of("surface/position", count)


@pytest.mark.parametrize("count", [1, 3])
def test_another_number_of_chunks_is_refused(count: int) -> None:
    for places in ([0, 10, 10, 2], {"starts": "AAAAAAAAAAAKAAAAAAAAAA==", "lengths": "AQAAAAEAAAA="}):
        group = with_record(chunks={"surface/position": places})
        assert len(group.chunks_of("surface/position", 2).starts) == 2
        with pytest.raises(DocumentError, match="2 chunks"):
            group.chunks_of("surface/position", count)


@pytest.mark.parametrize(
    "changes",
    [
        {"chunks": {"surface/position": [0, 9, 10, 2]}},
        {"chunks": {"surface/position": [0, 0, 1, 2]}},
        {"chunks": {"surface/position": {"starts": "CgAAAAAAAAAFAAAAAAAAAA==", "lengths": "AQAAAAYAAAA="}}},
        {"chunks": {"surface/position": [0, 20, 10, 2], "surface/pressure": [5, 20, 10, 2]}},
        {"chunks": {"surface/position": [0, 20, 10, 2]}, "objects": {"a": [29, 5]}},
        {"objects": {"a": [0, 5], "b": [0, 5]}},
    ],
)
def test_entries_that_overlap_are_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(DocumentError, match="overlap"):
        with_record(**changes).entries  # noqa: B018


@settings(max_examples=examples(100))
@given(st.data())
def test_a_damaged_head_is_refused(data: st.DataObject) -> None:
    packed = pack(chunks(FIELDS[0], [10, 20]))
    head = parse_head(packed).head
    at = data.draw(st.integers(0, head - 1))
    damaged = bytearray(packed[:head])
    damaged[at] ^= data.draw(st.integers(1, 255))
    if at in range(4, 8) or at in range(10, 14):
        return  # versions, flags, time and date
    with pytest.raises(DocumentError):
        parse_head(bytes(damaged))
    with pytest.raises(DocumentError):
        parse_head(packed[:at])


@pytest.mark.slow
def test_a_head_that_no_reader_accepts_is_not_made() -> None:
    large = document()
    large["attributes"]["much"] = "x" * (1 << 28)
    with pytest.raises(ValueError, match="268,435,456"):
        Archive(large, [])
