"""Epochs: the same global batches whatever the ranks and workers, and none lost or repeated by a resumed run."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import pickle
import signal
import subprocess
import sys
import tracemalloc
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.stats
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader, TensorDataset
from torchdata.stateful_dataloader import StatefulDataLoader
from torchdata.stateful_dataloader.stateful import Stateful

import zarr_core.loader.device
from tests.helpers.examples import examples
from tests.helpers.published_store import make_samples, write_published_store
from zarr_core.datasets import ZarrPointDataset, ZarrPointDatasetConfig
from zarr_core.errors import ZarrCoreError
from zarr_core.loader import (
    EpochBatchSampler,
    Permutation,
    ResumableLoader,
    ZarrIterableDataset,
    rank_and_world,
    to_device,
)

SAMPLES = 10
NUMBERS = TensorDataset(torch.arange(26))


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = make_samples(SAMPLES)
    for number, fields in enumerate(made.values()):  # rows tell the sample, too
        fields["volume_position"][:, 1] = number
    return write_published_store(tmp_path_factory.mktemp("loader"), made, 16, splits={"train": list(made)})


def opened(store: Path, **changes: Any) -> ZarrPointDataset:
    config = {"root": str(store), "split": "train", "num_volume_points": 8, "fields": ("volume_position",)}
    return ZarrPointDataset(ZarrPointDatasetConfig(**config | changes))


@pytest.fixture
def ranks(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], Iterator[int]]:
    """Be each rank of a world in turn."""

    def be(world: int) -> Iterator[int]:
        for rank in range(world):
            monkeypatch.setenv("RANK", str(rank))
            monkeypatch.setenv("WORLD_SIZE", str(world))
            yield rank
        monkeypatch.delenv("RANK")
        monkeypatch.delenv("WORLD_SIZE")

    return be


def together(parts: list[list[Any]]) -> list[list[Any]]:
    """Global batches from what each rank got."""
    return [list(itertools.chain.from_iterable(shares)) for shares in zip(*parts, strict=True)]


# --- the order ----------------------------------------------------------------------------------------------------


@given(size=st.integers(1, 3000), seed=st.integers(), epoch=st.integers(0, 10**6))
def test_the_order_is_a_bijection_and_any_part_of_it_can_be_had_alone(size: int, seed: int, epoch: int) -> None:
    order = Permutation(size, seed=seed, epoch=epoch)
    whole = order(np.arange(size))
    assert sorted(whole.tolist()) == list(range(size))
    assert order([size // 2])[0] == whole[size // 2]
    assert order(np.arange(size)[::-1].reshape(1, -1)).tolist() == [whole[::-1].tolist()]


@given(size=st.integers(1, 2**62), places=st.sets(st.floats(0, 1, exclude_max=True), max_size=20))
@settings(max_examples=examples(50))
def test_no_two_places_of_a_large_order_hold_the_same_index(size: int, places: set[float]) -> None:
    positions = {min(int(place * size), size - 1) for place in places}
    indices = Permutation(size)(sorted(positions)).tolist()
    assert len(set(indices)) == len(positions)
    assert all(0 <= index < size for index in indices)


def test_orders_are_the_same_for_ever() -> None:
    """Runs resume by these: other values are another order, and so another version of the state."""
    assert Permutation(10, seed=1)(range(10)).tolist() == [9, 0, 2, 6, 4, 3, 7, 8, 5, 1]
    assert Permutation(5, seed=1)(range(5)).tolist() == [4, 1, 3, 0, 2]
    assert Permutation(10, seed=1, epoch=2)(range(10)).tolist() == [2, 8, 5, 6, 3, 9, 7, 0, 1, 4]
    assert Permutation(10**6, seed=7, epoch=3)([0, 1, 999_999]).tolist() == [44241, 663825, 114042]
    assert Permutation(2**62, seed=-(2**70), epoch=9)([0, 2**62 - 1]).tolist() == [
        1444908417535973224,
        3899140960368295579,
    ]


@pytest.mark.parametrize("size", [2, 3, 4])
def test_every_order_of_a_few_is_equally_likely(size: int) -> None:
    seen = Counter(tuple(Permutation(size, epoch=epoch)(range(size)).tolist()) for epoch in range(4000))
    orders = list(itertools.permutations(range(size)))
    assert scipy.stats.chisquare([seen[order] for order in orders]).pvalue > 1e-3


@pytest.mark.parametrize("size", [37, 64, 1000])
def test_every_index_is_equally_likely_at_every_place_and_after_every_other(size: int) -> None:
    epochs = np.stack([Permutation(size, seed=3, epoch=epoch)(np.arange(size)) for epoch in range(600)])
    bins = 8
    width = np.bincount(np.arange(size) * bins // size, minlength=bins)
    any_pair, other_pair = np.outer(width, width), np.outer(width, width) - np.diag(width)
    for first, second, possible in (
        (np.broadcast_to(np.arange(size), epochs.shape), epochs, any_pair),  # place and index
        (epochs[:, :-1], epochs[:, 1:], other_pair),  # index and the next one
        (epochs[:-1], epochs[1:], any_pair),  # index and that of the next epoch
    ):
        pairs = np.stack([first.ravel(), second.ravel()]) * bins // size
        table = np.histogram2d(*pairs, bins=bins)[0]
        expected = possible * table.sum() / possible.sum()
        assert scipy.stats.chisquare(table.ravel(), expected.ravel()).pvalue > 1e-4


@pytest.mark.parametrize("size", [0, -1, 2**62 + 1])
def test_impossible_sizes_are_refused(size: int) -> None:
    with pytest.raises(ZarrCoreError, match=r"1 to 2\*\*62"):
        Permutation(size)
    with pytest.raises(IndexError):
        Permutation(5)([5])


# --- batches and ranks --------------------------------------------------------------------------------------------


@given(
    size=st.integers(1, 200),
    part=st.integers(1, 9),
    world=st.sampled_from([1, 2, 3, 4, 6, 12]),
    mode=st.sampled_from(["pad", "drop", "evaluate"]),
    shuffle=st.booleans(),
    start=st.integers(0, 30),
)
@settings(max_examples=examples(300))
def test_every_world_makes_the_same_batches(
    size: int, part: int, world: int, mode: str, shuffle: bool, start: int
) -> None:
    batch_size = 12 * part
    options = {"drop_last": mode == "drop", "evaluation": mode == "evaluate", "shuffle": shuffle, "seed": size}
    if mode == "drop" and size < batch_size:
        return
    if mode == "evaluate" and size // -(-size // batch_size) < world:
        with pytest.raises(ZarrCoreError, match="needs a sample"):
            list(EpochBatchSampler(size, batch_size, **options, replica=lambda: (0, world)))
        return
    whole = list(EpochBatchSampler(size, batch_size, **options))
    samplers = [
        EpochBatchSampler(size, batch_size, **options, replica=lambda rank=rank: (rank, world)) for rank in range(world)
    ]
    parts = [list(sampler) for sampler in samplers]
    assert together(parts) == whole
    assert {len(shares) for shares in parts} == {len(whole)} == {len(samplers[0])}
    order = list(range(size)) if not shuffle else Permutation(size, seed=size)(np.arange(size)).tolist()
    flat = list(itertools.chain.from_iterable(whole))
    if mode == "evaluate":
        assert flat == order
        assert max(map(len, whole)) - min(map(len, whole)) <= 1
        assert max(map(len, whole)) <= batch_size
        assert all(share for shares in parts for share in shares)
    else:
        assert {len(batch) for batch in whole} == {batch_size}
        assert {len(share) for shares in parts for share in shares} == {batch_size // world}
        assert flat == (order * (len(flat) // size + 1))[: len(flat)]
        assert abs(len(flat) - size) < batch_size
        assert (len(flat) <= size) if mode == "drop" else (len(flat) >= size)
    start = min(start, len(whole))
    resumed = EpochBatchSampler(size, batch_size, **options)
    resumed.load_state_dict(samplers[0].state_at(0, start))
    assert list(resumed) == whole[start:]


def test_epochs_and_seeds_differ_and_repeat() -> None:
    def epoch(number: int, seed: int = 0) -> list[list[int]]:
        sampler = EpochBatchSampler(26, 4, seed)
        sampler.set_epoch(number)
        return list(sampler)

    assert epoch(3) == epoch(3)
    assert len({str(epoch(number, seed)) for number in range(10) for seed in range(3)}) == 30
    plain = EpochBatchSampler(6, 4, shuffle=False)
    assert list(plain) == list(plain) == [[0, 1, 2, 3], [4, 5, 0, 1]]


def test_what_cannot_be_shared_or_makes_no_batch_is_refused(ranks: Callable[[int], Iterator[int]]) -> None:
    for arguments, match in (
        ({"dataset_size": 0, "batch_size": 1}, "dataset_size"),
        ({"dataset_size": 1, "batch_size": 0}, "batch_size"),
        ({"dataset_size": 3, "batch_size": 4, "drop_last": True}, "drops all 3 samples"),
        ({"dataset_size": 3, "batch_size": 4, "drop_last": True, "evaluation": True}, "choose one"),
    ):
        with pytest.raises(ZarrCoreError, match=match):
            EpochBatchSampler(**arguments)
    sampler = EpochBatchSampler(26, 4)
    for _ in ranks(3):
        with pytest.raises(ZarrCoreError, match="batch_size=4.*not a multiple of 3 ranks"):
            next(iter(sampler))
        with pytest.raises(ZarrCoreError, match=r"evaluating 2 samples.*each of 3 ranks.*Use fewer ranks"):
            next(iter(EpochBatchSampler(2, 8, evaluation=True)))


def test_the_rank_is_read_when_an_iteration_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    sampler = EpochBatchSampler(8, 4, shuffle=False)
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert rank_and_world() == (1, 2)
    assert list(sampler) == [[2, 3], [6, 7]]
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    try:
        assert rank_and_world() == (0, 1)
        assert list(sampler) == [[0, 1, 2, 3], [4, 5, 6, 7]]
    finally:
        torch.distributed.destroy_process_group()
    monkeypatch.setenv("WORLD_SIZE", "1")
    with pytest.raises(ZarrCoreError, match="RANK=1 and WORLD_SIZE=1"):
        list(sampler)
    monkeypatch.delenv("WORLD_SIZE")
    with pytest.raises(ZarrCoreError, match="set both"):
        list(sampler)
    monkeypatch.delenv("RANK")
    assert rank_and_world() == (0, 1)
    assert not torch.distributed.is_initialized()


# --- the state ----------------------------------------------------------------------------------------------------


def test_a_state_is_small_plain_and_argument_free() -> None:
    sampler = EpochBatchSampler(1_000_000, 64, fingerprint="store, generation 3")
    assert all(isinstance(thing, Stateful) for thing in (sampler, iter(sampler), ResumableLoader(NUMBERS, sampler)))
    state = sampler.state_dict()
    assert json.loads(json.dumps(state)) == state
    assert len(json.dumps(state)) < 300
    assert state == pickle.loads(pickle.dumps(sampler)).state_dict()


@pytest.mark.parametrize("position", [0, 7_000, 15_624, 15_625])
def test_resuming_takes_no_memory_to_speak_of(position: int) -> None:
    state = EpochBatchSampler(1_000_000, 64).state_at(5, position)
    tracemalloc.start()
    try:
        sampler = EpochBatchSampler(1_000_000, 64)
        sampler.load_state_dict(state)
        left = next(iter(sampler), [])
        assert len(left) == (64 if position < 15_625 else 0)
        assert tracemalloc.get_traced_memory()[1] < 500_000
    finally:
        tracemalloc.stop()


def test_a_state_of_other_data_or_batches_is_refused(store: Path, tmp_path: Path) -> None:
    state = EpochBatchSampler.of(opened(store), 4).state_dict()
    for changes in ({"split": "train[:9]"}, {"split": "train[::-1]"}):
        other = EpochBatchSampler.of(opened(store, **changes), 4)
        with pytest.raises(ZarrCoreError, match=r"other data.*generation 0, split train, 10 samples.*start a new run"):
            other.load_state_dict(state)
    committed = write_published_store(tmp_path, make_samples(SAMPLES), 16, splits={"train": ["run_1"]}, generation=4)
    assert opened(committed).fingerprint != opened(store, split="train[0]").fingerprint
    assert "generation 4" in opened(committed, generation=4).fingerprint
    for other, match in (
        (EpochBatchSampler(26, 4), "dataset_size 26 .here 27."),
        (EpochBatchSampler(26, 2), "batch_size 4 .here 2."),
        (EpochBatchSampler(26, 4, drop_last=True), "drop_last False .here True."),
        (EpochBatchSampler(26, 4, evaluation=True), "evaluation"),
        (EpochBatchSampler(26, 4, shuffle=False), "shuffle"),
    ):
        saved = EpochBatchSampler(26, 4).state_dict()
        if "27" in match:
            other = EpochBatchSampler(27, 4)
        with pytest.raises(ZarrCoreError, match=match):
            other.load_state_dict(saved)
        assert other.state_dict()["position"] == 0
    for nonsense in ({}, {"version": 2, "position": 3}, EpochBatchSampler(26, 4).state_at(0, 8)):
        with pytest.raises(ZarrCoreError, match="not a state|batch 8 of 7"):
            EpochBatchSampler(26, 4).load_state_dict(nonsense)


def test_a_copy_of_the_store_elsewhere_is_the_same_data(store: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(store)
    assert opened(tmp_path / "link").fingerprint == opened(store).fingerprint
    assert opened(store, num_volume_points=3).fingerprint == opened(store).fingerprint


def test_the_end_of_an_epoch_is_the_start_of_the_next() -> None:
    sampler = EpochBatchSampler(8, 4, seed=9)
    first = list(sampler)
    done = sampler.state_dict()
    assert done["position"] == 2
    assert list(sampler) == first  # nobody said set_epoch, as with torch's samplers
    resumed = EpochBatchSampler(8, 4)
    resumed.load_state_dict(done)
    resumed.set_epoch(0)
    assert list(resumed) == []
    resumed.set_epoch(1)
    second = list(resumed)
    assert second != first
    ahead = EpochBatchSampler(8, 4)
    ahead.set_epoch(1)
    ahead.load_state_dict(done)
    assert list(ahead) == second
    assert ahead.seed == 9


# --- loaders, workers, ranks: the same global batches -------------------------------------------------------------


def seen(batch: Any) -> list[Any]:
    """What tells a batch of the store's dataset: of each item, sample and drawn rows."""
    return batch["volume_position"][:, :, :2].tolist()


def plan(store: Path, epochs: int, batch_size: int = 4) -> list[list[list[Any]]]:
    """The global batches of some epochs, with neither loader nor sampler."""
    dataset = opened(store)
    planned = []
    for epoch in range(epochs):
        dataset.set_epoch(epoch)
        order = Permutation(SAMPLES, seed=5, epoch=epoch)(np.arange(12) % SAMPLES).tolist()
        items = [dataset[index]["volume_position"][:, :2].tolist() for index in order]
        planned.append([items[start : start + batch_size] for start in range(0, 12, batch_size)])
    return planned


@pytest.mark.parametrize(
    ("kind", "method"),
    [
        *itertools.product([ResumableLoader, StatefulDataLoader], [None, "fork", "forkserver", "spawn"]),
        (DataLoader, None),
        (DataLoader, "fork"),
    ],
)
def test_epochs_are_the_same_under_all_worlds_workers_and_start_methods(
    store: Path, ranks: Callable[[int], Iterator[int]], kind: Any, method: str | None
) -> None:
    dataset = opened(store)
    sampler = EpochBatchSampler.of(dataset, 4, seed=5)
    workers = 2 if method else 0
    # One loader is every rank in turn: the rank is read when an iteration starts.
    loader = kind(
        dataset,
        batch_sampler=sampler,
        num_workers=workers,
        persistent_workers=workers > 0,
        multiprocessing_context=method,
    )
    for epoch, planned in enumerate(plan(store, 2)):
        sampler.set_epoch(epoch)  # reaches the dataset, and the workers that are running
        for world in (1, 2, 4):
            assert together([[seen(batch) for batch in loader] for _ in ranks(world)]) == planned


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("kind", [DataLoader, StatefulDataLoader])
def test_the_iterable_dataset_gives_the_same_batches(
    store: Path, ranks: Callable[[int], Iterator[int]], workers: int, kind: Any
) -> None:
    for world in (1, 2):
        samples = ZarrIterableDataset(opened(store), 4, seed=5)
        loader = kind(
            samples,
            batch_size=4 // world,
            num_workers=workers,
            persistent_workers=workers > 0,
            multiprocessing_context="fork" if workers else None,
        )
        parts: list[list[list[Any]]] = [[], []]
        for _ in ranks(world):
            if workers:  # its workers live in the environment that they were started in
                loader = kind(
                    samples,
                    batch_size=4 // world,
                    num_workers=workers,
                    persistent_workers=True,
                    multiprocessing_context="fork",
                )
            assert len(samples) == 12 // world
            for epoch in range(2):
                samples.set_epoch(epoch)
                parts[epoch].append([seen(batch) for batch in loader])
        assert [together(shares) for shares in parts] == plan(store, 2)


def test_spawned_workers_of_an_iterable_dataset_learn_the_rank_of_their_trainer(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process group that was made without environment variables is unknown to a spawned worker."""
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "get_rank", lambda: 1)
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 2)
    samples = ZarrIterableDataset(opened(store), 4, seed=5)
    loader = DataLoader(samples, batch_size=2, num_workers=2, multiprocessing_context="spawn")
    assert [seen(batch) for batch in loader] == [batch[2:] for batch in plan(store, 1)[0]]


@pytest.mark.parametrize("workers", [0, 2])
def test_an_iterable_dataset_resumes_under_torchdata(
    store: Path, ranks: Callable[[int], Iterator[int]], workers: int
) -> None:
    def loader(world: int) -> Any:
        samples = ZarrIterableDataset(opened(store), 4, seed=5)
        method = "fork" if workers else None
        return StatefulDataLoader(
            samples, batch_size=4 // world, num_workers=workers, multiprocessing_context=method
        ), samples

    planned = plan(store, 2)[1]
    for done in (0, 1, 2):
        for _ in ranks(1):
            first, samples = loader(1)
            samples.set_epoch(1)
            taken = iter(first)
            assert [seen(next(taken)) for _ in range(done)] == planned[:done]
            state = first.state_dict()
        parts = []
        for _ in ranks(2):
            resumed, samples = loader(2)
            resumed.load_state_dict(state)
            parts.append([seen(batch) for batch in resumed])
            assert samples.epoch == 1
        assert together(parts) == planned[done:]


def test_an_iterable_dataset_refuses_other_workers_and_half_batches(store: Path) -> None:
    samples = ZarrIterableDataset(opened(store), 4)
    taken = iter(samples)
    state = taken.state_dict()
    next(taken)
    with pytest.raises(ZarrCoreError, match="within a batch"):
        iter(samples).load_state_dict(taken.state_dict())
    with pytest.raises(ZarrCoreError, match="3 workers"):
        iter(samples).load_state_dict(state | {"step": 3})


# --- killed and resumed -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("kind", [ResumableLoader, StatefulDataLoader])
def test_a_state_counts_what_the_trainer_has_and_goes_on_in_any_world(
    store: Path, ranks: Callable[[int], Iterator[int]], kind: Any, workers: int
) -> None:
    """Workers have fetched all of this epoch before the trainer has its first batch."""

    def loader() -> tuple[Any, EpochBatchSampler]:
        dataset = opened(store)
        sampler = EpochBatchSampler.of(dataset, 4, seed=5)
        method = "fork" if workers else None
        return kind(dataset, batch_sampler=sampler, num_workers=workers, multiprocessing_context=method), sampler

    planned = plan(store, 3)
    for done, new_world in ((0, 2), (1, 4), (2, 1), (3, 2)):
        for _ in ranks(2):
            first, sampler = loader()
            sampler.set_epoch(1)
            taken = iter(first)
            for _ in range(done):
                next(taken)
            state = first.state_dict()
            del taken
        parts: list[list[list[Any]]] = [[], []]
        for _ in ranks(new_world):
            resumed, sampler = loader()
            resumed.load_state_dict(state)
            for epoch in (1, 2):
                sampler.set_epoch(epoch)
                got, places = [], []
                for batch in resumed:
                    got.append(seen(batch))
                    places.append(sampler.position)
                parts[epoch - 1].append(got)
                if kind is ResumableLoader:
                    assert places == list(range(done + 1 if epoch == 1 else 1, 4))
        assert [together(shares) for shares in parts] == [planned[1][done:], planned[2]]


def numbers_loader(kind: Any, sampler: EpochBatchSampler, workers: int, persistent: bool = False) -> Any:
    return kind(
        NUMBERS,
        batch_sampler=sampler,
        num_workers=workers,
        persistent_workers=persistent and workers > 0,
        multiprocessing_context="fork" if workers else None,
    )


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("persistent", [False, True])
def test_loader_and_sampler_count_what_was_handed_out(workers: int, persistent: bool) -> None:
    sampler = EpochBatchSampler(26, 2, seed=3)
    first = numbers_loader(ResumableLoader, sampler, workers, persistent)
    whole = list(EpochBatchSampler(26, 2, seed=3))
    for done in (4, 2):  # left in the middle, and started again
        for step, (batch,) in enumerate(first, 1):
            assert sampler.position == first.state_dict()["position"] == step
            assert batch.tolist() == whole[step - 1]
            if step == done:
                state = sampler.state_dict()
                break
        assert pickle.loads(pickle.dumps(sampler)).state_dict() == sampler.state_dict() == state  # and afterwards
    resumed = EpochBatchSampler(26, 2)
    resumed.load_state_dict(state)
    second = numbers_loader(ResumableLoader, resumed, workers, persistent)
    for step, (batch,) in enumerate(second, 3):
        assert resumed.position == step
        assert batch.tolist() == whole[step - 1]
    assert resumed.position == 13
    assert [batch.tolist() for (batch,) in second] == whole  # nobody said set_epoch
    abandoned = iter(second)
    next(abandoned)
    resumed.set_epoch(1)
    del abandoned
    assert (resumed.epoch, resumed.position) == (1, 0)


def test_under_a_plain_loader_a_sampler_counts_what_the_workers_took() -> None:
    whole = list(EpochBatchSampler(26, 2, seed=3))
    for workers, ahead in ((0, 0), (2, 4)):
        sampler = EpochBatchSampler(26, 2, seed=3)
        for step, (batch,) in enumerate(numbers_loader(DataLoader, sampler, workers), 1):
            assert batch.tolist() == whole[step - 1]
            assert sampler.position == min(step + ahead, 13)
            if step == 5:
                break
        state = sampler.state_dict()
        resumed = EpochBatchSampler(26, 2)
        resumed.load_state_dict(state)
        left = [batch.tolist() for (batch,) in numbers_loader(DataLoader, resumed, workers)]
        assert left == whole[5 + ahead :]


class Unlucky(TensorDataset):
    """Fails at one index, and notes what a state that is saved during a fetch counts."""

    def __init__(self, fails_at: int) -> None:
        super().__init__(torch.arange(26))
        self.fails_at = fails_at
        self.sampler: EpochBatchSampler | None = None
        self.positions: list[int] = []

    def __getitem__(self, index: Any) -> Any:
        if self.sampler is not None:
            self.positions.append(self.sampler.position)
        if index == self.fails_at:
            raise OSError("unlucky")
        return super().__getitem__(index)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_batch_that_fails_or_is_being_fetched_does_not_count(workers: int) -> None:
    """As a handler of SIGTERM, or one of exceptions, sees it."""
    sampler = EpochBatchSampler(26, 2, shuffle=False)
    dataset = Unlucky(fails_at=10)
    dataset.sampler = sampler if workers == 0 else None
    method = "fork" if workers else None
    loader = ResumableLoader(dataset, sampler, num_workers=workers, multiprocessing_context=method)
    with pytest.raises(OSError, match="unlucky"):
        for _ in loader:
            pass
    assert loader.state_dict()["position"] == 5
    if workers == 0:
        assert dataset.positions == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5]


def test_a_resumable_loader_is_strict_about_its_sampler() -> None:
    with pytest.raises(ZarrCoreError, match="must be an EpochBatchSampler, not list"):
        ResumableLoader(NUMBERS, [[1]])  # type: ignore[arg-type]
    with pytest.raises(ZarrCoreError, match="in_order"):
        ResumableLoader(NUMBERS, EpochBatchSampler(26, 4), num_workers=2, in_order=False)
    sampler = EpochBatchSampler.of(NUMBERS, 4)
    assert (sampler.dataset_size, sampler.fingerprint) == (26, "")


def test_killed_ranks_go_on_as_another_world(store: Path, tmp_path: Path) -> None:
    def run(world: int, out: Path, die_after: int) -> None:
        command = [sys.executable, "-m", "tests.helpers.resumable_trainer", str(store), str(out), "2"]
        processes = [
            subprocess.Popen(
                [*command, "2", str(die_after)], env={**os.environ, "RANK": str(r), "WORLD_SIZE": str(world)}
            )
            for r in range(world)
        ]
        codes = [process.wait(timeout=300) for process in processes]
        assert codes == [-signal.SIGKILL if die_after > 0 else 0] * world

    def batches(world: int) -> dict[tuple[int, int], list[Any]]:
        found: dict[tuple[int, int], list[Any]] = {}
        for rank in range(world):
            for line in (tmp_path / f"rank{rank}.jsonl").read_text().splitlines():
                epoch, position, items = json.loads(line)
                found.setdefault((epoch, position), []).extend([[row[:2] for row in item] for item in items])
            (tmp_path / f"rank{rank}.jsonl").unlink()
        return found

    planned = {
        (epoch, position): batch
        for epoch, epoch_batches in enumerate(plan(store, 2))
        for position, batch in enumerate(epoch_batches, 1)
    }
    run(2, tmp_path, 2)
    before = batches(2)
    (tmp_path / "state.json").rename(tmp_path / "resume.json")
    run(1, tmp_path, 0)
    after = batches(1)
    assert list(before) == [(0, 1), (0, 2)]
    assert list(after) == [(0, 3), (1, 1), (1, 2), (1, 3)]
    assert before | after == planned


def test_the_loop_in_the_docs_runs_and_resumes(store: Path, tmp_path: Path) -> None:
    text = (Path(__file__).parents[2] / "docs" / "training.md").read_text()
    code: dict[str, Any] = {"__name__": "docs"}
    exec(text.partition("```python\n")[2].partition("```")[0], code)
    checkpoint = tmp_path / "checkpoint.pt"
    for epochs in (1, 2):
        code["train"](str(store), checkpoint, epochs=epochs, workers=0)
        state = torch.load(checkpoint, weights_only=True)["loader"]
        assert (state["epoch"], state["position"]) == (epochs - 1, 1)


def test_workers_that_go_on_forget_an_epoch_that_was_left(store: Path) -> None:
    dataset = opened(store)
    loader = ResumableLoader(
        dataset,
        EpochBatchSampler.of(dataset, 4, seed=5),
        num_workers=2,
        persistent_workers=True,
        multiprocessing_context="fork",
    )
    planned = plan(store, 2)
    for batch in loader:
        assert seen(batch) == planned[0][0]
        break
    loader.set_epoch(1)
    assert [seen(batch) for batch in loader] == planned[1]


# --- to the device ------------------------------------------------------------------------------------------------


def test_on_the_cpu_batches_are_the_loaders_own() -> None:
    batches = [{"a": torch.zeros(2), "b": [torch.ones(1), "text"]}, torch.zeros(3)]
    assert all(given is batch for given, batch in zip(to_device(batches, "cpu"), batches, strict=True))
    loader = to_device(ResumableLoader(NUMBERS, EpochBatchSampler(26, 4)), "cpu")
    assert isinstance(loader, Stateful)
    assert len(loader) == 7
    assert loader.num_workers == 0
    next(iter(loader))
    assert loader.state_dict()["position"] == 1
    loader.set_epoch(2)
    assert loader.state_dict()["epoch"] == loader.epoch == 2
    loader.load_state_dict(loader.state_dict() | {"position": 3})
    assert len(list(loader)) == 4


def test_on_other_devices_batches_are_moved() -> None:
    (batch,) = to_device([{"a": (torch.zeros(2), [torch.zeros(1)]), "b": "text"}], "meta")
    assert batch["a"][0].device.type == batch["a"][1][0].device.type == "meta"
    assert isinstance(batch["a"], tuple)
    assert batch["b"] == "text"


class FakeStream:
    """Writes down what is asked of a CUDA stream."""

    log: list[str]

    def __init__(self, name: Any) -> None:
        self.name = "beside" if isinstance(name, torch.device) else name
        self.events = 0

    def record_event(self) -> str:
        self.events += 1
        self.log.append(f"{self.name}: record {self.events}")
        return f"event {self.events}"

    def wait_event(self, event: str) -> None:
        self.log.append(f"{self.name}: wait for {event}")


def test_on_cuda_each_batch_is_copied_beside_the_one_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """Against stand-ins for streams and devices: what is asked of CUDA, and in which order."""
    log: list[str] = []
    active = ["compute"]
    monkeypatch.setattr(FakeStream, "log", log, raising=False)
    computing = FakeStream("compute")

    @contextlib.contextmanager
    def use(stream: FakeStream) -> Iterator[None]:
        active.append(stream.name)
        yield
        active.pop()

    def to(tensor: torch.Tensor, device: torch.device, non_blocking: bool = False) -> torch.Tensor:
        assert device.type == "cuda"
        assert non_blocking
        log.append(f"{active[-1]}: copy {int(tensor[0])}")
        return tensor

    def note(what: str) -> Callable[..., torch.Tensor]:
        def do(tensor: torch.Tensor, *rest: Any) -> torch.Tensor:
            log.append(" ".join([what, str(int(tensor[0])), *(stream.name for stream in rest)]))
            return tensor

        return do

    monkeypatch.setattr(torch.cuda, "Stream", FakeStream)
    monkeypatch.setattr(torch.cuda, "stream", use)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: computing)
    monkeypatch.setattr(zarr_core.loader.device, "_is_ready", lambda tensor: False)
    monkeypatch.setattr(torch.Tensor, "to", to)
    monkeypatch.setattr(torch.Tensor, "pin_memory", note("pin"))
    monkeypatch.setattr(torch.Tensor, "record_stream", note("keep for"))

    inner = ResumableLoader(NUMBERS, EpochBatchSampler(12, 4, shuffle=False))
    loader = to_device(inner, "cuda")
    received = []
    assert loader.state_dict()["position"] == 0
    for step, (batch,) in enumerate(loader, 1):
        log.append(f"train {int(batch[0])}")
        received.append(batch.tolist())
        assert loader.state_dict()["position"] == step  # though the loader is one ahead
        assert inner.state_dict()["position"] == min(step + 1, 3)
    assert received == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11]]

    def start(first: int, number: int) -> list[str]:
        return [f"pin {first}", f"beside: copy {first}", f"beside: record {number}"]

    def finish(first: int, number: int) -> list[str]:
        return [f"compute: wait for event {number}", f"keep for {first} compute", f"train {first}"]

    assert log == [
        *start(0, 1),
        *start(4, 2),
        *finish(0, 1),
        *start(8, 3),
        *finish(4, 2),
        *finish(8, 3),
    ]
    for _ in loader:  # stopped in the middle, it goes on behind what it gave
        break
    resumed = ResumableLoader(NUMBERS, EpochBatchSampler(12, 4, shuffle=False))
    resumed.load_state_dict(loader.state_dict() | {"dataset_size": 12})
    assert [batch.tolist() for (batch,) in resumed] == received[1:]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_on_a_gpu_batches_arrive_unharmed() -> None:
    data = TensorDataset(torch.arange(4096 * 64, dtype=torch.float32).reshape(64, 4096))
    loader = to_device(ResumableLoader(data, EpochBatchSampler(64, 4, seed=1)), "cuda")
    plain = [batch for (batch,) in DataLoader(data, batch_sampler=EpochBatchSampler(64, 4, seed=1))]
    arrived = []
    for (batch,) in loader:
        assert batch.is_cuda
        arrived.append((batch * 2).cpu() / 2)
    assert all(map(torch.equal, arrived, plain))
