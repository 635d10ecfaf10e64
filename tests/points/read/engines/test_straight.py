"""Uncompressed chunks of local files are read straight into the output, and checked when they are first read."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import google_crc32c
import numpy as np
import pytest

from tests.helpers.arrays import assert_equal
from tests.helpers.documents import edit
from tests.helpers.small_source import KIND
from tests.helpers.stores import object_place
from tests.points.read.engines.conftest import CHUNK
from zarr_core import load_manifest
from zarr_core.errors import CorruptChunkError
from zarr_core.points.convert.conversion import convert
from zarr_core.points.read.engines import straight
from zarr_core.points.read.reader import ZarrChunkReader
from zarr_core.storage import local_files
from zarr_core.storage.byte_ranges import LocalObjects

FIELD = ["volume_velocity"]
ROW = 3 * 2  # bytes of a point: three components of float16


@pytest.fixture(autouse=True)
def not_mapped(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a network file system: a chunk that was verified is read again, not copied from a map."""
    monkeypatch.setattr(local_files, "file_system", lambda folder: "nfs4")


@pytest.fixture
def archive(source: Path, tmp_path: Path) -> Path:
    """A store of packed samples."""
    convert(KIND, tmp_path / "packed", root=source, chunk_points=CHUNK, codec="none", layout="packed")
    return tmp_path / "packed"


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[list[int]]:
    """Sizes of the buffers of each system call."""
    calls: list[list[int]] = []
    read_into = LocalObjects.read_into

    def counted(self: LocalObjects, key: str, start: int, buffers: Sequence[Any]) -> int:
        calls.append([len(buffer) for buffer in buffers])
        return read_into(self, key, start, buffers)

    monkeypatch.setattr(LocalObjects, "read_into", counted)
    return calls


def shard(store: Path) -> Path:
    (path,) = store.glob("samples/run_1/*/volume/velocity/c/0/0")
    return path


def of_another_program(store: Path, **options: Any) -> ZarrChunkReader:
    """A reader of the store as another program writes one: without fingerprints and the lengths of chunks."""
    manifest = load_manifest(store)
    samples = {sample_id: replace(entry, fingerprint="") for sample_id, entry in manifest.samples.items()}
    (store / "manifest.json").write_bytes(replace(manifest, samples=samples).to_json())
    for group in store.glob("samples/*/*/zarr.json"):
        edit(group, "attributes", "zarr_core", "chunk_bytes", value={})
    return ZarrChunkReader(store, **options)


def flip(path: Path, at: int) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        byte = file.read(1)
        file.seek(at)
        file.write(bytes([byte[0] ^ 1]))


def test_a_chunk_is_read_whole_once_and_then_by_rows(
    store: Path, calls: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(straight, "MAX_GAP", 0)
    reader = ZarrChunkReader(store)
    chunk = CHUNK * ROW + 4
    first = reader.read_sample("run_1", {"volume": 5}, FIELD, epoch=3)
    again = reader.read_sample("run_1", {"volume": 5}, FIELD, epoch=3)
    np.testing.assert_array_equal(first["volume_velocity"], again["volume_velocity"])
    whole, *rows = calls
    assert sum(whole) == chunk
    assert sum(map(sum, rows)) == 5 * ROW


def test_a_whole_field_is_one_system_call(store: Path, calls: list[list[int]]) -> None:
    reader = ZarrChunkReader(store)
    for _ in range(2):
        reader.read_sample("run_1", {}, FIELD)
    assert len(calls) == 2


def test_many_chunks_are_several_system_calls(
    store: Path, calls: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    reader = ZarrChunkReader(store)
    expected = reader.read_sample("run_1", {}, FIELD)
    monkeypatch.setattr(straight, "_MAX_BUFFERS", 3)
    np.testing.assert_array_equal(
        reader.read_sample("run_1", {}, FIELD)["volume_velocity"], expected["volume_velocity"]
    )
    assert len(calls) > 2
    assert max(len(buffers) for buffers in calls[1:]) <= 5


@pytest.mark.parametrize("at", [0, CHUNK * ROW - 1, CHUNK * ROW + 3])
def test_damage_is_found_when_a_chunk_is_first_read(store: Path, at: int) -> None:
    flip(shard(store), at)
    reader = ZarrChunkReader(store)
    message = r"run_1, volume_velocity: points .*chunk 0 \(bytes 0 to \d+ of c/0/0\): checksum mismatch"
    for _ in range(2):
        with pytest.raises(CorruptChunkError, match=message):
            reader.read_sample("run_1", {}, FIELD)


def test_a_file_that_shrinks_is_an_error_and_never_a_signal(store: Path) -> None:
    reader = ZarrChunkReader(store)
    reader.read_sample("run_1", {}, FIELD)
    os.truncate(shard(store), CHUNK * ROW)
    with pytest.raises(CorruptChunkError, match=r"volume_velocity.* of .*c/0/0: expected \d+ bytes, but only"):
        reader.read_sample("run_1", {}, FIELD)


def test_a_file_that_vanishes_before_it_is_opened_is_an_error(store: Path) -> None:
    reader = ZarrChunkReader(store)
    shard(store).unlink()
    with pytest.raises(CorruptChunkError, match="run_1, volume_velocity.*c/0/0 is missing"):
        reader.read_sample("run_1", {}, FIELD)


def test_samples_of_other_programs_are_checked_each_time(store: Path) -> None:
    """Their files may change under the same name."""
    reader = of_another_program(store)
    reader.read_sample("run_1", {}, FIELD)
    flip(shard(store), 0)
    with pytest.raises(CorruptChunkError, match="checksum mismatch"):
        reader.read_sample("run_1", {}, FIELD)


def test_chunks_of_a_shard_may_lie_in_another_order(store: Path) -> None:
    """As other programs may store them."""
    expected = ZarrChunkReader(store).read_sample("run_1", {}, FIELD)["volume_velocity"]
    path = shard(store)
    stored = path.read_bytes()
    chunk = CHUNK * ROW + 4
    number = math.ceil(len(expected) / CHUNK)
    order = [*range(1, number, 2), *range(0, number, 2)]
    index = np.frombuffer(stored[number * chunk : -4], "<u8").reshape(-1, 2).copy()
    for place, each in enumerate(order):
        index[each, 0] = place * chunk
    chunks = [stored[each * chunk : (each + 1) * chunk] for each in order]
    path.write_bytes(b"".join(chunks) + index.tobytes() + google_crc32c.value(index.tobytes()).to_bytes(4, "little"))

    reader = of_another_program(store)
    by_zarr = of_another_program(store, engine="zarr")
    np.testing.assert_array_equal(by_zarr.read_sample("run_1", {}, FIELD)["volume_velocity"], expected)
    for _ in range(2):  # as in later epochs
        np.testing.assert_array_equal(reader.read_sample("run_1", {}, FIELD)["volume_velocity"], expected)
        for epoch in range(6):
            drawn = reader.read_sample("run_1", {"volume": 5}, FIELD, epoch=epoch)["volume_velocity"]
            reference = by_zarr.read_sample("run_1", {"volume": 5}, FIELD, epoch=epoch)["volume_velocity"]
            np.testing.assert_array_equal(drawn, reference)


@pytest.mark.parametrize("layout", ["store", "archive"])
def test_a_sample_drawn_twice_overlaps_itself(
    request: pytest.FixtureRequest, layout: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same points, overlapping ones, and others, in any order; before and after the chunks were checked."""
    reader = ZarrChunkReader(request.getfixturevalue(layout))
    expected = ZarrChunkReader(request.getfixturevalue(layout), engine="zarr")
    points = {"surface": 20, "volume": 40}
    selection = reader.selection(points)
    epochs = [5, 0, 5, 3, 1, 2, 0]
    read = Mock(wraps=straight._read_all)
    monkeypatch.setattr(straight, "_read_all", read)
    for times in (1, 2):
        items = reader.read_items([reader.draws(selection, "run_1", epoch=epoch) for epoch in epochs])
        for epoch, item in zip(epochs, items, strict=True):
            assert_equal(item, expected.read_sample("run_1", points, epoch=epoch))
        assert read.call_count == times  # not again, field by field, as after a read of too many bytes


def test_all_fields_of_a_domain_are_one_system_call(archive: Path, calls: list[list[int]]) -> None:
    """Chunks of the fields lie side by side; they are read in the order of the archive, not of the fields."""
    reader = ZarrChunkReader(archive)
    fields = ["volume_velocity", "volume_position", "volume_pressure"]
    for fields_again in (fields, fields[::-1]):
        reader.read_sample("run_1", {}, fields_again)
    assert len(calls) == 2


@pytest.mark.parametrize("fields", [["volume_position", "volume_velocity"], ["volume_velocity", "volume_position"]])
def test_the_damaged_field_is_named_among_others(archive: Path, fields: list[str]) -> None:
    path, start, size = object_place(archive, "run_1", "volume/velocity/c/1/0")
    flip(path, start)
    where = rf"run_1, volume_velocity: .*chunk 1 \(bytes {start} to {start + size}"
    with pytest.raises(CorruptChunkError, match=where):
        ZarrChunkReader(archive).read_sample("run_1", {}, fields)


@pytest.mark.parametrize("fields", [["surface_pressure", "volume_velocity"], ["volume_velocity", "surface_pressure"]])
def test_the_field_that_is_cut_off_is_named_among_others(archive: Path, fields: list[str]) -> None:
    reader = ZarrChunkReader(archive)
    reader.read_sample("run_1", {}, fields)
    path, start, _ = object_place(archive, "run_1", "volume/velocity/c/0/0")
    os.truncate(path, start + 5)
    with pytest.raises(CorruptChunkError, match=r"run_1, volume_velocity.*: expected \d+ bytes, but only"):
        reader.read_sample("run_1", {}, fields)
