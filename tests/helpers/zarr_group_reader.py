"""A stand-in for PhysicsNeMo's readers of Zarr groups, where that package is not installed.

It has their demands on a folder: a group per sample, arrays at its first level, attributes that are numbers or lists.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import zarr


class TensorStoreZarrReader:
    """Samples of a folder of Zarr groups.

    Args:
        path: the folder.
        fields: names of the arrays to read.
        coordinated_subsampling: "n_points" rows of each of the arrays "target_keys" are read.
    """

    def __init__(self, path: Path, *, fields: list[str], coordinated_subsampling: dict[str, Any]) -> None:
        self._fields, self._subsampling = fields, coordinated_subsampling
        self._groups = [zarr.open_group(place, mode="r") for place in sorted(path.glob("*.zarr")) if place.is_dir()]

    def __len__(self) -> int:
        return len(self._groups)

    def __getitem__(self, index: int) -> tuple[dict[str, torch.Tensor], dict[str, int]]:
        group = self._groups[index]
        sample = {name: torch.tensor(value) for name, value in group.attrs.items()}  # a dict is a TypeError
        arrays = dict(group.arrays())
        for name in self._fields:
            rows = self._subsampling["n_points"] if name in self._subsampling["target_keys"] else None
            sample[name] = torch.as_tensor(arrays[name][:rows], dtype=torch.float32)
        return sample, {"index": index}
