"""Batches of an epoch, their ranks, and the state that resumes them."""

from __future__ import annotations

import itertools
import json
import pickle
import tracemalloc
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import ConcatDataset
from torchdata.stateful_dataloader.stateful import Stateful

from tests.helpers.examples import examples
from tests.helpers.loading import NUMBERS, SAMPLES, opened, together
from tests.helpers.published_store import make_samples, write_published_store
from zarr_core.errors import ZarrCoreError
from zarr_core.loader import EpochBatchSampler, Permutation, ResumableLoader, rank_and_world


@given(
    size=st.integers(1, 200),
    part=st.integers(1, 9),
    world=st.sampled_from([1, 2, 3, 4, 6, 12]),
    mode=st.sampled_from(["pad", "drop", "evaluate"]),
    shuffle=st.booleans(),
    start=st.integers(0, 30),
)
@settings(max_examples=examples(150))
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


def test_worlds_without_a_batch_per_rank_are_refused(ranks: Callable[[int], Iterator[int]]) -> None:
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
        with pytest.raises(ZarrCoreError, match=r"other data.*split train: 10 samples.*start a new run"):
            other.load_state_dict(state)
    committed = write_published_store(tmp_path, make_samples(SAMPLES), 16, splits={"train": ["run_1"]}, generation=4)
    assert opened(committed).fingerprint != opened(store, split="train[0]").fingerprint
    assert opened(committed, generation=4).fingerprint == opened(committed).fingerprint
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


def test_a_state_of_other_draws_is_refused_by_name(store: Path) -> None:
    dataset = opened(store, num_volume_points=4)
    state = EpochBatchSampler.of(dataset, 4).state_dict()
    assert state["draws"] == "4 points of volume, sampling_seed 0"
    for changes, here in (
        ({"num_volume_points": 3}, "3 points of volume, sampling_seed 0"),
        ({"num_volume_points": 4, "sampling_seed": 1}, "4 points of volume, sampling_seed 1"),
        ({"num_volume_points": None}, "all points, sampling_seed 0"),
    ):
        for other in (opened(store, **changes), ConcatDataset([opened(store, **changes)])):
            sampler = EpochBatchSampler.of(other, 4, fingerprint=dataset.fingerprint)
            with pytest.raises(ZarrCoreError, match=rf"draws 4 points of volume, .* \(here {here}\). Use the saved"):
                sampler.load_state_dict(state)
    for known in (state, {name: state[name] for name in state.keys() - {"draws"}}):  # as earlier versions wrote it
        EpochBatchSampler.of(opened(store, num_volume_points=4), 4).load_state_dict(known)


def test_a_copy_of_the_store_elsewhere_is_the_same_data(store: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(store)
    assert opened(tmp_path / "link").fingerprint == opened(store).fingerprint
    assert opened(store, num_volume_points=3).fingerprint == opened(store).fingerprint


def test_the_end_of_an_epoch_is_the_start_of_the_next() -> None:
    sampler = EpochBatchSampler(8, 4, seed=9)
    first = list(sampler)
    done = sampler.state_dict()
    assert done["position"] == 2
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


@pytest.mark.parametrize("seed", [2**63 + 5, 2**64 - 1, -(2**63), np.int64(7), np.uint64(2**63 + 5), torch.tensor(7)])
def test_a_state_of_any_seed_and_epoch_can_be_saved_and_loaded(seed: Any, tmp_path: Path) -> None:
    sampler = EpochBatchSampler(np.int64(8), np.int32(2), seed, np.True_, shuffle=np.True_)  # type: ignore[arg-type]
    sampler.set_epoch(np.int64(3))  # type: ignore[arg-type]
    next(iter(sampler))
    torch.save(sampler.state_dict(), tmp_path / "state.pt")
    state = torch.load(tmp_path / "state.pt", weights_only=True)
    assert json.loads(json.dumps(state)) == state
    resumed = EpochBatchSampler(8, 2, drop_last=True)
    resumed.load_state_dict(state)
    assert (resumed.seed, resumed.epoch, resumed.position) == (int(seed), 3, 1)
    assert list(resumed) == list(sampler)[1:]
    resumed.load_state_dict(state | {"epoch": np.int64(3), "position": np.int64(1)})  # written by an older version


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"batch_size": 2.0}, r"batch_size must be a whole number, not 2\.0"),
        ({"batch_size": True}, "batch_size must be a whole number, not True"),
        ({"seed": "a"}, "seed must be a whole number, not 'a'"),
        ({"seed": 2**64}, "seed must be at most"),
        ({"drop_last": "no"}, "drop_last must be True or False"),
        ({"replica": (0, 1)}, r"replica must be a function, not \(0, 1\)"),
        ({"on_epoch": 3}, "on_epoch must be a function, not 3"),
        ({"fingerprint": None}, "fingerprint must be a string"),
    ],
)
def test_wrong_arguments_are_refused_when_the_sampler_is_made(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ZarrCoreError, match=message):
        EpochBatchSampler.of(NUMBERS, **{"batch_size": 2, **arguments})
    with pytest.raises(ZarrCoreError, match="epoch must be a whole number, not 1.5"):
        EpochBatchSampler.of(NUMBERS, 2).set_epoch(1.5)  # type: ignore[arg-type]
    with pytest.raises(ZarrCoreError, match="dataset must be a map-style dataset"):
        EpochBatchSampler.of(None, 2)


@pytest.mark.parametrize("replica", [(2, 2), (-1, 2), (2, 1), (1, 0)])
def test_a_rank_that_there_is_not_is_refused(replica: tuple[int, int]) -> None:
    sampler = EpochBatchSampler(8, 2, replica=lambda: replica)
    with pytest.raises(ZarrCoreError, match=r"replica returned \(.*, .*\), not \(rank, number of ranks\)"):
        list(sampler)
    with pytest.raises(ZarrCoreError, match="replica returned"):
        ResumableLoader(NUMBERS, sampler)


def test_a_loader_whose_sampler_sets_no_epochs_warns(store: Path) -> None:
    dataset = opened(store)
    with pytest.warns(UserWarning, match=r"does not set the epoch.*EpochBatchSampler\.of"):
        ResumableLoader(dataset, EpochBatchSampler(SAMPLES, 4))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ResumableLoader(dataset, EpochBatchSampler.of(dataset, 4))
        ResumableLoader(NUMBERS, EpochBatchSampler.of(NUMBERS, 4))


def test_a_task_of_a_slurm_job_is_a_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_NTASKS", "2")
    assert rank_and_world() == (0, 1)  # the shell of salloc is no task
    monkeypatch.setenv("SLURM_PROCID", "1")
    monkeypatch.setenv("SLURM_STEP_ID", "0")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert list(EpochBatchSampler(8, 4, shuffle=False)) == [[2, 3], [6, 7]]
    monkeypatch.delenv("SLURM_STEP_ID")
    with pytest.warns(UserWarning, match=r"takes 1/2 of each batch.*not started by srun.*RANK and WORLD_SIZE"):
        assert rank_and_world() == (1, 2)
    monkeypatch.setenv("SLURM_PROCID", "2")
    with pytest.raises(ZarrCoreError, match="SLURM_PROCID=2 and SLURM_NTASKS=2 are invalid"):
        rank_and_world()
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "1")
    assert rank_and_world() == (0, 1)


def test_a_later_epoch_than_that_of_a_state_in_its_middle_is_warned_of() -> None:
    def resumed(position: int) -> EpochBatchSampler:
        sampler = EpochBatchSampler(12, 2)
        sampler.load_state_dict(EpochBatchSampler(12, 2).state_at(1, position))
        return sampler

    for set_epoch in (lambda sampler: sampler.set_epoch(2), lambda sampler: sampler.sampler.set_epoch(2)):
        with pytest.warns(
            UserWarning, match="4 of 6 batches of epoch 1 are left out: the loaded state is in the middle"
        ):
            set_epoch(resumed(2))
        with warnings.catch_warnings(action="error"):
            set_epoch(resumed(6))
            resumed(2).set_epoch(1)
            ended = resumed(2)
            assert len(list(ended)) == 4
            set_epoch(ended)


def test_an_epoch_that_a_trainer_passes_over_after_a_state_is_refused() -> None:
    """As Lightning does with max_steps and a checkpoint from the end of an epoch."""

    def resumed(position: int) -> EpochBatchSampler:
        sampler = EpochBatchSampler(12, 2)
        sampler.load_state_dict(sampler.state_at(1, position))
        return sampler

    ended = resumed(6)
    ended.sampler.set_epoch(2)
    with pytest.raises(
        ZarrCoreError, match="epoch 2 would be left out: .* goes on to epoch 3.*save_on_train_epoch_end"
    ):
        ended.sampler.set_epoch(3)
    for position in (0, 6):
        with pytest.raises(ZarrCoreError, match="would be left out"):
            resumed(position).sampler.set_epoch(3)
        chosen = resumed(position)
        chosen.set_epoch(3)
        assert chosen.start == (3, 0), "a caller may leave epochs out"
    read = resumed(6)
    read.sampler.set_epoch(2)
    assert len(list(read)) == 6
    read.sampler.set_epoch(3)
    next(iter(read))
    read.sampler.set_epoch(4)  # any other epoch may end after a batch
    for position in (0, 6):
        left = resumed(position)
        left.sampler.set_epoch(1 + position // 6)
        next(iter(left))
        with pytest.raises(ZarrCoreError, match="would be left out, but for its first batch: .*save_on_train_epoch"):
            left.sampler.set_epoch(3)
    limited = resumed(1)  # of a run with limit_train_batches=1
    with pytest.warns(UserWarning, match="5 of 6 batches of epoch 1 are left out"):
        limited.sampler.set_epoch(2)
    next(iter(limited))
    limited.sampler.set_epoch(3)
    read.sampler.set_epoch(3)
    read.sampler.set_epoch(4)
    assert read.epoch == 4


def test_a_run_that_sets_no_epochs_resumes_like_one_that_does() -> None:
    whole = EpochBatchSampler(8, 2, seed=9)
    epochs = [list(whole) for _ in range(3)]
    assert epochs[0] != epochs[1] != epochs[2]
    interrupted = EpochBatchSampler(8, 2, seed=9)
    list(interrupted)
    second = iter(interrupted)
    next(second)
    resumed = EpochBatchSampler(8, 2)
    resumed.load_state_dict(interrupted.state_dict())
    assert [list(resumed), list(resumed)] == [epochs[1][1:], epochs[2]]


def test_a_state_of_other_data_names_the_generation_that_it_is_of() -> None:
    class Data:
        def __init__(self, fields: str, generation: int) -> None:
            self.fingerprint = fields
            self.lineage = {"zarr_core.generation": str(generation), "zarr_core.store": "/data/store"}

        def __len__(self) -> int:
            return 4

        def __getitem__(self, index: int) -> int:
            return index

    state = EpochBatchSampler.of(Data("p", 3), 2).state_dict()
    EpochBatchSampler.of(Data("p", 5), 2).load_state_dict(state)  # the content decides
    with pytest.raises(ZarrCoreError, match=r"not \[u\]. Open the saved generation \(generation 3 of /data/store\)"):
        EpochBatchSampler.of(Data("u", 5), 2).load_state_dict(state)
    with pytest.raises(ZarrCoreError, match="Both are generation 3 of /data/store: use the saved fields"):
        EpochBatchSampler.of(Data("u", 3), 2).load_state_dict(state)
