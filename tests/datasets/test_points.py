"""Items and batches of the datasets over a store, in every kind of worker."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pydantic import ValidationError
from torch.utils.data import DataLoader, Subset, default_collate
from torch.utils.data._utils.collate import default_collate_fn_map

from tests.helpers.counting_store import CountingStore
from tests.helpers.drivaernet_store import CHUNK, FIELDS, NORMALIZERS, drivaernet
from tests.helpers.published_store import make_samples, write_published_store
from zarr_core.datasets import (
    ZarrDrivAerNetDataset,
    ZarrDrivAerNetDatasetConfig,
    ZarrPointDataset,
    ZarrPointDatasetConfig,
    collate,
)
from zarr_core.datasets.batch import BatchItem
from zarr_core.errors import UnknownFieldError, ZarrCoreError
from zarr_core.storage.byte_ranges import CountingObjects, open_objects
from zarr_core.storage.zarr_stores import make_store


def test_items_are_flat_dicts_of_float32_tensors(root: Path, samples: dict[str, Any]) -> None:
    dataset = drivaernet(root, num_surface_points=7, num_volume_points=20, num_geometry_points=5, read_concurrency=3)
    assert dataset.reader.read_concurrency == 3
    for index, sample_id in enumerate(dataset.sample_ids):
        item = dataset[index]
        assert list(item) == [*FIELDS, "geometry_position"]
        for name, tensor in item.items():
            points = {"surface": 7, "volume": 20, "geometry": 5}[name.partition("_")[0]]
            assert tensor.dtype == torch.float32
            assert tensor.device.type == "cpu"
            assert tensor.shape == ((points,) if name.endswith("pressure") else (points, 3))
            if name != "geometry_position":
                rows = tensor.reshape(points, -1)[:, 0].long()  # the first component is the stored row
                stored = torch.from_numpy(samples[sample_id][name].astype(np.float32))[rows]
                assert torch.equal(tensor.reshape(points, -1), stored)
        for domain in ("surface", "volume"):  # one draw for all fields of a domain
            rows = item[f"{domain}_position"][:, 0]
            assert torch.equal(rows, item[f"{domain}_pressure"])
            assert torch.equal(rows, item[f"{domain}_velocity"][:, 0])


def test_repr_names_store_split_and_fields(root: Path) -> None:
    dataset = drivaernet(root, split="val", fields=["surface_pressure"])
    described = f"<ZarrDrivAerNetDataset {root}, generation 0, split val: {len(dataset)} samples of surface_pressure>"
    assert repr(dataset) == described


def test_geometry_positions_are_an_independent_draw_of_the_surface(tmp_path: Path) -> None:
    store = write_published_store(tmp_path, make_samples(1, surface=20_000), 1024, splits={"train": ["run_1"]})
    config = ZarrPointDatasetConfig(root=str(store), split="train", num_surface_points=64, num_geometry_points=64)
    dataset = ZarrPointDataset(config)
    shared = 0
    for epoch in range(20):
        dataset.set_epoch(epoch)
        item = dataset[0]
        geometry, surface = (set(item[name][:, 0].tolist()) for name in ("geometry_position", "surface_position"))
        assert len(geometry) == 64
        assert max(geometry) < 20_001
        shared += bool(geometry & surface)
    assert shared < 5  # two windows of 64 in 20,000 points meet in 1 of 156 draws


def test_whole_samples_come_in_stored_order(root: Path, samples: dict[str, Any]) -> None:
    item = drivaernet(root, split="val")[0]
    for name in FIELDS:
        stored = torch.from_numpy(samples["A_C_002"][name].astype(np.float32))
        assert torch.equal(item[name], stored.squeeze(1) if stored.shape[1] == 1 else stored)


def test_only_the_requested_fields_are_read(root: Path) -> None:
    stores: list[CountingStore] = []

    def counting(url: str) -> CountingStore:
        stores.append(CountingStore(make_store(url)))
        return stores[-1]

    config = ZarrDrivAerNetDatasetConfig(
        root=str(root), split="val", fields=["volume_pressure"], num_volume_points=4, num_geometry_points=4
    )
    item = ZarrDrivAerNetDataset(config, store_factory=counting)[0]
    assert list(item) == ["volume_pressure", "geometry_position"]
    assert set(stores[0].by_key) == {
        "A_C_002/zarr.json",
        "A_C_002/volume/pressure/c/0/0",
        "A_C_002/surface/position/c/0/0",
    }


def test_items_follow_seed_and_epoch_and_nothing_else(root: Path) -> None:
    def rows(dataset: ZarrPointDataset) -> list[float]:
        return dataset[1]["volume_pressure"].tolist()

    one, other = drivaernet(root, num_volume_points=5), drivaernet(root, num_volume_points=5)
    first = rows(one)
    torch.manual_seed(1)
    other.set_epoch(9)
    rows(other)
    other.set_epoch(0)
    assert rows(other) == first == rows(one)
    seen = set()
    for epoch in range(30):
        one.set_epoch(epoch)
        seen.add(tuple(rows(one)))
    assert len(seen) > 15
    assert rows(drivaernet(root, num_volume_points=5, sampling_seed=1)) != first


def test_other_domains_have_their_number_in_the_general_config(tmp_path: Path) -> None:
    made = make_samples(1)["run_1"]
    sample = made | {"wake_position": made["volume_position"]}
    store = write_published_store(tmp_path, {"run_1": sample}, CHUNK, splits={"train": ["run_1"]})
    config = ZarrPointDatasetConfig(root=str(store), split="train", num_points={"wake": 3}, num_surface_points=4)
    item = ZarrPointDataset(config)[0]
    assert (len(item["wake_position"]), len(item["surface_position"]), len(item["volume_position"])) == (3, 4, 131)
    with pytest.raises(UnknownFieldError, match=r"wakes.*surface, volume, wake"):
        ZarrPointDataset(ZarrPointDatasetConfig(root=str(store), split="train", num_points={"wakes": 3}))
    with pytest.raises(ValidationError, match="repeats surface"):
        ZarrPointDatasetConfig(root=str(store), split="train", num_points={"surface": 3}, num_surface_points=4)


def batches(loader: DataLoader[Any]) -> list[list[float]]:
    return [batch["volume_pressure"].flatten().tolist() for batch in loader]


@pytest.mark.parametrize("method", ["fork", "forkserver"])
def test_epochs_reach_persistent_workers_and_batches_are_those_of_one_process(root: Path, method: str) -> None:
    dataset = drivaernet(root, num_surface_points=5, num_volume_points=6, num_geometry_points=3)
    dataset[0]  # handles are open when workers start
    loader = DataLoader(dataset, batch_size=2, num_workers=2, persistent_workers=True, multiprocessing_context=method)
    epochs = []
    for epoch in (0, 1, 2, 0):
        dataset.set_epoch(epoch)
        epochs.append(batches(loader))
        assert epochs[-1] == batches(DataLoader(dataset, batch_size=2))
    assert epochs[0] == epochs[3]
    assert epochs[0] != epochs[1] != epochs[2]


@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda dataset: pickle.loads(pickle.dumps(dataset))])
def test_a_copy_has_an_epoch_of_its_own_that_reaches_its_workers(
    root: Path, duplicate: Callable[[ZarrPointDataset], ZarrPointDataset]
) -> None:
    original = drivaernet(root, num_volume_points=6)
    copied = duplicate(original)
    loader = DataLoader(Subset(copied, [0, 1]), num_workers=1, persistent_workers=True, multiprocessing_context="fork")
    first = batches(loader)
    copied.set_epoch(5)
    assert (original.epoch, copied.epoch) == (0, 5)
    assert batches(loader) != first
    assert first == [original[i]["volume_pressure"].tolist() for i in (0, 1)]


def test_a_pickle_carries_the_samples_of_its_dataset_only(root: Path) -> None:
    original = drivaernet(root, num_volume_points=6)
    items = list(original)
    others = {f"other_{n}": original.reader.manifest.samples[original.sample_ids[0]] for n in range(10_000)}
    manifest = original.reader.manifest
    splits = {**manifest.splits, "other": list(others)}
    original.reader.manifest = replace(manifest, samples={**manifest.samples, **others}, splits=splits)
    data = pickle.dumps(original)
    assert len(data) < 20_000
    copied = pickle.loads(data)
    assert copied.reader.sample_ids == original.sample_ids
    assert copied.fingerprint == original.fingerprint
    assert copied.lineage == original.lineage
    assert len(original.reader.sample_ids) > 10_000, "the original keeps them"
    for one, other in zip(copied, items, strict=True):
        assert one.keys() == other.keys()


def assert_batches_equal(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> None:
    assert list(one) == list(other)
    for name, tensor in one.items():
        assert tensor.dtype == other[name].dtype
        assert torch.equal(tensor, other[name])


SIZES = {"num_surface_points": 5, "num_volume_points": 40, "num_geometry_points": 3}


@pytest.mark.parametrize("engine", ["direct", "zarr"])
def test_a_batch_is_its_items_collated(root: Path, engine: str) -> None:
    dataset = drivaernet(root, normalizers=NORMALIZERS, engine=engine, **SIZES)
    indices = [3, 0, 2]
    items = [dataset[i] for i in indices]
    expected = default_collate(items)
    batch = dataset.__getitems__(indices)
    assert batch.tensors is not None
    for way in (default_collate, collate):
        assert way(batch) is batch.tensors  # nothing is copied again
        assert_batches_equal(way(batch), expected)
        assert_batches_equal(way(items), expected)
        assert_batches_equal(way(list(batch)), expected)  # a list made of the items of a batch
    for item, one in zip(batch, items, strict=True):
        assert_batches_equal(item, one)


def test_items_of_a_batch_are_made_when_they_are_used(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def forbidden(*_: Any) -> None:
        raise AssertionError("an item was made")

    dataset = drivaernet(root, **SIZES)
    batch, other = dataset.__getitems__([3, 0, 2]), dataset.__getitems__([1, 2])
    with monkeypatch.context() as patch:
        patch.setattr("zarr_core.datasets.batch.BatchItem", forbidden)
        assert collate(batch) is batch.tensors
    for changed in (copy.copy(batch), batch[1:], batch + other):
        assert_batches_equal(collate(changed), default_collate([dict(item) for item in changed]))
    assert [len(copy.copy(batch)), len(batch[1:]), len(batch + other), len(batch)] == [3, 2, 5, 3]


def test_a_plain_data_loader_makes_the_first_item_of_a_batch_only(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dataset = drivaernet(root, **SIZES)
    made = []

    class Counted(BatchItem):
        def __init__(self, *values: Any) -> None:
            super().__init__(*values)
            made.append(self)

    monkeypatch.setitem(default_collate_fn_map, Counted, default_collate_fn_map[BatchItem])
    monkeypatch.setattr("zarr_core.datasets.batch.BatchItem", Counted)
    batch = dataset.__getitems__([3, 0, 2])
    assert default_collate(batch) is batch.tensors
    assert len(made) == 1
    # The first item is the same object before and after the others are made, so a change in it counts.
    made[0]["surface_pressure"] = made[0]["surface_pressure"] * 2
    assert_batches_equal(collate(batch), default_collate([dict(item) for item in batch]))
    assert batch[0] is made[0] is next(iter(batch))
    assert len(made) == 3


@pytest.mark.parametrize("change", ["value", "label", "removed field", "removed item", "order"])
def test_a_batch_whose_items_were_changed_is_stacked_again(root: Path, change: str) -> None:
    dataset = drivaernet(root, **SIZES)
    batch = dataset.__getitems__([3, 0, 2])
    expected = [dict(item) for item in batch]
    for item in [*batch, *expected]:
        if change == "value":
            item["surface_pressure"] = item["surface_pressure"] * 2
        elif change == "label":
            item |= {"label": torch.tensor(1)}
        elif change == "removed field":
            del item["surface_velocity"]
    if change == "removed item":
        del batch[-1], expected[-1]
    elif change == "order":
        batch.reverse()
        expected.reverse()
    for way in (default_collate, collate):
        assert_batches_equal(way(batch), default_collate(expected))
    del batch[0]["surface_pressure"]
    with pytest.raises(ZarrCoreError, match="surface_pressure: 1 of the . items of a batch have no such field"):
        collate(batch)


def test_a_data_loader_takes_batches_as_they_are_read(root: Path) -> None:
    dataset = drivaernet(root, **SIZES)
    for loaded in (DataLoader(dataset, batch_size=2), DataLoader(Subset(dataset, range(5)), 2, num_workers=1)):
        for place, batch in enumerate(loaded):
            expected = default_collate([dataset[i] for i in range(5)[2 * place : 2 * place + 2]])
            assert_batches_equal(batch, expected)


def test_a_batch_is_one_batch_of_one_request_per_field(root: Path) -> None:
    made: list[CountingObjects] = []

    def counting(url: str) -> CountingObjects:
        made.append(CountingObjects(open_objects(url)))
        return made[-1]

    config = ZarrDrivAerNetDatasetConfig(root=str(root), split="train", fields=FIELDS[:3], **SIZES)
    with pytest.warns(UserWarning, match="absent"):
        dataset = ZarrDrivAerNetDataset(config, objects_factory=counting)
    dataset.set_epoch(0)
    dataset.__getitems__([0, 1, 2])
    (counted,) = made
    counted.reset()
    dataset.__getitems__([0, 1, 2])
    assert counted.batches == 1
    assert counted.requests <= 3 * 4 + 3  # a draw of the surface and one of the geometry may meet in no range
    assert all("/surface/" in key for key in counted.by_key)


def test_items_of_many_sizes_make_a_list_and_no_batch(root: Path) -> None:
    dataset = drivaernet(root, num_surface_points=5)
    batch = dataset.__getitems__([0, 1])
    assert batch.tensors is None
    for place, item in enumerate(batch):
        assert_batches_equal(item, dataset[place])
    for way in (default_collate, collate):
        with pytest.raises(
            ZarrCoreError, match=r"volume_position: items of shapes \(131, 3\) \(A_B_001\), .*num_volume.*pad"
        ):
            way(batch)
    (items,) = list(DataLoader(Subset(dataset, [0, 1]), batch_size=2, collate_fn=list))
    assert [len(item["volume_pressure"]) for item in items] == [131, 132]


def test_stored_values_are_normalised_later(root: Path) -> None:
    plain = drivaernet(root, normalizers=NORMALIZERS, **SIZES)
    stored = drivaernet(root, normalizers=NORMALIZERS, dtype="stored", **SIZES)
    assert stored[0]["volume_velocity"].dtype == torch.float16
    assert stored[0]["volume_position"].dtype == torch.float32
    for raw, expected in ((stored[1], plain[1]), (collate(stored.__getitems__([1, 2])), collate([plain[1], plain[2]]))):
        assert_batches_equal(stored.normalize(raw), expected)
