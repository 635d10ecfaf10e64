"""Changes to commit, for tests of commits."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import count

import pytest

from zarr_core.errors import CommitConflict
from zarr_core.points.store.manifest import SampleEntry, StoreManifest
from zarr_core.storage import Storage


def add(sample_id: str) -> Callable[[StoreManifest | None], StoreManifest]:
    """A change that adds a sample without arrays."""

    def change(current: StoreManifest | None) -> StoreManifest:
        start = current or StoreManifest("test")
        return replace(start, samples=dict(start.samples) | {sample_id: SampleEntry(f"samples/{sample_id}/x", {})})

    return change


def lose_commits(monkeypatch: pytest.MonkeyPatch, times: int) -> None:
    """Let another writer commit first, the given number of times, without waiting in between."""
    swap, lost = Storage.replace, count()

    def overtaken(self: Storage, name: str, data: bytes, version: str | None) -> None:
        if next(lost) < times:
            raise CommitConflict("another writer")
        swap(self, name, data, version)

    monkeypatch.setattr(Storage, "replace", overtaken)
    monkeypatch.setattr("zarr_core.versioning.generations.time.sleep", lambda _: None)
