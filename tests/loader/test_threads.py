"""Threads of the trainer's process read the next batches: in order, bounded, and ended with the iteration."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
import torch
from torch.utils.data import Dataset

from tests.helpers.waiting import LIMIT_SECONDS
from zarr_core._util.threads import map_in_threads
from zarr_core.errors import ZarrCoreError
from zarr_core.loader import EpochBatchSampler, ResumableLoader


def names() -> set[str]:
    return {thread.name for thread in threading.enumerate() if thread.name.startswith("zarr_core.ahead")}


def test_batches_come_in_order_although_a_later_one_is_read_first() -> None:
    second_is_read = threading.Event()

    def fetch(indices: list[int]) -> list[int]:
        if indices == [0]:
            assert second_is_read.wait(LIMIT_SECONDS)
        if indices == [1]:
            second_is_read.set()
        return indices

    assert list(map_in_threads(fetch, iter([[0], [1], [2]]), 2, 2)) == [[0], [1], [2]]
    assert names() == set()


def test_no_more_batches_are_taken_than_are_read_ahead() -> None:
    taken = []

    def batches() -> Iterator[list[int]]:
        for number in range(100):
            taken.append(number)
            yield [number]

    read = map_in_threads(lambda indices: indices, batches(), 2, 6)
    for done in range(1, 20):
        next(read)
        assert len(taken) == done + 2 * 3


@pytest.mark.parametrize("end", ["closed", "dropped"])
def test_an_iteration_that_is_left_ends_its_threads(end: str) -> None:
    started = threading.Event()

    def fetch(indices: list[int]) -> list[int]:
        started.set()
        return indices

    read = map_in_threads(fetch, iter([[number] for number in range(100)]), 2, 4)
    next(read)
    assert started.is_set()
    assert names()
    if end == "closed":
        read.close()  # type: ignore[attr-defined]
    del read
    assert names() == set()


def test_nothing_is_read_after_an_error() -> None:
    """Each read of a service that is gone would take as long as the one that failed."""
    read: list[int] = []

    def fetch(number: int) -> int:
        read.append(number)
        if number == 1:
            raise ValueError("the service is gone")
        return number

    results = map_in_threads(fetch, iter(range(100)), 1, 50)
    assert next(results) == 0
    with pytest.raises(ValueError, match="the service is gone"):
        next(results)
    assert read == [0, 1]


@pytest.mark.parametrize("threads", [0, 2])
def test_an_error_says_how_to_go_on_with_the_batch_that_failed(threads: int) -> None:
    class Once(Numbers):
        failed = False

        def __getitem__(self, index: int) -> torch.Tensor:
            if index == 5 and not self.failed:
                self.failed = True
                raise ValueError("the service was gone")
            return torch.tensor(index)

    loader = ResumableLoader(Once(), EpochBatchSampler(12, 3, shuffle=False), num_threads=threads)
    read: list[int] = []

    def read_on() -> None:
        for batch in loader:
            read.extend(batch.tolist())

    with pytest.raises(ValueError, match="was gone") as raised:
        read_on()
    assert "loader.load_state_dict(loader.state_dict())" in raised.value.__notes__[-1]
    loader.load_state_dict(loader.state_dict())
    read_on()
    assert read == list(range(12))


class Numbers(Dataset[torch.Tensor]):
    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> torch.Tensor:
        if index == 5:
            raise ValueError("item 5 is damaged")
        return torch.tensor(index)


def test_an_error_is_raised_where_its_batch_is_asked_for_and_counts_no_batch() -> None:
    sampler = EpochBatchSampler(12, 2, shuffle=False)
    loader = ResumableLoader(Numbers(), sampler, num_threads=2)
    batches = iter(loader)
    assert [next(batches).tolist(), next(batches).tolist()] == [[0, 1], [2, 3]]
    with pytest.raises(ValueError, match="item 5 is damaged"):
        next(batches)
    assert sampler.position == 2
    assert names() == set()


def test_threads_and_worker_processes_exclude_each_other() -> None:
    sampler = EpochBatchSampler(12, 2)
    with pytest.raises(ZarrCoreError, match="num_threads and num_workers"):
        ResumableLoader(Numbers(), sampler, num_threads=2, num_workers=1)
    for threads in (-1, 1.5, True):
        with pytest.raises(ZarrCoreError, match="num_threads"):
            ResumableLoader(Numbers(), sampler, num_threads=threads)  # type: ignore[arg-type]
    with pytest.raises(ZarrCoreError, match="prefetch_factor"):
        ResumableLoader(Numbers(), sampler, num_threads=1, prefetch_factor=0)
