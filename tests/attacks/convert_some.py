"""Converts some samples of a source, in a process that the attacks start."""

from __future__ import annotations

from pathlib import Path

from tests.attacks.truth import CHUNK_POINTS
from zarr_core.points.convert.conversion import convert


def convert_some(source: Path, store: str, sample_ids: list[str]) -> int:
    """Exit status: 0 if all samples were converted."""
    report = convert("ahmedml", store, root=source, sample_ids=sample_ids, chunk_points=CHUNK_POINTS)
    return 0 if report.ok else 1
