"""Changes to commit, for tests of commits."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from zarr_core.points.store.manifest import SampleEntry, StoreManifest


def add(sample_id: str) -> Callable[[StoreManifest | None], StoreManifest]:
    """A change that adds a sample without arrays."""

    def change(current: StoreManifest | None) -> StoreManifest:
        start = current or StoreManifest("test")
        return replace(start, samples=dict(start.samples) | {sample_id: SampleEntry(f"samples/{sample_id}/x", {})})

    return change
