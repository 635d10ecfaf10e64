"""The layouts of the samples of a point store: what a sample takes on a disk, and how many requests it costs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

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
    for layout, of_layout in groups.items():
        if not of_layout:
            continue
        entry = of_layout[0]
        names = [entry.relpath]
        requests = len(entry.domains)  # chunks of a domain lie side by side
        if not entry.head:
            names = list(storage.infos(entry.relpath))
            requests = len(entry.fields or state.fields)
        inodes = 0
        if storage.is_local:
            folders = {entry.relpath.rpartition("/")[0]}
            for name in names:
                folders.update(_folders_below(name, entry.relpath))
            inodes = len(names) + len(folders)
        found[layout] = LayoutInfo(len(of_layout), len(names), inodes, requests)
    return found


def _folders_below(name: str, top: str) -> Iterator[str]:
    """The folders of an object, up to ``top``."""
    while name != top:
        name = name.rpartition("/")[0]
        yield name
