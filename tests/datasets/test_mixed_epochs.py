"""Which samples the epochs of a mixture have: exact numbers, none lost, the same on any ranks and after a resume."""

from __future__ import annotations

import copy
from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.utils.data import Dataset

from tests.helpers.examples import examples
from tests.helpers.loading import together
from zarr_core._util.repeated import repetition_of
from zarr_core.datasets import MixedDataset
from zarr_core.errors import ZarrCoreError
from zarr_core.loader import EpochBatchSampler, ResumableLoader


class Numbers(Dataset[dict[str, Tensor]]):
    """Items that tell their dataset, index and repetition."""

    def __init__(self, name: int, size: int) -> None:
        self.name, self.size = name, size

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        return {"seen": torch.tensor([self.name, index, repetition_of(index)])}


def mixture(sizes: list[int], weights: list[float] | None = None, **settings_: Any) -> MixedDataset:
    datasets = {f"n{number}": Numbers(number, size) for number, size in enumerate(sizes)}
    named = None if weights is None else dict(zip(datasets, weights, strict=True))
    return MixedDataset(datasets, named, **settings_)


def epoch_of(mixed: Any, epoch: int) -> list[tuple[int, int, int]]:
    mixed.set_epoch(epoch)
    return [tuple(item["seen"].tolist()) for item in mixed.__getitems__(range(len(mixed)))]


some_parts = st.lists(st.tuples(st.integers(1, 40), st.floats(0.05, 10)), min_size=1, max_size=4)


@given(parts=some_parts, size=st.none() | st.integers(250, 400), seed=st.integers(), epochs=st.integers(1, 6))
@settings(max_examples=examples(30), deadline=None)
def test_epochs_are_exact_and_lose_no_sample(
    parts: list[tuple[int, float]], size: int | None, seed: int, epochs: int
) -> None:
    sizes, weights = [size for size, _ in parts], [weight for _, weight in parts]
    shares = np.array(weights) / sum(weights) * (sum(sizes) if size is None else size)
    if (shares < 1).any():
        return
    mixed = mixture(sizes, weights, size=size, seed=seed)
    assert sum(mixed.counts.values()) == len(mixed) == (sum(sizes) if size is None else size)
    assert (np.abs(np.array(list(mixed.counts.values())) - shares) < 1 + 1e-9).all()
    total: Counter[tuple[int, int]] = Counter()
    for epoch in range(epochs):
        seen = epoch_of(mixed, epoch)
        assert seen == epoch_of(copy.deepcopy(mixed), epoch)  # a function of seed and epoch
        assert len(set(seen)) == len(seen)  # each repetition is another one
        of_part = Counter(name for name, _, _ in seen)
        assert [of_part[number] for number in range(len(sizes))] == list(mixed.counts.values())
        total.update((name, index) for name, index, _ in seen)
    for number, count in enumerate(mixed.counts.values()):
        occurrences = [total[number, index] for index in range(sizes[number])]
        assert min(occurrences) == epochs * count // sizes[number]
        assert max(occurrences) - min(occurrences) <= 1


def test_the_order_of_the_weights_does_not_matter() -> None:
    datasets = {"a": Numbers(0, 6), "b": Numbers(1, 6)}
    seen = []
    for weights in ({"a": 1, "b": 2}, {"b": 2, "a": 1}):
        mixed = MixedDataset(datasets, weights, with_part=True)
        assert list(mixed.counts.items()) == [("a", 4), ("b", 8)]
        assert all(mixed[index]["part"] == mixed[index]["seen"][0] for index in range(12))
        seen.append(epoch_of(mixed, 3))
    assert seen[0] == seen[1]


def test_passes_have_orders_of_their_own() -> None:
    mixed = mixture([60, 60], [1, 1], size=60)
    first, second, third = (epoch_of(mixed, epoch) for epoch in range(3))
    assert {*first, *second} == {(name, index, 0) for name in (0, 1) for index in range(60)}
    assert set(third) != set(first)
    assert [index for _, index, _ in first[:30]] != [index for _, index, _ in first[30:]]
    assert epoch_of(mixture([60, 60], [1, 1], size=60, seed=1), 0) != first


def test_without_weights_all_samples_occur_in_order() -> None:
    mixed = mixture([3, 2])
    for epoch in range(2):
        assert epoch_of(mixed, epoch) == [(0, 0, 0), (0, 1, 0), (0, 2, 0), (1, 0, 0), (1, 1, 0)]
    assert mixed[-1]["seen"].tolist() == [1, 1, 0]
    with pytest.raises(IndexError):
        mixed[5]


def test_without_an_epoch_samples_are_drawn() -> None:
    mixed = mixture([50, 4], [1, 1], size=20)
    torch.manual_seed(0)
    assert len({mixed[0]["seen"][1].item() for _ in range(40)}) > 20
    assert {tuple(mixed[place]["seen"][:2].tolist()) for place in range(10, 20)} == {(1, index) for index in range(4)}


@pytest.mark.slow
@given(
    parts=some_parts,
    part=st.integers(1, 3),
    world=st.sampled_from([1, 2, 3, 4]),
    epoch=st.integers(0, 4),
    start=st.integers(0, 10),
)
@settings(max_examples=examples(60), deadline=None)
def test_ranks_and_resumed_epochs_have_the_same_batches(
    parts: list[tuple[int, float]], part: int, world: int, epoch: int, start: int
) -> None:
    sizes, weights = [size for size, _ in parts], [weight for _, weight in parts]
    batch_size = 12 * part

    def batches(rank: int, ranks: int, position: int = 0) -> list[list[Any]]:
        mixed = mixture(sizes, weights, size=250)
        sampler = EpochBatchSampler.of(mixed, batch_size, replica=lambda: (rank, ranks))
        loader = ResumableLoader(mixed, sampler)
        loader.load_state_dict(sampler.state_at(epoch, position))
        return [batch["seen"].tolist() for batch in loader]

    if any(weight / sum(weights) * 250 < 1 for weight in weights):
        return
    whole = batches(0, 1)
    start = min(start, len(whole))
    assert together([batches(rank, world, start) for rank in range(world)]) == whole[start:]
    mixed = mixture(sizes, weights, size=250)
    seen = [tuple(item) for batch in whole for item in batch]
    assert sorted(seen[:250]) == sorted(epoch_of(mixed, epoch))
    assert len(set(seen)) == len(seen)  # also those that complete the last batch


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([Numbers(0, 1)],), "datasets must be a mapping"),
        (({},), "at least one dataset"),
        (({"a": Numbers(0, 0)},), "a must be a map-style dataset with samples"),
        (({"a": Numbers(0, 1)}, {"b": 1}), "weights are of b; give one for each of a"),
        (({"a": Numbers(0, 1)}, {"a": 0}), "the weight of a is 0"),
        (({"a": Numbers(0, 1)}, {"a": "1"}), "the weight of a is '1'"),
        (({"a": Numbers(0, 9), "b": Numbers(1, 1)}, {"a": 99, "b": 1}), "an epoch of 10 samples has none of b"),
    ],
)
def test_wrong_mixtures_are_refused(arguments: tuple[Any, ...], message: str) -> None:
    with pytest.raises(ZarrCoreError, match=message):
        MixedDataset(*arguments)
    with pytest.raises(ZarrCoreError, match='missing_fields must be "raise" or "mask"'):
        MixedDataset({"a": Numbers(0, 1)}, missing_fields="skip")  # type: ignore[arg-type]
    with pytest.raises(ZarrCoreError, match="size must be positive"):
        MixedDataset({"a": Numbers(0, 1)}, size=0)
