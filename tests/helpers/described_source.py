"""A dataset of tiny samples that a kind of its own describes, and the store that it is converted to."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Collection
from pathlib import Path
from typing import Any

import torch

from zarr_core import ZarrChunkReader, ZarrPointDataset, ZarrPointDatasetConfig
from zarr_core.convert import convert

FILES = {"surface_position": "position.pt", "surface_temperature": "temperature.pt"}
SPEED = {"surface_speed": "speed.pt"}
POINTS = 20


class Source:
    """A dataset of tiny samples, and the store that it is converted to."""

    def __init__(self, folder: Path, name: str = "bodies") -> None:
        self.root, self.store, self.kind = folder / name, folder / "store", folder / f"{name}.yaml"
        self.root.mkdir()
        self.describe(FILES, name)

    def describe(self, files: dict[str, str], name: str = "bodies") -> None:
        self.kind.write_text(json.dumps({"name": name, "samples": "*", "files": files}))

    def write(self, *sample_ids: str, width: int = 1, low: float = 300.0, step: float = 1.0) -> None:
        for sample_id in sample_ids:
            folder = self.root / sample_id
            folder.mkdir(exist_ok=True)
            values = low + step * torch.arange(POINTS * width, dtype=torch.float32).reshape(POINTS, width)
            torch.save(torch.arange(POINTS * 3.0).reshape(POINTS, 3), folder / "position.pt")
            torch.save(values[:, 0].clone() if width == 1 else values, folder / "temperature.pt")
            torch.save(torch.arange(float(POINTS)), folder / "speed.pt")
        ids = sorted(path.name for path in self.root.iterdir() if path.is_dir())
        (self.root / "train_design_ids.txt").write_text("\n".join(ids) + "\n")

    def convert(self, **arguments: Any) -> Any:
        """From the working directory, as all others."""
        return convert(str(self.kind), os.path.relpath(self.store), root=os.path.relpath(self.root), **arguments)

    def reader(self, **arguments: Any) -> ZarrChunkReader:
        return ZarrChunkReader(os.path.relpath(self.store), **arguments)

    def dataset(self, **arguments: Any) -> ZarrPointDataset:
        return ZarrPointDataset(ZarrPointDatasetConfig(root=os.path.relpath(self.store), split="train", **arguments))


def ids(results: Collection[Any]) -> list[str]:
    return sorted(result.sample_id for result in results)


def as_an_earlier_version_wrote_it(store: Path, dtype: str) -> None:
    """Without recorded settings and fields, and with one dtype for all samples: that of the last conversion."""
    document = json.loads((store / "manifest.json").read_text())
    document.pop("conversion", None)
    for entry in document["samples"].values():
        entry.pop("fields", None)
    document["domains"]["surface"]["arrays"]["surface_temperature"]["dtype"] = dtype
    document["values_dtype"] = dtype
    (store / "manifest.json").write_text(json.dumps(document))
    shutil.rmtree(store / "generations", ignore_errors=True)
