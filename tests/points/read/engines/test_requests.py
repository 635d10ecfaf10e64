"""The number of requests that reads make, and what readers hold open."""

from __future__ import annotations

import json
import os
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch
import zarr

from tests.helpers.arrays import assert_equal
from tests.helpers.counting_store import Kept
from tests.helpers.published_store import make_samples, write_published_store
from tests.helpers.small_source import KIND
from tests.points.read.engines.conftest import CHUNK
from zarr_core.points.convert.conversion import convert
from zarr_core.points.read.reader import ZarrChunkReader
from zarr_core.storage.byte_ranges import CountingObjects, LocalObjects, Request, open_objects
from zarr_core.storage.local_files import OPEN_FILES

GOLDEN = Path(__file__).parents[3] / "golden"


def counting() -> Kept[CountingObjects]:
    return Kept(lambda root: CountingObjects(open_objects(root)))


def test_an_array_in_another_layout_is_left_to_zarr_python_alone(tmp_path: Path) -> None:
    samples = make_samples(1)
    store = write_published_store(tmp_path, samples, CHUNK)
    group = zarr.open_group(store / "run_1", zarr_format=3, use_consolidated=False)
    del group["volume/velocity"]
    group.create_array("volume/velocity", data=samples["run_1"]["volume_velocity"], chunks=(50, 3))
    zarr.consolidate_metadata(group.store)
    counted = counting()
    read = ZarrChunkReader(store, objects_factory=counted).read_sample("run_1")
    assert_equal(read, samples["run_1"])
    assert {key.rpartition("/c/")[0] for key in counted.only.by_key if "/c/" in key} == {
        f"run_1/{domain}/{name}"
        for domain in ("surface", "volume")
        for name in ("position", "pressure", "velocity")
        if (domain, name) != ("volume", "velocity")
    }


def costs_what_it_must(root: str) -> None:
    counted = counting()
    reader = ZarrChunkReader(root, objects_factory=counted)
    entry = reader.manifest.samples["run_1"]
    reader.read_sample("run_1", {"volume": CHUNK}, ["volume_pressure", "volume_velocity"])
    assert counted.only.by_key.pop(f"{entry.relpath}/zarr.json")[0] == 1
    expected = {f"{entry.relpath}/volume/{name}/c/0/0" for name in ("pressure", "velocity")}
    assert {key: requests for key, (requests, _) in counted.only.by_key.items()} == dict.fromkeys(expected, 1)
    assert counted.only.batches == 2
    for epoch in range(20):
        counted.only.reset()
        reader.read_sample("run_1", {"volume": CHUNK, "surface": 3}, epoch=epoch)
        assert counted.only.requests == len(reader.fields)
        assert {requests for requests, _ in counted.only.by_key.values()} == {1}
        assert counted.only.batches == 1
    counted.only.reset()
    reader.read_coords("run_1", num_points=4)
    assert set(counted.only.by_key) == {f"{entry.relpath}/surface/position/c/0/0"}


def test_a_warm_field_is_one_request_and_a_cold_sample_one_more(root: Path) -> None:
    costs_what_it_must(str(root))


@pytest.mark.slow
def test_a_remote_field_is_one_request_and_a_cold_sample_one_more(remote: str) -> None:
    costs_what_it_must(remote)


def test_a_full_read_is_one_range_of_each_shard_and_no_index(source: Path, tmp_path: Path) -> None:
    convert(KIND, tmp_path / "store", root=source, chunk_points=CHUNK, shard_points=4 * CHUNK)
    counted = counting()
    reader = ZarrChunkReader(tmp_path / "store", objects_factory=counted)
    reader.read_attributes("run_1")
    counted.only.reset()
    (read,) = reader.read_sample("run_1", fields=["volume_velocity"]).values()
    assert len(read) == 230
    attributes = reader.read_attributes("run_1")
    counted.only.by_key = {key: value for key, value in counted.only.by_key.items() if "/c/" in key}
    assert [requests for requests, _ in counted.only.by_key.values()] == [1] * 4
    indices = 4 * (16 * 4 + 4)
    stored = attributes["stored_bytes"]["volume_velocity"]
    assert sum(size for _, size in counted.only.by_key.values()) == stored - indices


def test_a_store_without_chunk_lengths_costs_its_shard_indices_once() -> None:
    counted = counting()
    reader = ZarrChunkReader(GOLDEN / "zstd", objects_factory=counted)
    for epoch in range(3):
        counted.only.reset() if counted.made else None
        reader.read_sample("a", {"surface": 5}, ["surface_pressure"], epoch=epoch)
        data = [requests for key, (requests, _) in counted.only.by_key.items() if "/c/" in key]
        assert counted.only.batches == (1 if epoch else 3)
        assert sum(data) <= (1 if epoch else 4) + 1  # three shards of the array; a draw may touch two


@pytest.mark.slow
def test_all_reads_of_a_batch_are_fetched_together(remote: str) -> None:
    counted = counting()
    reader = ZarrChunkReader(remote, objects_factory=counted)
    points = {"surface": 4, "volume": 4}
    for batches in (2, 1):
        reads = [read for i in reader.sample_ids for read in reader.field_reads(i, points).values()]
        results = reader.execute(reads)
        assert counted.only.batches == batches
        counted.only.reset()
    expected = [v for i in reader.sample_ids for v in reader.read_sample(i, points).values()]
    assert all(np.array_equal(one, other) for one, other in zip(results, expected, strict=True))


def test_sample_metadata_in_memory_is_bounded(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("zarr_core.points.read.engines.direct._METADATA_BYTES", 1)
    counted = counting()
    reader = ZarrChunkReader(root, objects_factory=counted)
    for sample_id in ("run_1", "run_1", "run_2", "run_1"):
        reader.read_sample(sample_id, fields=["surface_pressure"])
    counts = [requests for key, (requests, _) in counted.only.by_key.items() if key.endswith("zarr.json")]
    assert sorted(counts) == [1, 2]


def test_open_files_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("zarr_core.storage.local_files.OPEN_FILES", 3)
    for number in range(20):
        (tmp_path / str(number)).write_bytes(bytes([number]) * 100)
    objects = LocalObjects(str(tmp_path))
    before = len(os.listdir("/proc/self/fd")) if sys.platform == "linux" else 0
    for number in [*range(20), *range(20)]:
        (data,) = objects.fetch([Request(str(number), 10, 20)])
        assert not isinstance(data, Exception)
        assert data.tobytes() == bytes([number]) * 10
    if sys.platform == "linux":
        assert len(os.listdir("/proc/self/fd")) <= before + 3


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="counts the descriptors in /proc")
def test_a_reader_of_many_samples_holds_few_descriptors(many_samples: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """At the default limits, in threads, and when samples are evicted and read again."""
    monkeypatch.setattr("zarr_core.points.read.engines.direct._METADATA_BYTES", 50_000)
    before = descriptors()
    reader = ZarrChunkReader(many_samples)
    ids, threads = reader.sample_ids, 4
    assert len(ids) * 3 > 4 * OPEN_FILES  # each sample has its metadata and the shards of two fields

    def work(first: int) -> int:
        most = 0
        for number in range(first, 2 * len(ids), threads):
            points = reader.read_sample(ids[number % len(ids)], {"volume": 8}, epoch=number)
            assert [len(values) for values in points.values()] == [8, 8]
            if number % 10 < threads:
                most = max(most, descriptors())
        return most

    with ThreadPoolExecutor(threads) as pool:
        most = max(pool.map(work, range(threads)))
    # Each thread may hold a file that another has just evicted, and the folder that is counted.
    assert before + OPEN_FILES // 2 < most <= before + OPEN_FILES + 3 * threads


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


@pytest.fixture(scope="module")
def many_samples(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("many")
    for number in range(200):
        (root / "source" / f"case_{number}").mkdir(parents=True)
        for name, shape in (("xyz", (20, 3)), ("p", (20,))):
            torch.save(torch.full(shape, float(number)), root / "source" / f"case_{number}" / f"{name}.pt")
    kind = {"name": "many", "samples": "case_*", "files": {"volume_position": "xyz.pt", "volume_pressure": "p.pt"}}
    (root / "many.yaml").write_text(json.dumps(kind))
    convert(str(root / "many.yaml"), root / "store", source_url=str(root / "source"), chunk_points=CHUNK)
    return root / "store"
