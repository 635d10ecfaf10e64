"""Damaged objects are named, and never returned; what was damaged on its way is fetched again."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from unittest import mock

import numpy as np
import pytest

from tests.helpers.arrays import assert_equal
from tests.helpers.documents import edit
from tests.helpers.small_source import KIND
from tests.helpers.stores import object_place
from tests.points.read.engines.conftest import CHUNK
from zarr_core.errors import CorruptChunkError, ManifestError, StoreError
from zarr_core.points.convert.conversion import convert
from zarr_core.points.read.engines import ENGINES
from zarr_core.points.read.reader import ZarrChunkReader
from zarr_core.storage import Storage, retries
from zarr_core.storage.byte_ranges import Objects, Request, open_objects
from zarr_core.storage.retries import RetryPolicy


def test_every_flipped_byte_of_a_chunk_is_noticed_and_named(source: Path, tmp_path: Path) -> None:
    convert(KIND, tmp_path, root=source, chunk_points=CHUNK, sample_ids=["run_1"])
    relpath = ZarrChunkReader(tmp_path).manifest.samples["run_1"].relpath
    path = tmp_path / relpath / "volume/velocity/c/0/0"
    whole = path.read_bytes()
    index = 16 * 15 + 4
    for place in range(0, len(whole) - index, 11):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 4]) + whole[place + 1 :])
        with pytest.raises(
            CorruptChunkError, match=r"run_1, volume_velocity: points 0 to 230.*chunk \d+ \(bytes \d+ to"
        ):
            ZarrChunkReader(tmp_path).read_sample("run_1")


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(("key", "value"), [("shape", [230, 2]), ("data_type", "int16")])
def test_metadata_of_another_array_is_noticed(
    source: Path, tmp_path: Path, engine: str, key: str, value: object
) -> None:
    """Both are valid Zarr, and every checksum is right."""
    convert(KIND, tmp_path, root=source, chunk_points=CHUNK, sample_ids=["run_1"])
    group = tmp_path / ZarrChunkReader(tmp_path).manifest.samples["run_1"].relpath
    array = "volume/velocity"
    edit(group / "zarr.json", "consolidated_metadata", "metadata", array, key, value=value)
    edit(group / array / "zarr.json", key, value=value)
    with pytest.raises(ManifestError, match=r"run_1, volume_velocity: the manifest says \(230, 3\) of float16"):
        ZarrChunkReader(tmp_path, engine=engine).read_sample("run_1")


def damaged(root: str) -> None:
    reader = ZarrChunkReader(root)
    storage = Storage(root)
    name = f"{reader.manifest.samples['run_1'].relpath}/volume/velocity/c/0/0"
    whole = storage.read(name)
    for data, message in (
        (whole[:500], "but \\d+ came|but only \\d+ are there|the object ends before"),
        (whole[:30] + b"?" + whole[31:], r"chunk 0 \(bytes 0 to \d+ of c/0/0\): checksum mismatch"),
    ):
        storage.write(name, [data])
        with pytest.raises(CorruptChunkError, match=rf"run_1, volume_velocity: points 0 to 230.*({message})"):
            impatient(root)
    storage.delete([name])
    with pytest.raises(CorruptChunkError, match=r"run_1, volume_velocity.*volume/velocity/c/0/0 is missing"):
        impatient(root)


def impatient(root: str) -> None:
    with mock.patch.object(retries, "POLICY", RetryPolicy(attempts=2, first_wait_s=0.01)):
        ZarrChunkReader(root).read_sample("run_1")


@pytest.mark.parametrize("codec", ["none", "blosc-lz4"])
def test_damaged_files_are_named(source: Path, tmp_path: Path, codec: str) -> None:
    convert(KIND, tmp_path, root=source, chunk_points=CHUNK, sample_ids=["run_1"], codec=codec)
    damaged(str(tmp_path))


@pytest.mark.slow
def test_damaged_objects_are_named(remote: str) -> None:
    damaged(remote)


class Disturbed:
    """A network that damages the first responses with chunks, by default in the middle."""

    remote = True

    def __init__(self, objects: Objects, times: int, at: int | None = None) -> None:
        self.objects, self.times, self.at = objects, times, at

    def discard(self, requests: Sequence[Request]) -> None:
        """Nothing is kept."""

    def fetch(self, requests: Sequence[Request]) -> Iterator[np.ndarray | Exception]:
        for request, data in zip(requests, self.objects.fetch(requests), strict=True):
            assert not isinstance(data, Exception)
            if self.times and ("/c/" in request.key or request.key.endswith(".zip")):
                self.times -= 1
                data = data.copy()
                data[len(data) // 2 if self.at is None else self.at] ^= 1
            yield data


def test_bytes_damaged_in_flight_are_fetched_again(root: Path) -> None:
    whole = ZarrChunkReader(root).read_sample("run_1")
    for times in (1, 3):
        reader = ZarrChunkReader(root, objects_factory=lambda url, times=times: Disturbed(open_objects(url), times))
        assert_equal(reader.read_sample("run_1"), whole)
    reader = ZarrChunkReader(root, objects_factory=lambda url: Disturbed(open_objects(url), 10**6))
    with pytest.raises(CorruptChunkError, match="run_1, surface_friction.*chunk"):
        reader.read_sample("run_1")


@pytest.mark.parametrize("where", ["head", "chunk", "end"])
def test_a_small_archive_damaged_in_flight_is_fetched_again(packed: Path, where: str) -> None:
    at = {"head": 50, "chunk": object_place(packed, "run_1", "volume/velocity/c/2/0")[1] + 7, "end": -1}[where]
    truth = ZarrChunkReader(packed).read_sample("run_1")
    reader = ZarrChunkReader(packed, objects_factory=lambda url: Disturbed(open_objects(url), 1, at))
    assert_equal(reader.read_sample("run_1"), truth)


class Failing:
    """A location where every request for a chunk fails."""

    remote = True

    def __init__(self, objects: Objects) -> None:
        self.objects = objects

    def discard(self, requests: Sequence[Request]) -> None:
        """Nothing is kept."""

    def fetch(self, requests: Sequence[Request]) -> Iterator[np.ndarray | Exception]:
        for request, data in zip(requests, self.objects.fetch(requests), strict=True):
            yield ConnectionResetError("cable cut") if "/c/" in request.key else data


def test_network_errors_name_the_object_and_are_not_reported_as_damage(root: Path) -> None:
    reader = ZarrChunkReader(root, objects_factory=lambda url: Failing(open_objects(url)))
    with pytest.raises(StoreError, match=r"store, run_1, surface_friction: bytes 0 to \d+ of .*c/0/0.*cable cut"):
        reader.read_sample("run_1")
