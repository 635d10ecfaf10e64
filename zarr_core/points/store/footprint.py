"""What a sample takes in its store by its layout: objects or inodes, and requests of a draw."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from zarr_core.points.store.manifest import SampleEntry, StoreManifest
from zarr_core.storage import Storage

#: Assumed: Amazon S3 Standard, us-east-1, as known in 2025; see aws.amazon.com/s3/pricing for the present price.
USD_PER_MILLION_GETS = 0.40


@dataclass(frozen=True)
class LayoutInfo:
    """How many samples of a point store have one layout, and what the first of them takes.

    ``requests`` are those of a draw from all its fields, at least, once its metadata was read by one more.
    """

    samples: int
    objects: int
    inodes: int
    requests: int


def footprint(storage: Storage, entry: SampleEntry) -> tuple[Mapping[str, int], int]:
    """What a sample takes; one listing, and none for an archive.

    The bytes of its files or objects by name, 0 for an archive whose size the manifest does not record; and its inodes:
    files and folders on a local disk, 0 elsewhere.
    """
    sizes = {entry.relpath: entry.size} if entry.head else storage.list(entry.relpath)
    folder_of_groups = entry.relpath.rpartition("/")[0]
    return sizes, count_inodes(sizes, folder_of_groups) if storage.is_local else 0


def layouts_of(storage: Storage, state: StoreManifest) -> dict[str, LayoutInfo]:
    """The layouts of samples; one request for the objects of each."""
    groups: dict[str, list[SampleEntry]] = {"directory": [], "packed": []}
    for entry in state.samples.values():
        groups[entry.layout].append(entry)
    found = {}
    for layout, entries in groups.items():
        if entries:
            first = entries[0]
            sizes, inodes = footprint(storage, first)
            # The chunks of a domain of a packed sample lie side by side.
            requests = len(first.domains if first.head else first.fields or state.fields)
            found[layout] = LayoutInfo(len(entries), len(sizes), inodes, requests)
    return found


def count_inodes(names: Iterable[str], top: str) -> int:
    """Files, and the folders that hold them, from ``top`` down. ``top`` is "" where the files have no folder."""
    inodes = set()
    for name in names:
        while name and name not in inodes:
            inodes.add(name)
            name = name.rpartition("/")[0] if name != top else ""
    return len(inodes)
