"""What ``versioning`` asks of a point store: its state, the objects that belong to it, and what a commit changed."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import chain
from typing import Any
from weakref import WeakValueDictionary

from zarr_core.format.names import listed_id
from zarr_core.format.object_names import BLACKLISTS, MANIFEST, SAMPLES, STATISTICS, split_list, statistics_folder
from zarr_core.points.store.columns import without
from zarr_core.points.store.group import group_of, is_complete
from zarr_core.points.store.manifest import StoreManifest
from zarr_core.points.store.settings import ConversionSettings
from zarr_core.storage import Storage
from zarr_core.versioning.generations import Change, Head, load

# Statistics that this library writes, below their generation's folder.
_STATISTICS_FILE = re.compile(rf"({STATISTICS}/\d{{8}})/[^/]+\.(?:yaml|json)")


def changes(before: StoreManifest | None, after: StoreManifest) -> list[Change]:
    """What a commit changed: which samples, and which settings."""
    then = before or StoreManifest(after.dataset_name)
    replaced = [i for i, entry in then.samples.items() if entry.differs(after.samples.get(i, entry))]
    done: dict[str, Collection[str]] = {
        "added": without(after.samples, then.samples),
        "replaced": replaced,
        "retired": without(then.samples, after.samples),
        "quarantined": [i for i, refusal in after.quarantine.items() if then.quarantine.get(i) != refusal],
        "released": without(then.quarantine, after.quarantine),
    }
    found = []
    for what, ids in done.items():
        settings = {after.samples[i].settings for i in ids} if what in ("added", "replaced") else set()
        note = f"settings {', '.join(sorted(settings))}" if any(settings) else ""
        if ids:
            found.append(Change(what, tuple(sorted(ids)), note))
    if before is None:
        return found
    new = _described(after, replaced)
    for what, old in _described(before, replaced).items():
        if old != new[what]:
            found.append(Change(what, note=f"{old} -> {new[what]}"))
    found.extend(moved(before, after))
    return found


def moved(before: StoreManifest, after: StoreManifest) -> Iterator[Change]:
    """The samples that a split got or lost although the store had them and has them, and lists in another order."""
    for split, ids in after.splits.items():
        then = before.splits.get(split, [])
        earlier, now = set(then), set(ids)
        joined = sorted(before.samples.keys() & now - earlier)
        left = sorted(after.samples.keys() & earlier - now)
        if joined:
            yield Change(f"added to {split}", tuple(joined))
        if left:
            yield Change(f"removed from {split}", tuple(left))
        if then != ids and sorted(then) == sorted(ids):
            yield Change("splits", note=f"another order of {split}")


def _described(state: StoreManifest, replaced: Collection[str]) -> dict[str, object]:
    """What a state says besides its samples. The grids are those of the samples that a commit replaced."""
    chunks: set[int] = set()
    shards: set[int] = set()
    for sample_id in replaced:
        for grid in state.samples[sample_id].domains.values():
            chunks.add(grid.chunk_points)
            shards.add(grid.shard_points)
    settings = "not recorded"
    current: Mapping[str, Any] = {}
    if state.conversion is not None:
        settings = state.conversion.current
        current = state.conversion.settings.get(settings, {})
    return {
        "dataset name": state.dataset_name,
        "kind": state.dataset_kind,
        "settings": settings,
        "shuffle seed": state.shuffle_seed,
        "values dtype": state.values_dtype,
        "dtypes of single fields": _listed(current.get("field_dtypes", {})) or "none",
        "error bounds": _listed(current.get("max_errors", {})) or "none",
        "layout": current.get("layout", ConversionSettings.layout),
        "codec": state.compressor,
        "points per chunk": _range(chunks),
        "points per shard": _range(shards),
        "fields": _listed({name: column.dtype for name, column in state.fields.items()}),
        "splits": _listed({name: len(ids) for name, ids in state.splits.items()}) or "none",
        "excluded": len(state.excluded),
    }


def _listed(values: Mapping[str, object]) -> str:
    return ", ".join(f"{name} {value}" for name, value in values.items())


def _range(numbers: Collection[int]) -> str:
    if not numbers:
        return ""
    least, most = min(numbers), max(numbers)
    return f"{least:,}" if least == most else f"{least:,} to {most:,}"


def _named(manifest: StoreManifest) -> Iterable[str]:
    for entry in manifest.samples.values():
        yield entry.relpath
    if manifest.generation:
        yield statistics_folder(manifest.generation)


def _roots(_: StoreManifest) -> Iterable[str]:
    return (SAMPLES, STATISTICS)


def _owner(name: str) -> str | None:
    found = _STATISTICS_FILE.fullmatch(name)
    return found[1] if found else group_of(name)


def _extends(before: StoreManifest, after: StoreManifest) -> bool:
    # The second one may have more samples: a reader may name a part of them, and another program adds to generation 0.
    later = after.generation > before.generation
    unchanged = later or all(after.samples.get(i) == entry for i, entry in before.samples.items())
    return unchanged and before.dataset_name == after.dataset_name


# States in memory, by the digest of their document.
_parsed: WeakValueDictionary[bytes, StoreManifest] = WeakValueDictionary()


def _parse(data: bytes, where: str) -> StoreManifest:
    """The state of a document, parsed once for as long as anything uses it: a commit reads what its caller has read."""
    digest = hashlib.sha256(data).digest()
    found = _parsed.get(digest)
    if found is None:
        found = _parsed[digest] = StoreManifest.from_json(data, where)
    return found


#: Tells ``versioning`` where a point store keeps its state and how to read it.
HEAD = Head(MANIFEST, _parse, _roots, _named, _owner, is_complete, changes, _extends)


def load_manifest(store: Storage | str | os.PathLike[str], generation: int | str | None = None) -> StoreManifest:
    """The manifest of a store: the current one, or that of a generation given by number or tag.

    Stores of the published format keep their splits in files beside the manifest. These files are read too.

    Raises:
        StoreError: there is no store, or no such generation or tag.
        ManifestError: the manifest cannot be read.

    Examples:
        >>> manifest = load_manifest("store")
        >>> manifest.splits["train"][0] in manifest.samples
        True
    """
    storage = store if isinstance(store, Storage) else Storage(store)
    manifest = as_its_own(load(storage, HEAD, generation), storage)
    return manifest if manifest.generation else _with_split_files(manifest, storage)


def as_its_own(manifest: StoreManifest, storage: Storage) -> StoreManifest:
    """The manifest without its origin, if that is the store itself: a copy with all points took its place."""
    is_own = storage.is_at(manifest.origin.get("store")) and "points" not in manifest.origin
    return replace(manifest, origin={}) if is_own else manifest


def load_if_any(storage: Storage) -> StoreManifest | None:
    """The current manifest; None if there is no store yet."""
    return load_manifest(storage) if storage.exists(MANIFEST) else None


def _with_split_files(manifest: StoreManifest, storage: Storage) -> StoreManifest:
    splits = dict(manifest.splits)
    for split in ("train", "val", "test"):
        listed = read_lines(storage, split_list(split))
        if listed is not None:
            splits[split] = listed
    depths = set()
    for sample_id in chain(manifest.samples, *splits.values()):
        depths.add(sample_id.count("/") + 1)
    excluded = set(manifest.excluded)
    for name in BLACKLISTS:
        for line in read_lines(storage, name) or ():
            for depth in depths:
                excluded.add(listed_id(line, depth))
    return replace(manifest, splits=splits, excluded=frozenset(excluded))


def read_lines(storage: Storage, name: str) -> list[str] | None:
    """The lines of a text file that are not empty; None if there is no such file."""
    try:
        lines = storage.read(name).decode().splitlines()
    except FileNotFoundError:
        return None
    return [line.strip() for line in lines if line.strip()]
