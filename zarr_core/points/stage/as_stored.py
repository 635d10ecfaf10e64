"""Samples copied as they are, each stored piece checked on its way: archives whole, folders with all or some fields."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import cache, partial
from typing import Any, NamedTuple

from zarr_core._util.documents import parse_json, to_json
from zarr_core.errors import CorruptChunkError, StoreError
from zarr_core.format.array_metadata import ArrayLayout, group_arrays
from zarr_core.format.object_names import ATTRIBUTES_KEY, ZARR_JSON
from zarr_core.format.packed import PackedGroup, parse_head
from zarr_core.format.ranges import MAX_READ_BYTES, coalesce
from zarr_core.points.stage.task import Item, StagedSample, StageTask
from zarr_core.points.store.group import chunk_object_bytes, only_fields, recorded_attributes
from zarr_core.points.store.manifest import SampleEntry
from zarr_core.points.store.mesh import MESH, check_mesh_object, mesh_bytes
from zarr_core.points.store.settings import group_name
from zarr_core.storage import ObjectInfo, Storage
from zarr_core.storage.archives import is_archive
from zarr_core.storage.checked import StoredShard, check_parts, is_intact, read_checked
from zarr_core.storage.temporary import strip_temp_suffix

# Ranges of a sample that each worker reads at the same time.
_READS = 4
# Shards of a sample that each worker copies at the same time.
_SHARDS_AT_A_TIME = 4
# Unwanted bytes between two pieces that cost less than another request.
_MAX_GAP = 1 << 18


class Piece(NamedTuple):
    """A chunk with its checksum, or a small object of a sample's group.

    Attributes:
        object: name of the object that holds it.
        start, stop: its bytes in that object.
        name: in the sample's group, as an entry of an archive is called.
    """

    object: str
    start: int
    stop: int
    name: str


def read_pieces(storage: Storage, pieces: Iterable[Piece]) -> Iterator[tuple[str, bytes]]:
    """Name and bytes of each piece, in the order of objects and positions. Memory: four ranges of at most 8 MiB.

    Raises:
        CorruptChunkError: a piece is damaged.
        FileNotFoundError: an object is missing.
    """
    groups = coalesce(sorted(pieces), max_gap=_MAX_GAP, max_bytes=MAX_READ_BYTES)
    with ThreadPoolExecutor(_READS) as threads:
        for first in range(0, len(groups), _READS):
            for found in threads.map(partial(_read, storage), groups[first : first + _READS]):
                yield from found


def _read(storage: Storage, group: Sequence[Piece]) -> list[tuple[str, bytes]]:
    start, stop = group[0].start, group[-1].stop
    check = partial(check_parts, group, start, stop, _check_piece)
    data = read_checked(storage, group[0].object, start, stop, check)
    found = []
    for piece in group:
        found.append((piece.name, data[piece.start - start : piece.stop - start]))
    return found


def _check_piece(piece: Piece, data: bytes) -> None:
    try:
        check_mesh_object(piece.name, data)
    except CorruptChunkError as error:
        raise CorruptChunkError(f"{error} (bytes {piece.start} to {piece.stop} of {piece.object})") from error


class StoredArchive:
    """The archive of a sample. One request reads all of an archive of up to 8 MiB.

    Raises:
        FileNotFoundError: there is no such object.
        CorruptChunkError: the head is damaged.
    """

    def __init__(self, storage: Storage, relpath: str, head: int) -> None:
        self._storage, self._relpath, self._head_bytes = storage, relpath, head
        self._first_bytes = max(head, MAX_READ_BYTES)
        self._first, self._group = read_checked(storage, relpath, 0, self._first_bytes, self._parsed)
        self.size = self._group.size

    def _parsed(self, data: bytes) -> tuple[bytes, PackedGroup]:
        try:
            group = parse_head(data)
            group.entries  # noqa: B018  # damage shows here
            size = group.size
        except ValueError as error:
            raise CorruptChunkError(f"{self._relpath} cannot be read: {error}") from error
        if len(data) != min(size, self._first_bytes) or group.head != self._head_bytes:
            expected = f"{size:,} bytes and a head of {self._head_bytes:,}, as its head and the manifest say"
            raise CorruptChunkError(f"{self._relpath}: expected {expected}")
        return data, group

    def pieces(self) -> Iterator[bytes]:
        """The bytes of the archive in pieces of at most 8 MiB, or one entry; each is checked before it is yielded.

        Raises:
            CorruptChunkError: names the entry.
        """
        entries = []
        for name, place in self._group.entries.items():
            entries.append(Piece(self._relpath, place.start, place.start + place.size, name))
        end = 0
        for group in coalesce(entries, max_gap=self.size, max_bytes=MAX_READ_BYTES):
            yield self._read(end, group[-1].stop, group)
            end = group[-1].stop
        yield self._read(end, self.size, [])

    def _read(self, start: int, stop: int, entries: list[Piece]) -> bytes:
        check = partial(check_parts, entries, start, stop, _check_piece)
        if stop <= len(self._first):
            try:
                return check(self._first[start:stop])
            except CorruptChunkError:
                if self._storage.is_local:
                    raise
        return read_checked(self._storage, self._relpath, start, stop, check)


def copy_archive(task: StageTask, item: Item) -> StagedSample:
    """Copy a packed sample as it is, unless the copy has it."""
    sample_id, entry, known = item
    source, target = task.source, task.target
    find = cache(target.find)
    source_head = cache(partial(source.read, entry.relpath, 0, entry.head))

    def is_another(relpath: str) -> bool:
        """Whether the copy has another archive at this path; False for a damaged one, which is repaired."""
        if find(relpath) is None:
            return False
        head = target.read(relpath, 0, entry.head)
        try:
            parse_head(head)
        except ValueError:
            return False
        return head != source_head()

    relpath = task.choose_name(item, entry.relpath, is_another)
    staged = replace(entry, relpath=relpath)
    present = find(relpath)
    if present is not None:
        if known == relpath and not task.check:
            is_there = present.size == parse_head(source_head()).size
        else:
            is_there = is_whole(target, relpath, entry.head)
        if is_there:
            return StagedSample(sample_id, staged, kept=present.size)
    remove_leftovers(target, relpath)
    archive = StoredArchive(source, entry.relpath, entry.head)
    return StagedSample(sample_id, staged, copied=target.write(relpath, archive.pieces()))


def is_whole(storage: Storage, relpath: str, head: int) -> bool:
    """Whether an archive is there, with all its entries undamaged."""
    try:
        archive = StoredArchive(storage, relpath, head)
        for _ in archive.pieces():
            pass
    except (CorruptChunkError, OSError):
        return False
    return storage.size(relpath) == archive.size


def remove_leftovers(target: Storage, relpath: str) -> None:
    """Delete temporary files of killed copies of a group. The lock of a local target excludes other writers."""
    if not target.is_local:
        return
    is_folder = not is_archive(relpath)
    names = []
    for stored in target.objects(relpath if is_folder else relpath.rpartition("/")[0], recursive=is_folder):
        if strip_temp_suffix(stored.name)[1]:
            names.append(stored.name)
    target.delete(names)


class FolderCopy:
    """One sample to copy that is a folder; raises ZarrCoreError if its group in the source cannot be read.

    Attributes:
        layouts: layout by array name, of the arrays to copy.
        whole: whether these are all arrays of the sample.
        found: the objects of its group in the source.
        meshes: those of its meshes; none if the copy has only part of its fields.
        group: content of its ``zarr.json`` in the copy.
        relpath: path of its group in the copy.
        trusted: whether the shards were checked earlier, because a manifest of the copy names the group.
        target_sizes: bytes by object of the group in the copy.
    """

    def __init__(self, task: StageTask, item: Item) -> None:
        self.sample_id, self.entry, known = item
        self.source, self.target, entry = task.source, task.target, self.entry
        self.group = self.source.read(f"{entry.relpath}/{ZARR_JSON}")
        self.layouts: dict[str, ArrayLayout] = {}
        fields = []
        try:
            document = parse_json(self.group)
            layouts = group_arrays(document)
            for name, layout in layouts.items():
                if name in task.arrays:
                    self.layouts[name] = layout
                    fields.append(task.arrays[name])
            self.whole = len(self.layouts) == len(layouts)
            recorded = mesh_bytes(recorded_attributes(document) or {}) if self.whole else {}
            if self.layouts and not self.whole:
                self.group = _reduced(document, self.layouts, fields, entry.relpath)
        except ValueError as error:
            raise StoreError(f"{entry.relpath}/{ZARR_JSON} cannot be read: {error}") from error
        if not self.layouts:
            raise StoreError(f"it has none of {', '.join(task.arrays.values())}")
        self.found = self.source.infos(entry.relpath)
        self.meshes: dict[str, ObjectInfo] = {}
        if self.whole:
            for name, info in self.found.items():
                if name.startswith(f"{entry.relpath}/{MESH}/") and not strip_temp_suffix(name)[1]:
                    self.meshes[name] = info
        mesh_size = chunk_object_bytes({name: info.size for name, info in self.meshes.items()}, entry.relpath)
        if mesh_size != sum(recorded.values()):
            raise CorruptChunkError(f"its meshes have {mesh_size:,} bytes, {sum(recorded.values()):,} were recorded")
        self.relpath = task.choose_name(item, self._name(), self._is_another)
        self.trusted = known == self.relpath and not task.check
        self.target_sizes = self.target.list(self.relpath)

    def _name(self) -> str:
        """Path that tells the group's content."""
        if self.whole and self.entry.is_ours:
            return self.entry.relpath
        # Different content needs a different name: caches and pinned readers identify groups by name.
        content: list[Any] = [self.entry.relpath, sorted(self.layouts)]
        if not self.entry.is_ours:  # another program may overwrite its group
            objects = []
            for name, info in self.found.items():
                objects.append((name, info.size, info.version))
            content.append(objects)
        return group_name(self.sample_id, content)

    def _is_another(self, relpath: str) -> bool:
        """Whether the copy has another group at this path, as after its objects were replaced in the source."""
        try:
            return bool(parse_json(self.target.read(f"{relpath}/{ZARR_JSON}")) != parse_json(self.group))
        except (FileNotFoundError, ValueError):  # none, or a damaged one, which is repaired
            return False

    def copy(self) -> StagedSample:
        """Copy what is missing, the group's ``zarr.json`` last."""
        remove_leftovers(self.target, self.relpath)
        copied = kept = 0
        with ThreadPoolExecutor(_SHARDS_AT_A_TIME) as threads:
            for new, present in threads.map(self._copy_shard, self._shards()):
                copied += new
                kept += present
        folders = {name.rpartition("/")[0] for name in self.layouts}
        for name in sorted(folders | self.layouts.keys()):
            self._write(f"{name}/{ZARR_JSON}", self.source.read(f"{self.entry.relpath}/{name}/{ZARR_JSON}"))
        for original, info in self.meshes.items():
            name = original.removeprefix(f"{self.entry.relpath}/")
            if not (self.trusted and self.target_sizes.get(f"{self.relpath}/{name}") == info.size):
                check = partial(check_mesh_object, original)
                self._write(name, read_checked(self.source, original, 0, info.size, check))
        self._write(ZARR_JSON, self.group)
        return StagedSample(self.sample_id, self._staged_entry(copied + kept), copied, kept)

    def _staged_entry(self, size: int) -> SampleEntry:
        """The sample's entry in the manifest of the copy; ``size`` is that of its shards."""
        kept = {array.partition("/")[0] for array in self.layouts}
        domains = {}
        for domain, grid in self.entry.domains.items():
            if domain in kept:
                domains[domain] = grid
        fields = None
        if self.entry.fields is not None:
            fields = {}
            for name, column in self.entry.fields.items():
                if column.array_name in self.layouts:
                    fields[name] = column
        size = size if self.entry.bytes else 0
        return replace(self.entry, relpath=self.relpath, domains=domains, fields=fields, bytes=size)

    def _shards(self) -> Iterator[tuple[str, int]]:
        """Name of the array and number of every shard."""
        for name, layout in self.layouts.items():
            for shard in range(layout.n_shards):
                yield name, shard

    def _copy_shard(self, place: tuple[str, int]) -> tuple[int, int]:
        """Copy a shard unless the copy has it; returns bytes copied and bytes kept."""
        array, number = place
        layout = self.layouts[array]
        name = f"{array}/{layout.shard_key(number)}"
        original, copy = f"{self.entry.relpath}/{name}", f"{self.relpath}/{name}"
        info = self.found.get(original)
        if info is None:
            if layout.checksum:
                raise CorruptChunkError(f"{original} is missing")
            return 0, 0  # other programs do not write shards that hold only zeros
        is_there = self.target_sizes.get(copy) == info.size
        if is_there and (self.trusted or is_intact(self.target, copy, layout, number)):
            return 0, info.size
        try:
            shard = StoredShard(self.source, original, layout, number, size=info.size)
            self.target.write(copy, shard.pieces())
        except CorruptChunkError as error:
            raise CorruptChunkError(f"{original}: {error}") from error
        return info.size, 0

    def _write(self, name: str, data: bytes) -> None:
        path = f"{self.relpath}/{name}"
        if self.target_sizes.get(path) != len(data) or self.target.read(path) != data:
            self.target.write(path, [data])


def _reduced(document: dict[str, Any], arrays: Collection[str], fields: Collection[str], relpath: str) -> bytes:
    """A group's ``zarr.json`` with a subset of its arrays, which have these canonical field names."""
    below = document["consolidated_metadata"]
    kept = set(arrays)
    for array in arrays:
        kept.add(array.rpartition("/")[0])
    metadata = {}
    for name, value in below["metadata"].items():
        if name in kept:
            metadata[name] = value
    attributes = dict(document.get("attributes", {}))
    recorded = recorded_attributes(document)
    if recorded is not None:
        reduced = only_fields(recorded, fields)
        reduced["staged_from"] = relpath
        reduced.pop("meshes", None)
        attributes[ATTRIBUTES_KEY] = reduced
    document = document | {"attributes": attributes, "consolidated_metadata": below | {"metadata": metadata}}
    return to_json(document)
