"""Engines: equal results, numbers of requests, and detection of damage."""

from __future__ import annotations

import json
import multiprocessing
import os
import pickle
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import zarr
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.mapped import MappedObjects
from tests.helpers.examples import examples
from tests.helpers.published_store import make_samples, write_published_store
from tests.helpers.small_source import KIND, write_source
from tests.helpers.waiting import LIMIT_SECONDS
from zarr_core.errors import CorruptChunkError, StoreError, ZarrCoreError
from zarr_core.format.codecs import CODECS
from zarr_core.points.convert import convert
from zarr_core.points.engines import ENGINES
from zarr_core.points.reader import ZarrChunkReader
from zarr_core.storage import Storage
from zarr_core.storage.byte_ranges import (
    OPEN_FILES,
    CountingObjects,
    LocalObjects,
    Objects,
    RemoteObjects,
    Request,
    open_objects,
)
from zarr_core.storage.retries import RetryPolicy

GOLDEN = Path(__file__).parents[2] / "golden"
CHUNK = 16
FIELDS = ["surface_position", "volume_pressure", "volume_velocity"]


class Counted:
    """Objects that count, and the counts."""

    def __init__(self) -> None:
        self.made: list[CountingObjects] = []

    def __call__(self, root: str) -> CountingObjects:
        self.made.append(CountingObjects(open_objects(root)))
        return self.made[-1]

    @property
    def all(self) -> CountingObjects:
        (only,) = self.made
        return only


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_source(tmp_path_factory.mktemp("source"))


@pytest.fixture(scope="module")
def root(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    store = tmp_path_factory.mktemp("engines") / "store"
    convert(KIND, store, root=source, chunk_points=CHUNK)
    return store


def upload(root: Path, s3_root: str) -> str:
    import s3fs

    s3fs.S3FileSystem().put(f"{root}/", f"{s3_root.removeprefix('s3://')}/", recursive=True)
    return s3_root


@pytest.fixture(params=["obstore", "s3fs"])
def remote(request: pytest.FixtureRequest, root: Path, s3_root: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """The store on S3, through each of the clients."""
    if request.param == "obstore":
        pytest.importorskip("obstore", reason="needs the obstore extra")
    else:
        monkeypatch.setitem(sys.modules, "obstore.store", None)  # as if it were not installed
    return upload(root, s3_root)


def assert_equal(one: dict[str, np.ndarray], other: dict[str, np.ndarray]) -> None:
    assert list(one) == list(other)
    for name, values in one.items():
        assert values.dtype == other[name].dtype
        np.testing.assert_array_equal(values, other[name])


# --- equal results ------------------------------------------------------------------------------------------------


@settings(max_examples=examples(60))
@given(
    codec=st.sampled_from(CODECS),
    shard_points=st.sampled_from([None, 32, 48]),
    points=st.dictionaries(st.sampled_from(["surface", "volume"]), st.none() | st.integers(1, 260)),
    fields=st.none() | st.lists(st.sampled_from(FIELDS), min_size=1),
    epoch=st.integers(0, 99),
    sample=st.sampled_from(["run_1", "run_2", "run_3"]),
)
def test_engines_give_equal_results(
    source: Path,
    tmp_path_factory: pytest.TempPathFactory,
    codec: str,
    shard_points: int | None,
    points: dict[str, int | None],
    fields: list[str] | None,
    epoch: int,
    sample: str,
) -> None:
    pytest.importorskip("tensorstore", reason="needs the tensorstore extra")
    store = tmp_path_factory.getbasetemp() / f"equal_{codec}_{shard_points}"
    if not store.exists():
        convert(KIND, store, root=source, chunk_points=CHUNK, shard_points=shard_points, codec=codec)
    direct, reference, tensorstore = (
        ZarrChunkReader(store, engine=engine).read_sample(sample, points, fields, epoch=epoch) for engine in ENGINES
    )
    assert_equal(direct, reference)
    assert_equal(direct, tensorstore)


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("engine", ENGINES)
def test_golden_stores_are_read_by_every_engine(codec: str, engine: str) -> None:
    if engine == "tensorstore":
        pytest.importorskip("tensorstore", reason="needs the tensorstore extra")
    reference = ZarrChunkReader(GOLDEN / codec, engine="zarr")
    reader = ZarrChunkReader(GOLDEN / codec, engine=engine)
    for epoch in range(10):
        for wanted in (None, 1, 7, 20):
            arguments: Any = ("a", {"surface": wanted}, None, 0, epoch)
            assert_equal(reader.read_sample(*arguments), reference.read_sample(*arguments))
    assert reader.read_attributes("a") == reference.read_attributes("a")


@pytest.mark.parametrize("engine", ENGINES)
def test_published_stores_are_read_by_every_engine(tmp_path: Path, engine: str) -> None:
    """No checksums, chunks of zeros left out, several shards, and an array in a layout that is none of ours."""
    if engine == "tensorstore":
        pytest.importorskip("tensorstore", reason="needs the tensorstore extra")
    samples = make_samples()
    samples["run_2"]["volume_pressure"][20:90] = 0
    samples["run_3"]["surface_pressure"][:] = 0
    store = write_published_store(tmp_path, samples, CHUNK, 2 * CHUNK)
    # One array without shards, and a group that does not say what it holds.
    group = zarr.open_group(store / "run_1", zarr_format=3, use_consolidated=False)
    del group["volume/velocity"]
    group.create_array("volume/velocity", data=samples["run_1"]["volume_velocity"], chunks=(50, 3))
    metadata = json.loads((store / "run_1/zarr.json").read_text())
    metadata.pop("consolidated_metadata")
    (store / "run_1/zarr.json").write_text(json.dumps(metadata))
    reader = ZarrChunkReader(store, engine=engine)
    for sample_id, fields in samples.items():
        assert_equal(reader.read_sample(sample_id), fields)
        out = [np.zeros_like(values) for values in fields.values()]
        reader.execute(list(reader.field_reads(sample_id).values()), out)
        assert_equal(dict(zip(fields, out, strict=True)), fields)


def test_an_array_in_another_layout_is_left_to_zarr_python_alone(tmp_path: Path) -> None:
    samples = make_samples(1)
    store = write_published_store(tmp_path, samples, CHUNK)
    group = zarr.open_group(store / "run_1", zarr_format=3, use_consolidated=False)
    del group["volume/velocity"]
    group.create_array("volume/velocity", data=samples["run_1"]["volume_velocity"], chunks=(50, 3))
    zarr.consolidate_metadata(group.store)
    counted = Counted()
    read = ZarrChunkReader(store, objects_factory=counted).read_sample("run_1")
    assert_equal(read, samples["run_1"])
    assert {key.rpartition("/c/")[0] for key in counted.all.by_key if "/c/" in key} == {
        f"run_1/{domain}/{name}"
        for domain in ("surface", "volume")
        for name in ("position", "pressure", "velocity")
        if (domain, name) != ("volume", "velocity")
    }


def test_engines_are_chosen_by_name(root: Path) -> None:
    assert ZarrChunkReader(root).engine == "direct"
    assert ZarrChunkReader(root, store_factory=lambda root: None).engine == "zarr"  # type: ignore[arg-type,return-value]
    with pytest.raises(ZarrCoreError, match="no engine 'zarrs'; use one of direct, zarr, tensorstore"):
        ZarrChunkReader(root, engine="zarrs")
    with pytest.raises(ZarrCoreError, match="store_factory is for the engine 'zarr'"):
        ZarrChunkReader(root, engine="direct", store_factory=lambda root: None)  # type: ignore[arg-type,return-value]
    with pytest.raises(ZarrCoreError, match="objects_factory is for the engine 'direct'"):
        ZarrChunkReader(root, engine="zarr", objects_factory=open_objects)


# --- requests -----------------------------------------------------------------------------------------------------


def costs_what_it_must(root: str) -> None:
    counted = Counted()
    reader = ZarrChunkReader(root, objects_factory=counted)
    entry = reader.manifest.samples["run_1"]
    reader.read_sample("run_1", {"volume": CHUNK}, ["volume_pressure", "volume_velocity"])
    assert counted.all.by_key.pop(f"{entry.relpath}/zarr.json")[0] == 1
    expected = {f"{entry.relpath}/volume/{name}/c/0/0" for name in ("pressure", "velocity")}
    assert {key: requests for key, (requests, _) in counted.all.by_key.items()} == dict.fromkeys(expected, 1)
    assert counted.all.batches == 2
    for epoch in range(20):
        counted.all.reset()
        reader.read_sample("run_1", {"volume": CHUNK, "surface": 3}, epoch=epoch)
        assert counted.all.requests == len(reader.fields)
        assert {requests for requests, _ in counted.all.by_key.values()} == {1}
        assert counted.all.batches == 1
    counted.all.reset()
    reader.read_coords("run_1", num_points=4)
    assert set(counted.all.by_key) == {f"{entry.relpath}/surface/position/c/0/0"}


def test_a_warm_field_is_one_request_and_a_cold_sample_one_more(root: Path) -> None:
    costs_what_it_must(str(root))


def test_a_remote_field_is_one_request_and_a_cold_sample_one_more(remote: str) -> None:
    costs_what_it_must(remote)


def test_a_full_read_is_one_range_of_each_shard_and_no_index(source: Path, tmp_path: Path) -> None:
    convert(KIND, tmp_path / "store", root=source, chunk_points=CHUNK, shard_points=4 * CHUNK)
    counted = Counted()
    reader = ZarrChunkReader(tmp_path / "store", objects_factory=counted)
    reader.read_attributes("run_1")
    counted.all.reset()
    (read,) = reader.read_sample("run_1", fields=["volume_velocity"]).values()
    assert len(read) == 230
    attributes = reader.read_attributes("run_1")
    counted.all.by_key = {key: value for key, value in counted.all.by_key.items() if "/c/" in key}
    assert [requests for requests, _ in counted.all.by_key.values()] == [1] * 4
    indices = 4 * (16 * 4 + 4)
    stored = attributes["stored_bytes"]["volume_velocity"]
    assert sum(size for _, size in counted.all.by_key.values()) == stored - indices


def test_a_store_without_chunk_lengths_costs_its_shard_indices_once() -> None:
    counted = Counted()
    reader = ZarrChunkReader(GOLDEN / "zstd", objects_factory=counted)
    for epoch in range(3):
        counted.all.reset() if counted.made else None
        reader.read_sample("a", {"surface": 5}, ["surface_pressure"], epoch=epoch)
        data = [requests for key, (requests, _) in counted.all.by_key.items() if "/c/" in key]
        assert counted.all.batches == (1 if epoch else 3)
        assert sum(data) <= (1 if epoch else 4) + 1  # three shards of the array; a draw may touch two


def test_all_reads_of_a_batch_are_fetched_together(remote: str) -> None:
    counted = Counted()
    reader = ZarrChunkReader(remote, objects_factory=counted)
    points = {"surface": 4, "volume": 4}
    for batches in (2, 1):
        reads = [read for i in reader.sample_ids for read in reader.field_reads(i, points).values()]
        results = reader.execute(reads)
        assert counted.all.batches == batches
        counted.all.reset()
    expected = [v for i in reader.sample_ids for v in reader.read_sample(i, points).values()]
    assert all(np.array_equal(one, other) for one, other in zip(results, expected, strict=True))


def test_sample_metadata_in_memory_is_bounded(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("zarr_core.points.engines.direct._METADATA_BYTES", 1)
    counted = Counted()
    reader = ZarrChunkReader(root, objects_factory=counted)
    for sample_id in ("run_1", "run_1", "run_2", "run_1"):
        reader.read_sample(sample_id, fields=["surface_pressure"])
    counts = [requests for key, (requests, _) in counted.all.by_key.items() if key.endswith("zarr.json")]
    assert sorted(counts) == [1, 2]


@pytest.mark.parametrize("kind", [LocalObjects, MappedObjects])
def test_open_files_are_bounded(kind: type, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("zarr_core.storage.byte_ranges.OPEN_FILES", 3)
    for number in range(20):
        (tmp_path / str(number)).write_bytes(bytes([number]) * 100)
    objects = kind(str(tmp_path))
    before = len(os.listdir("/proc/self/fd")) if sys.platform == "linux" else 0
    for number in [*range(20), *range(20)]:
        (data,) = objects.fetch([Request(str(number), 10, 20)])
        assert not isinstance(data, Exception)
        assert data.tobytes() == bytes([number]) * 10
    if sys.platform == "linux":
        assert len(os.listdir("/proc/self/fd")) <= before + 3


@pytest.mark.skipif(sys.platform != "linux", reason="counts the descriptors in /proc")
@pytest.mark.parametrize("factory", [open_objects, MappedObjects])
def test_a_reader_of_many_samples_holds_few_descriptors(
    many_samples: Path, factory: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At the default limits, in threads, and when samples are evicted and read again."""
    monkeypatch.setattr("zarr_core.points.engines.direct._METADATA_BYTES", 50_000)
    before = descriptors()
    reader = ZarrChunkReader(many_samples, objects_factory=factory)
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


# --- damage -------------------------------------------------------------------------------------------------------


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
            ZarrChunkReader(root, objects_factory=impatient).read_sample("run_1")
    storage.delete([name])
    with pytest.raises(CorruptChunkError, match=r"run_1, volume_velocity.*volume/velocity/c/0/0 is missing"):
        ZarrChunkReader(root, objects_factory=impatient).read_sample("run_1")


def impatient(root: str) -> Objects:
    if "://" in root:
        return RemoteObjects(root, RetryPolicy(attempts=2, first_wait_s=0.01))
    return open_objects(root)


def test_damaged_files_are_named(source: Path, tmp_path: Path) -> None:
    convert(KIND, tmp_path, root=source, chunk_points=CHUNK, sample_ids=["run_1"])
    damaged(str(tmp_path))


def test_damaged_objects_are_named(remote: str) -> None:
    damaged(remote)


def test_mapped_files_read_the_same_and_damage_is_named(source: Path, tmp_path: Path) -> None:
    convert(KIND, tmp_path, root=source, chunk_points=CHUNK, sample_ids=["run_1"])
    reader, mapped = (ZarrChunkReader(tmp_path, objects_factory=kind) for kind in (None, MappedObjects))
    for epoch in range(5):
        points = {"volume": 20, "surface": 9}
        one, other = (each.read_sample("run_1", points, epoch=epoch) for each in (reader, mapped))
        assert_equal(one, other)
    path = tmp_path / reader.manifest.samples["run_1"].relpath / "volume/velocity/c/0/0"
    for damaged in (path.read_bytes()[:500], b""):
        path.unlink()  # not cut in place: readers map the file that was there
        path.write_bytes(damaged)
        with pytest.raises(CorruptChunkError, match=r"run_1, volume_velocity.*but \d+ came"):
            ZarrChunkReader(tmp_path, objects_factory=MappedObjects).read_sample("run_1")
    path.unlink()
    with pytest.raises(CorruptChunkError, match=r"run_1, volume_velocity.*is missing"):
        ZarrChunkReader(tmp_path, objects_factory=MappedObjects).read_sample("run_1")


class Disturbed:
    """A network that damages the first responses."""

    remote = True

    def __init__(self, objects: Objects, times: int) -> None:
        self.objects, self.times = objects, times

    def discard(self, requests: Sequence[Request]) -> None:
        """Nothing is kept."""

    def fetch(self, requests: Sequence[Request]) -> Iterator[np.ndarray | Exception]:
        for request, data in zip(requests, self.objects.fetch(requests), strict=True):
            assert not isinstance(data, Exception)
            if self.times and "/c/" in request.key:
                self.times -= 1
                data = data.copy()
                data[len(data) // 2] ^= 1
            yield data


def test_bytes_damaged_in_flight_are_fetched_again(root: Path) -> None:
    whole = ZarrChunkReader(root).read_sample("run_1")
    for times in (1, 3):
        reader = ZarrChunkReader(root, objects_factory=lambda url, times=times: Disturbed(open_objects(url), times))
        assert_equal(reader.read_sample("run_1"), whole)
    reader = ZarrChunkReader(root, objects_factory=lambda url: Disturbed(open_objects(url), 10**6))
    with pytest.raises(CorruptChunkError, match="run_1, surface_friction.*chunk"):
        reader.read_sample("run_1")


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


# --- threads and processes ----------------------------------------------------------------------------------------


def test_threads_share_a_reader(root: Path) -> None:
    reader, reference = ZarrChunkReader(root), ZarrChunkReader(root, engine="zarr")
    expected = [reference.read_sample("run_2", {"volume": 40}, epoch=epoch) for epoch in range(8)]
    with ThreadPoolExecutor(4) as threads:
        read = threads.map(lambda epoch: reader.read_sample("run_2", {"volume": 40}, epoch=epoch % 8), range(80))
        for epoch, fields in enumerate(read):
            assert_equal(fields, expected[epoch % 8])


def read_in_child(
    reader: ZarrChunkReader, expected: dict[str, np.ndarray], results: Any, environment: dict[str, str]
) -> None:
    os.environ.update(environment)  # a fork server may be older than this test's S3 server
    read = reader.read_sample("run_1", {"surface": 9, "volume": 40}, seed=3)
    results.put(all((read[name] == values).all() for name, values in expected.items()))


@pytest.mark.parametrize("method", ["fork", "forkserver"])
def test_a_remote_reader_in_use_works_in_child_processes(remote: str, method: str) -> None:
    reader = ZarrChunkReader(remote)
    expected = reader.read_sample("run_1", {"surface": 9, "volume": 40}, seed=3)
    context = multiprocessing.get_context(method)
    results = context.Queue()
    arguments = (reader, expected, results, dict(os.environ))
    child = context.Process(target=read_in_child, args=arguments, daemon=True)
    child.start()
    try:
        assert results.get(timeout=LIMIT_SECONDS) is True
    finally:
        child.kill()


@pytest.mark.parametrize("engine", ENGINES)
def test_a_reader_in_use_can_be_pickled(root: Path, engine: str) -> None:
    if engine == "tensorstore":
        pytest.importorskip("tensorstore", reason="needs the tensorstore extra")
    reader = ZarrChunkReader(root, engine=engine)
    expected = reader.read_sample("run_1", {"volume": 20})
    assert_equal(pickle.loads(pickle.dumps(reader)).read_sample("run_1", {"volume": 20}), expected)
