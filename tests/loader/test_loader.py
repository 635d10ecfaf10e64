"""Loaders, workers and ranks give the same global batches, also when they are killed and resumed."""

from __future__ import annotations

import json
import pickle
import re
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, Subset, TensorDataset
from torchdata.stateful_dataloader import StatefulDataLoader

from tests.helpers import fork_server
from tests.helpers.loading import NUMBERS, opened, plan, seen, together
from tests.helpers.resumable_trainer import train
from zarr_core.datasets import build_dataset
from zarr_core.errors import ZarrCoreError
from zarr_core.loader import EpochBatchSampler, ResumableLoader


def in_threads(dataset: Any, *, batch_sampler: EpochBatchSampler, **of_processes: Any) -> ResumableLoader[Any]:
    """A loader that reads in threads of this process, also where the others use worker processes."""
    return ResumableLoader(dataset, batch_sampler, num_threads=3)


@pytest.mark.parametrize(
    ("kind", "method"),
    [
        (ResumableLoader, None),
        (ResumableLoader, "fork"),
        (in_threads, None),
        (StatefulDataLoader, "forkserver"),
        (DataLoader, None),
        *(
            pytest.param(*others, marks=pytest.mark.slow)
            for others in [
                (ResumableLoader, "forkserver"),
                (ResumableLoader, "spawn"),
                (StatefulDataLoader, None),
                (StatefulDataLoader, "fork"),
                (DataLoader, "fork"),
            ]
        ),
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
@pytest.mark.parametrize("kind", [ResumableLoader, StatefulDataLoader, in_threads])
def test_a_state_counts_delivered_batches_and_resumes_in_any_world(
    store: Path, ranks: Callable[[int], Iterator[int]], kind: Any, workers: int
) -> None:
    """Workers have fetched all of this epoch before the trainer has its first batch."""

    def loader() -> tuple[Any, EpochBatchSampler]:
        dataset = opened(store)
        sampler = EpochBatchSampler.of(dataset, 4, seed=5)
        method = "forkserver" if workers else None
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
def test_loader_and_sampler_count_delivered_batches(workers: int, persistent: bool) -> None:
    sampler = EpochBatchSampler(26, 2, seed=3)
    first = numbers_loader(ResumableLoader, sampler, workers, persistent)
    whole = list(EpochBatchSampler(26, 2, seed=3))
    sampler.set_epoch(0)  # every iteration is of this epoch
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
    resumed.set_epoch(0)
    assert [batch.tolist() for (batch,) in second] == whole
    abandoned = iter(second)
    next(abandoned)
    resumed.set_epoch(1)
    del abandoned
    assert (resumed.epoch, resumed.position) == (1, 0)


def test_under_a_plain_loader_a_sampler_counts_prefetched_batches() -> None:
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
    """Fails at one index, and records the state during a fetch."""

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


@pytest.mark.parametrize("threads", [0, 2])
def test_iterations_at_once_are_counted_for_themselves(threads: int) -> None:
    loader = ResumableLoader(NUMBERS, EpochBatchSampler(26, 4, drop_last=True), num_threads=threads)
    loader.set_epoch(0)
    found = []
    for one, other in zip(loader, loader, strict=True):
        assert torch.equal(one[0], other[0])
        found.append(loader.state_dict()["position"])
    assert found == [1, 2, 3, 4, 5, 6]
    loader.load_state_dict(loader.state_dict())
    assert list(loader) == []


@pytest.mark.parametrize("kind", [ResumableLoader, in_threads, DataLoader])
def test_an_epoch_that_another_one_has_replaced_is_not_read_on(kind: Any) -> None:
    def loader() -> Any:
        return kind(NUMBERS, batch_sampler=EpochBatchSampler(26, 4, drop_last=True))

    selected = loader()
    reading = iter(selected)
    next(reading)
    selected.batch_sampler.set_epoch(3) if kind is DataLoader else selected.set_epoch(3)
    begun = loader()
    other = iter(begun)
    next(other)
    next(iter(begun))
    for iterator, epoch in ((reading, 3), (other, 1)):
        with pytest.raises(ZarrCoreError, match=f"epoch {epoch} began, or set_epoch selected it, while epoch 0 was"):
            next(iterator)
    ended = loader()
    for number, _ in enumerate(ended, 1):
        if number == 6:  # the last one
            ended.batch_sampler.set_epoch(3) if kind is DataLoader else ended.set_epoch(3)
    assert number == 6


def test_a_resumable_loader_is_strict_about_its_sampler() -> None:
    with pytest.raises(ZarrCoreError, match="must be an EpochBatchSampler, not list"):
        ResumableLoader(NUMBERS, [[1]])  # type: ignore[arg-type]
    with pytest.raises(ZarrCoreError, match="in_order"):
        ResumableLoader(NUMBERS, EpochBatchSampler(26, 4), num_workers=2, in_order=False)
    sampler = EpochBatchSampler.of(NUMBERS, 4)
    assert (sampler.dataset_size, sampler.fingerprint) == (26, "")


def test_a_sampler_of_another_dataset_object_is_refused(store: Path) -> None:
    dataset, other = opened(store), opened(store)
    for read in (other, Subset(other, range(10))):
        with pytest.raises(ZarrCoreError, match=f"made of another dataset object than the {type(read).__name__}"):
            ResumableLoader(read, EpochBatchSampler.of(dataset, 4))

    # Wrappers of the same object, in any attribute, and datasets without epochs, are read as before.
    class Wrapper:
        def __init__(self) -> None:
            self.inner = dataset

        def __getattr__(self, name: str) -> Any:
            return getattr(self.inner, name)

    ResumableLoader(Wrapper(), EpochBatchSampler.of(dataset, 4))
    ResumableLoader(Subset(dataset, range(10)), EpochBatchSampler.of(dataset, 4))
    ResumableLoader(TensorDataset(torch.arange(26)), EpochBatchSampler.of(NUMBERS, 4))


def test_killed_ranks_resume_as_another_world(store: Path, tmp_path: Path) -> None:
    def run(world: int, out: Path, die_after: int) -> None:
        processes = [
            fork_server.start(train, str(store), out, 2, 2, die_after, environment={"RANK": r, "WORLD_SIZE": world})
            for r in range(world)
        ]
        for process in processes:
            process.join()
        assert [process.exitcode for process in processes] == [-signal.SIGKILL if die_after > 0 else 0] * world

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


@pytest.mark.slow
def test_the_loop_in_the_docs_runs_and_resumes(store: Path, tmp_path: Path) -> None:
    text = (Path(__file__).parents[2] / "docs" / "training.md").read_text()
    code: dict[str, Any] = {"__name__": "docs"}
    exec(text.partition("```python\n")[2].partition("```")[0], code)
    checkpoint = tmp_path / "checkpoint.pt"
    for epochs in (1, 2):
        code["train"](str(store), checkpoint, epochs=epochs)
        state = torch.load(checkpoint, weights_only=True)["loader"]
        assert (state["epoch"], state["position"]) == (epochs - 1, 1)


def test_the_documented_evaluation_is_the_mean_over_all_points(store: Path) -> None:
    text = (Path(__file__).parents[2] / "docs" / "training.md").read_text()
    (block,) = [
        part for part in re.findall(r"```python\n(.*?)```", text, re.DOTALL) if "def mean_squared_error" in part
    ]
    code: dict[str, Any] = {}
    exec(block, code)
    fields = ["surface_position", "surface_pressure"]
    config = {"kind": "point", "root": str(store), "split": "train", "fields": fields, "num_surface_points": 8}
    model = torch.nn.Linear(3, 1)
    dataset = build_dataset(config)
    dataset.set_epoch(0)
    errors = []
    for item in (dataset[place] for place in range(len(dataset))):
        errors.append(model(item["surface_position"]).squeeze(-1) - item["surface_pressure"])
    assert len(errors) % 4 != 0, "the last batch must be smaller"
    expected = torch.cat(errors).detach().double().square().mean()
    assert code["mean_squared_error"](model, build_dataset(config)) == pytest.approx(float(expected))


def test_persistent_workers_drop_an_abandoned_epoch(store: Path) -> None:
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


class RandomItems(torch.utils.data.Dataset[torch.Tensor]):
    """Items that torch's random generator draws, as a transform of the user may."""

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.rand(())


@pytest.mark.parametrize("workers", [0, 2])
def test_an_iteration_takes_no_number_from_torchs_random_generator(store: Path, workers: int) -> None:
    """A model with dropout computes the same in a resumed epoch, which is begun once more."""
    dataset = opened(store)
    loader = ResumableLoader(dataset, EpochBatchSampler.of(dataset, 4, seed=5), num_workers=workers)
    before = torch.get_rng_state()
    for epoch in range(2):
        loader.set_epoch(epoch)
        assert list(loader)
    assert torch.equal(torch.get_rng_state(), before)


def test_workers_have_new_random_numbers_in_each_iteration() -> None:
    def epochs(first: int) -> list[list[float]]:
        torch.manual_seed(3)
        loader = ResumableLoader(RandomItems(), EpochBatchSampler(4, 4, seed=5), num_workers=1)
        drawn = []
        for epoch in (first, first, first + 1):
            loader.set_epoch(epoch)
            drawn.append(torch.cat(list(loader)).tolist())
        return drawn

    numbers = epochs(0)
    assert epochs(0) == numbers
    assert len({number for drawn in numbers + epochs(5) for number in drawn}) == 6 * 4
