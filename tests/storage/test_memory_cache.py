"""The memory cache: its limit, damaged bytes, and use for remote objects only."""

from __future__ import annotations

import multiprocessing
import pickle
import warnings
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.helpers.arrays import assert_equal
from tests.helpers.published_store import make_samples, write_published_store
from tests.helpers.small_source import KIND, write_source
from tests.helpers.waiting import LIMIT_SECONDS
from zarr_core.datasets import build_dataset
from zarr_core.errors import CorruptChunkError, ZarrCoreError
from zarr_core.points.convert.conversion import convert
from zarr_core.points.read.reader import ZarrChunkReader
from zarr_core.storage.byte_ranges import CachedObjects, CountingObjects, MemoryCache, Objects, Request, open_objects

POINTS = {"surface": 16, "volume": 32}
ENTRY = 500  # what an entry counts beside its bytes


class Far(CountingObjects):
    """Local files treated as remote ones; ``flips`` chunks are damaged in transit."""

    flips = 0

    def __init__(self, root: str) -> None:
        super().__init__(open_objects(root))
        self.remote = True

    def fetch(self, requests: Sequence[Request]) -> Iterator[np.ndarray | Exception]:
        for request, data in zip(requests, super().fetch(requests), strict=True):
            if self.flips and "/c/" in request.key and not isinstance(data, Exception):
                self.flips -= 1
                data = data.copy()
                data[len(data) // 2] ^= 1
            yield data


class Opened:
    """Opens far objects, and keeps them."""

    def __init__(self, flips: int = 0) -> None:
        self.flips = flips

    def __call__(self, root: str) -> Objects:
        self.store = Far(root)
        self.store.flips = self.flips
        return self.store


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("stored")
    convert(KIND, root / "store", source_url=str(write_source(root / "source")), chunk_points=16)
    return root / "store"


def read(reader: ZarrChunkReader, epoch: int = 0) -> dict[str, np.ndarray]:
    return reader.read_sample("run_1", POINTS, epoch=epoch)


def memory_of(reader: ZarrChunkReader) -> MemoryCache:
    objects: Any = reader._engine._this_process.objects  # type: ignore[attr-defined]
    assert isinstance(objects, CachedObjects)
    assert isinstance(objects._cache, MemoryCache)
    return objects._cache


# --- keeping ------------------------------------------------------------------------------------------------------

PLACES = st.tuples(st.sampled_from("abcdef"), st.integers(0, 2))


@pytest.mark.filterwarnings("ignore:the memory cache does not keep")
@given(
    limit=st.integers(1, 3000),
    steps=st.lists(st.tuples(st.sampled_from(["lookup", "store", "discard"]), PLACES, st.integers(0, 900))),
)
def test_it_keeps_what_was_used_last_and_never_more_than_the_limit(
    limit: int, steps: list[tuple[str, tuple[str, int], int]]
) -> None:
    cache = MemoryCache(limit)
    expected: OrderedDict[tuple[str, int], bytes] = OrderedDict()
    for step, (key, start), size in steps:
        if step == "lookup":
            assert cache.lookup(key, start, None) == expected.get((key, start))
            if (key, start) in expected:
                expected.move_to_end((key, start))
        elif step == "discard":
            cache.discard(key, start, None)
            expected.pop((key, start), None)
        elif cache.store(key, start, None, bytes(size)):
            expected.pop((key, start), None)
            expected[key, start] = bytes(size)
            while sum(len(data) + ENTRY for data in expected.values()) > limit:
                expected.popitem(last=False)
        else:
            assert size + ENTRY > limit
        assert cache.size == sum(len(data) + ENTRY for data in expected.values()) <= limit
        assert list(cache._entries.values()) == list(expected.values())


def test_a_limit_below_a_range_is_told_once() -> None:
    cache = MemoryCache(1000)
    assert cache.store("a", 0, None, bytes(400))
    with pytest.warns(UserWarning, match="does not keep ranges of 900 B: its limit is 1 kB; use larger cache_bytes"):
        assert not cache.store("b", 0, None, bytes(900))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert not cache.store("b", 0, None, bytes(900))


def test_threads_share_it() -> None:
    cache = MemoryCache(20 * (100 + ENTRY))
    wrong: list[Any] = []

    def use(thread: int) -> None:
        random = np.random.default_rng(thread)
        for number in random.integers(0, 40, 3000).tolist():
            data = cache.lookup("a", number, None)
            if data is None:
                cache.store("a", number, None, bytes([number]) * 100)
            elif data != bytes([number]) * 100:
                wrong.append(number)
            if number == 7:
                cache.discard("a", 7, None)
            if cache.size > cache.limit:
                wrong.append("too much")

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(use, range(8)))
    assert wrong == []
    assert cache.size == sum(len(data) + ENTRY for data in cache._entries.values()) <= cache.limit


# --- under a reader -----------------------------------------------------------------------------------------------


def test_later_epochs_request_only_new_ranges(stored: Path) -> None:
    plain, opened = ZarrChunkReader(stored), Opened()
    reader = ZarrChunkReader(stored, objects_factory=opened, cache_bytes="10MB")
    for epoch in range(200):
        assert_equal(read(reader, epoch), read(plain, epoch))
    requested = opened.store.requests
    for epoch in range(200):
        assert_equal(read(reader, epoch), read(plain, epoch))
    assert opened.store.requests == requested
    assert memory_of(reader).size <= 10_000_000


def test_it_stays_within_its_limit_under_a_reader(stored: Path) -> None:
    plain = ZarrChunkReader(stored)
    reader = ZarrChunkReader(stored, objects_factory=Opened(), cache_bytes=5000)
    for epoch in range(50):
        assert_equal(read(reader, epoch), read(plain, epoch))
        assert 0 < memory_of(reader).size <= 5000


def test_memory_comes_before_the_disk_and_the_disk_before_the_store(stored: Path, tmp_path: Path) -> None:
    expected = read(ZarrChunkReader(stored))
    settings = {"cache_dir": tmp_path / "cache", "cache_bytes": "10MB"}
    assert_equal(read(ZarrChunkReader(stored, **settings)), expected)
    opened = Opened()
    reader = ZarrChunkReader(stored, objects_factory=opened, **settings)
    assert reader.cache is not None
    assert_equal(read(reader), expected)
    hits = reader.cache.hits
    assert (opened.store.requests, reader.cache.misses) == (0, 0)
    assert hits > 0
    assert_equal(read(reader), expected)
    assert (opened.store.requests, reader.cache.hits) == (0, hits)


def test_a_byte_that_flips_in_flight_is_fetched_again_and_not_kept(stored: Path) -> None:
    expected = read(ZarrChunkReader(stored))
    reader = ZarrChunkReader(stored, objects_factory=Opened(flips=1), cache_bytes="10MB")
    assert_equal(read(reader), expected)
    assert_equal(read(reader), expected)
    lost = ZarrChunkReader(stored, objects_factory=Opened(flips=10**6), cache_bytes="10MB")
    for _ in range(2):
        with pytest.raises(CorruptChunkError, match="run_1"):
            read(lost)


@pytest.mark.parametrize("with_disk", [False, True])
def test_a_byte_that_flips_in_memory_is_fetched_again(stored: Path, tmp_path: Path, with_disk: bool) -> None:
    expected = read(ZarrChunkReader(stored))
    folder = tmp_path / "cache" if with_disk else None
    reader = ZarrChunkReader(stored, objects_factory=Opened(), cache_dir=folder, cache_bytes="10MB")
    read(reader)
    memory = memory_of(reader)
    for place, data in list(memory._entries.items()):
        if "/c/" in place[0]:
            damaged = bytearray(data)
            damaged[len(data) // 2] ^= 1
            memory._entries[place] = bytes(damaged)
            assert_equal(read(reader), expected)
            assert memory._entries[place] == data


def test_copies_of_a_reader_start_empty(stored: Path) -> None:
    reader = ZarrChunkReader(stored, objects_factory=Far, cache_bytes="10MB")
    expected = read(reader)
    copy = pickle.loads(pickle.dumps(reader))
    assert memory_of(copy).size == 0
    assert_equal(read(copy), expected)

    def child(answers: Any) -> None:
        empty = memory_of(reader).size == 0
        answers.put((empty, read(reader)))

    context = multiprocessing.get_context("fork")
    answers = context.Queue()
    process = context.Process(target=child, args=(answers,))
    with memory_of(reader)._lock:  # as another thread may hold it
        process.start()
    try:
        empty, points = answers.get(timeout=LIMIT_SECONDS)
    finally:
        process.kill()
        process.join()
    assert empty
    assert_equal(points, expected)


def test_workers_of_a_dataset_read_through_it(stored: Path) -> None:
    """Local files are not cached: the system's page cache already holds them."""
    settings = {"kind": "point", "root": str(stored), "split": "train", "num_surface_points": 16}
    settings |= {"fields": ["surface_pressure"]}
    with pytest.warns(UserWarning, match="absent and skipped"):
        plain, cached = build_dataset(settings), build_dataset(settings | {"cache_bytes": "1MB"})
    assert not isinstance(cached.reader._engine._this_process.objects, CachedObjects)  # type: ignore[attr-defined]
    with pytest.warns(UserWarning, match="absent and skipped"):
        cached = type(cached)(cached.config, objects_factory=Far)
    for dataset in (plain, cached):
        dataset.set_epoch(0)
    for method in ("fork", "forkserver"):
        loader = torch.utils.data.DataLoader(cached, batch_size=None, num_workers=2, multiprocessing_context=method)
        for one, other in zip(loader, plain, strict=True):
            assert torch.equal(one["surface_pressure"], other["surface_pressure"])
    assert memory_of(cached.reader).size == 0  # each worker has its own


def test_samples_of_another_program_may_change_and_are_not_kept(tmp_path: Path) -> None:
    root = write_published_store(tmp_path / "store", make_samples())
    reader = ZarrChunkReader(root, objects_factory=Far, cache_bytes="1MB")
    reader.read_sample("run_1")
    assert memory_of(reader).size == 0


def test_wrong_settings_are_refused(stored: Path) -> None:
    with pytest.raises(ZarrCoreError, match="cache_bytes is for the engine 'direct'"):
        ZarrChunkReader(stored, engine="zarr", cache_bytes="1MB")
    with pytest.raises(ZarrCoreError, match="size 'much'"):
        ZarrChunkReader(stored, cache_bytes="much")
    for size in ("much", 0):
        with pytest.raises(ZarrCoreError, match="cache_bytes"):
            build_dataset({"kind": "point", "root": "x", "split": "train", "cache_bytes": size})
