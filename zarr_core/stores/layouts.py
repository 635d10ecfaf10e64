"""The layouts of the samples of a point store."""

from __future__ import annotations

from dataclasses import dataclass

from zarr_core.points.store.footprint import footprint
from zarr_core.points.store.manifest import SampleEntry, StoreManifest
from zarr_core.storage import Storage


@dataclass(frozen=True)
class LayoutInfo:
    """The samples of a point store that have one layout.

    Attributes:
        samples: how many.
        objects: of the first of these samples: files or objects.
        inodes: its files and folders on a local disk; 0 elsewhere.
        requests: of a draw from all its fields, at least, once its metadata was read by one more.
    """

    samples: int
    objects: int
    inodes: int
    requests: int


def layouts_of(storage: Storage, state: StoreManifest) -> dict[str, LayoutInfo]:
    """The layouts of samples; one request for the objects of each."""
    groups: dict[str, list[SampleEntry]] = {"directory": [], "packed": []}
    for entry in state.samples.values():
        groups["packed" if entry.head else "directory"].append(entry)
    found = {}
    for layout, entries in groups.items():
        if entries:
            first = footprint(storage, state, entries[0])
            found[layout] = LayoutInfo(len(entries), len(first.sizes), first.inodes, first.requests)
    return found
