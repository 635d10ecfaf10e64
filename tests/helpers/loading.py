"""A small store, ranks, and the expected batches: for the tests of the loader."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import TensorDataset

from zarr_core._util.repeated import Repeated
from zarr_core.datasets import ZarrPointDataset, ZarrPointDatasetConfig
from zarr_core.loader import Permutation

SAMPLES = 10
NUMBERS = TensorDataset(torch.arange(26))


def opened(store: Path, **changes: Any) -> ZarrPointDataset:
    config = {"root": str(store), "split": "train", "num_volume_points": 8, "fields": ("volume_position",)}
    return ZarrPointDataset(ZarrPointDatasetConfig(**config | changes))


def together(parts: list[list[Any]]) -> list[list[Any]]:
    """Global batches, joined from those of each rank."""
    return [list(itertools.chain.from_iterable(shares)) for shares in zip(*parts, strict=True)]


def seen(batch: Any) -> list[Any]:
    """Identity of a batch: the sample and the drawn rows of each item."""
    return batch["volume_position"][:, :, :2].tolist()


def plan(store: Path, epochs: int, batch_size: int = 4) -> list[list[list[Any]]]:
    """The global batches of some epochs, with neither loader nor sampler."""
    dataset = opened(store)
    planned = []
    for epoch in range(epochs):
        dataset.set_epoch(epoch)
        order = Permutation(SAMPLES, seed=5, epoch=epoch)(np.arange(12) % SAMPLES).tolist()
        items = []
        for place, index in enumerate(order):
            item = dataset[Repeated(index, place // SAMPLES)]
            items.append(item["volume_position"][:, :2].tolist())
        planned.append([items[start : start + batch_size] for start in range(0, 12, batch_size)])
    return planned
