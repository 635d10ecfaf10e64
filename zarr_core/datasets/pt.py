"""Datasets over the published ``.pt`` trees: every point of every field, for conversion and comparison."""

from __future__ import annotations

import os
import warnings
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.utils.data import Dataset

from zarr_core.datasets.splits import choose_samples
from zarr_core.errors import ZarrCoreError
from zarr_core.sources import SampleTree, SourceDescription


class PtDataset(Dataset[dict[str, Tensor]]):
    """Samples of one split of a ``.pt`` tree. For your own dataset, subclass it and set ``description``.

    Args:
        root: local folder or fsspec URL of the samples.
        split: "train", or part of a split such as "train[:50]".

    Attributes:
        sample_ids: id of each item, in order.

    Raises:
        ZarrCoreError: the root cannot be read, or the split is unknown or empty.
    """

    #: Layout of the dataset: short name, path of a YAML file, or a description.
    description: ClassVar[str | SourceDescription]

    def __init__(self, root: str | os.PathLike[str], split: str = "train") -> None:
        self._tree = SampleTree(type(self), root)
        found = self._tree.find()
        for sentence in found.left_out:
            warnings.warn(f"{self._tree.url}: {sentence}", stacklevel=2)
        self._samples = found.samples
        splits, excluded = self._tree.splits(self._samples), self._tree.excluded()

        def listed(name: str) -> list[str]:
            if name not in splits:
                raise ZarrCoreError(f"{self._tree.url}: no split {name!r}; splits are {', '.join(splits) or 'none'}")
            return [sample_id for sample_id in splits[name] if sample_id not in excluded]

        self.sample_ids = choose_samples(split, listed, self._samples, None, self._tree.url)

    @property
    def filemap(self) -> dict[str, str]:
        """File name by file-map attribute."""
        return self._tree.description.filemap

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._tree.url}: {len(self):,} samples>"

    def __len__(self) -> int:
        return len(self.sample_ids)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        """Whole fields by canonical name: float32, (points, components) or (points,) for scalars.

        Optional fields are left out where the sample has no file for them.

        Raises:
            SampleError: a file is missing or unreadable, or does not contain one tensor.
        """
        description, found = self._tree.description, self._samples[self.sample_ids[index]].files
        item = {}
        for field, file in description.fields.items():
            if field in found or field in description.required_fields:
                tensor = self._load(index, file.filename).to(torch.float32)
                item[field] = tensor.squeeze(1) if tensor.ndim == 2 and tensor.shape[1] == 1 else tensor
        return item

    def _load(self, idx: int, filename: str) -> Any:
        """Content of a sample's file: a tensor, or the per-sample scalars of a parameter file."""
        sample = self._samples[self.sample_ids[idx]]
        description = self._tree.description
        for field, file in description.fields.items():
            if file.filename == filename:
                return self._tree.load(sample, field)
        if filename in description.parameter_files:
            return self._tree.load_parameters(sample)
        raise ZarrCoreError(f"{description.name} has no file {filename!r}")


class ShapeNetCarDataset(PtDataset):
    """ShapeNet-Car (Umetani's mlcfd_data, preprocessed)."""

    description = "shapenet_car"


class AhmedMLDataset(PtDataset):
    """AhmedML."""

    description = "ahmedml"


class DrivAerMLDataset(PtDataset):
    """DrivAerML."""

    description = "drivaerml"


class DrivAerNetDataset(PtDataset):
    """DrivAerNet and DrivAerNet++."""

    description = "drivaernet"


class EmmiWingDataset(PtDataset):
    """Emmi-Wing."""

    description = "emmi_wing"
