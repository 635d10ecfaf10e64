"""What ``versioning`` asks of a point store: its state, the objects that belong to it, and what a commit changed."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any
from weakref import WeakValueDictionary

from zarr_core.format.names import listed_id
from zarr_core.format.object_names import BLACKLISTS, MANIFEST, SAMPLES, STATISTICS, split_list, statistics_folder
from zarr_core.points.store.group import group_of, is_complete
from zarr_core.points.store.manifest import StoreManifest
from zarr_core.storage import Storage
from zarr_core.versioning.generations import Change, Head, load

# Statistics that this library writes, below their generation's folder.
_STATISTICS_FILE = re.compile(rf"({STATISTICS}/\d{{8}})/[^/]+\.(?:yaml|json)")


def changes(before: StoreManifest | None, after: StoreManifest) -> list[Change]:
    """What a commit changed: which samples, and which settings."""
    then = before or StoreManifest(after.dataset_name)
    both = [(i, then.samples[i], entry) for i, entry in after.samples.items() if i in then.samples]
    # The record of the fields is made when a newer version of this library commits first: the sample stays the same.
    replaced = [i for i, old, new in both if replace(old, fields=new.fields) != new]
    done = {
        "added": [i for i in after.samples if i not in then.samples],
        "replaced": replaced,
        "retired": [i for i in then.samples if i not in after.samples],
        "quarantined": [i for i, entry in after.quarantine.items() if then.quarantine.get(i) != entry],
        "released": [i for i in then.quarantine if i not in after.quarantine],
    }
    found = []
    for what, ids in done.items():
        settings = sorted({after.samples[i].settings for i in ids if i in after.samples} - {""})
        note = f"settings {', '.join(settings)}" if settings and what in ("added", "replaced") else ""
        found += [Change(what, tuple(sorted(ids)), note)] if ids else []
    if before is None:
        return found
    values: dict[str, Callable[[StoreManifest], Any]] = {
        "dataset name": lambda state: state.dataset_name,
        "kind": lambda state: state.dataset_kind,
        "settings": lambda state: state.conversion.current if state.conversion else "not recorded",
        "shuffle seed": lambda state: state.shuffle_seed,
        "values dtype": lambda state: state.values_dtype,
        "codec": lambda state: state.compressor,
        "points per chunk": lambda state: _grids(state, replaced, "chunk_points"),
        "points per shard": lambda state: _grids(state, replaced, "shard_points"),
        "fields": lambda state: ", ".join(f"{name} {column.dtype}" for name, column in state.fields.items()),
        "splits": lambda state: ", ".join(f"{name} {len(ids)}" for name, ids in state.splits.items()),
        "excluded": lambda state: len(state.excluded),
    }
    pairs = {what: (value(before), value(after)) for what, value in values.items()}
    return found + [Change(what, note=f"{old} -> {new}") for what, (old, new) in pairs.items() if old != new]


def _grids(manifest: StoreManifest, sample_ids: Iterable[str], attribute: str) -> str:
    grids = (grid for i in sample_ids for grid in manifest.samples[i].domains.values())
    values = sorted({getattr(grid, attribute) for grid in grids})
    return f"{values[0]:,}" if len(values) == 1 else f"{values[0]:,} to {values[-1]:,}" if values else ""


def _named(manifest: StoreManifest) -> Iterable[str]:
    yield from (entry.relpath for entry in manifest.samples.values())
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
    """
    storage = store if isinstance(store, Storage) else Storage(store)
    manifest = load(storage, HEAD, generation)
    return manifest if manifest.generation else _with_split_files(manifest, storage)


def load_if_any(storage: Storage) -> StoreManifest | None:
    """The current manifest; None if there is no store yet."""
    return load_manifest(storage) if storage.exists(MANIFEST) else None


def _with_split_files(manifest: StoreManifest, storage: Storage) -> StoreManifest:
    def lines(name: str) -> list[str] | None:
        try:
            text = storage.read(name).decode()
        except FileNotFoundError:
            return None
        return [line.strip() for line in text.splitlines() if line.strip()]

    splits = {split: lines(split_list(split)) for split in ("train", "val", "test")}
    blacklisted = [line for name in BLACKLISTS for line in lines(name) or ()]
    ids = (*manifest.samples, *(sample_id for listed in splits.values() for sample_id in listed or ()))
    depths = {sample_id.count("/") + 1 for sample_id in ids}
    return replace(
        manifest,
        splits=dict(manifest.splits) | {split: ids for split, ids in splits.items() if ids is not None},
        excluded=manifest.excluded | {listed_id(line, depth) for line in blacklisted for depth in depths},
    )
