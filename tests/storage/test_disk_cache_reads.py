"""The disk cache under a reader: requests, damaged entries, and what is not kept."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.helpers.arrays import assert_equal
from tests.helpers.cache_reader import files
from tests.helpers.published_store import make_samples, write_published_store
from tests.helpers.small_source import KIND, write_source
from zarr_core.datasets import ZarrPointDataset, ZarrPointDatasetConfig, build_dataset
from zarr_core.errors import CorruptChunkError, ZarrCoreError
from zarr_core.points.convert.conversion import convert
from zarr_core.points.read.reader import ZarrChunkReader
from zarr_core.storage.byte_ranges import CachedObjects, CountingObjects, Request, open_objects
from zarr_core.storage.disk_cache import DiskCache

FIELDS = ["surface_position", "surface_pressure", "volume_velocity"]


class Counted:
    """Opens objects, and keeps what counts them."""

    def __call__(self, root: str) -> CountingObjects:
        self.store = CountingObjects(open_objects(root))
        return self.store


def read(reader: ZarrChunkReader, sample_id: str = "run_1", epoch: int = 0) -> dict[str, np.ndarray]:
    return reader.read_sample(sample_id, {"surface": 16, "volume": 32}, FIELDS, epoch=epoch)


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("stored")
    convert(KIND, root / "store", source_url=str(write_source(root / "source")), chunk_points=16)
    return root / "store"


def test_a_warm_reader_makes_no_requests(stored: Path, tmp_path: Path) -> None:
    plain = ZarrChunkReader(stored)
    for expected in (True, False):
        counted = Counted()
        reader = ZarrChunkReader(stored, objects_factory=counted, cache_dir=tmp_path / "cache")
        for epoch in range(3):
            assert_equal(read(reader, epoch=epoch), read(plain, epoch=epoch))
        assert bool(counted.store.requests) is expected
    assert reader.cache is not None
    assert reader.cache.misses == 0
    assert reader.cache.hits > 0


@pytest.mark.filterwarnings("ignore:.*absent and skipped")
def test_a_whole_sample_and_a_dataset_through_the_cache(stored: Path, tmp_path: Path) -> None:
    assert_equal(
        ZarrChunkReader(stored, cache_dir=tmp_path / "cache").read_sample("run_2"),
        ZarrChunkReader(stored).read_sample("run_2"),
    )
    settings = {"root": str(stored), "split": "train", "num_surface_points": 16, "num_volume_points": 16}
    cached = build_dataset({"kind": "point", **settings, "cache_dir": str(tmp_path / "cache"), "cache_limit": "1GB"})
    plain = ZarrPointDataset(ZarrPointDatasetConfig(**settings))
    assert len(cached) == len(plain) > 0
    for dataset in (plain, cached):
        dataset.set_epoch(0)
    loader = torch.utils.data.DataLoader(cached, batch_size=None, num_workers=2, multiprocessing_context="forkserver")
    for one, other in zip(loader, plain, strict=True):
        assert all(torch.equal(one[name], other[name]) for name in other)
    assert cached.reader.cache is not None
    assert cached.reader.cache.size() > 0


def test_a_damaged_entry_under_a_reader_is_fetched_again(stored: Path, tmp_path: Path) -> None:
    expected = read(ZarrChunkReader(stored))
    cache = ZarrChunkReader(stored, cache_dir=tmp_path / "cache").cache
    assert cache is not None
    read(ZarrChunkReader(stored, cache_dir=tmp_path / "cache"))
    for file in files(cache):
        data = bytearray(file.read_bytes())
        data[-1] ^= 1
        file.write_bytes(data)
        reader = ZarrChunkReader(stored, cache_dir=tmp_path / "cache")
        assert_equal(read(reader), expected)
        assert reader.cache is not None
        assert reader.cache.corrupt_evicted == 1


class Flipping:
    """Objects whose chunks are damaged on the way, so many times."""

    def __init__(self, times: int) -> None:
        self.times = times

    def __call__(self, root: str) -> CountingObjects:
        flipping = self

        class Damaging(CountingObjects):
            def fetch(self, requests: Sequence[Request]) -> Iterator[np.ndarray | Exception]:
                for request, data in zip(requests, super().fetch(requests), strict=True):
                    if "/c/" in request.key and flipping.times > 0 and not isinstance(data, Exception):
                        flipping.times -= 1
                        data = data.copy()
                        data[len(data) // 2] ^= 1
                    yield data

        return Damaging(open_objects(root))


def test_a_byte_that_flips_in_flight_is_fetched_again_and_not_kept(stored: Path, tmp_path: Path) -> None:
    expected = read(ZarrChunkReader(stored))
    assert_equal(read(ZarrChunkReader(stored, objects_factory=Flipping(1), cache_dir=tmp_path / "cache")), expected)
    with pytest.raises(CorruptChunkError, match="run_2"):
        read(ZarrChunkReader(stored, objects_factory=Flipping(10**6), cache_dir=tmp_path / "cache"), "run_2")
    reader = ZarrChunkReader(stored, cache_dir=tmp_path / "cache")
    assert_equal(read(reader, "run_2"), read(ZarrChunkReader(stored), "run_2"))
    assert_equal(read(reader), expected)


def test_a_store_that_was_damaged_is_read_as_it_is_once_it_is_repaired(stored: Path, tmp_path: Path) -> None:
    shutil.copytree(stored, tmp_path / "store")
    reader = ZarrChunkReader(tmp_path / "store", cache_dir=tmp_path / "cache")
    shard = tmp_path / "store" / reader.manifest.samples["run_1"].relpath / "surface/pressure/c/0/0"
    whole = shard.read_bytes()
    shard.write_bytes(whole[:9] + bytes([whole[9] ^ 1]) + whole[10:])
    with pytest.raises(CorruptChunkError, match="run_1, surface_pressure"):
        reader.read_sample("run_1")
    shard.write_bytes(whole)
    assert_equal(reader.read_sample("run_1"), ZarrChunkReader(stored).read_sample("run_1"))


@pytest.mark.slow
def test_equal_names_in_other_stores_are_other_objects(tmp_path: Path, s3_root: str, monkeypatch: Any) -> None:
    """Two stores whose samples have the same paths but not the same bytes, as a wiped clock or a copied tree makes."""
    stores = []
    for number in range(2):
        source = write_source(tmp_path / f"source_{number}", seed=number)
        for file in sorted(source.rglob("*.pt")):
            os.utime(file, (10**9, 10**9))
        root = tmp_path / f"host_{number}" / "store"
        convert(KIND, root, source_url=str(source), chunk_points=16)
        stores.append(root)
    plain = [read(ZarrChunkReader(root)) for root in stores]
    groups = [{entry.relpath for entry in ZarrChunkReader(root).manifest.samples.values()} for root in stores]
    assert groups[0] == groups[1]
    for _ in range(2):
        for root, expected in zip(stores, plain, strict=True):
            assert_equal(read(ZarrChunkReader(root, cache_dir=tmp_path / "cache")), expected)
            monkeypatch.chdir(root.parent)  # "store" is another store in another folder
            assert_equal(read(ZarrChunkReader("store", cache_dir=tmp_path / "cache")), expected)
    import s3fs

    for number, root in enumerate(stores):
        s3fs.S3FileSystem().put(str(root), f"{s3_root}_{number}", recursive=True)
    for _ in range(2):
        for number, expected in enumerate(plain):
            counted = Counted()
            reader = ZarrChunkReader(f"{s3_root}_{number}", objects_factory=counted, cache_dir=tmp_path / "cache")
            assert_equal(read(reader), expected)
    assert counted.store.requests == 0


def test_a_sample_that_was_converted_again_is_read_anew(tmp_path: Path) -> None:
    source, store = write_source(tmp_path / "source"), tmp_path / "store"
    before = convert(KIND, store, source_url=str(source), chunk_points=16).manifest.generation
    old = read(ZarrChunkReader(store, cache_dir=tmp_path / "cache"))
    shutil.rmtree(source)
    write_source(source, seed=1)
    convert(KIND, store, source_url=str(source), chunk_points=16)
    new = read(ZarrChunkReader(store, cache_dir=tmp_path / "cache"))
    assert_equal(new, read(ZarrChunkReader(store)))
    assert not np.array_equal(old["surface_pressure"], new["surface_pressure"])
    assert_equal(read(ZarrChunkReader(store, cache_dir=tmp_path / "cache", generation=before)), old)


def test_samples_of_another_program_may_change_and_are_not_kept(tmp_path: Path) -> None:
    root = write_published_store(tmp_path / "store", make_samples())
    reader = ZarrChunkReader(root, cache_dir=tmp_path / "cache")
    reader.read_sample("run_1")
    assert reader.cache is not None
    assert (reader.cache.hits, reader.cache.misses, files(reader.cache)) == (0, 0, [])


def test_only_samples_are_kept_and_absent_objects_are_requested_again(stored: Path, tmp_path: Path) -> None:
    counted = CountingObjects(open_objects(str(stored)))
    objects = CachedObjects(counted, DiskCache(tmp_path / "cache"), "here")
    relpath = ZarrChunkReader(stored).manifest.samples["run_1"].relpath
    once = [f"{relpath}/zarr.json", f"{relpath}/surface/pressure/c/0/0"]
    always = ["manifest.json", "generations/00000001.json", f"{relpath}/c/absent"]
    ranges = [(0, None), (3, 9), (-4, None)]
    requests = [Request(key, start, stop) for key in once + always for start, stop in ranges]

    def fetch() -> list[bytes | type]:
        return [type(d) if isinstance(d, Exception) else d.tobytes() for d in objects.fetch(requests)]

    first, second = fetch(), fetch()
    assert first == second
    for place, key in enumerate(once + always[:2]):
        whole = (stored / key).read_bytes()
        assert first[3 * place : 3 * place + 3] == [whole, whole[3:9], whole[-4:]]
    assert first[-3:] == [FileNotFoundError] * 3
    assert {key: counted.by_key[key][0] for key in always} == dict.fromkeys(always, 6)
    assert {key: counted.by_key[key][0] for key in once} == dict.fromkeys(once, 3)


def test_a_damaged_cached_group_is_fetched_again(stored: Path, tmp_path: Path) -> None:
    class Damaging(CountingObjects):
        def fetch(self, requests: Sequence[Request]) -> Iterator[np.ndarray | Exception]:
            for request, data in zip(requests, super().fetch(requests), strict=True):
                yield data[:50] if request.key.endswith("zarr.json") and not isinstance(data, Exception) else data

    with pytest.raises(CorruptChunkError, match="run_1"):
        read(ZarrChunkReader(stored, objects_factory=lambda r: Damaging(open_objects(r)), cache_dir=tmp_path / "cache"))
    assert_equal(read(ZarrChunkReader(stored, cache_dir=tmp_path / "cache")), read(ZarrChunkReader(stored)))


def test_other_engines_have_no_cache(stored: Path, tmp_path: Path) -> None:
    with pytest.raises(ZarrCoreError, match="cache_dir is for the engine 'direct'"):
        ZarrChunkReader(stored, engine="zarr", cache_dir=tmp_path / "cache")
