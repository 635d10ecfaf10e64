"""Parameters, sample ids, keys and transforms of items and batches."""

from __future__ import annotations

import pickle
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils.data import ConcatDataset, DataLoader

from zarr_core import Collate, build_dataset, write_sample
from zarr_core._util.repeated import Repeated
from zarr_core.datasets import MixedDataset, Normalizers, ZarrPointDataset, ZarrPointDatasetConfig
from zarr_core.errors import UnknownFieldError, ZarrCoreError
from zarr_core.info import format_sample, sample_info
from zarr_core.loader import EpochBatchSampler, ResumableLoader
from zarr_core.statistics import calculate_store_statistics, write_statistics
from zarr_core.storage.byte_ranges import CountingObjects, open_objects

IDS = [f"case_{number}" for number in range(6)]
POINTS = 40


def drag(sample_id: str) -> float:
    return 0.25 * int(sample_id[-1]) - 0.5


def inflow(sample_id: str) -> list[float]:
    return [30.0, int(sample_id[-1]) / 4, -drag(sample_id)]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> str:
    place = str(tmp_path_factory.mktemp("items") / "store")
    for number, sample_id in enumerate(IDS):
        rng = np.random.default_rng(number)
        arrays = {
            "surface_position": rng.normal(size=(POINTS, 3)),
            "surface_pressure": np.arange(POINTS, dtype=np.float32),
            "wake_position": rng.normal(size=(POINTS + number, 3)),
            "wake_speed": rng.normal(size=POINTS + number),
        }
        parameters = {"drag": drag(sample_id), "gears": number, "name": "a", "inflow": inflow(sample_id)}
        settings = {} if number else {"chunk_points": 16}
        write_sample(place, sample_id, arrays, split="train", parameters=parameters, dataset_name="cars", **settings)
    return place


def opened(store: str, **settings: Any) -> ZarrPointDataset:
    config = {"kind": "point", "root": store, "split": "train", "num_surface_points": 8, "num_wake_points": 4}
    dataset = build_dataset(config | settings)
    dataset.set_epoch(0)
    return dataset


def double(item: Any) -> Any:
    return item | {"surface_pressure": 2 * item["surface_pressure"]}


def as_pair(item: Any) -> Any:
    return item["surface_position"], item["surface_pressure"]


def first_half(batch: Any) -> Any:
    return {name: values[:1] for name, values in batch.items()}


def same(one: Any, other: Any) -> bool:
    assert one.keys() == other.keys()
    return all(
        torch.equal(one[name], other[name]) if torch.is_tensor(one[name]) else one[name] == other[name] for name in one
    )


CASES: list[dict[str, Any]] = [
    {},
    {"parameters": ["gears", "drag"], "with_sample_id": True, "with_index": True},
    {"item": {"x": ["surface_position", "drag"], "y": "surface_pressure", "id": "sample_id"}, "parameters": ["drag"]},
    {"item": {"mu": ["drag", "gears"], "p": ["surface_pressure"]}, "parameters": ["drag", "gears"]},
    {"transform": double},
    {"transform": f"{__name__}.double", "with_sample_id": True},
    {"batch_transform": double, "parameters": ["drag"]},
    {"item": {"x": ["surface_position", "inflow"], "mu": ["drag", "inflow"]}, "parameters": ["inflow", "drag"]},
    {"num_wake_points": None, "parameters": ["drag"], "fields": ["surface_pressure"]},
]


@pytest.mark.parametrize("settings", CASES, ids=lambda settings: " ".join(settings) or "defaults")
def test_batches_consist_of_the_items_with_every_loader(store: str, settings: dict[str, Any]) -> None:
    dataset = opened(store, **settings)
    expected = [dataset[index] for index in range(len(dataset))]
    for copied in (dataset, pickle.loads(pickle.dumps(dataset))):
        sampler = EpochBatchSampler.of(copied, 3, shuffle=False)
        for loader in (
            DataLoader(copied, batch_size=3),
            ResumableLoader(copied, sampler),
            ResumableLoader(copied, sampler, num_threads=2),
        ):
            sampler.set_epoch(0)
            for number, batch in enumerate(loader):
                for row in range(3):
                    assert same({name: values[row] for name, values in batch.items()}, expected[3 * number + row])


def test_worker_processes_make_the_same_items(store: str) -> None:
    settings: Any = {"parameters": ["drag"], "item": {"x": ["surface_position", "drag"], "id": "sample_id"}}
    dataset = opened(store, **settings)
    one, other = (
        list(DataLoader(dataset, batch_size=3, num_workers=workers, multiprocessing_context=method))
        for workers, method in ((0, None), (1, "forkserver"))
    )
    assert all(same(left, right) for left, right in zip(one, other, strict=True))


def test_parameters_are_float32_and_joined_to_every_point(store: str) -> None:
    settings: Any = {"parameters": ["drag"], "item": {"x": ["surface_position", "drag"], "mu": ["drag"], "cd": "drag"}}
    (batch,) = DataLoader(opened(store, **settings), batch_size=6)
    drags = torch.tensor([drag(sample_id) for sample_id in IDS])
    assert torch.equal(batch["cd"], drags)
    assert torch.equal(batch["mu"], drags[:, None])
    assert batch["x"].shape == (6, 8, 4)
    assert torch.equal(batch["x"][:, :, 3], drags[:, None].expand(6, 8))
    assert opened(store, **settings)[2]["cd"].shape == ()
    plain = opened(store)
    assert torch.equal(batch["x"][0, :, :3], plain[0]["surface_position"])


def test_a_key_of_an_item_in_place_of_a_field_is_named(store: str) -> None:
    dataset = opened(store, item={"y": "surface_pressure", "x": ["surface_position", "surface_pressure"]})
    for key, meant in (("y", "y is surface_pressure"), ("x", "x is surface_position, surface_pressure")):
        with pytest.raises(UnknownFieldError, match=rf"no field '{key}'; fields are .*; {meant} \(item\)$"):
            dataset.denormalize(key, torch.zeros(3, 1))


def test_only_the_fields_of_the_item_are_read(store: str) -> None:
    dataset = opened(store, item={"y": "surface_pressure"})
    assert dataset.reader.draws(dataset._selection, IDS[0]).names == ["surface_pressure"]
    assert list(dataset[0]) == ["y"]
    assert dataset.fingerprint != opened(store).fingerprint
    assert dataset.fingerprint == opened(store, fields=["surface_pressure"]).fingerprint


def test_parameters_are_normalized_by_statistics_or_by_numbers(store: str) -> None:
    statistics = calculate_store_statistics(store, split="train")
    drags = np.array([drag(sample_id) for sample_id in IDS])
    assert statistics["drag_mean"] == pytest.approx(drags.mean())
    assert statistics["drag_std"] == pytest.approx(drags.std(ddof=1))
    assert "name_mean" not in statistics
    assert "drag_mean" not in calculate_store_statistics(store, fields=["surface_pressure"])
    generation = opened(store).reader.manifest.generation
    write_statistics(store, statistics, of="split train", split="train", generation=generation)
    dataset = opened(store, parameters=["drag"], normalizers={"drag": "mean_std", "surface_pressure": "mean_std"})
    normalized = torch.stack([dataset[index]["drag"] for index in range(6)])
    assert normalized.mean().item() == pytest.approx(0, abs=1e-6)
    assert torch.allclose(dataset.denormalize("drag", normalized), torch.from_numpy(drags).float())
    again = opened(store, parameters=["drag"], normalizers=dataset.normalizers)
    assert torch.equal(again[3]["drag"], dataset[3]["drag"])
    stored = opened(store, parameters=["drag"], normalizers=dataset.normalizers, dtype="stored", with_sample_id=True)
    (batch,) = DataLoader(stored, batch_size=6)
    assert torch.equal(batch["drag"], torch.from_numpy(drags)), "as recorded"
    for on_the_device in (stored.normalize(batch), Normalizers(stored.normalizers).normalize(batch)):
        assert torch.equal(on_the_device["drag"], normalized)
        assert on_the_device["sample_id"] == IDS


def test_arrays_are_normalized_by_component(store: str) -> None:
    statistics = calculate_store_statistics(store, split="train")
    rows = np.array([inflow(sample_id) for sample_id in IDS])
    np.testing.assert_allclose(statistics["inflow_mean"], rows.mean(axis=0))
    np.testing.assert_allclose(statistics["inflow_std"], rows.std(axis=0, ddof=1), atol=1e-12)
    generation = opened(store).reader.manifest.generation
    write_statistics(store, statistics, of="split train", split="train", generation=generation)
    (plain,) = DataLoader(opened(store, parameters=["drag", "inflow"]), batch_size=6)
    assert torch.equal(plain["inflow"], torch.tensor(rows, dtype=torch.float32))
    for kind in ("mean_std", "min_max", "logscale_mean_std"):
        dataset = opened(store, parameters=["inflow"], normalizers={"inflow": kind})
        (batch,) = DataLoader(dataset, batch_size=6)
        assert batch["inflow"].shape == (6, 3)
        assert torch.allclose(dataset.denormalize("inflow", batch["inflow"]), plain["inflow"], atol=1e-5)
        again = opened(store, parameters=["inflow"], normalizers=dataset.normalizers)
        assert torch.equal(again[3]["inflow"], dataset[3]["inflow"])
        if kind == "mean_std":  # the first component is constant
            assert torch.allclose(batch["inflow"].std(dim=0), torch.tensor([0.0, 1.0, 1.0]), atol=1e-5)
    for wrong, message in (([1.0], "its normalizer has 1 comp"), ([1.0] * 4, "its normalizer has 4 comp")):
        fixed = {"inflow": {"kind": "fixed", "shift": wrong, "unit": wrong}}
        with pytest.raises(ZarrCoreError, match=f"case_0: parameter 'inflow' is a list of 3 numbers; {message}"):
            opened(store, parameters=["inflow"], normalizers=fixed)


def test_an_array_of_another_length_is_named(tmp_path: Path) -> None:
    place = str(tmp_path / "store")
    position = {"surface_position": np.ones((3, 3))}
    for sample_id, value in (("a", [1.0, 2.0]), ("b", torch.tensor([1.0, 2.0, 4.0])), ("c", 5.0)):
        write_sample(place, sample_id, position, split="train", parameters={"inflow": value, "drag": value})
    dataset = build_dataset({"kind": "point", "root": place, "split": "train", "parameters": ["inflow"]})
    with pytest.raises(ZarrCoreError, match="b: parameter 'inflow' is a list of 3 numbers; in a it is a list of 2"):
        next(iter(DataLoader(dataset, batch_size=2)))
    with pytest.raises(ZarrCoreError, match="c: parameter 'inflow' is a number; in a it is a list of 2 numbers"):
        pickle.loads(pickle.dumps(dataset))[2]
    with pytest.warns(UserWarning, match="differs between samples have no statistics: drag, inflow"):
        statistics = calculate_store_statistics(place)
    assert "surface_position_mean" in statistics
    assert "inflow_mean" not in statistics


def test_an_array_that_is_called_position_is_no_position(tmp_path: Path) -> None:
    arrays = {"surface_position": np.ones((3, 3))}
    write_sample(str(tmp_path / "store"), "a", arrays, parameters={"inlet_position": [70.0, 80.0, 90.0]})
    statistics = calculate_store_statistics(tmp_path / "store")
    assert (statistics["inlet_position_max"], statistics["raw_pos_max"]) == ([70.0, 80.0, 90.0], 1.0)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"parameters": ["lift"]},
            "case_0: no parameter 'lift'; the sample's parameters are drag, gears, name, inflow",
        ),
        ({"parameters": ["name"]}, "case_0: parameter 'name' is 'a', not a number or a list of numbers"),
        (
            {"parameters": ["name"], "normalizers": {"name": "mean_std"}},
            "'name_mean', which the normalizer of name needs; .*no sample has a number of this name .text cannot be",
        ),
        (
            {"item": {"y": "wake_speed", "x": "surface_presure"}},
            "item names 'surface_presure', which is not read; fields are .*parameters",
        ),
        ({"parameters": ["drag", "surface_pressure"]}, "items have 'surface_pressure' already, which the"),
        ({"parameters": ["index"], "item": {"x": ["surface_pressure", "index"]}}, "items have 'index' already"),
        ({"item": {"x": ["sample_id"]}}, "sample_id is text"),
        ({"item": {"x": "drag"}, "parameters": ["drag"]}, "no field is left to read; item names drag; .*and item"),
        ({"normalizers": {"drag": "mean_std"}}, r"'drag', which is not a field; .*`parameters: \[...\]`"),
        ({"batch_transform": double, "collate": "pad"}, "before collate; use transform"),
        ({"item": {"x": []}}, "item"),
        ({"item": {"x": "surface_pressure"}, "dtype": "stored"}, "item forms keys of float32"),
        ({"transform": "no.such.function"}, "transform: no.such.function"),
        ({"transform": f"{__name__}.POINTS"}, "is not a function"),
        ({"num_wakes_points": 4}, "no domain 'wakes'; domains are surface, wake"),
    ],
)
def test_items_that_cannot_be_made_are_refused_when_the_dataset_is_opened(
    store: str, settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(ZarrCoreError, match=message):
        opened(store, **settings)


def test_items_that_cannot_be_joined_or_transformed_are_named(store: str) -> None:
    joined = opened(store, item={"x": ["surface_position", "wake_speed"]})
    with pytest.raises(ZarrCoreError, match="item 'x' joins fields of different points.*surface_position has 8, wake"):
        joined[0]
    halved = opened(store, batch_transform=first_half)
    assert halved[0].keys() == opened(store)[0].keys(), "a batch of one"
    with pytest.raises(ZarrCoreError, match="batch_transform: 'surface_position' has 1 entries for 2 items"):
        halved.__getitems__([0, 1])
    unequal = opened(store, batch_transform=double, num_points={}, num_wake_points=POINTS + 9)
    with pytest.raises(ZarrCoreError, match="case_0: batch_transform needs items of one size.*use transform"):
        unequal.__getitems__([0, 1])


def noisy(item: Any) -> Any:
    positions = item["surface_position"]
    item["surface_position"] = positions + torch.randn(positions.shape, generator=item.generator)
    return item


@pytest.mark.parametrize("num_points", [{}, {"num_points": {}, "num_wake_points": POINTS + 9, "collate": "list"}])
def test_noise_of_an_item_is_that_of_its_draw(store: str, num_points: dict[str, Any]) -> None:
    config = {"transform": noisy, **num_points}
    noise, plain = opened(store, **config), opened(store, **config | {"transform": None})

    def added(dataset: Any, index: int) -> Tensor:
        item, other = dataset[index], plain[index]
        assert torch.equal(dataset.__getitems__([index, 1])[0]["surface_position"], item["surface_position"])
        return item["surface_position"] - other["surface_position"]

    for dataset in (noise, plain):
        dataset.set_epoch(3)
    found = added(noise, 2)
    assert torch.equal(added(pickle.loads(pickle.dumps(noise)), 2), found), "in another process"
    assert not torch.allclose(added(noise, 4), found), "of another sample"
    assert not torch.allclose(added(noise, Repeated(2, 1)), found), "of a repetition"
    for dataset in (noise, plain):
        dataset.set_epoch(4)
    assert not torch.allclose(added(noise, 2), found), "of another epoch"


def test_noise_without_an_epoch_is_torchs(store: str) -> None:
    dataset = opened(store, transform=noisy, sampling_seed=None)
    torch.manual_seed(0)
    first, second = (dataset[0]["surface_position"] for _ in range(2))
    torch.manual_seed(0)
    assert torch.equal(dataset[0]["surface_position"], first)
    assert not torch.equal(second, first)
    with pytest.raises(ZarrCoreError, match="item.generator is for functions .* `transform`"):
        noisy(opened(store).__getitems__([0])[0])


def test_a_transform_may_return_what_a_collate_function_takes(store: str) -> None:
    (batch,) = DataLoader(opened(store, transform=as_pair), batch_size=6)
    positions, pressures = batch
    assert positions.shape == (6, 8, 3)
    assert pressures.shape == (6, 8)


@pytest.mark.parametrize("num_points", [{}, {"num_wake_points": None, "collate": "pad"}])
def test_an_error_of_a_transform_names_the_sample(store: str, num_points: dict[str, Any]) -> None:
    with pytest.raises(KeyError, match="speed") as raised:
        next(iter(DataLoader(opened(store, transform=lambda item: item["speed"], **num_points), batch_size=3)))
    assert raised.value.__notes__ == [f"transform of case_0 of {store}"]


def test_stores_of_other_fields_in_one_batch_are_named(store: str) -> None:
    fewer = opened(store, fields=["surface_position"])
    for joined in (ConcatDataset([opened(store), fewer]), ConcatDataset([fewer, opened(store)])):
        with pytest.raises(
            ZarrCoreError, match=rf"surface_pressure: 6 of the 12 items.*no such field \(those of {store}\)"
        ):
            next(iter(DataLoader(joined, batch_size=12)))


class Labelled(ZarrPointDataset):
    def __getitems__(self, indices: Any) -> Any:
        return [
            item | {"label": torch.tensor(index)}
            for index, item in zip(indices, super().__getitems__(indices), strict=True)
        ]


class OfItself(ZarrPointDataset):
    def __getitems__(self, indices: Any) -> Any:
        return [self[index] for index in indices]


def test_an_item_of_a_subclass_that_changes_batches_is_a_part_of_them(store: str) -> None:
    config = opened(store).config
    dataset = Labelled(config)
    dataset.set_epoch(0)
    assert dataset[2]["label"] == 2
    (batch,) = DataLoader(dataset, batch_size=6)
    assert torch.equal(batch["surface_pressure"][2], dataset[2]["surface_pressure"])
    assert len(list(dataset)) == 6
    with pytest.raises(ZarrCoreError, match="OfItself.__getitems__ reads items of OfItself.*super"):
        OfItself(config)[0]


def test_a_sample_without_the_parameter_is_named(store: str, tmp_path: Path) -> None:
    place = str(tmp_path / "store")
    for sample_id, parameters in (("a", {"drag": 1.0}), ("b", {})):
        write_sample(place, sample_id, {"surface_position": np.ones((3, 3))}, split="train", parameters=parameters)
    dataset = build_dataset({"kind": "point", "root": place, "split": "train", "parameters": ["drag"]})
    with pytest.raises(
        UnknownFieldError,
        match=r"store, b: no parameter 'drag'; the sample's parameters are none. Choose .*\(sample_ids\)",
    ):
        next(iter(DataLoader(dataset, batch_size=2)))


def test_whole_samples_are_collated_with_parameters_and_ids(store: str) -> None:
    settings: Any = {"parameters": ["drag", "gears"], "num_wake_points": None}
    keys = {"w": ["wake_speed", "drag"], "mu": ["drag", "gears"], "id": "sample_id"}
    batch: Any = next(iter(DataLoader(opened(store, item=keys, collate="pad", **settings), batch_size=3)))
    assert batch["w"].shape == (3, POINTS + 2, 2)
    assert batch["w_lengths"].tolist() == [POINTS, POINTS + 1, POINTS + 2]
    assert batch["mu"].tolist() == [[drag(name), int(name[-1])] for name in IDS[:3]]
    assert batch["id"] == IDS[:3]
    plain: Any = next(iter(DataLoader(opened(store, collate="concat", **settings), batch_size=2)))
    assert plain["drag"].tolist() == [drag(name) for name in IDS[:2]]
    assert plain["wake_speed"].shape == (2 * POINTS + 1,)


def with_coefficients(item: Any) -> Any:
    return item | {"coefficients": item["drag"].reshape(1), "wake_speed_squared": item["wake_speed"] ** 2}


def only_grouped(item: Any) -> Any:
    return {"x": item["wake_position"].numpy(), "y": item["drag"]}


@pytest.mark.parametrize("way", ["pad", "concat"])
def test_an_array_that_a_transform_adds_is_not_taken_for_points(store: str, way: Any) -> None:
    settings: Any = {"parameters": ["drag"], "num_wake_points": None, "transform": with_coefficients, "collate": way}
    dataset = opened(store, **settings)
    with pytest.raises(
        ZarrCoreError, match=rf"case_0: transform adds 'coefficients' of shape \(1,\).*Collate\('{way}', per_sample="
    ):
        dataset[0]
    grouped: Any = next(iter(DataLoader(opened(store, **settings | {"transform": only_grouped}), batch_size=3)))
    assert "x_lengths" in grouped or "x_ptr" in grouped
    assert grouped["y"].shape == (3,)
    listed = opened(store, **settings | {"collate": "list"})
    batch: Any = next(iter(DataLoader(listed, batch_size=3, collate_fn=Collate(way, per_sample=["coefficients"]))))
    assert batch["coefficients"].tolist() == [[drag(name)] for name in IDS[:3]]
    assert batch["wake_speed_squared"].shape == batch["wake_speed"].shape


def test_a_mixture_passes_parameters_and_ids_on(store: str) -> None:
    settings: Any = {"parameters": ["drag"], "with_sample_id": True}
    mixed = MixedDataset({"one": opened(store, **settings), "other": opened(store, **settings)})
    sampler = EpochBatchSampler.of(mixed, 4, seed=3)
    batch: Any = next(iter(DataLoader(mixed, batch_sampler=sampler)))
    assert batch["drag"].tolist() == [drag(sample_id) for sample_id in batch["sample_id"]]


def test_the_parameters_are_shown_and_the_place_is_absolute(store: str, monkeypatch: pytest.MonkeyPatch) -> None:
    info = sample_info(store, "case_2")
    assert info.parameters == {"drag": 0.0, "gears": 2, "name": "a", "inflow": [30.0, 0.5, -0.0]}
    assert "parameters  drag 0.0, gears 2, name a, inflow [30.0, 0.5, -0.0]" in format_sample(info)
    monkeypatch.chdir(Path(store).parent)
    assert opened("store").lineage["zarr_core.store"] == store


def test_the_blocks_of_the_documentation_run(tmp_path: Path) -> None:
    text = (Path(__file__).parents[2] / "docs" / "datasets.md").read_text()
    blocks = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    place = str(tmp_path / "store")
    rng = np.random.default_rng(0)
    found: dict[str, Any] = {"positions": rng.normal(size=(2000, 3)), "pressure": rng.normal(size=2000)}
    (written,) = (block for block in blocks if "write_sample(" in block)
    written = written.replace('"surface_pressure"', '"surface_friction": positions, "surface_pressure"')
    exec(written.replace("/data/store", place).replace('{"speed": 30.0}', "{'speed': 30.0, 'drag': 0.3}"), found)
    items, transforms = (block.replace("/data/store", place) for block in blocks if "build_dataset(" in block)
    exec(items, found)
    shapes = {key: tuple(value.shape) for key, value in found["item"].items() if key != "id"}
    assert shapes == {"x": (1024, 4), "y": (1024,), "drag": ()}
    assert found["item"]["id"] == "case_1"
    statistics = calculate_store_statistics(place, split="train")
    write_statistics(place, statistics, of="split train", split="train", generation=1)
    exec(transforms, found)
    config, relative = found["config"], found["relative"]
    turned = []
    for epoch in range(8):
        found["dataset"].set_epoch(epoch)
        item = found["normalizers"].inverse(found["dataset"][0])
        plain = build_dataset(config)
        plain.set_epoch(epoch)
        own = plain[0]
        sides = item["surface_position"][:, 1] / own["surface_position"][:, 1]
        turned.append(round(float(sides.median())))
        expected = torch.tensor([1.0, turned[-1], 1.0])
        for name in ("surface_position", "surface_friction"):
            assert torch.allclose(item[name], own[name] * expected, atol=1e-5)
    assert set(turned) == {1, -1}
    for settings in ({"transform": found["noisy"], "batch_transform": relative}, {"batch_transform": relative}):
        dataset = build_dataset(config | settings)
        dataset.set_epoch(0)
        mean = dataset[0]["surface_position"].mean(dim=0)
        assert torch.allclose(mean, torch.zeros(3), atol=1e-6 if dataset.config.transform is None else 2e-3)


def test_parameters_cost_no_request_of_their_own(store: str) -> None:
    """What tells where the fields of a sample lie comes with them."""
    objects = CountingObjects(open_objects(store))
    config = {"kind": "point", "root": store, "split": "train", "num_surface_points": 8, "parameters": ["drag"]}
    dataset = ZarrPointDataset(ZarrPointDatasetConfig(**config), objects_factory=lambda root: objects)
    objects.reset()
    dataset.__getitems__([1, 2])
    assert [requests for key, (requests, _) in objects.by_key.items() if key.endswith("zarr.json")] == [1, 1]
