from __future__ import annotations

import warnings
from pathlib import Path

import pytest
import torch

from tests.helpers.small_source import SHARED
from zarr_core.datasets import (
    AhmedMLDataset,
    PtDataset,
    ZarrAhmedMLDataset,
    ZarrAhmedMLDatasetConfig,
    build_dataset,
)
from zarr_core.errors import SampleError, ZarrCoreError
from zarr_core.format.shuffle import shuffle_permutation
from zarr_core.points.convert.conversion import convert
from zarr_core.points.statistics import calculate_store_statistics, write_statistics
from zarr_core.sources import resolve_kind


def write_tree(folder: Path, sample_ids: list[str], sizes: dict[str, int]) -> Path:
    """An AhmedML tree; scalars as (N, 1) in one field and (N,) in another, as in the published files."""
    generator = torch.Generator().manual_seed(0)
    for sample_id in sample_ids:
        (folder / sample_id).mkdir(parents=True)
        for field, file in resolve_kind("ahmedml").required_fields.items():
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
    write_statistics(str(tmp_path), calculate_store_statistics(str(tmp_path)), of="all", split="train", generation=1)
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


def test_pt_datasets_give_whole_fields_and_the_attributes_that_a_converter_needs(tree: Path) -> None:
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
