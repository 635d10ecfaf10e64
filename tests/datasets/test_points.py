"""Datasets: which samples, which tensors, in every kind of worker; normalisation there and back."""

from __future__ import annotations

import copy
import pickle
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError
from torch.utils.data import DataLoader, Subset, default_collate

from tests.helpers.counting_store import CountingStore
from tests.helpers.published_store import make_samples, write_published_store
from tests.helpers.small_source import SHARED
from zarr_core import datasets
from zarr_core.datasets import (
    AhmedMLDataset,
    PtDataset,
    ZarrAhmedMLDataset,
    ZarrAhmedMLDatasetConfig,
    ZarrDrivAerMLDataset,
    ZarrDrivAerMLDatasetConfig,
    ZarrDrivAerNetDataset,
    ZarrDrivAerNetDatasetConfig,
    ZarrPointDataset,
    ZarrPointDatasetConfig,
    ZarrShapeNetCarDataset,
    ZarrShapeNetCarDatasetConfig,
    build_dataset,
    collate,
)
from zarr_core.datasets.splits import parse_split, take_part
from zarr_core.errors import SampleError, UnknownFieldError, ZarrCoreError
from zarr_core.format.shuffle import shuffle_permutation
from zarr_core.points.convert import convert
from zarr_core.points.reader import ZarrChunkReader
from zarr_core.points.statistics import calculate_store_statistics, write_statistics
from zarr_core.sources import resolve_kind
from zarr_core.storage.byte_ranges import CountingObjects, open_objects
from zarr_core.storage.zarr_stores import make_store

CHUNK = 16
FIELDS = [f"{d}_{f}" for d in ("surface", "volume") for f in ("position", "pressure", "velocity")]
IDS = ["A_B_001", "A_B_002", "A_C_001", "A_B_003", "A_C_002", "A_B_004"]


@pytest.fixture(scope="module")
def samples() -> dict[str, dict[str, np.ndarray]]:
    made = make_samples(len(IDS))
    return dict(zip(IDS, made.values(), strict=True))


@pytest.fixture(scope="module")
def root(samples: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Path:
    store = write_published_store(tmp_path_factory.mktemp("datasets"), samples, CHUNK)
    (store / "train_design_ids.txt").write_text("\n".join([*IDS, "A_B_404", "A_B_405"]) + "\n")
    (store / "val_design_ids.txt").write_text("A_C_002\n")
    (store / "test_design_ids.txt").write_text("A_D_001\n")
    (store / "blacklist.txt").write_text("/home/someone/vtk/A_B_003.vtk\n")
    (store / "blacklist2.txt").write_text("A_B_405\n")
    statistics: dict[str, Any] = {"raw_pos_min": -3.0, "raw_pos_max": 140.0}
    for field in FIELDS:
        values = np.concatenate([fields[field] for fields in samples.values()]).astype(np.float64)
        logs = np.sign(values) * np.log1p(np.abs(values))
        for key, of in ((field, values), (f"{field}_logscale", logs)):
            mean, std = of.mean(0).tolist(), of.std(0, ddof=1).tolist()
            statistics |= (
                {f"{key}_mean": mean, f"{key}_std": std}
                if len(mean) > 1
                else {f"{key}_mean": mean[0], f"{key}_std": std[0]}
            )
    (store / "stats.yaml").write_text(yaml.safe_dump(statistics))
    return store


def drivaernet(store: Path, /, **settings: Any) -> ZarrDrivAerNetDataset:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        return ZarrDrivAerNetDataset(ZarrDrivAerNetDatasetConfig(**{"root": str(store), "split": "train", **settings}))


# --- items --------------------------------------------------------------------------------------------------------


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


def test_only_the_fields_asked_for_are_read(root: Path) -> None:
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


# --- workers ------------------------------------------------------------------------------------------------------


def batches(loader: DataLoader[Any]) -> list[list[float]]:
    return [batch["volume_pressure"].flatten().tolist() for batch in loader]


@pytest.mark.parametrize("method", ["fork", "forkserver", "spawn"])
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


# --- batches ------------------------------------------------------------------------------------------------------


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


def test_a_data_loader_takes_batches_as_they_are_read(root: Path) -> None:
    dataset = drivaernet(root, **SIZES)
    for loaded in (DataLoader(dataset, batch_size=2), DataLoader(Subset(dataset, range(5)), 2, num_workers=1)):
        for place, batch in enumerate(loaded):
            expected = default_collate([dataset[i] for i in range(5)[2 * place : 2 * place + 2]])
            assert_batches_equal(batch, expected)


def test_a_batch_is_one_wave_of_one_request_a_field(root: Path) -> None:
    made: list[CountingObjects] = []

    def counting(url: str) -> CountingObjects:
        made.append(CountingObjects(open_objects(url)))
        return made[-1]

    config = ZarrDrivAerNetDatasetConfig(root=str(root), split="train", fields=FIELDS[:3], **SIZES)
    with pytest.warns(UserWarning, match="absent"):
        dataset = ZarrDrivAerNetDataset(config, objects_factory=counting)
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
        with pytest.raises(ZarrCoreError, match=r"volume_position: items of shapes \(131, 3\), \(132, 3\).*num_volume"):
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


# --- which samples ------------------------------------------------------------------------------------------------


@given(
    n=st.integers(0, 12),
    part=st.one_of(
        st.integers(-15, 15),
        st.tuples(*[st.none() | st.integers(-15, 15)] * 2, st.none() | st.integers(-4, 4).filter(bool)),
    ),
)
def test_parts_of_a_split_are_what_python_takes_of_a_list(n: int, part: Any) -> None:
    ids = [f"run_{number}" for number in range(n)]
    text = str(part) if isinstance(part, int) else ":".join("" if x is None else str(x) for x in part)
    name, parsed = parse_split(f"train[{text}]")
    assert name == "train"
    if isinstance(part, int):
        try:
            expected = [ids[part]]
        except IndexError:
            with pytest.raises(ZarrCoreError, match=f"index {part} is out of range"):
                take_part(ids, parsed)
            return
    else:
        expected = ids[slice(*part)]
    assert take_part(ids, parsed) == expected


@pytest.mark.parametrize(
    "split",
    ["train[", "train]", "train[]", "train[ ]", "train[a]", "train[1:2:3:4]", "train[::0]", "", "a b", "t[1][2]"],
)
def test_splits_in_no_known_form_are_refused(split: str) -> None:
    with pytest.raises(ValidationError, match="split"):
        ZarrPointDatasetConfig(root="x", split=split)


def test_a_split_loses_blacklisted_and_absent_samples_with_one_warning(root: Path) -> None:
    with pytest.warns(UserWarning, match=r"1 of 6 samples of split 'train' are absent.*A_B_404") as caught:
        dataset = ZarrDrivAerNetDataset(ZarrDrivAerNetDatasetConfig(root=str(root), split="train"))
    assert len(caught) == 1
    assert caught[0].filename == __file__
    assert dataset.sample_ids == ["A_B_001", "A_B_002", "A_C_001", "A_C_002", "A_B_004"]
    assert len(dataset) == 5
    with pytest.raises(IndexError):
        dataset[5]


@pytest.mark.parametrize(
    ("split", "expected"),
    [
        ("train[0]", ["A_B_001"]),
        ("train[-1]", ["A_B_004"]),
        ("train[:2]", ["A_B_001", "A_B_002"]),
        ("train[0:3:2]", ["A_B_001", "A_B_004"]),
    ],
)
def test_parts_are_taken_after_everything_else(root: Path, split: str, expected: list[str]) -> None:
    assert drivaernet(root, split=split, filter_categories=["A_B"]).sample_ids == expected


def test_nothing_left_says_where_the_samples_went(root: Path) -> None:
    with pytest.raises(ZarrCoreError, match=r"'test' lists 1 samples, of which 0 exist"):
        drivaernet(root, split="test")
    with pytest.raises(ZarrCoreError, match=r"0 have a category of A_X \(the categories are: A_B, A_C\)"):
        drivaernet(root, filter_categories=["A_X"])
    with pytest.raises(ZarrCoreError, match=r"'train\[5\]': index 5 is out of range for 5 samples"):
        drivaernet(root, split="train[5]")
    with pytest.raises(ZarrCoreError, match=r"'train\[9:\]' selects no sample"):
        drivaernet(root, split="train[9:]")
    with pytest.raises(UnknownFieldError, match=r"no split 'trian'.*train, val, test"):
        drivaernet(root, split="trian")


def test_a_published_store_without_splits_goes_by_the_rule_of_its_kind(tmp_path: Path) -> None:
    """AhmedML and DrivAerML are cut from one permutation; the first numbers of it are a fact of the datasets."""
    numbers = (torch.randperm(500, generator=torch.Generator().manual_seed(42)) + 1).tolist()
    made = iter(make_samples(3).values())
    ids = [f"run_{numbers[place]}" for place in (3, 401, 499)]
    store = write_published_store(tmp_path / "caeml", {i: next(made) for i in ids}, CHUNK)
    with pytest.warns(UserWarning, match="399 of 400"):
        assert ZarrAhmedMLDataset(ZarrAhmedMLDatasetConfig(root=str(store), split="train")).sample_ids == ids[:1]
    with pytest.warns(UserWarning, match="49 of 50"):
        assert ZarrAhmedMLDataset(ZarrAhmedMLDatasetConfig(root=str(store), split="test")).sample_ids == ids[2:]
    config = ZarrDrivAerMLDatasetConfig(root=str(store), split="val")
    with pytest.warns(UserWarning, match="33 of 34"):
        assert ZarrDrivAerMLDataset(config).sample_ids == ids[2:]
    with pytest.raises(UnknownFieldError, match="no split 'train'"):
        ZarrPointDataset(ZarrPointDatasetConfig(root=str(store), split="train"))

    cars = {f"param{k}/abc": sample for k, sample in zip((0, 3), make_samples(2).values(), strict=True)}
    store = write_published_store(tmp_path / "cars", cars, CHUNK)
    dataset = ZarrShapeNetCarDataset(ZarrShapeNetCarDatasetConfig(root=str(store), split="test"))
    assert dataset.sample_ids == ["param0/abc"]
    with pytest.raises(UnknownFieldError, match=r"no split 'val'.*train, test"):
        ZarrShapeNetCarDataset(ZarrShapeNetCarDatasetConfig(root=str(store), split="val"))


# --- normalisation ------------------------------------------------------------------------------------------------

NORMALIZERS = {
    "surface_position": {"kind": "position", "scale": 1000},
    "volume_position": "position",
    "surface_pressure": "mean_std",
    "surface_velocity": "logscale_mean_std",
    "volume_velocity": {"kind": "mean_std"},
}


def test_normalizers_use_the_statistics_and_have_an_inverse(root: Path, samples: dict[str, Any]) -> None:
    plain = drivaernet(root, num_geometry_points=9)
    normal = drivaernet(root, num_geometry_points=9, normalizers=NORMALIZERS)
    for index in range(len(plain)):
        raw, item = plain[index], normal[index]
        position = 1000 * (raw["surface_position"].double() + 3) / 143
        torch.testing.assert_close(item["surface_position"], position.float())
        torch.testing.assert_close(item["volume_position"], ((raw["volume_position"].double() + 3) / 143).float())
        geometry = 1000 * (raw["geometry_position"].double() + 3) / 143
        torch.testing.assert_close(item["geometry_position"], geometry.float())
        assert torch.equal(item["volume_pressure"], raw["volume_pressure"])
        for name, tensor in item.items():
            assert tensor.dtype == torch.float32
            assert tensor.shape == raw[name].shape
            torch.testing.assert_close(normal.denormalize(name, tensor), raw[name], rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("field", ["surface_pressure", "surface_velocity", "volume_velocity"])
def test_normalised_values_have_mean_0_and_deviation_1(tmp_path: Path, root: Path, field: str) -> None:
    dataset = drivaernet(root, normalizers=NORMALIZERS)
    # The statistics are of all samples; blacklisted A_B_003 is among them.
    reader = ZarrChunkReader(root)
    normalizer = dataset._normalizers[field]
    values = torch.cat([torch.from_numpy(reader.read_sample(i)[field].astype(np.float64)) for i in IDS])
    normal = normalizer.normalize(values)
    torch.testing.assert_close(normal.mean(0), torch.zeros(values.shape[1], dtype=torch.float64), atol=1e-9, rtol=0)
    torch.testing.assert_close(normal.std(0), torch.ones(values.shape[1], dtype=torch.float64))


def test_denormalize_takes_predictions_as_they_come(root: Path) -> None:
    dataset = drivaernet(root, split="val", normalizers=NORMALIZERS)
    flat = torch.randn(5, requires_grad=True)
    physical = dataset.denormalize("surface_pressure", flat)
    physical.sum().backward()
    assert flat.grad is not None
    assert (flat.grad > 0).all()
    assert torch.equal(dataset.denormalize("surface_pressure", flat.reshape(1, 5, 1)).flatten(), physical)
    half = dataset.denormalize("volume_velocity", torch.zeros(2, 4, 3, dtype=torch.bfloat16))
    exact = dataset.denormalize("volume_velocity", torch.zeros(2, 4, 3))
    assert half.dtype == torch.float32
    assert torch.equal(half, exact)
    with pytest.raises(ZarrCoreError, match=r"surface_velocity.*\(4, 1\).*3"):
        dataset.denormalize("surface_velocity", torch.zeros(4, 1))
    with pytest.raises(UnknownFieldError, match="wake_pressure"):
        dataset.denormalize("wake_pressure", flat)


def test_a_constant_field_is_shifted_only(tmp_path: Path) -> None:
    sample = make_samples(1)["run_1"]
    sample["surface_velocity"] = np.full((51, 3), 8.0, np.float16)
    store = write_published_store(tmp_path, {"run_1": sample}, CHUNK, splits={"train": ["run_1"]})
    (store / "stats.yaml").write_text(
        "surface_velocity_mean: [8, 8.000001, 7]\nsurface_velocity_std: [0, 1.0e-9, 0.5]\n"
    )
    config = ZarrPointDatasetConfig(root=str(store), split="train", normalizers={"surface_velocity": "mean_std"})
    dataset = ZarrPointDataset(config)
    values = dataset[0]["surface_velocity"]
    torch.testing.assert_close(values, torch.tensor([0.0, 0.0, 2.0]).expand(51, 3), atol=1e-5, rtol=0)
    torch.testing.assert_close(dataset.denormalize("surface_velocity", values), torch.full((51, 3), 8.0))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, r"no stats\.yaml.*python -m zarr_core\.statistics --store .* --split train"),
        ("surface_pressure_mean: 1.0\n", r"no 'surface_pressure_std'.*zarr_core\.statistics"),
        ("surface_pressure_mean: .nan\nsurface_pressure_std: 1.0\n", "surface_pressure_mean is nan"),
        ("surface_pressure_mean: abc\nsurface_pressure_std: 1.0\n", "surface_pressure_mean is 'abc'"),
        ("surface_pressure_mean: [1.0, 2.0]\nsurface_pressure_std: 1.0\n", "has 2 components, surface_pressure has 1"),
        ("{", "is not valid YAML"),
        ("- 1\n", "is not a mapping"),
    ],
)
def test_unusable_statistics_are_named(tmp_path: Path, content: str | None, message: str) -> None:
    store = write_published_store(tmp_path, make_samples(1), CHUNK, splits={"train": ["run_1"]})
    if content is not None:
        (store / "stats.yaml").write_text(content)
    with pytest.raises(ZarrCoreError, match=message):
        ZarrPointDataset(
            ZarrPointDatasetConfig(root=str(store), split="train", normalizers={"surface_pressure": "mean_std"})
        )


# --- configs ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"num_surface_points": 0}, "num_surface_points"),
        ({"num_volume_points": -1}, "num_volume_points"),
        ({"num_geometry_points": 0}, "num_geometry_points"),
        ({"num_points": {"surface": 3}}, "num_points"),  # for the general dataset only
        ({"num_surface_point": 3}, "num_surface_point"),
        ({"read_concurrency": 0}, "read_concurrency"),
        ({"fields": []}, "fields"),
        ({"filter_categories": []}, "filter_categories"),
        ({"normalizers": {"surface_pressure": "min_max"}}, "min_max"),
        ({"normalizers": {"surface_pressure": "position"}}, "applies to positions only"),
        ({"normalizers": {"surface_position": {"kind": "position", "scale": 0}}}, "scale"),
        ({"normalizers": {"surface_pressure": {"kind": "mean_std", "scale": 2}}}, "scale"),
    ],
)
def test_wrong_settings_are_refused_by_name(root: Path, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        ZarrDrivAerNetDatasetConfig(root=str(root), split="train", **settings)
    with pytest.raises(ZarrCoreError, match=message):
        build_dataset({"kind": "drivaernet", "root": str(root), "split": "train", **settings})


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"fields": ["surface_presure"]}, "surface_presure"),
        ({"normalizers": {"surface_presure": "mean_std"}}, "surface_presure"),
        ({"root": "/nowhere/at/all"}, r"manifest\.json"),
    ],
)
def test_settings_that_the_store_cannot_meet_are_refused_before_the_first_item(
    root: Path, settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(ZarrCoreError, match=message):
        drivaernet(root, **settings)


KINDS = {
    "point": "ZarrPointDataset",
    "shapenet_car": "ZarrShapeNetCarDataset",
    "ahmedml": "ZarrAhmedMLDataset",
    "drivaerml": "ZarrDrivAerMLDataset",
    "drivaernet": "ZarrDrivAerNetDataset",
    "emmi_wing": "ZarrEmmiWingDataset",
}


@pytest.mark.parametrize("short", KINDS)
def test_yaml_names_the_kind_shortly_or_by_dotted_path(tmp_path: Path, short: str) -> None:
    store = write_published_store(tmp_path / "store", make_samples(1), CHUNK, splits={"train": ["run_1"]})
    for kind in (short, f"zarr_core.datasets.{KINDS[short]}"):
        config = tmp_path / "dataset.yaml"
        settings = {"kind": kind, "root": str(store), "split": "train", "num_surface_points": 4}
        config.write_text(yaml.safe_dump(settings))
        dataset = build_dataset(config)
        assert type(dataset) is getattr(datasets, KINDS[short])
        assert type(dataset.config) is getattr(datasets, f"{KINDS[short]}Config")
        assert len(dataset[0]["surface_pressure"]) == 4
    # The config's own kind leads back to the class.
    config_class = getattr(datasets, f"{KINDS[short]}Config")
    again = build_dataset(config_class(root=str(store), split="train").model_dump())
    assert type(again) is getattr(datasets, KINDS[short])


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("root: x\nsplit: train\n", "kind is missing"),
        ("kind: ahmed\nroot: x\nsplit: train\n", "no dataset kind 'ahmed'.*ahmedml"),
        ("kind: no.such.module\nroot: x\nsplit: train\n", "no.such.module"),
        ("kind: zarr_core.datasets.AhmedMLDataset\nroot: x\nsplit: train\n", "not a subclass of ZarrPointDataset"),
        ("kind: ahmedml\n", "root: Field required; split: Field required"),
        ("[1, 2]", "must contain a mapping"),
        ("{", "cannot be read"),
        (None, "cannot be read"),
    ],
)
def test_unusable_yaml_is_named(tmp_path: Path, content: str | None, message: str) -> None:
    path = tmp_path / "dataset.yaml"
    if content is not None:
        path.write_text(content)
    with pytest.raises(ZarrCoreError, match=message) as caught:
        build_dataset(path)
    assert "dataset.yaml" in str(caught.value)


# --- .pt trees, and stores that were really converted from them ---------------------------------------------------


def write_tree(folder: Path, sample_ids: list[str], sizes: dict[str, int]) -> Path:
    """An AhmedML tree; scalars as (N, 1) in one field and (N,) in another, as in the published files."""
    generator = torch.Generator().manual_seed(0)
    for sample_id in sample_ids:
        (folder / sample_id).mkdir(parents=True)
        for field, file in resolve_kind("ahmedml").fields.items():
            dim = 1 if field.endswith("pressure") else 3
            values = torch.randn(sizes[file.domain], dim, generator=generator)
            torch.save(values.squeeze(1) if field == "surface_pressure" else values, folder / sample_id / file.filename)
    return folder


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tree(tmp_path_factory.mktemp("tree"), TRAIN_IDS, {"surface": 300, "volume": 700})


TRAIN_IDS = resolve_kind("ahmedml").splits.assign([], lambda name: None)["train"][:3]


def compare_store_with_tree(tree: Path, store: Path, values_tolerance: float) -> None:
    """Every row of every field of every item is the source's, in shuffled order, and drawn rows are rows of it."""
    settings = {"root": str(store), "split": "train"}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        whole = ZarrAhmedMLDataset(ZarrAhmedMLDatasetConfig(**settings))
        drawn = ZarrAhmedMLDataset(
            ZarrAhmedMLDatasetConfig(**settings, num_surface_points=64, num_volume_points=100, num_geometry_points=32)
        )
        source = AhmedMLDataset(tree, "train")
    assert whole.sample_ids == source.sample_ids[: len(whole)]
    for index, sample_id in enumerate(whole.sample_ids):
        stored, original, part = whole[index], source[index], drawn[index]
        assert set(stored) == set(original)
        for name, values in original.items():
            order = shuffle_permutation(0, sample_id, name.partition("_")[0], len(values))
            tolerance = 0 if name.endswith("position") else values_tolerance
            torch.testing.assert_close(stored[name], values[order], rtol=tolerance, atol=tolerance)
        for domain in ("surface", "volume"):
            rows = {tuple(row): place for place, row in enumerate(stored[f"{domain}_position"].tolist())}
            places = [rows[tuple(row)] for row in part[f"{domain}_position"].tolist()]
            assert len(set(places)) == {"surface": 64, "volume": 100}[domain]
            for name in original:
                if name.startswith(domain):
                    assert torch.equal(part[name], stored[name][places])


def test_a_converted_store_gives_the_rows_of_its_source(tree: Path, tmp_path: Path) -> None:
    convert("zarr_core.datasets.AhmedMLDataset", tmp_path, root=tree, chunk_points=64)
    compare_store_with_tree(tree, tmp_path, values_tolerance=2**-10)


@pytest.mark.skipif(not SHARED.exists(), reason="needs ../shared/data")
def test_real_runs_converted_give_the_rows_of_their_source(tmp_path: Path) -> None:
    runs = SHARED / "data" / "ahmed_rans"
    with pytest.warns(UserWarning, match="absent"):
        some = AhmedMLDataset(runs, "train[:4]").sample_ids
    convert("ahmedml", tmp_path, root=runs, sample_ids=some, chunk_points=4096)
    compare_store_with_tree(runs, tmp_path, values_tolerance=2**-9)


def test_statistics_of_a_converted_store_normalise_its_items(tree: Path, tmp_path: Path) -> None:
    convert("ahmedml", tmp_path, root=tree, chunk_points=64)
    write_statistics(str(tmp_path), calculate_store_statistics(str(tmp_path)), of="all samples")
    normalizers = {
        "volume_velocity": "mean_std",
        "volume_pressure": "logscale_mean_std",
        "surface_position": "position",
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        dataset = build_dataset(
            {"kind": "ahmedml", "root": str(tmp_path), "split": "train", "normalizers": normalizers}
        )
    for name in ("volume_velocity", "volume_pressure"):
        values = torch.cat([dataset[i][name] for i in range(len(dataset))])
        torch.testing.assert_close(values.mean(0), torch.zeros_like(values[0]), atol=1e-5, rtol=0)
        torch.testing.assert_close(values.std(0), torch.ones_like(values[0]), atol=1e-4, rtol=0)
    positions = torch.cat([dataset[i]["surface_position"] for i in range(len(dataset))])
    assert positions.min() >= 0
    assert positions.max() <= 1


def test_pt_datasets_give_whole_fields_and_what_a_converter_asks_for(tree: Path) -> None:
    with pytest.warns(UserWarning, match="397 of 400"):
        dataset = AhmedMLDataset(tree, "train")
    assert dataset.sample_ids == TRAIN_IDS
    assert dataset.filemap["volume_pressure"] == "volume_cell_totalpcoeff.pt"
    assert torch.equal(dataset._load(1, "surface_pressure.pt"), torch.load(tree / TRAIN_IDS[1] / "surface_pressure.pt"))
    item = dataset[1]
    assert {name: tuple(values.shape) for name, values in item.items()} == {
        "surface_position": (300, 3),
        "surface_pressure": (300,),
        "surface_friction": (300, 3),
        "volume_position": (700, 3),
        "volume_pressure": (700,),
        "volume_velocity": (700, 3),
        "volume_vorticity": (700, 3),
    }
    with pytest.raises(ZarrCoreError, match=r"no split 'all'.*train, val, test"):
        AhmedMLDataset(tree, "all")
    with pytest.raises(ZarrCoreError, match=r"no file 'other\.pt'"):
        dataset._load(0, "other.pt")


def test_a_user_describes_a_pt_dataset_of_their_own(tmp_path: Path) -> None:
    (tmp_path / "case_1").mkdir()
    torch.save(torch.zeros(5, 3), tmp_path / "case_1" / "xyz.pt")
    torch.save({"speed": torch.tensor(3.0)}, tmp_path / "case_1" / "setup.pt")
    (tmp_path / "case_2").mkdir()
    torch.save(torch.zeros(5, 3), tmp_path / "case_2" / "xyz.pt")
    (tmp_path / "train_design_ids.txt").write_text("case_1\ncase_2\n")
    (tmp_path / "bad.txt").write_text("case_2\n")
    (tmp_path / "kind.yaml").write_text(
        "name: cases\nsamples: case_*\nblacklists: [bad.txt]\n"
        "files: {surface_position: xyz.pt, design_parameters: setup.pt}\n"
    )

    class CaseDataset(PtDataset):
        description = str(tmp_path / "kind.yaml")

    dataset = CaseDataset(tmp_path)
    assert dataset.sample_ids == ["case_1"]
    assert list(dataset[0]) == ["surface_position"]
    assert dataset._load(0, "setup.pt") == {"speed": 3.0}
    (tmp_path / "case_1" / "xyz.pt").write_bytes(b"PK")
    with pytest.raises(SampleError, match=r"case_1, surface_position.*xyz\.pt"):
        dataset[0]


def test_datasets_do_not_import_dagster() -> None:
    code = "import sys, zarr_core.datasets; assert not [name for name in sys.modules if name.startswith('dagster')]"
    subprocess.run([sys.executable, "-c", code], check=True)
