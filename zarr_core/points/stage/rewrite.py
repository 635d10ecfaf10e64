"""A sample in another form: in the other layout, without some of its fields, or with its first points only.

Its chunks are taken as they are stored, and checked, not decoded. They wait in a temporary file of this machine, or in
memory while they are few, until the order in which the new group has them is complete.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from zarr_core._util.documents import expect, parse_json, to_json
from zarr_core.errors import CorruptChunkError, StoreError
from zarr_core.format.array_metadata import EMPTY_GROUP, ArrayLayout, group_arrays, group_zarr_json
from zarr_core.format.names import FieldName
from zarr_core.format.object_names import ATTRIBUTES_KEY, ZARR_JSON
from zarr_core.format.packed import PACKED_KEY, PackedGroup, chunk_name, head_bytes, parse_head
from zarr_core.format.shards import ChunkIndex, pack_lengths, shard_index, unpack_lengths
from zarr_core.points.convert.writer import GroupWriter
from zarr_core.points.stage.archive import is_whole, remove_leftovers
from zarr_core.points.stage.pieces import Piece, read_pieces
from zarr_core.points.stage.task import Item, StageTask, group_name
from zarr_core.points.stage.thin import FirstPoints
from zarr_core.points.store.group import SOURCE_POINTS, entry_of, head_of, is_complete, only_fields, recorded_attributes
from zarr_core.points.store.manifest import SampleEntry
from zarr_core.points.store.mesh import MESH, Write, check_mesh_object
from zarr_core.points.store.packing import Packing
from zarr_core.storage import Storage
from zarr_core.storage.archives import is_archive
from zarr_core.storage.shards import StoredShard, is_intact
from zarr_core.storage.uploads import Uploads
from zarr_core.versioning.generations import Retention


@dataclass(frozen=True)
class Form:
    """How a sample is stored in the end.

    Attributes:
        is_packed: whether as one object.
        arrays: names of the arrays; all of the sample if None.
        points: how many points; all if None.
    """

    is_packed: bool
    arrays: Collection[str] | None = None
    points: FirstPoints | None = None


class RewrittenGroup:
    """A sample's group, and what it becomes in another form.

    Args:
        storage: where the group is.
        entry: of the sample.
        form: the other form.

    Attributes:
        content: digest of the group's metadata.
        layouts: of the arrays in the other form; a subset if the sample lacks some.
        is_whole: whether these are all fields and points of the sample.

    Raises:
        StoreError: the metadata cannot be read, or another program wrote the sample.
        FileNotFoundError: the group is missing.
    """

    def __init__(self, storage: Storage, entry: SampleEntry, form: Form) -> None:
        if not entry.is_ours:
            reason = "so its points may be in an order that is not random, and its chunks without checksums"
            raise StoreError(f"another program wrote it, {reason}: stage it without --layout and --points")
        self._storage, self._entry = storage, entry
        try:
            stored, self._packed = self._read()
            self.content = hashlib.sha256(stored).hexdigest()
            self._document: dict[str, Any] = dict(self._packed.document) if self._packed else parse_json(stored)
            self._recorded = recorded_attributes(self._document) or {}
            self._held = _layouts(self._document)
            self.layouts: dict[str, ArrayLayout] = {}
            # Points of the domains that have fewer in the other form.
            self._cut: dict[str, int] = {}
            for array, layout in self._held.items():
                if form.arrays is None or array in form.arrays:
                    self.layouts[array] = _in_form(array, layout, form)
                    if self.layouts[array].n_points < layout.n_points:
                        self._cut[array.partition("/")[0]] = layout.n_points
            self.is_whole = len(self.layouts) == len(self._held) and not self._cut
            self._pieces = [*self._chunks(), *self._mesh_objects()]
        except ValueError as error:
            raise StoreError(f"{entry.relpath}/{ZARR_JSON} cannot be read: {error}") from error

    def _read(self) -> tuple[bytes, PackedGroup | None]:
        """The bytes of the group's metadata; and what it tells of an archive."""
        if not self._entry.head:
            return self._storage.read(f"{self._entry.relpath}/{ZARR_JSON}"), None
        head = self._storage.read(self._entry.relpath, 0, self._entry.head)
        return head[: head_bytes(head)], parse_head(head)

    def _chunks(self) -> Iterator[Piece]:
        """Where the chunks of the arrays are."""
        relpath = self._entry.relpath
        for array, layout in self.layouts.items():
            if self._packed is None:
                yield from self._sharded_chunks(array, self._held[array], layout.n_chunks)
                continue
            places = self._packed.chunks_of(array, self._held[array].n_chunks)
            for number in range(layout.n_chunks):
                start, length = int(places.starts[number]), int(places.lengths[number])
                yield Piece(relpath, start, start + length, chunk_name(array, number))

    def _sharded_chunks(self, array: str, layout: ArrayLayout, n_chunks: int) -> Iterator[Piece]:
        """Where the first chunks of an array lie in its shards."""
        path = f"{self._entry.relpath}/{array}"
        lengths = expect(dict, self._recorded.get("chunk_bytes", {}), "chunk_bytes").get(array)
        if isinstance(lengths, str):
            index = ChunkIndex.from_lengths(layout, unpack_lengths(lengths))
            for number in range(n_chunks):
                start, length = index.starts[number], index.lengths[number]
                name = f"{path}/{layout.shard_key(number // layout.chunks_per_shard)}"
                yield Piece(name, start, start + length, chunk_name(array, number))
            return
        for shard in range(-(-n_chunks // layout.chunks_per_shard)):
            name = f"{path}/{layout.shard_key(shard)}"
            for chunk in StoredShard.open(self._storage, name, layout, shard).chunks:
                if chunk.number < n_chunks:
                    yield Piece(name, chunk.start, chunk.stop, chunk_name(array, chunk.number))

    def _mesh_objects(self) -> Iterator[Piece]:
        """The objects of the sample's meshes, unless it is only a part of the sample."""
        if not self.is_whole or "meshes" not in self._recorded:
            return
        relpath = self._entry.relpath
        if self._packed is not None:
            for name, place in self._packed.entries.items():
                if name.startswith(f"{MESH}/"):
                    yield Piece(relpath, place.start, place.start + place.size, name)
            return
        for name, info in self._storage.infos(f"{relpath}/{MESH}").items():
            yield Piece(name, 0, info.size, name.removeprefix(f"{relpath}/"))

    def write(self, target: Storage, relpath: str, changes: Mapping[str, Any]) -> SampleEntry:
        """Write the group in its other form; returns its entry of the manifest.

        Args:
            target: the store.
            relpath: path of the group; that of an archive for a packed one.
            changes: to what the group records, by key.

        Raises:
            CorruptChunkError: a chunk is damaged.
        """
        group = self._group(changes)
        with Packing(relpath) as packing:
            for name, data in read_pieces(self._storage, self._pieces):
                packing.write(name, [data])
            if is_archive(relpath):
                self._write_metadata(packing.write)
                archive = packing.arrange(group, self._in_order())
                target.write(relpath, packing.pieces(archive))
                return entry_of(relpath, group, len(archive.head))
            with Uploads(target) as uploads:
                self._write_folder(packing, relpath, uploads.write)
            target.write(f"{relpath}/{ZARR_JSON}", [to_json(group)])
        return entry_of(relpath, group)

    def _write_folder(self, packing: Packing, relpath: str, write: Write) -> None:
        lengths = self._lengths()
        for array, layout in self.layouts.items():
            for shard in range(layout.n_shards):
                first = shard * layout.chunks_per_shard
                of_shard = lengths[array][first : first + layout.chunks_per_shard]
                pieces = _shard(packing, array, layout, shard, of_shard)
                write(f"{relpath}/{array}/{layout.shard_key(shard)}", pieces)
        for piece in self._pieces:
            if piece.name.startswith(f"{MESH}/"):
                write(f"{relpath}/{piece.name}", [packing.read(piece.name)])
        self._write_metadata(lambda name, pieces: write(f"{relpath}/{name}", pieces))

    def _write_metadata(self, write: Write) -> None:
        for domain in sorted({array.partition("/")[0] for array in self.layouts}):
            write(f"{domain}/{ZARR_JSON}", [to_json(EMPTY_GROUP)])
        for array, layout in self.layouts.items():
            write(f"{array}/{ZARR_JSON}", [to_json(layout.to_zarr_json())])

    def _lengths(self) -> dict[str, list[int]]:
        """Stored bytes of the chunks of each array."""
        lengths: dict[str, list[int]] = {array: [] for array in self.layouts}
        for piece in self._pieces:
            array, _, _ = piece.name.partition("/c/")
            if array in lengths:
                lengths[array].append(piece.stop - piece.start)
        return lengths

    def _in_order(self) -> list[str]:
        """The arrays in the order in which a conversion writes them, which its records keep."""
        names = _names(self.layouts)
        order = {name: number for number, name in enumerate(self._recorded.get("moments", {}))}
        return sorted(self.layouts, key=lambda array: order.get(names[array], len(order)))

    def _group(self, changes: Mapping[str, Any]) -> dict[str, Any]:
        """The content of the group's ``zarr.json`` in its other form, without the positions of an archive."""
        names = _names(self.layouts)
        lengths = self._lengths()
        recorded = only_fields(self._recorded, names.values())
        recorded.pop(PACKED_KEY, None)
        recorded.pop("chunk_bytes", None)
        meshes = recorded.pop("meshes", None)
        recorded["stored_bytes"] = {}
        chunk_bytes = {}
        for array in self._in_order():
            layout = self.layouts[array]
            recorded["stored_bytes"][names[array]] = sum(lengths[array]) + layout.n_shards * layout.index_bytes
            if layout.sharded and max(lengths[array]) < 2**32:  # otherwise readers use the shard index
                chunk_bytes[array] = pack_lengths(lengths[array])
        if chunk_bytes:
            recorded["chunk_bytes"] = chunk_bytes
        if meshes is not None and self.is_whole:
            recorded["meshes"] = meshes
        if self._cut:
            recorded[SOURCE_POINTS] = self._cut | recorded.get(SOURCE_POINTS, {})
        attributes = dict(self._document["attributes"])
        attributes[ATTRIBUTES_KEY] = recorded | dict(changes)
        return group_zarr_json(attributes, self.layouts)


def _layouts(document: dict[str, Any]) -> dict[str, ArrayLayout]:
    """Layout by array name with everything that its metadata says."""
    below = document["consolidated_metadata"]["metadata"]
    layouts = {}
    for array, layout in group_arrays(document).items():
        units = expect(dict, below[array].get("attributes", {}), "attributes").get("units", "")
        domain = array.partition("/")[0] if "dimension_names" in below[array] else ""
        layouts[array] = replace(layout, units=expect(str, units, "units"), domain=domain)
    return layouts


def _in_form(array: str, layout: ArrayLayout, form: Form) -> ArrayLayout:
    """The layout of an array in another form."""
    n_chunks = layout.n_chunks
    if form.points is not None:
        n_chunks = form.points.n_chunks(array.partition("/")[0], layout)
    points_of_chunks = n_chunks * layout.chunk_points
    shard_points = points_of_chunks
    if form.is_packed:
        shard_points = layout.chunk_points
    elif layout.sharded:
        shard_points = min(layout.shard_points, points_of_chunks)
    n_points = min(layout.n_points, points_of_chunks)
    return replace(layout, n_points=n_points, shard_points=shard_points, sharded=not form.is_packed)


def _names(arrays: Collection[str]) -> dict[str, str]:
    """Canonical field name by array name."""
    names = {}
    for array in arrays:
        domain, _, name = array.partition("/")
        names[array] = FieldName(domain, name).canonical
    return names


def _shard(packing: Packing, array: str, layout: ArrayLayout, shard: int, lengths: list[int]) -> Iterator[bytes]:
    """The bytes of a shard whose chunks have these lengths."""
    for number in range(len(lengths)):
        yield packing.read(chunk_name(array, shard * layout.chunks_per_shard + number))
    yield shard_index(layout, lengths)


class RewrittenCopy:
    """One sample to copy in another form.

    Args:
        task, item: as for :func:`zarr_core.points.stage.store.stage_sample`.
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
