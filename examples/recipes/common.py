"""What the recipes share: their arguments, the pressure as the field to learn, and a small network for it."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn


def new_parser(description: str | None) -> argparse.ArgumentParser:
    """The arguments of a recipe that trains on a point store."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("store")
    parser.add_argument("out", type=Path, help="folder of checkpoints and of the trained model, seen by all nodes")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch-size", type=int, default=4, help="of all processes together")
    parser.add_argument("--points", type=int, default=4096)
    parser.add_argument("--save-every", type=int, default=100, help="steps from one checkpoint to the next")
    return parser


def pressure_of(store: str, points: int) -> dict[str, Any]:
    """The config of a dataset of positions and pressures; see ``zarr_core.build_dataset``."""
    return {
        "kind": "point",
        "root": store,
        "split": "train",
        "fields": ["volume_position", "volume_pressure"],
        "num_volume_points": points,
    }


def make_model() -> nn.Module:
    """A small network: pressure from position."""
    torch.manual_seed(0)  # equal weights at the start of every run
    return nn.Sequential(nn.Linear(3, 16), nn.GELU(), nn.Linear(16, 1))


def loss_of(model: nn.Module, batch: Mapping[str, Tensor]) -> Tensor:
    """Mean squared error of the pressure."""
    predicted = model(batch["volume_position"]).squeeze(-1)
    return (predicted - batch["volume_pressure"]).square().mean()
