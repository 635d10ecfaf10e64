"""Weights of samples and balanced classes: exact counts in each epoch, which any number of ranks resumes."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import ConcatDataset, Subset

from tests.helpers.examples import examples
from tests.helpers.loading import SAMPLES, opened, together
from zarr_core._util.repeated import repetition_of
from zarr_core.errors import ZarrCoreError
from zarr_core.loader import EpochBatchSampler, ResumableLoader
from zarr_core.loader.weights import SampleWeights

some_weights = st.lists(st.floats(0, 1e6) | st.integers(0, 3).map(float), min_size=1, max_size=60).filter(any)


def flat(batches: Any) -> list[int]:
    return list(itertools.chain.from_iterable(batches))


@pytest.mark.slow
@given(weights=some_weights, seed=st.integers(-(2**63), 2**64 - 1), epoch=st.integers(-3, 2**40))
@settings(max_examples=examples(300))
def test_a_sample_occurs_as_often_as_its_share_says(weights: list[float], seed: int, epoch: int) -> None:
    size = len(weights)
    made = SampleWeights.of(size, weights, None)
    assert made is not None
    counts = made.epoch(seed, epoch).counts
    shares = np.array(weights) / max(weights)
    shares *= size / shares.sum()
    assert counts.sum() == size
    # Shares are rounded to millionths: one that is almost a whole number may be rounded to it.
    assert (counts >= np.floor(shares - 2e-6)).all()
    assert (counts <= np.ceil(shares + 2e-6)).all()
    for weight in set(weights):
        alike = np.array(weights) == weight
        assert abs(counts[alike].sum() - shares[alike].sum()) < 1.001


@given(size=st.integers(1, 300), weight=st.floats(1e-300, 1e300), epoch=st.integers(0, 1000))
@settings(max_examples=examples(100))
def test_equal_weights_are_an_ordinary_epoch(size: int, weight: float, epoch: int) -> None:
    made = SampleWeights.of(size, [weight] * size, None)
    assert made is not None
    assert (made.epoch(3, epoch).counts == 1).all()


@pytest.mark.slow
def test_over_epochs_the_average_is_the_share() -> None:
    weights = np.array([0.1, 0.5, 1, 1, 3.4, 0, 2])
    made = SampleWeights.of(7, weights, None)
    assert made is not None
    counts = np.mean([made.epoch(0, epoch).counts for epoch in range(4000)], axis=0)
    np.testing.assert_allclose(counts, weights / weights.sum() * 7, atol=0.03)
    assert counts[5] == 0


@given(labels=st.lists(st.sampled_from("abcd"), min_size=1, max_size=80), epoch=st.integers(0, 50))
@settings(max_examples=examples(200))
def test_classes_occur_equally_often(labels: list[str], epoch: int) -> None:
    made = SampleWeights.of(len(labels), None, labels)
    assert made is not None
    counts = made.epoch(1, epoch).counts
    per_class: Counter[str] = Counter()
    for label, count in zip(labels, counts.tolist(), strict=True):
        per_class[label] += count
    wanted = len(labels) / len(set(labels))
    assert all(abs(count - wanted) < 1.001 for count in per_class.values())
    for label in set(labels):
        alike = counts[np.array(labels) == label]
        assert alike.max() - alike.min() <= 1


@pytest.mark.slow
@given(
    weights=some_weights,
    part=st.integers(1, 4),
    world=st.sampled_from([1, 2, 3, 4]),
    epoch=st.integers(0, 5),
    mode=st.sampled_from(["shuffled", "in order", "dropped"]),
    start=st.integers(0, 20),
)
@settings(max_examples=examples(200))
def test_ranks_and_resumed_epochs_have_the_same_batches(
    weights: list[float], part: int, world: int, epoch: int, mode: str, start: int
) -> None:
    size, batch_size = len(weights), 12 * part
    options: dict[str, Any] = {"weights": weights, "shuffle": mode != "in order", "seed": 7}
    if batch_size > size:
        batch_size = 12
    if batch_size > size:
        return
    options["drop_last"] = mode == "dropped"

    def epoch_of(rank: int, ranks: int, position: int = 0) -> list[list[tuple[int, int]]]:
        sampler = EpochBatchSampler(size, batch_size, **options, replica=lambda: (rank, ranks))
        sampler.load_state_dict(sampler.state_at(epoch, position))
        return [[(index, repetition_of(index)) for index in batch] for batch in sampler]

    whole = epoch_of(0, 1)
    assert together([epoch_of(rank, world) for rank in range(world)]) == whole
    start = min(start, len(whole))
    assert together([epoch_of(rank, world, start) for rank in range(world)]) == whole[start:]
    seen = flat(whole)
    assert len(set(seen)) == len(seen)  # no repetition occurs twice
    made = SampleWeights.of(size, weights, None)
    assert made is not None
    expected = Counter(dict(enumerate(made.epoch(7, epoch).counts.tolist())))
    counts = Counter(index for index, _ in seen[:size])
    if mode == "dropped":
        assert counts <= expected
    else:
        assert counts == +expected


def wrapped(dataset: Any, wrapper: str) -> Any:
    if wrapper == "Subset":
        return Subset(dataset, list(range(SAMPLES)))
    return ConcatDataset([dataset, opened(dataset.config.root)]) if wrapper == "ConcatDataset" else dataset


@pytest.mark.parametrize("wrapper", ["", "Subset", "ConcatDataset"])
def test_each_repetition_has_new_points(store: Path, wrapper: str) -> None:
    dataset = wrapped(opened(store), wrapper)
    weights = [1] * (len(dataset) - 1) + [30]
    loader = ResumableLoader(dataset, EpochBatchSampler.of(dataset, 2, weights=weights))
    drawn: list[Any] = []
    for epoch in range(2):
        loader.set_epoch(epoch)
        for batch in loader:
            drawn += map(tuple, batch["volume_position"][:, :, :2].flatten(1).tolist())
    assert len(drawn) == 2 * len(dataset)
    # A sample has about 130 draws, two of which may be equal by chance. Equal repetitions leave half as many.
    assert len(set(drawn)) > 0.75 * len(drawn)


def test_a_state_of_other_weights_is_refused_by_name(ranks: Callable[[int], Iterator[int]]) -> None:
    def sampler(**settings: Any) -> EpochBatchSampler:
        return EpochBatchSampler(4, 2, **settings)

    weighted = sampler(weights=[1, 2, 3, 4])
    state = weighted.state_at(0, 1)
    for other in (sampler(), sampler(weights=[1, 2, 3, 5]), sampler(classes="aabb")):
        with pytest.raises(ZarrCoreError, match=r"other settings: weights \w+ \(here \w+\)"):
            other.load_state_dict(state)
    with pytest.raises(ZarrCoreError, match=r"other settings: weights None \(here \w+\)"):
        weighted.load_state_dict(sampler().state_dict())
    same = sampler(weights=torch.tensor([0.5, 1, 1.5, 2]))  # the same proportions
    same.load_state_dict(state)
    assert same.position == 1
    assert "weights" not in sampler().state_dict()


@pytest.mark.parametrize(
    ("settings_", "message"),
    [
        ({"weights": [1, 2]}, r"weights has 2 values; the dataset has 4 samples"),
        ({"weights": [1, 2, -1, 1]}, r"the weight of sample 2 is -1\.0"),
        ({"weights": [1, 2, float("nan"), 1]}, "the weight of sample 2 is nan"),
        ({"weights": [0] * 4}, "all weights are 0"),
        ({"weights": "abcd"}, "weights must be a number per sample"),
        ({"weights": [[1, 2, 3, 4]]}, r"not an array of shape \(1, 4\)"),
        ({"classes": ["a", "b"]}, "classes has 2 values"),
        ({"classes": dict.fromkeys("abcd", 1)}, "classes must be a sequence of labels in the order of the samples"),
        ({"classes": torch.tensor([0, 1, torch.nan, torch.nan])}, "the class of sample 2 is nan; give it a label"),
        ({"classes": [[0, 1], [1, 0], [0, 1], [0, 1]]}, r"a class is one label, .* not \[0, 1\]"),
        ({"classes": torch.eye(4)}, r"a class is one label, .* not tensor"),
        ({"weights": torch.ones(4, requires_grad=True)}, "weights must be a number per sample: .*requires grad"),
        ({"classes": list("aabb"), "weights": [1] * 4}, "give one of them"),
        ({"classes": list("aabb"), "evaluation": True}, "evaluation=True uses every sample once"),
    ],
)
def test_wrong_weights_are_refused(settings_: dict[str, Any], message: str) -> None:
    with pytest.raises(ZarrCoreError, match=message):
        EpochBatchSampler(4, 2, **settings_)


def test_labels_of_a_tensor_compare_by_value() -> None:
    sampler = EpochBatchSampler(6, 2, classes=torch.tensor([0, 0, 0, 0, 0, 1]))
    assert flat(sampler).count(5) == 3
