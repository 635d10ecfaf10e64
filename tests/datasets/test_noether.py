"""Configs written for Noether's datasets."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader

from tests.helpers.drivaernet_store import FIELDS, drivaernet
from zarr_core.datasets import ZarrDrivAerNetDataset, build_dataset
from zarr_core.errors import ZarrCoreError


@pytest.mark.parametrize("name", ["DrivAerNetDataset", "ZarrDrivAerNetDataset"])
def test_dotted_names_of_noether_are_the_shipped_kinds(root: Path, name: str) -> None:
    dataset = build_dataset({"kind": f"noether.data.datasets.cfd.{name}", "root": str(root), "split": "train"})
    assert type(dataset) is ZarrDrivAerNetDataset


@pytest.mark.parametrize(
    ("settings", "fields"),
    [
        ({"included_properties": {"volume_pressure", "surface_position"}}, ["surface_position", "volume_pressure"]),
        ({"included_properties": ["surface_position", "geometry_position"]}, ["surface_position", "geometry_position"]),
        ({"excluded_properties": ["volume_sdf", *FIELDS[1:]]}, [FIELDS[0], "geometry_position"]),
        ({"excluded_properties": ["geometry_position"]}, FIELDS),
        (
            {
                "included_properties": ["surface_position", "surface_pressure"],
                "excluded_properties": ["surface_position"],
            },
            ["surface_pressure"],
        ),
        ({"num_geometry_points": 0}, FIELDS),
    ],
)
def test_properties_choose_the_fields(root: Path, settings: dict[str, Any], fields: list[str]) -> None:
    dataset = drivaernet(root, **{"num_geometry_points": 5} | settings)
    assert list(dataset[0]) == list(dataset.__getitems__([0, 1])[1]) == list(fields)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"included_properties": ["surface_presure"]}, "surface_presure"),
        ({"excluded_properties": list(FIELDS)}, "no field is left"),
    ],
)
def test_properties_that_leave_nothing_to_read_are_refused(root: Path, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ZarrCoreError, match=message):
        drivaernet(root, **settings)


@pytest.mark.parametrize(
    ("key", "value", "counterpart"),
    [
        ("pipeline", {"kind": "noether.data.pipeline.MultiStagePipeline"}, "num_surface_points"),
        ("dataset_normalizers", {"surface_pressure": {"kind": "MeanStdNormalization"}}, "normalizers"),
        ("dataset_wrappers", [{"kind": "noether.data.base.wrappers.SubsetWrapper"}], "Subset"),
        ("wrappers", [{"kind": "noether.data.base.wrappers.RepeatWrapper"}], "Subset"),
    ],
)
def test_keys_with_a_counterpart_are_refused_by_name(root: Path, key: str, value: object, counterpart: str) -> None:
    settings = {"kind": "drivaernet", "root": str(root), "split": "train"}
    with pytest.raises(ZarrCoreError, match=f"{key} is not a setting .*{counterpart}"):
        build_dataset({**settings, key: value})
    assert len(build_dataset({**settings, key: None})) == len(build_dataset(settings))


def test_scalars_keep_their_axis_on_request(root: Path) -> None:
    flat, kept = drivaernet(root), drivaernet(root, scalar_axis=True)
    assert kept[0]["surface_pressure"].shape == (*flat[0]["surface_pressure"].shape, 1)
    batch = next(
        iter(DataLoader(drivaernet(root, scalar_axis=True, num_surface_points=4, num_volume_points=4), batch_size=2))
    )
    assert batch["surface_pressure"].shape == (2, 4, 1)


@pytest.mark.parametrize("points", [4, None])
def test_items_have_their_index_on_request(root: Path, points: int | None) -> None:
    dataset = drivaernet(root, with_index=True, dtype="stored", num_surface_points=points, num_volume_points=points)
    assert dataset[2]["index"] == 2
    assert [int(item["index"]) for item in dataset.__getitems__([2, 0])] == [2, 0]
    last = len(dataset) - 1
    assert dataset[-1]["index"] == last, "counted from the end, as a list counts"
    assert [int(item["index"]) for item in dataset.__getitems__([-1, 0, -2])] == [last, 0, last - 1]
    assert int(dataset.normalize(dataset[1])["index"]) == 1
    if points:
        batch = next(iter(DataLoader(dataset, batch_size=3)))
        assert torch.equal(batch["index"], torch.tensor([0, 1, 2]))
