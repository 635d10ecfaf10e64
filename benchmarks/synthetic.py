"""Synthetic samples of realistic size, and the store made from them."""

from __future__ import annotations

from pathlib import Path
from typing import TypeVar

import torch

from zarr_core.points.convert.conversion import convert
from zarr_core.points.store.settings import ConversionSettings, Layout

Place = TypeVar("Place", Path, str)

POINTS, DRAWN = 1_000_000, 16_384
FIELDS = ("volume_position", "volume_pressure", "volume_velocity", "volume_vorticity")
KIND = "name: synthetic\nsamples: 'run_*'\nfiles:\n" + "".join(f"  {field}: {field}.pt\n" for field in FIELDS)


def make_source(folder: Path, samples: int, points: int = POINTS) -> Path:
    """Samples ``run_1`` and so on of four fields in random order, as shuffled CFD fields are; returns where."""
    for number in range(1, samples + 1):
        sample = folder / f"run_{number}"
        sample.mkdir(parents=True)
        generator = torch.Generator().manual_seed(number)
        for field in FIELDS:
            dim = 1 if field.endswith("pressure") else 3
            torch.save(torch.randn(points, dim, generator=generator) * 10, sample / f"{field}.pt")
    return folder


def make_store(
    source: Path, store: Place, codec: str, chunk_points: int = DRAWN, layout: Layout = ConversionSettings.layout
) -> Place:
    """The store of such a source: positions float32, the rest float16."""
    kind = source.with_name("synthetic.yaml")
    kind.write_text(KIND)
    convert(str(kind), store, root=source, codec=codec, chunk_points=chunk_points, layout=layout)
    return store
