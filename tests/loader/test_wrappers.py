"""Whoever wraps a loader gets the right batches, or an error that names the way out."""

from __future__ import annotations

import copy
import json
import pickle
import socket
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, Dataset, SequentialSampler, random_split
from torchdata.stateful_dataloader import StatefulDataLoader

from tests.helpers import fork_server
from tests.helpers.accelerated import CONFIGURATIONS, LOADERS, accelerated, epochs_of, make_loader, run_rank
from tests.helpers.loading import NUMBERS, opened
from zarr_core.errors import ZarrCoreError
from zarr_core.loader import EpochBatchSampler, ResumableLoader


@pytest.fixture
def accelerate() -> Any:
    return pytest.importorskip("accelerate", reason="Accelerate is not installed")


def expected() -> list[list[list[int]]]:
    sampler = EpochBatchSampler(20, 4, seed=5)
    return [list(sampler), list(sampler)]


@pytest.mark.parametrize("kind", LOADERS)
@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_accelerate_on_one_process_gets_every_epoch(accelerate: Any, kind: str, name: str) -> None:
    assert accelerated(kind, CONFIGURATIONS[name]) == expected()


def test_accelerate_on_two_processes_gets_every_sample_once_or_an_error(accelerate: Any, tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    variables = {"WORLD_SIZE": 2, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "ACCELERATE_USE_CPU": "true"}
    processes = [
        fork_server.start(run_rank, tmp_path, rank, environment={**variables, "RANK": rank, "LOCAL_RANK": rank})
        for rank in range(2)
    ]
    for process in processes:
        process.join(240)
    assert [process.exitcode for process in processes] == [0, 0]
    one, other = (json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(2))
    for case in one:
        if case.startswith("resumable"):
            joined = [
                [left + right for left, right in zip(mine, others, strict=True)]
                for mine, others in zip(one[case], other[case], strict=True)
            ]
            assert joined == expected(), case
        else:
            assert {one[case], other[case]} == {one[case]}, case
            assert "Accelerate would divide the batches of each of 2 processes" in one[case], case
            assert "Pass a ResumableLoader" in one[case], case


def test_accelerate_saves_and_loads_the_position(accelerate: Any, tmp_path: Path) -> None:
    from accelerate import Accelerator

    loader = Accelerator(cpu=True).prepare(make_loader("resumable", 1))
    first = iter(loader)
    taken = [next(first)[0].tolist() for _ in range(2)]
    accelerator = Accelerator(cpu=True)
    accelerator.prepare(loader)
    accelerator.save_state(str(tmp_path))
    again = Accelerator(cpu=True)
    resumed = again.prepare(make_loader("resumable", 1))
    again.load_state(str(tmp_path))
    assert [taken, *epochs_of(resumed)] == [expected()[0][:2], expected()[0][2:], expected()[1]]


def test_a_loader_that_is_built_from_the_parts_of_another_one_is_refused(accelerate: Any) -> None:
    from accelerate import Accelerator, skip_first_batches
    from accelerate.data_loader import prepare_data_loader

    Accelerator(cpu=True)
    loader = make_loader("resumable", 1)
    for wrapped in (
        DataLoader(loader.dataset, batch_sampler=loader.batch_sampler),
        StatefulDataLoader(loader.dataset, batch_sampler=loader.batch_sampler),
        skip_first_batches(loader, 2),
        prepare_data_loader(loader, num_processes=2, process_index=1),
        prepare_data_loader(loader, num_processes=1, process_index=0),
    ):
        with pytest.raises(ZarrCoreError, match="another loader was built from the parts.*Iterate over the Resumable"):
            next(iter(wrapped))
    assert epochs_of(loader) == expected(), "the loader itself is as before"


def test_a_wrapper_that_counts_epochs_cannot_discard_a_loaded_state(accelerate: Any) -> None:
    from accelerate import Accelerator

    sampler = EpochBatchSampler(20, 4, seed=5)
    state = sampler.state_at(1, 2)
    numbers = make_loader("sampler", 1).dataset
    prepared: Any = Accelerator(cpu=True).prepare(DataLoader(numbers, batch_sampler=sampler))
    sampler.load_state_dict(state)
    with pytest.raises(ZarrCoreError, match=r"set_epoch\(0\) would discard the loaded state.*call its set_epoch\(1\)"):
        next(iter(prepared))
    prepared.set_epoch(1)
    assert [batch[0].tolist() for batch in prepared] == expected()[1][2:]


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda loader: pickle.loads(pickle.dumps(loader))])
def test_a_copy_of_a_loader_has_the_same_batches(copied: Any) -> None:
    loader = make_loader("resumable", 1)
    next(iter(loader))
    assert epochs_of(copied(make_loader("resumable", 1))) == expected()
    assert copied(loader).state_dict()["position"] == 1


def write_epochs(loader: Any, out: Path) -> None:
    out.write_text(json.dumps(epochs_of(loader)))


@pytest.mark.parametrize("begun", [False, True])
def test_a_loader_can_be_given_to_a_process_that_starts(tmp_path: Path, begun: bool) -> None:
    # As Lightning's ddp_spawn and torch.multiprocessing.spawn do. torch passes no random generator on in this way.
    loader = make_loader("resumable", 1)
    if begun:
        next(iter(loader))
    process = fork_server.start(write_epochs, loader, tmp_path / "epochs.json")
    process.join()
    first, second = json.loads((tmp_path / "epochs.json").read_text())
    assert first == expected()[begun]
    assert second != first


def test_a_sampler_that_a_framework_builds_anew_names_the_way_out() -> None:
    # As Lightning does with whatever has batch_size and drop_last.
    with pytest.raises(ZarrCoreError, match=r"a SequentialSampler: .*use_distributed_sampler=False.*for predictions"):
        EpochBatchSampler(SequentialSampler(NUMBERS), batch_size=4, drop_last=False)  # type: ignore[arg-type]


def counted(loader: Any, epoch: int) -> list[list[int]]:
    """An epoch as Lightning's Trainer and Fabric set it, before they iterate."""
    loader.batch_sampler.sampler.set_epoch(epoch)
    return [batch[0].tolist() for batch in loader]


@pytest.mark.parametrize("kind", [ResumableLoader, DataLoader])
def test_epochs_that_a_framework_counts_are_followed(kind: Any) -> None:
    def loader(**settings: Any) -> tuple[Any, EpochBatchSampler]:
        sampler = EpochBatchSampler(26, 2, seed=5, **settings)
        return kind(NUMBERS, batch_sampler=sampler), sampler

    first, sampler = loader()
    epochs = [counted(first, epoch) for epoch in range(4)]
    assert len({str(epoch) for epoch in epochs}) == 4
    assert counted(loader()[0], 3) == epochs[3], "a run of Lightning that resumes at the end of epoch 2"
    resumed, sampler = loader()
    sampler.load_state_dict(sampler.state_at(2, 5))
    assert counted(resumed, 2) == epochs[2][5:], "in the middle of epoch 2"
    assert counted(resumed, 3) == epochs[3]
    fabric, sampler = loader()
    sampler.load_state_dict(sampler.state_at(2, 5))
    assert [counted(fabric, 0), counted(fabric, 1)] == [epochs[2][5:], epochs[3]], "Fabric counts from 0 again"
    explicit, sampler = loader()
    sampler.set_epoch(1)
    assert counted(explicit, 3) == epochs[1]
    twice, _ = loader()
    twice.batch_sampler.sampler.set_epoch(1)
    next(iter(twice))
    assert counted(twice, 1) == epochs[1], "Lightning makes an iterator and drops it"
    cycled, _ = loader()
    counted(cycled, 0)
    again = [batch[0].tolist() for batch in cycled]
    assert [again, counted(cycled, 1), counted(cycled, 2)] == epochs[1:], "CombinedLoader began it twice in epoch 0"
    evaluating, _ = loader(evaluation=True)
    assert counted(evaluating, 3) == epochs[0], "evaluations use the same points"


@pytest.mark.parametrize("kind", [ResumableLoader, DataLoader, StatefulDataLoader])
def test_two_samplers_on_one_dataset_do_not_disturb_each_other_unnoticed(store: Path, kind: Any) -> None:
    def parts() -> Any:
        return random_split(opened(store), [6, 4], torch.Generator().manual_seed(0))

    def loaders(train: Any, test: Any) -> tuple[Any, Any]:
        sampler = EpochBatchSampler.of(train, 2, seed=5)
        sampler.set_epoch(3)
        evaluated = EpochBatchSampler.of(test, 2, evaluation=True)
        return kind(train, batch_sampler=sampler), kind(test, batch_sampler=evaluated)

    train, test = loaders(*parts())
    alone = [batch["volume_position"] for batch in train]
    train, test = loaders(*parts())
    batches = iter(train)
    next(batches)
    assert len(list(test)) == 2
    with pytest.raises(ZarrCoreError, match="was set to 0 while epoch 3 was read.*copy.deepcopy"):
        next(batches)
    one, other = parts()
    train, test = loaders(one, copy.deepcopy(other))
    batches = iter(train)
    seen = [next(batches)]
    list(test)
    seen += batches
    torch.testing.assert_close(torch.stack([batch["volume_position"] for batch in seen]), torch.stack(alone))


class _Frozen(Dataset[Any]):
    """Sets the epochs of the dataset that it holds by itself: always the same one."""

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset

    def set_epoch(self, epoch: int) -> None:
        self.dataset.set_epoch(3)

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: int) -> Any:
        return self.dataset[index]


def test_a_wrapper_with_set_epoch_decides_on_the_epoch_of_what_it_holds(store: Path) -> None:
    dataset = opened(store)
    wrapper = _Frozen(dataset)
    loader = ResumableLoader(wrapper, EpochBatchSampler.of(wrapper, batch_size=2, seed=0))
    loader.set_epoch(0)
    next(iter(loader))
    assert dataset.epoch == 3
