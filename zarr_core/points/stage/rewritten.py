"""Copies a sample in another form, unless the copy has it already."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from zarr_core._util.documents import parse_json
from zarr_core.errors import CorruptChunkError, StoreError
from zarr_core.format.array_metadata import group_arrays
from zarr_core.format.object_names import ZARR_JSON
from zarr_core.points.convert.writer import GroupWriter
from zarr_core.points.stage.archive import is_whole, remove_leftovers
from zarr_core.points.stage.rewrite import Form, RewrittenGroup
from zarr_core.points.stage.task import Item, StageTask, group_name
from zarr_core.points.store.group import entry_of, head_of, is_complete
from zarr_core.points.store.manifest import SampleEntry
from zarr_core.points.store.mesh import MESH, check_mesh_object
from zarr_core.storage import Storage
from zarr_core.storage.shards import is_intact
from zarr_core.versioning.generations import Retention


class RewrittenCopy:
    """One sample to copy in another form.

    Args:
        task, item: as for :func:`zarr_core.points.stage.sample.stage_sample`.
    """

    def __init__(self, task: StageTask, item: Item) -> None:
        self._task, self._item = task, item
        entry = item[1]
        self._form = Form(task.packs(entry), task.arrays, task.points)
        self._group = RewrittenGroup(task.source, entry, self._form)
        if not self._group.layouts:
            raise StoreError(f"it has none of {', '.join(task.arrays.values())}")

    def copy(self) -> tuple[SampleEntry, int, int]:
        """Write the sample unless the copy has it: the entry, bytes copied and bytes kept, of its arrays."""
        _, entry, known = self._item
        target = self._task.target
        in_place = self._task.repacked is not None
        relpath, changes = self._as_converted() if in_place else self._as_copied()
        trusted = known == relpath and not self._task.check
        present = find_whole(target, relpath, trusted)
        if present is not None:
            copied, kept = 0, present.bytes
        else:
            if not in_place:  # else other writers may be at work
                remove_leftovers(target, relpath)
            present = self._group.write(target, relpath, changes)
            copied, kept = present.bytes, 0
        return replace(present, fields=present.fields if entry.fields is not None else None), copied, kept

    def _as_copied(self) -> tuple[str, dict[str, Any]]:
        """Path of the group in a copy, and what the group records of it."""
        sample_id, entry, _ = self._item
        content: list[Any] = [entry.relpath, self._group.content, sorted(self._group.layouts)]
        content += [layout.n_points for _, layout in sorted(self._group.layouts.items())]
        relpath = group_name(sample_id, content, is_packed=self._form.is_packed)
        return self._task.choose_name(self._item, relpath, lambda _: False), {"staged_from": entry.relpath}

    def _as_converted(self) -> tuple[str, dict[str, Any]]:
        """Path of the group that a conversion with the new settings would write, and what it would record of them."""
        sample_id, entry, _ = self._item
        settings = (self._task.repacked or {}).get(entry.settings)
        if settings is None:
            raise StoreError("the settings that it was converted with are not recorded: convert it again")
        retention = Retention(tombstones=dict.fromkeys(self._task.tombstoned, 0))
        writer = GroupWriter(self._task.target.root, settings, retention)
        return writer.relpath(sample_id, entry.fingerprint, entry.content), {"settings": settings.digest}


def find_whole(storage: Storage, relpath: str, trusted: bool) -> SampleEntry | None:
    """The entry of a group of this library if all of it is there, judged by sizes if it is trusted; else None."""
    try:
        sizes = storage.list(relpath)
        group = parse_json(storage.read(f"{relpath}/{ZARR_JSON}"))
        if not is_complete(storage, relpath, group, sizes):
            return None
        found = entry_of(relpath, group, head_of(sizes, relpath))
    except (FileNotFoundError, ValueError, StoreError, CorruptChunkError):
        return None
    return found if trusted or _is_sound(storage, found, group, sizes) else None


def _is_sound(storage: Storage, entry: SampleEntry, group: Any, sizes: Mapping[str, int]) -> bool:
    """Whether all chunks of a group that has the right sizes are undamaged."""
    relpath = entry.relpath
    if entry.head:
        return is_whole(storage, relpath, entry.head)
    for array, layout in group_arrays(group).items():
        for shard in range(layout.n_shards):
            if not is_intact(storage, f"{relpath}/{array}/{layout.shard_key(shard)}", layout, shard):
                return False
    try:
        for name in sizes:
            if name.startswith(f"{relpath}/{MESH}/"):
                check_mesh_object(name, storage.read(name))
    except (CorruptChunkError, OSError):
        return False
    return True
