"""Stores with their sources: what a verification says of them, and ways to damage them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from zarr_core.format.array_metadata import ArrayLayout
from zarr_core.format.shards import encode_shard
from zarr_core.points.read.reader import ZarrChunkReader
from zarr_core.points.store.head import load_manifest
from zarr_core.points.verify.store import VerificationReport, verify_store


def check(place: Path, **options: Any) -> VerificationReport:
    return verify_store(str(place / "store"), source=str(place / "source"), **options)


def group_of(place: Path, sample_id: str) -> Path:
    return place / "store" / load_manifest(str(place / "store")).samples[sample_id].relpath


def messages(report: VerificationReport) -> list[str]:
    return [str(problem) for problem in report.problems]


def edit_json(path: Path, change: Callable[[dict[str, Any]], None]) -> None:
    document = json.loads(path.read_text())
    change(document)
    path.write_text(json.dumps(document))


def rewrite(place: Path, sample_id: str, array: str, change: Callable[[np.ndarray], np.ndarray]) -> None:
    """Store other rows in an array, with checksums and all."""
    path = group_of(place, sample_id) / array
    layout = ArrayLayout.from_zarr_json(json.loads((path / "zarr.json").read_text()))
    reader = ZarrChunkReader(place / "store")
    rows = change(reader.read_sample(sample_id, fields=[array.replace("/", "_")])[array.replace("/", "_")].copy())
    for shard in range(layout.n_shards):
        points = rows[shard * layout.shard_points : (shard + 1) * layout.shard_points]
        chunks = [points[start : start + layout.chunk_points] for start in range(0, len(points), layout.chunk_points)]
        (path / layout.shard_key(shard)).write_bytes(b"".join(encode_shard(layout, chunks)))
