"""Classes of other frameworks, opened with root and split, or with one config."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch

from zarr_core.errors import SourceError
from zarr_core.points.convert.conversion import convert
from zarr_core.points.verify.store import verify_store
from zarr_core.sources import resolve_kind
from zarr_core.sources.selection import open_source

FILES = {"surface_position": "pos.pt", "surface_pressure": "p.pt"}


@dataclass
class Config:
    kind: str
    root: str
    split: str
    pipeline: object = None


class Base:
    """Loads by position, and names its samples in ``sample_info`` only."""

    def __init__(self, dataset_config: Config, filemap: object = None) -> None:
        if dataset_config.split != "train":
            raise ValueError(f"no split {dataset_config.split}")
        assert dataset_config.kind == f"{__name__}.{type(self).__name__}"
        self.folders = sorted(Path(dataset_config.root).glob("deep/er/*"))
        self.filemap = filemap

    def __len__(self) -> int:
        return len(self.folders)

    def sample_info(self, idx: int) -> dict[str, Any]:
        return {"run_name": self.folders[idx].name, "sample_uri": self.folders[idx]}

    def _load(self, number: int, name: str) -> torch.Tensor:
        return torch.load(self.folders[number] / name, weights_only=True)


class InTheClass(Base):
    FILEMAP = FILES

    def __init__(self, dataset_config: Config) -> None:
        super().__init__(dataset_config, filemap=self.FILEMAP)


class ADefault(Base):
    def __init__(self, dataset_config: Config, filemap: dict[str, str] = FILES) -> None:
        super().__init__(dataset_config, filemap=filemap)


class TwoOfThem(Base):
    FILEMAP = FILES
    OLD_FILEMAP: ClassVar = dict(FILES)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for name in ("a", "b"):
        folder = tmp_path / "data/deep/er" / name
        folder.mkdir(parents=True)
        torch.save(torch.rand(40, 3), folder / "pos.pt")
        torch.save(torch.rand(40), folder / "p.pt")
    return tmp_path / "data"


@pytest.mark.parametrize("cls", [InTheClass, ADefault])
def test_a_class_with_a_config_is_opened_by_split(cls: type, root: Path, tmp_path: Path) -> None:
    report = convert(f"{__name__}.{cls.__name__}", tmp_path / "store", root=root, splits=["train", "val"])
    assert sorted(report.manifest.samples) == ["a", "b"]
    assert report.manifest.split_ids("train") == ["a", "b"]
    assert report.manifest.dataset_kind == cls.__name__


@pytest.mark.parametrize("cls", [InTheClass, ADefault])
def test_the_file_map_of_a_class_is_found_without_an_object(cls: type) -> None:
    assert {field: file.filename for field, file in resolve_kind(cls).fields.items()} == FILES


def test_several_file_maps_are_refused_by_name() -> None:
    with pytest.raises(SourceError, match="FILEMAP, OLD_FILEMAP could be its file map"):
        resolve_kind(TwoOfThem)


def test_a_class_without_a_file_map_is_refused() -> None:
    with pytest.raises(SourceError, match="neither a description nor a filemap"):
        resolve_kind(Path)


@pytest.mark.parametrize("name", ["data.datasets.cfd.DrivAerMLDataset", "data.datasets.cfd.ZarrDrivAerMLDataset"])
def test_dotted_names_of_noether_need_no_package(name: str, root: Path) -> None:
    assert resolve_kind(f"noether.{name}").name == "drivaerml"
    assert open_source(f"noether.{name}", root=root).description.name == "drivaerml"
    with pytest.raises(SourceError, match="noether"):
        resolve_kind("noether.data.datasets.cfd.OtherDataset")


def test_a_foreign_file_map_finds_folders_at_any_depth(root: Path, tmp_path: Path) -> None:
    (root / "shallow").mkdir()
    for name in FILES.values():
        (root / "shallow" / name).write_bytes((root / "deep/er/a" / name).read_bytes())
    (root / "empty/folder").mkdir(parents=True)
    report = convert(InTheClass, tmp_path / "store", source_url=str(root))
    assert sorted(report.manifest.samples) == ["deep/er/a", "deep/er/b", "shallow"]
    assert not [note for note in report.notes if "left out" in note]


def test_a_sample_may_lack_an_optional_field(root: Path, tmp_path: Path) -> None:
    """Noether's file maps name files of normals and areas, which many prepared trees do not have."""

    class WithNormals(InTheClass):
        FILEMAP: ClassVar = FILES | {"surface_normals": "n.pt"}

    torch.save(torch.ones(40, 3), root / "deep/er/b/n.pt")
    report = convert(WithNormals, tmp_path / "store", source_url=str(root))
    assert {i: sorted(entry.fields) for i, entry in report.manifest.samples.items()} == {
        "deep/er/a": ["surface_position", "surface_pressure"],
        "deep/er/b": ["surface_normals", "surface_position", "surface_pressure"],
    }
    assert report.ok
    assert verify_store(tmp_path / "store", source=str(root)).ok
