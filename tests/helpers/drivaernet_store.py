"""Names in the small DrivAerNet store of the fixture ``root``, and a dataset over it."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

from zarr_core.datasets import (
    ZarrDrivAerNetDataset,
    ZarrDrivAerNetDatasetConfig,
)

CHUNK = 16
FIELDS = [f"{d}_{f}" for d in ("surface", "volume") for f in ("position", "pressure", "velocity")]
IDS = ["A_B_001", "A_B_002", "A_C_001", "A_B_003", "A_C_002", "A_B_004"]
NORMALIZERS = {
    "surface_position": {"kind": "position", "scale": 1000},
    "volume_position": "position",
    "surface_pressure": "mean_std",
    "surface_velocity": "logscale_mean_std",
    "volume_velocity": {"kind": "mean_std"},
}


def drivaernet(store: Path, /, *, epoch: int | None = 0, **settings: Any) -> ZarrDrivAerNetDataset:
    """The dataset at an epoch, whose draws repeat; with ``epoch=None`` none is set."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        config = ZarrDrivAerNetDatasetConfig(**{"root": str(store), "split": "train", **settings})
        dataset = ZarrDrivAerNetDataset(config)
    if epoch is not None:
        dataset.set_epoch(epoch)
    return dataset
