"""The iterable dataset gives the same batches, and resumes under torchdata."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader
from torchdata.stateful_dataloader import StatefulDataLoader

from tests.helpers.loading import NUMBERS, opened, plan, seen, together
from zarr_core.errors import ZarrCoreError
from zarr_core.loader import EpochBatchSampler, ZarrIterableDataset


@pytest.mark.slow
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


@pytest.mark.slow
def test_spawned_workers_of_an_iterable_dataset_learn_the_rank_of_their_trainer(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process group that was made without environment variables is unknown to a spawned worker."""
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "get_rank", lambda: 1)
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 2)
    samples = ZarrIterableDataset(opened(store), 4, seed=5)
    samples.set_epoch(0)
    loader = DataLoader(samples, batch_size=2, num_workers=1, multiprocessing_context="spawn")
    assert [seen(batch) for batch in loader] == [batch[2:] for batch in plan(store, 1)[0]]


@pytest.mark.slow
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


def over_numbers(kind: Any, **settings: Any) -> tuple[Any, Any]:
    """torchdata's loader of batches of 4 numbers, and the object whose epoch is set."""
    if kind is ZarrIterableDataset:
        samples = ZarrIterableDataset(NUMBERS, 4, seed=5)
        return StatefulDataLoader(samples, batch_size=4, **settings), samples
    sampler = EpochBatchSampler.of(NUMBERS, 4, seed=5)
    return StatefulDataLoader(NUMBERS, batch_sampler=sampler, **settings), sampler


def numbers_of(loader: Any) -> list[list[int]]:
    return [batch[0].tolist() for batch in loader]


@pytest.mark.parametrize("kind", [ZarrIterableDataset, EpochBatchSampler])
def test_after_the_state_of_a_finished_epoch_the_selected_one_begins(kind: Any) -> None:
    # The newest snapshot is from the middle of the epoch: torchdata loads it, and then begins another iteration.
    settings = {"num_workers": 1, "multiprocessing_context": "fork", "snapshot_every_n_steps": 2}
    first, epochs = over_numbers(kind, **settings)
    epochs.set_epoch(0)
    assert len(numbers_of(first)) == 7
    state = first.state_dict()
    epochs.set_epoch(1)
    expected = numbers_of(first)
    resumed, epochs = over_numbers(kind, **settings)
    resumed.load_state_dict(state)
    epochs.set_epoch(1)
    assert numbers_of(resumed) == expected


@pytest.mark.filterwarnings("error:.*batches of epoch")
@pytest.mark.parametrize("kind", [ZarrIterableDataset, EpochBatchSampler])
def test_after_a_resumed_epoch_the_next_one_begins_without_a_warning(kind: Any) -> None:
    whole, epochs = over_numbers(kind)
    expected = []
    for epoch in (0, 1):
        epochs.set_epoch(epoch)
        expected.append(numbers_of(whole))
    first, epochs = over_numbers(kind)
    epochs.set_epoch(0)
    next(iter(first))
    resumed, epochs = over_numbers(kind)
    resumed.load_state_dict(first.state_dict())
    for epoch, rest in ((0, expected[0][1:]), (1, expected[1])):
        epochs.set_epoch(epoch)
        assert numbers_of(resumed) == rest


def test_an_iterable_dataset_refuses_other_workers_and_half_batches(store: Path) -> None:
    samples = ZarrIterableDataset(opened(store), 4)
    taken = iter(samples)
    state = taken.state_dict()
    next(taken)
    with pytest.raises(ZarrCoreError, match="within a batch"):
        iter(samples).load_state_dict(taken.state_dict())
    with pytest.raises(ZarrCoreError, match="3 workers"):
        iter(samples).load_state_dict(state | {"step": 3})


def test_evaluation_on_several_ranks_needs_the_sampler(monkeypatch: pytest.MonkeyPatch) -> None:
    samples = ZarrIterableDataset(list(range(5)), 4, evaluation=True, shuffle=False)
    assert [batch.tolist() for batch in DataLoader(samples, batch_size=4)] == [[0, 1, 2, 3], [4]]
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    for use in (len, lambda samples: next(iter(samples))):
        with pytest.raises(ZarrCoreError, match="2 ranks different numbers of batches here; use an EpochBatchSampler"):
            use(samples)
