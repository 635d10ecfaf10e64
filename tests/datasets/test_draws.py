"""Law: a loader that sets no epoch sees new points in each epoch; one that sets epochs can reproduce every draw."""

from __future__ import annotations

import itertools
import re
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import ConcatDataset, DataLoader, Dataset, Subset
from torchdata.stateful_dataloader import StatefulDataLoader

from tests.helpers.loading import opened
from zarr_core.datasets import ZarrPointDataset, build_dataset
from zarr_core.loader import EpochBatchSampler, ResumableLoader, ZarrIterableDataset

POINTS = 5_000
DRAWN = 50
#: Every way in which a DataLoader may run workers.
WORKERS = [{}, {"num_workers": 2}, {"num_workers": 2, "persistent_workers": True}]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from tests.helpers.published_store import make_samples, write_published_store

    samples = make_samples(4, volume=POINTS)
    return write_published_store(tmp_path_factory.mktemp("draws"), samples, 1024, splits={"train": list(samples)})


def rows(batch: Any) -> torch.Tensor:
    """Stored rows that were drawn, (items, points)."""
    return batch["volume_position"][:, :, 0].long()


def epoch_of(loader: Any, dataset: Any) -> torch.Tensor:
    """Stored rows by sample of one epoch; the loader does not shuffle."""
    found = torch.cat([rows(batch) for batch in loader])
    assert len(found) == len(dataset)
    return found


def distinct(epochs: list[torch.Tensor]) -> list[int]:
    """Number of different points of each sample in all epochs."""
    return [len(torch.cat(draws).unique()) for draws in zip(*epochs, strict=True)]


@pytest.mark.parametrize("workers", WORKERS)
def test_a_plain_loader_draws_new_points_in_each_epoch(store: Path, workers: dict[str, Any]) -> None:
    dataset = opened(store, num_volume_points=DRAWN)
    loader = DataLoader(dataset, batch_size=2, **workers)
    epochs = []
    for seed in (7, 7):
        torch.manual_seed(seed)
        started = loader if not workers.get("persistent_workers") else DataLoader(dataset, batch_size=2, **workers)
        epochs.append([epoch_of(started, dataset) for _ in range(5)])
    assert torch.equal(torch.stack(epochs[0]), torch.stack(epochs[1]))  # repeatable by torch's seed
    # Five windows of 50 in 5,000 points rarely meet; equal draws would give 50.
    assert min(distinct(epochs[0])) > 3 * DRAWN


@pytest.mark.parametrize("workers", WORKERS)
def test_a_loader_that_sets_epochs_repeats_every_draw(store: Path, workers: dict[str, Any]) -> None:
    dataset = opened(store, num_volume_points=DRAWN)
    loader = DataLoader(dataset, batch_size=2, **workers)
    epochs = []
    for epoch in (0, 1, 0):
        dataset.set_epoch(epoch)
        epochs += [epoch_of(loader, dataset) for _ in range(2)]  # one call holds until the next
    first, again, other, _, back, _ = epochs
    assert torch.equal(first, again)
    assert torch.equal(first, back)
    assert not torch.equal(first, other)


@pytest.mark.slow
@pytest.mark.parametrize("workers", WORKERS)
def test_an_iterable_dataset_that_is_never_set_draws_new_points(store: Path, workers: dict[str, Any]) -> None:
    dataset = opened(store, num_volume_points=DRAWN)
    loader = StatefulDataLoader(ZarrIterableDataset(dataset, 2, shuffle=False), batch_size=2, **workers)
    assert min(distinct([epoch_of(loader, dataset) for _ in range(5)])) > 3 * DRAWN
    started = iter(loader)
    next(started)
    resumed = StatefulDataLoader(ZarrIterableDataset(dataset, 2, shuffle=False), batch_size=2, **workers)
    resumed.load_state_dict(loader.state_dict())
    assert len(list(resumed)) == 1
    assert dataset.epoch is None  # later epochs have new points, too


def test_no_sampling_seed_means_new_points_whatever_the_epoch(store: Path) -> None:
    settings = {"kind": "point", "root": str(store), "split": "train", "num_volume_points": DRAWN}
    dataset = build_dataset(settings | {"sampling_seed": None})
    dataset.set_epoch(3)
    assert dataset.epoch == 3
    assert not torch.equal(dataset[0]["volume_position"], dataset[0]["volume_position"])
    torch.manual_seed(0)
    first = dataset[0]["volume_position"]
    torch.manual_seed(0)
    assert torch.equal(first, dataset[0]["volume_position"])


class Wrapper(Dataset[Any]):
    """As many are written: the inner dataset in an attribute."""

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: int) -> Any:
        return self.dataset[index]


class Hiding(Wrapper):
    """A wrapper whose attribute has a name of its own."""

    def __init__(self, dataset: Any) -> None:
        self.inner = [dataset]

    def __len__(self) -> int:
        return len(self.inner[0])

    def __getitem__(self, index: int) -> Any:
        return self.inner[0][index]


def wrapped(store: Path) -> Iterator[Any]:
    yield Subset(opened(store), [0, 2])
    yield Wrapper(Wrapper(opened(store)))
    yield ConcatDataset([opened(store), Wrapper(opened(store))])


def test_the_lineage_is_made_of_tags_that_mlflow_takes(store: Path) -> None:
    dataset = opened(store)
    tags = dataset.lineage
    assert tags["zarr_core.store"] == str(store)
    assert tags["zarr_core.generation"] == str(dataset.reader.manifest.generation)
    assert tags["zarr_core.fingerprint"] == dataset.fingerprint
    for name, value in tags.items():  # MLflow's rules
        assert re.fullmatch(r"[/\w.\- :]{1,250}", name)
        assert 0 < len(value) <= 5000


def test_epochs_and_fingerprints_go_through_wrappers(store: Path) -> None:
    plain = EpochBatchSampler.of(opened(store), 2)
    for dataset in wrapped(store):
        sampler = EpochBatchSampler.of(dataset, 2, shuffle=False)
        assert plain.fingerprint in sampler.fingerprint
        loader = DataLoader(dataset, batch_sampler=sampler)
        epochs = []
        for epoch in (0, 1, 0):
            sampler.set_epoch(epoch)
            epochs.append(epoch_of(loader, dataset))
        assert torch.equal(epochs[0], epochs[2])
        assert not torch.equal(epochs[0], epochs[1])
        samples = ZarrIterableDataset(dataset, 2, shuffle=False)
        samples.set_epoch(1)
        assert torch.equal(epoch_of(DataLoader(samples, batch_size=2), dataset), epochs[1])
    subsets = [EpochBatchSampler.of(Subset(opened(store), part), 2).fingerprint for part in ([0, 1], [1, 2])]
    assert subsets[0] != subsets[1]


def test_a_wrapper_that_hides_its_dataset_is_named_in_a_warning(store: Path) -> None:
    hiding = Hiding(opened(store))
    with pytest.warns(UserWarning, match=r"epochs do not reach the ZarrPointDataset within Hiding"):
        EpochBatchSampler.of(hiding, 2)
    with pytest.warns(UserWarning, match="do not reach"):
        ZarrIterableDataset(Wrapper(hiding), 2)


@pytest.mark.parametrize("subset", [False, True])
def test_a_sampler_that_is_never_set_goes_on_to_the_next_epoch(store: Path, subset: bool) -> None:
    dataset = Subset(opened(store), range(4)) if subset else opened(store)
    sampler = EpochBatchSampler.of(dataset, 2, shuffle=False)
    loader = DataLoader(dataset, batch_sampler=sampler)
    unset = [epoch_of(loader, dataset) for _ in range(3)]
    for epoch, found in enumerate(unset):
        sampler.set_epoch(epoch)
        assert torch.equal(epoch_of(loader, dataset), found)
    assert not any(torch.equal(one, other) for one, other in itertools.combinations(unset, 2))
    evaluation = EpochBatchSampler.of(dataset, 2, shuffle=False, evaluation=True)
    fixed = DataLoader(dataset, batch_sampler=evaluation)
    assert torch.equal(epoch_of(fixed, dataset), epoch_of(fixed, dataset))


class Doubled(ZarrPointDataset):
    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {field: 2 * values for field, values in super().__getitem__(index).items()}


class Labelled:
    def __getitem__(self, index: int) -> Any:
        return super().__getitem__(index) | {"label": torch.tensor(index)}  # type: ignore[misc]


class Mixed(Labelled, ZarrPointDataset):
    pass


class Both(Doubled):
    def __getitems__(self, indices: Any) -> Any:
        return [item | {"label": torch.tensor(0)} for item in super().__getitems__(indices)]


@pytest.mark.parametrize("kind", [Doubled, Mixed, Both])
def test_batches_of_a_subclass_are_made_of_the_items_that_it_returns(store: Path, kind: type[ZarrPointDataset]) -> None:
    dataset = kind(opened(store).config)
    dataset.set_epoch(0)
    (batch,) = DataLoader(dataset, batch_size=len(dataset))
    expected = torch.stack([dataset[index]["volume_position"] for index in range(len(dataset))])
    assert torch.equal(batch["volume_position"], expected)
    assert ("label" in batch) is (kind is not Doubled)


@pytest.mark.parametrize("kind", [DataLoader, ResumableLoader, StatefulDataLoader])
@pytest.mark.parametrize("wrapped", [lambda dataset: dataset, lambda dataset: Subset(dataset, range(3))])
def test_each_repetition_of_a_sample_in_an_epoch_has_other_points(store: Path, kind: Any, wrapped: Any) -> None:
    dataset = wrapped(opened(store, with_index=True, split="train[:3]"))
    with pytest.warns(UserWarning, match="batch_size=8 is more than the 3 samples.*batch_size <= 3"):
        sampler = EpochBatchSampler.of(dataset, 8)
    loader = kind(dataset, batch_sampler=sampler)
    epochs = []
    for _ in range(2):
        (batch,) = loader
        drawn: dict[int, list[Any]] = {}
        for index, points in zip(batch["index"].tolist(), rows(batch).tolist(), strict=True):
            drawn.setdefault(index, []).append(points)
        assert sorted(map(len, drawn.values())) == [2, 3, 3]
        assert all(len(set(map(tuple, draws))) == len(draws) for draws in drawn.values())
        epochs.append(drawn)
    plain = opened(store)
    for epoch, drawn in enumerate(epochs):
        plain.set_epoch(epoch)
        for index, draws in drawn.items():
            assert plain[index]["volume_position"][:, 0].tolist() == draws[0], "first occurrences draw as ever"


def test_a_sample_that_a_subset_repeats_has_other_points_each_time(store: Path) -> None:
    dataset = opened(store)
    weighted = Subset(dataset, [0, 0, 1, 0])
    taken: dict[int, list[Any]] = {}
    sampler = EpochBatchSampler.of(weighted, 1)
    for (index,) in sampler:
        taken.setdefault(weighted.indices[index], []).append(weighted[index]["volume_position"][:, 0].tolist())
    assert weighted.indices == [0, 0, 1, 0]
    assert len(set(map(tuple, taken[0]))) == 3
    assert sampler.fingerprint == EpochBatchSampler.of(Subset(dataset, [0, 0, 1, 0]), 1).fingerprint


def test_equal_draws_in_a_batch_are_named(store: Path) -> None:
    dataset = opened(store)
    repeated = DataLoader(Subset(dataset, [0, 0]), 2)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        first, second = rows(next(iter(repeated))).tolist()
        assert first != second, "without an epoch, each access draws"
        whole = opened(store, num_volume_points=None)
        whole.set_epoch(0)
        next(iter(DataLoader(Subset(whole, [0, 0]), 2)))
    dataset.set_epoch(0)
    with pytest.warns(UserWarning, match=r"a batch repeats a sample with the same points.*EpochBatchSampler.of"):
        first, second = rows(next(iter(repeated))).tolist()
    assert first == second
