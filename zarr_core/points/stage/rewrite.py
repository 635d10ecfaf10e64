"""A sample in another form: in the other layout, without some of its fields, or with its first points only.

Its chunks are taken as they are stored, and checked, not decoded. They wait in a temporary file of this machine, or in
memory while they are few, until the order in which the new group has them is complete.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import replace
from itertools import islice
from operator import attrgetter
from typing import Any

from zarr_core._util.documents import expect, parse_json, to_json
from zarr_core.errors import CorruptChunkError, StoreError
from zarr_core.format.array_metadata import ArrayLayout, group_arrays, group_zarr_json
from zarr_core.format.names import FieldName
from zarr_core.format.object_names import ATTRIBUTES_KEY, ZARR_JSON
from zarr_core.format.packed import PACKED_KEY, PackedGroup, chunk_name, head_bytes, parse_head
from zarr_core.format.shards import ChunkIndex, pack_lengths, shard_index, unpack_lengths
from zarr_core.points.convert.writer import GroupWriter, write_metadata
from zarr_core.points.stage.as_stored import Piece, is_whole, read_pieces, remove_leftovers
from zarr_core.points.stage.task import Item, StagedSample, StageTask
from zarr_core.points.store.group import SOURCE_POINTS, entry_of, head_of, is_complete, only_fields, recorded_attributes
from zarr_core.points.store.manifest import SampleEntry
from zarr_core.points.store.mesh import MESH, Write, check_mesh_object
from zarr_core.points.store.packing import Packing
from zarr_core.points.store.settings import group_name
from zarr_core.storage import Storage
from zarr_core.storage.archives import is_archive
from zarr_core.storage.checked import StoredShard, is_intact
from zarr_core.storage.uploads import Uploads
from zarr_core.versioning.generations import Retention


class RewrittenCopy:
    """One sample to copy in another form; raises StoreError if its group cannot be read, or another program wrote it.

    Of its other form, ``_layouts`` has the arrays, and ``_lengths`` the stored bytes of their chunks. ``_cut`` tells
    how many points those domains have in the source that have fewer now, ``_is_whole`` whether all fields and points
    are there.
    """

    def __init__(self, task: StageTask, item: Item) -> None:
        self._task, self._item, self._entry = task, item, item[1]
        if not self._entry.is_ours:
            reason = "so its points may be in an order that is not random, and its chunks without checksums"
            raise StoreError(f"another program wrote it, {reason}: stage it without --layout and --points")
        self._layouts: dict[str, ArrayLayout] = {}
        self._lengths: dict[str, list[int]] = {}
        self._cut: dict[str, int] = {}
        try:
            stored, self._packed = self._read()
            self._digest = hashlib.sha256(stored).hexdigest()
            self._document: dict[str, Any] = dict(self._packed.document) if self._packed else parse_json(stored)
            self._recorded = recorded_attributes(self._document) or {}
            self._held = _layouts(self._document)
            for array, layout in self._held.items():
                if array in task.arrays:
                    self._layouts[array] = self._in_form(array, layout)
                    if self._layouts[array].n_points < layout.n_points:
                        self._cut[array.partition("/")[0]] = layout.n_points
            self._is_whole = len(self._layouts) == len(self._held) and not self._cut
            self._pieces = [*self._chunks(), *self._mesh_objects()]
        except ValueError as error:
            raise StoreError(f"{self._entry.relpath}/{ZARR_JSON} cannot be read: {error}") from error
        if not self._layouts:
            raise StoreError(f"it has none of {', '.join(task.arrays.values())}")

    def _read(self) -> tuple[bytes, PackedGroup | None]:
        """The bytes of the group's metadata; and what it tells of an archive."""
        if not self._entry.head:
            return self._task.source.read(f"{self._entry.relpath}/{ZARR_JSON}"), None
        head = self._task.source.read(self._entry.relpath, 0, self._entry.head)
        return head[: head_bytes(head)], parse_head(head)

    def _in_form(self, array: str, layout: ArrayLayout) -> ArrayLayout:
        """The layout of an array in the other form."""
        n_chunks = layout.n_chunks
        if self._task.points is not None:
            n_chunks = self._task.points.n_chunks(array.partition("/")[0], layout)
        points_of_chunks = n_chunks * layout.chunk_points
        is_packed = self._task.packs(self._entry)
        shard_points = points_of_chunks
        if is_packed:
            shard_points = layout.chunk_points
        elif layout.sharded:
            shard_points = min(layout.shard_points, points_of_chunks)
        n_points = min(layout.n_points, points_of_chunks)
        return replace(layout, n_points=n_points, shard_points=shard_points, sharded=not is_packed)

    def _chunks(self) -> Iterator[Piece]:
        """Where the chunks of the arrays are."""
        for array, layout in self._layouts.items():
            lengths = self._lengths.setdefault(array, [])
            for number, (name, start, length) in enumerate(islice(self._places(array), layout.n_chunks)):
                lengths.append(length)
                yield Piece(name, start, start + length, chunk_name(array, number))

    def _places(self, array: str) -> Iterator[tuple[str, int, int]]:
        """The object that holds each chunk of an array, in their order, its first byte there, and its length."""
        layout, path = self._held[array], f"{self._entry.relpath}/{array}"
        if self._packed is not None:
            index = self._packed.chunks_of(array, layout.n_chunks)
            for start, length in zip(index.starts, index.lengths, strict=True):
                yield self._entry.relpath, start, length
            return
        recorded = expect(dict, self._recorded.get("chunk_bytes", {}), "chunk_bytes").get(array)
        if isinstance(recorded, str):
            index = ChunkIndex.from_lengths(layout, unpack_lengths(recorded))
            for number in range(layout.n_chunks):
                name = f"{path}/{layout.shard_key(number // layout.chunks_per_shard)}"
                yield name, index.starts[number], index.lengths[number]
            return
        for shard in range(layout.n_shards):
            name = f"{path}/{layout.shard_key(shard)}"
            found = StoredShard(self._task.source, name, layout, shard).chunks
            for chunk in sorted(found, key=attrgetter("number")):
                yield name, chunk.start, chunk.stop - chunk.start

    def _mesh_objects(self) -> Iterator[Piece]:
        """The objects of the sample's meshes, unless it is only a part of the sample."""
        if not self._is_whole or "meshes" not in self._recorded:
            return
        relpath = self._entry.relpath
        if self._packed is not None:
            for name, place in self._packed.entries.items():
                if name.startswith(f"{MESH}/"):
                    yield Piece(relpath, place.start, place.start + place.size, name)
            return
        for name, info in self._task.source.infos(f"{relpath}/{MESH}").items():
            yield Piece(name, 0, info.size, name.removeprefix(f"{relpath}/"))

    def copy(self) -> StagedSample:
        """Write the sample unless the copy has it."""
        sample_id, entry, known = self._item
        target = self._task.target
        in_place = self._task.repacked is not None
        relpath, changes = self._as_converted() if in_place else self._as_copied()
        present = find_whole(target, relpath, known == relpath and not self._task.check)
        if present is not None:
            copied, kept = 0, present.bytes
        else:
            if not in_place:  # else other writers may be at work
                remove_leftovers(target, relpath)
            present = self._write(relpath, changes)
            copied, kept = present.bytes, 0
        fields = present.fields if entry.fields is not None else None
        return StagedSample(sample_id, replace(present, fields=fields), copied, kept)

    def _as_copied(self) -> tuple[str, dict[str, Any]]:
        """Path of the group in a copy, and what the group records of it."""
        sample_id, entry, _ = self._item
        arrays = sorted(self._layouts)
        content = [entry.relpath, self._digest, arrays, *(self._layouts[array].n_points for array in arrays)]
        relpath = group_name(sample_id, content, is_packed=self._task.packs(entry))
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

    def _write(self, relpath: str, changes: Mapping[str, Any]) -> SampleEntry:
        """Write the group, with changes to what it records; returns its entry of the manifest."""
        group, target = self._group(changes), self._task.target
        with closing(Packing(relpath)) as packing:
            for name, data in read_pieces(self._task.source, self._pieces):
                packing.write(name, [data])
            if is_archive(relpath):
                write_metadata(packing.write, relpath, self._layouts)
                archive = packing.arrange(group, self._in_order())
                target.write(relpath, packing.pieces(archive))
                return entry_of(relpath, group, len(archive.head))
            with Uploads(target) as uploads:
                self._write_shards(packing, uploads.write)
                write_metadata(uploads.write, relpath, self._layouts)
            target.write(f"{relpath}/{ZARR_JSON}", [to_json(group)])
        return entry_of(relpath, group)

    def _write_shards(self, packing: Packing, write: Write) -> None:
        for array, layout in self._layouts.items():
            for shard in range(layout.n_shards):
                pieces = self._shard(packing, array, shard)
                write(f"{packing.relpath}/{array}/{layout.shard_key(shard)}", pieces)
        for piece in self._pieces:
            if piece.name.startswith(f"{MESH}/"):
                write(f"{packing.relpath}/{piece.name}", packing.read(piece.name))

    def _shard(self, packing: Packing, array: str, shard: int) -> Iterator[bytes]:
        layout = self._layouts[array]
        first = shard * layout.chunks_per_shard
        lengths = self._lengths[array][first : first + layout.chunks_per_shard]
        for number in range(first, first + len(lengths)):
            yield from packing.read(chunk_name(array, number))
        yield shard_index(layout, lengths)

    def _in_order(self) -> list[str]:
        """The arrays in the order in which a conversion writes them, which its records keep."""
        order = {name: number for number, name in enumerate(self._recorded.get("moments", {}))}
        return sorted(self._layouts, key=lambda array: order.get(_canonical(array), len(order)))

    def _group(self, changes: Mapping[str, Any]) -> dict[str, Any]:
        """The content of the group's ``zarr.json`` in its other form, without the positions of an archive."""
        recorded = only_fields(self._recorded, set(map(_canonical, self._layouts)))
        for key in (PACKED_KEY, "chunk_bytes", "meshes"):
            recorded.pop(key, None)
        recorded["stored_bytes"] = {}
        chunk_bytes = {}
        for array in self._in_order():
            layout, lengths = self._layouts[array], self._lengths[array]
            recorded["stored_bytes"][_canonical(array)] = sum(lengths) + layout.n_shards * layout.index_bytes
            if layout.sharded and max(lengths) < 2**32:  # otherwise readers use the shard index
                chunk_bytes[array] = pack_lengths(lengths)
        if chunk_bytes:
            recorded["chunk_bytes"] = chunk_bytes
        if self._is_whole and "meshes" in self._recorded:
            recorded["meshes"] = self._recorded["meshes"]
        if self._cut:
            recorded[SOURCE_POINTS] = self._cut | recorded.get(SOURCE_POINTS, {})
        attributes = {**self._document["attributes"], ATTRIBUTES_KEY: recorded | dict(changes)}
        return group_zarr_json(attributes, self._layouts)


def _layouts(document: dict[str, Any]) -> dict[str, ArrayLayout]:
    """Layout by array name with everything that its metadata says."""
    below = document["consolidated_metadata"]["metadata"]
    layouts = {}
    for array, layout in group_arrays(document).items():
        units = expect(dict, below[array].get("attributes", {}), "attributes").get("units", "")
        domain = array.partition("/")[0] if "dimension_names" in below[array] else ""
        layouts[array] = replace(layout, units=expect(str, units, "units"), domain=domain)
    return layouts


def _canonical(array: str) -> str:
    """Canonical name of the field that an array holds."""
    domain, _, name = array.partition("/")
    return FieldName(domain, name).canonical


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
