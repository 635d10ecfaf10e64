"""Uncompressed chunks of local files are read straight into the output, and checked when they are first read."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.helpers.small_source import KIND
from tests.points.read.engines.conftest import CHUNK
from zarr_core.errors import CorruptChunkError
from zarr_core.points.convert.conversion import convert
from zarr_core.points.read.engines import straight
from zarr_core.points.read.reader import ZarrChunkReader
from zarr_core.storage import maps
from zarr_core.storage.byte_ranges import LocalObjects

FIELD = ["volume_velocity"]
ROW = 3 * 2  # bytes of a point: three components of float16


@pytest.fixture(autouse=True)
def not_mapped(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a network file system: a chunk that was verified is read again, not copied from a map."""
    monkeypatch.setattr(maps, "file_system", lambda folder: "nfs4")


@pytest.fixture
def store(source: Path, tmp_path: Path) -> Path:
    convert(KIND, tmp_path / "store", root=source, chunk_points=CHUNK, codec="none")
    return tmp_path / "store"


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


def flip(path: Path, at: int) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        byte = file.read(1)
        file.seek(at)
        file.write(bytes([byte[0] ^ 1]))


def test_a_chunk_is_read_whole_once_and_then_by_rows(
    store: Path, calls: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(straight, "_MAX_GAP", 0)
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
    reader = ZarrChunkReader(store)
    for entry in reader.manifest.samples.values():
        object.__setattr__(entry, "fingerprint", "")
    reader.read_sample("run_1", {}, FIELD)
    flip(shard(store), 0)
    with pytest.raises(CorruptChunkError, match="checksum mismatch"):
        reader.read_sample("run_1", {}, FIELD)
