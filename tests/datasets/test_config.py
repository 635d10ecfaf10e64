from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from tests.helpers.drivaernet_store import drivaernet
from zarr_core.datasets import (
    ZarrDrivAerNetDatasetConfig,
    build_dataset,
)
from zarr_core.errors import ZarrCoreError


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"num_surface_points": 0}, "num_surface_points"),
        ({"num_volume_points": -1}, "num_volume_points"),
        ({"num_geometry_points": -1}, "num_geometry_points"),
        ({"num_points": {"surface": 3}, "num_surface_points": 3}, "num_points repeats surface"),
        ({"num_points": {"wake": 3}, "num_wake_points": 4}, "num_points repeats wake"),
        ({"num_points": 3, "num_wake_points": 4}, "num_points"),
        ({"num_surface_point": 3}, "num_surface_point is not .* did you mean 'num_surface_points'"),
        ({"read_concurrency": 0}, "read_concurrency"),
        ({"fields": []}, "fields"),
        ({"fields": ["surface_pressure"], "included_properties": ["surface_pressure"]}, "set one of them"),
        ({"filter_categories": []}, "filter_categories"),
        ({"generation": True}, "generation"),
        ({"num_surface_points": True}, "num_surface_points"),
        ({"sampling_seed": False}, "sampling_seed"),
        ({"normalizers": {"surface_pressure": "minmax"}}, "min_max"),
        ({"normalizers": {"surface_pressure": "position"}}, "applies to positions only"),
        ({"normalizers": {"surface_position": {"kind": "position", "scale": 0}}}, "scale"),
        ({"normalizers": {"surface_pressure": {"kind": "mean_std", "scale": 2}}}, "scale"),
        ({"item": {"p": "surface_pressure"}, "with_index": True}, "item leaves index out.*`item: {index: index}`"),
        ({"item": {"p": "surface_pressure"}, "with_sample_id": True}, "item leaves sample_id out"),
        ({"item": {"p": "surface_pressure"}, "parameters": ["drag"]}, "item leaves drag out"),
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


def test_places_may_be_paths(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(root.parent)
    config = ZarrDrivAerNetDatasetConfig(root=Path(root.name), split="train", cache_dir=tmp_path / "cache")
    assert (config.root, config.cache_dir) == (str(root), str(tmp_path / "cache"))
    with pytest.raises(ValidationError, match="root"):
        ZarrDrivAerNetDatasetConfig(root=3, split="train")
