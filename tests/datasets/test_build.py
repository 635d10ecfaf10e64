from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.helpers.drivaernet_store import CHUNK
from tests.helpers.published_store import make_samples, write_published_store
from zarr_core import datasets
from zarr_core.datasets import ZarrPointDatasetConfig, build_dataset
from zarr_core.errors import ZarrCoreError

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
        ("kind: ahmedml\n", "root is missing"),
        ("kind: ahmedml\nroot: x\n", "split is missing; set a split of the store, all, or sample_ids"),
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


@pytest.mark.parametrize(
    ("settings", "example"),
    [
        ({"num_points": 256}, 'num_points: {"wake": 4096}'),
        ({"item": {"x": {"a": "b"}}}, 'item: {"x": ["surface_position", "drag"], "y": "surface_pressure"}'),
        ({"parameters": "drag"}, 'parameters: ["drag"]'),
        ({"normalizers": "mean_std"}, 'normalizers: {"surface_pressure": "mean_std"}'),
        ({"fields": "surface_pressure"}, 'fields: ["surface_pressure"]'),
    ],
)
def test_a_setting_of_another_form_is_answered_with_an_example(settings: dict[str, Any], example: str) -> None:
    config = {"kind": "point", "root": "/nowhere", "split": "train"}
    with pytest.raises(ZarrCoreError) as refused:
        build_dataset(config | settings)
    assert str(refused.value).endswith(f"; for example {example}")
    # The example itself has the right form.
    (setting,) = settings
    ZarrPointDatasetConfig.model_validate(config | {setting: json.loads(example.partition(": ")[2])})


def test_a_refused_value_shows_no_secret() -> None:
    config = {"kind": "ahmedml", "root": "store", "split": "train", "roott": "s3://user:hunter2@bucket/store"}
    with pytest.raises(ZarrCoreError, match="roott") as caught:
        build_dataset(config)
    assert "hunter2" not in str(caught.value)
    assert caught.value.__suppress_context__
