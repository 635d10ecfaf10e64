from __future__ import annotations

import json
import pickle
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.helpers.drivaernet_store import CHUNK, IDS, NORMALIZERS, drivaernet
from tests.helpers.published_store import make_samples, write_published_store
from tests.helpers.small_source import KIND, write_source
from zarr_core import write_sample
from zarr_core.datasets import (
    Normalizers,
    ZarrPointDataset,
    ZarrPointDatasetConfig,
    build_dataset,
    load_normalizers,
)
from zarr_core.errors import UnknownFieldError, ZarrCoreError
from zarr_core.points.convert.conversion import convert
from zarr_core.points.read.reader import ZarrChunkReader
from zarr_core.points.statistics import calculate_store_statistics, write_statistics
from zarr_core.points.store.head import HEAD
from zarr_core.statistics import main as statistics
from zarr_core.storage import Storage
from zarr_core.versioning.tags import make_tag


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
    normal = normalizer.normalize_(values.clone())
    torch.testing.assert_close(normal.mean(0), torch.zeros(values.shape[1], dtype=torch.float64), atol=1e-9, rtol=0)
    torch.testing.assert_close(normal.std(0), torch.ones(values.shape[1], dtype=torch.float64))


def test_denormalize_accepts_predictions_of_any_shape(root: Path) -> None:
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
    with pytest.raises(ZarrCoreError, match=r"surface_pressure is ndarray, not a tensor; give torch\.as_tensor"):
        dataset.denormalize("surface_pressure", np.zeros(5))  # type: ignore[arg-type]
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


def test_values_that_float32_does_not_hold_are_refused(tmp_path: Path) -> None:
    fields = {"surface_position": np.ones((9, 3)), "surface_power": np.arange(9) * 1e40}
    write_sample(tmp_path, "run_1", fields, split="train", values_dtype="float64", parameters={"mass": 2e41})
    assert statistics([str(tmp_path), "--split", "train", "--quiet"]) == 0
    config = {"kind": "point", "root": str(tmp_path), "split": "train"}
    with pytest.raises(
        ZarrCoreError, match="surface_power: float32 does not hold 8e[+]40; normalize it, or use dtype="
    ):
        build_dataset(config)[0]
    normalized = build_dataset(config | {"normalizers": {"surface_power": "min_max"}})[0]
    assert normalized["surface_power"].max() == 1
    stored = build_dataset(config | {"dtype": "stored"})[0]
    assert stored["surface_power"].max() == 8e40
    with pytest.raises(ZarrCoreError, match="mass: float32 does not hold 2e[+]41"):
        build_dataset(config | {"fields": ["surface_position"], "parameters": ["mass"]})[0]


@pytest.mark.parametrize("kind", ["mean_std", "logscale_mean_std", "min_max"])
def test_a_constant_field_of_float64_is_shifted_only(tmp_path: Path, kind: str) -> None:
    # Sums of such a number are rounded, and so is the recorded mean: their difference is no spread.
    temperature = 293.15 + 1 / 3
    for number, points in enumerate((3000, 41)):
        fields = {"surface_position": np.ones((points, 3)), "surface_temperature": np.full(points, temperature)}
        settings = {} if number else {"values_dtype": "float64", "dataset_name": "cars"}
        write_sample(tmp_path / "store", f"run_{number}", fields, split="train", **settings)
    assert statistics([str(tmp_path / "store"), "--split", "train", "--quiet"]) == 0
    dataset = build_dataset(
        {
            "kind": "point",
            "root": str(tmp_path / "store"),
            "split": "train",
            "normalizers": {"surface_temperature": kind},
        }
    )
    torch.testing.assert_close(dataset[0]["surface_temperature"], torch.zeros(3000), atol=1e-8, rtol=0)


def test_positions_far_from_the_origin_have_the_whole_scale(tmp_path: Path) -> None:
    position = 5e5 + np.linspace(0, 50, 27).reshape(9, 3)
    write_sample(tmp_path, "run_1", {"surface_position": position}, split="train")
    assert statistics([str(tmp_path), "--split", "train", "--quiet"]) == 0
    normalizers = {"surface_position": {"kind": "position", "scale": 1000}}
    item = build_dataset({"kind": "point", "root": str(tmp_path), "split": "train", "normalizers": normalizers})[0]
    assert (item["surface_position"].min(), item["surface_position"].max()) == (0, 1000)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, r"no stats\.yaml.*`zarr-core statistics .* --split train`"),
        ("surface_pressure_mean: 1.0\n", r"no 'surface_pressure_std'.*zarr-core statistics"),
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


@pytest.fixture(scope="module")
def grown(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store of two generations with their statistics: run_1 and run_2; then run_3, of other values, as well."""
    root = tmp_path_factory.mktemp("grown")
    write_source(root / "source", ("run_1", "run_2", "run_3", "run_4"))
    for ids in (["run_1", "run_2", "run_4"], None):  # run_4 is in the test split
        convert(KIND, root / "store", source_url=str(root / "source"), sample_ids=ids, chunk_points=16)
        assert statistics([str(root / "store"), "--split", "train", "--quiet"]) == 0
    return root / "store"


@pytest.fixture
def store(grown: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(grown, tmp_path / "store"))


def normalized(store: Path, **settings: Any) -> ZarrPointDataset:
    config = {"kind": "point", "root": str(store), "split": "train[:2]", "fields": ["surface_pressure"]}
    dataset = build_dataset(config | {"normalizers": {"surface_pressure": "mean_std"}} | settings)
    dataset.set_epoch(0)  # the same points in each dataset
    return dataset


def values(dataset: ZarrPointDataset) -> torch.Tensor:
    return dataset[dataset.sample_ids.index("run_1")]["surface_pressure"]


def test_a_generation_normalizes_with_its_own_statistics(store: Path) -> None:
    make_tag(Storage(store), HEAD, "paper", 1)
    first = calculate_store_statistics(str(store), sample_ids=["run_1", "run_2"])
    raw = values(normalized(store, normalizers={}))
    expected = (raw - first["surface_pressure_mean"]) / first["surface_pressure_std"]
    for generation in (1, "paper"):
        torch.testing.assert_close(values(normalized(store, generation=generation)), expected)
    assert not torch.allclose(values(normalized(store)), expected, atol=0.1)
    assert normalized(store, generation=1).fingerprint != normalized(store, generation=2).fingerprint


def test_a_generation_without_statistics_is_refused_with_the_command(
    store: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    expected = values(normalized(store, generation=1))
    shutil.rmtree(store / "statistics" / "00000001")
    command = rf"zarr-core statistics {store} --split train --generation 1`.*the latest is generation=2"
    with pytest.raises(ZarrCoreError, match=command):
        normalized(store, generation=1)
    published = (store / "stats.yaml").read_bytes()
    assert statistics([str(store), "--split", "train", "--generation", "1"]) == 0
    assert f"wrote {store}/statistics/00000001/train.yaml" in capsys.readouterr().out
    assert torch.equal(values(normalized(store, generation=1)), expected)
    assert (store / "stats.yaml").read_bytes() == published, "it belongs to the current generation"


def test_statistics_of_other_splits_change_nothing_in_training(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    published, expected = (store / "stats.yaml").read_bytes(), values(normalized(store))
    assert published == (store / "statistics" / "00000002" / "train.yaml").read_bytes()
    for options in (["--split", "test"], []):
        assert statistics([str(store), "--quiet", *options]) == 0
    recorded = {path.name for path in (store / "statistics" / "00000002").iterdir()}
    assert recorded == {f"{split}.{suffix}" for split in ("train", "test", "all") for suffix in ("yaml", "json")}
    assert (store / "stats.yaml").read_bytes() == published
    assert torch.equal(values(normalized(store)), expected)
    numbers, test = calculate_store_statistics(str(store), split="train"), {"split": "test"}
    raw = normalized(store, normalizers={}, **test)[0]["surface_pressure"]
    expected = (raw - numbers["surface_pressure_mean"]) / numbers["surface_pressure_std"]
    torch.testing.assert_close(normalized(store, **test)[0]["surface_pressure"], expected)
    capsys.readouterr()
    assert statistics([str(store), "--split-file", "train_design_ids.txt"]) == 2
    assert "--output-json" in capsys.readouterr().err
    with pytest.raises(ZarrCoreError, match="pass generation= and split="):
        write_statistics(str(store), {}, of="something else")


def test_stats_yaml_of_an_earlier_generation_normalizes_no_later_one(tmp_path: Path) -> None:
    root = str(tmp_path / "store")
    fields = {"surface_position": np.ones((9, 3)), "surface_pressure": np.arange(9.0)}
    write_sample(root, "run_1", fields)
    assert statistics([root, "--quiet"]) == 0
    write_sample(root, "run_2", fields | {"surface_pressure": np.arange(100.0, 109)}, split="train")
    command = rf"no statistics/00000002/train\.yaml.*`zarr-core statistics {root} --split train --generation 2`"
    with pytest.raises(ZarrCoreError, match=command):
        normalized(Path(root))


def test_saved_normalizers_outlive_the_statistics_and_the_store(store: Path) -> None:
    settings = {
        "fields": None,
        "num_geometry_points": 8,
        "normalizers": {
            "surface_position": "position",
            "surface_pressure": "mean_std",
            "volume_velocity": "logscale_mean_std",
        },
    }
    trained = normalized(store, generation=1, **settings)
    saved = json.loads(json.dumps(trained.normalizers))
    later = normalized(store, **settings | {"normalizers": saved})
    without_store = load_normalizers(saved)
    for field, tensor in trained[0].items():
        assert torch.equal(later[0][field], tensor)
        assert torch.equal(later.denormalize(field, tensor), trained.denormalize(field, tensor))
        if field in saved:
            assert torch.equal(without_store[field].denormalize(tensor), trained.denormalize(field, tensor))
    assert normalized(store, generation=1, **settings | {"normalizers": saved}).fingerprint == trained.fingerprint
    for change, message in (
        ({"unit": [0.0]}, "a unit cannot be 0"),
        ({"shift": [1.0, 2.0]}, "one per component"),
        ({"shift": [float("nan")]}, "finite"),
        ({"shift": [1.0, 2.0], "unit": [1.0, 2.0]}, "2 components, the field has 1"),
    ):
        broken = {"surface_pressure": saved["surface_pressure"] | change}
        with pytest.raises(ZarrCoreError, match=message):
            normalized(store, normalizers=broken)
    with pytest.raises(ZarrCoreError, match=r"not a saved dataset\.normalizers: surface_pressure"):
        load_normalizers({"surface_pressure": "mean_std"})


def test_normalizers_travel_without_a_store(store: Path) -> None:
    settings: dict[str, Any] = {"num_surface_points": 16, "num_geometry_points": 8, "fields": None}
    settings["normalizers"] = {"surface_position": "position", "surface_pressure": "logscale_mean_std"}
    dataset, stored = normalized(store, **settings), normalized(store, dtype="stored", **settings)
    dataset.set_epoch(0)
    stored.set_epoch(0)
    saved = json.loads(json.dumps(Normalizers(dataset.normalizers).state_dict()))
    assert saved == dataset.normalizers
    normalizers = Normalizers()
    normalizers.load_state_dict(saved)
    assert pickle.loads(pickle.dumps(normalizers)) == normalizers == load_normalizers(saved) == Normalizers(saved)

    batch = {**stored[0], "sample_id": "run_1", "index": torch.tensor(0)}
    scaled = normalizers.normalize(batch)
    assert (scaled.pop("sample_id"), scaled.pop("index")) == ("run_1", batch["index"])
    assert scaled.keys() == dataset[0].keys()
    for field, values in dataset[0].items():
        assert torch.equal(scaled[field], values)
    with pytest.raises(ZarrCoreError, match="normalized already"):
        normalizers.normalize(scaled)
    physical = normalizers.inverse(scaled)
    for field, values in physical.items():
        torch.testing.assert_close(values, batch[field].float(), rtol=1e-4, atol=1e-4)
    for dtype, result in ((torch.bfloat16, torch.float32), (torch.float16, torch.float32), (torch.float64,) * 2):
        given = {"surface_pressure": torch.zeros(5, dtype=dtype), "other": torch.zeros(2, dtype=dtype)}
        assert normalizers.inverse(given)["surface_pressure"].dtype == result
        assert normalizers.inverse(given)["other"].dtype == dtype
        assert normalizers.normalize(given)["surface_pressure"].dtype == torch.float32
    for renamed in (normalizers.normalize, normalizers.inverse):
        with pytest.raises(ZarrCoreError, match="none of x has a normalizer: pass canonical names, which are"):
            renamed({"x": torch.zeros(5)})
    assert Normalizers().inverse({"x": 1}) == {"x": 1}
    on_meta = normalizers.inverse({"surface_position": torch.zeros(2, 3, device="meta")})
    assert on_meta["surface_position"].device.type == "meta"
    with pytest.raises(ZarrCoreError, match=r"surface_position: values of shape \(5,\) need 3 components"):
        normalizers.normalize({"surface_position": torch.zeros(5)})
    with pytest.raises(ZarrCoreError, match="not a saved dataset.normalizers"):
        normalizers.load_state_dict({"surface_pressure": {"kind": "fixed"}})
    assert normalizers == Normalizers(saved)


def test_min_max_maps_each_component_to_0_to_1(store: Path) -> None:
    fields = ["surface_position", "surface_pressure"]
    dataset = normalized(store, split="train", fields=fields, normalizers=dict.fromkeys(fields, "min_max"))
    for field in fields:
        values = torch.cat([item[field].reshape(len(item[field]), -1) for item in dataset])
        torch.testing.assert_close(values.amin(0), torch.zeros(values.shape[1]), atol=1e-6, rtol=0)
        torch.testing.assert_close(values.amax(0), torch.ones(values.shape[1]), atol=1e-6, rtol=0)


def test_statistics_of_a_file_are_shared_by_stores(store: Path, tmp_path: Path) -> None:
    shared = f"{store}/statistics/00000001/train.yaml"
    first = normalized(store, generation=1)
    assert normalized(store, statistics=shared).normalizers == first.normalizers
    assert normalized(store).normalizers != first.normalizers
    assert normalized(store, statistics=shared, normalizers={}).normalizers == {}
    with pytest.raises(ZarrCoreError, match=r"there is no file .*none\.yaml; create it with `zarr-core stat"):
        normalized(store, statistics=str(tmp_path / "none.yaml"))
    (tmp_path / "empty.yaml").write_text("{}")
    with pytest.raises(ZarrCoreError, match=r"empty\.yaml has no 'surface_pressure_mean'.*--output-yaml"):
        normalized(store, statistics=str(tmp_path / "empty.yaml"))


def test_a_batch_is_normalized_once(store: Path) -> None:
    settings: dict[str, Any] = {"num_surface_points": 16, "num_geometry_points": 8, "fields": None}
    stored = normalized(store, dtype="stored", num_volume_points=16, **settings)
    batch = torch.utils.data.default_collate([dict(item) for item in stored.__getitems__([0, 1])])
    once = stored.normalize(batch)
    assert once.keys() == batch.keys()
    with pytest.raises(ZarrCoreError, match="normalized already: call normalize once"):
        stored.normalize(once)
    float32 = normalized(store, num_volume_points=16, **settings)
    with pytest.raises(ZarrCoreError, match='batches of dtype "float32" are normalized already'):
        float32.normalize(float32[0])
    with pytest.raises(UnknownFieldError, match="no field 'surface_presure'"):
        stored.normalize({"surface_presure": batch["surface_pressure"]})
    for way in (stored.normalize, Normalizers(stored.normalizers).normalize, Normalizers(stored.normalizers).inverse):
        for given in ([batch], batch["surface_pressure"]):
            with pytest.raises(ZarrCoreError, match=r"a batch must be a mapping such as .*, or an item of a list, not"):
                way(given)
    plain = normalized(store, normalizers={})
    assert torch.equal(plain.normalize(plain[0])["surface_pressure"], plain[0]["surface_pressure"])


def test_a_store_of_another_kind_is_refused(store: Path) -> None:
    with pytest.raises(ZarrCoreError, match=r"of kind 'ahmedml', not 'drivaerml', which ZarrDrivAer.*kind: point"):
        normalized(store, kind="drivaerml")
    assert torch.equal(values(normalized(store, kind="ahmedml")), values(normalized(store)))


def test_the_documented_way_to_save_normalizers_runs(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = (Path(__file__).parents[2] / "docs" / "training.md").read_text()
    (block,) = [part for part in re.findall(r"```python\n(.*?)```", text, re.DOTALL) if "without a store" in part]
    monkeypatch.chdir(tmp_path)
    run: dict[str, Any] = {}
    exec(block.replace("/data/store", str(store)), run)
    assert torch.equal(run["physical"]["surface_pressure"], run["pressure"])


def test_a_single_number_keeps_its_shape() -> None:
    normalizers = Normalizers({"speed": {"kind": "fixed", "shift": [10.0], "unit": [4.0]}})
    for dtype in (torch.float16, torch.float32, torch.float64):
        normal = normalizers.normalize({"speed": torch.tensor(30.0, dtype=dtype)})["speed"]
        physical = normalizers.inverse({"speed": torch.tensor(5.0, dtype=dtype)})["speed"]
        assert (normal.shape, normal.item()) == ((), 5.0)
        assert (physical.shape, physical.item(), physical.dtype) == (
            (),
            30.0,
            torch.promote_types(dtype, torch.float32),
        )


@pytest.mark.parametrize("shape", [(0, 3), (3,), (1, 3), (255, 3), (256, 3), (2, 300, 3), (2, 3, 257, 3), (512, 3, 3)])
@pytest.mark.parametrize("logscale", [False, True])
def test_every_point_is_normalized_by_the_numbers_of_its_components(shape: tuple[int, ...], logscale: bool) -> None:
    shift, unit = [1.5, -2.0, 100.0], [0.3, 7.0, -11.0]
    normalizers = Normalizers({"velocity": {"kind": "fixed", "shift": shift, "unit": unit, "logscale": logscale}})
    values = torch.randn(shape, generator=torch.Generator().manual_seed(1)) * 50
    for given in (values, values.half(), values.double(), values.repeat_interleave(2, dim=-1)[..., ::2]):
        expected = given.double()
        if logscale:
            expected = expected.sign() * expected.abs().log1p()
        expected = (expected - torch.tensor(shift).double()) / torch.tensor(unit).double()
        found = normalizers.normalize({"velocity": given})["velocity"]
        assert found.dtype == torch.float32
        torch.testing.assert_close(found, expected.float(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("given", [np.ones(3), 2.0, [1.0, 2.0]])
def test_what_is_no_tensor_is_refused(given: Any) -> None:
    normalizers = Normalizers({"speed": {"kind": "fixed", "shift": 1, "unit": 2.0}})
    assert normalizers.normalize({"speed": torch.tensor([5.0]), "name": ["a"]}) == {
        "speed": torch.tensor([2.0]),
        "name": ["a"],
    }
    for way in (normalizers.normalize, normalizers.inverse, lambda values: normalizers.normalized(*values.popitem())):
        with pytest.raises(ZarrCoreError, match=r"speed is (ndarray|float|list), not a tensor; give torch\.as_tensor"):
            way({"speed": given})
