"""Copies one sample of a store into its staged copy. Every chunk is checked while it is copied."""

from __future__ import annotations

import errno
import json
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from typing import Any

from zarr_core._util.documents import expect, parse_json
from zarr_core.errors import CorruptChunkError, StoreError, ZarrCoreError
from zarr_core.format.array_metadata import ArrayLayout, group_arrays
from zarr_core.format.object_names import ATTRIBUTES_KEY, ZARR_JSON, sample_folder
from zarr_core.format.ranges import MAX_READ_BYTES, coalesce
from zarr_core.format.shards import check_chunk
from zarr_core.points.read.scan import ChunkRange, chunk_ranges
from zarr_core.points.store.group import chunk_object_bytes, recorded_attributes
from zarr_core.points.store.manifest import ArrayColumn, SampleEntry
from zarr_core.points.store.mesh import MESH, check_mesh_object, mesh_bytes
from zarr_core.points.store.settings import digest
from zarr_core.storage import Storage, is_local
from zarr_core.storage.checked import read_checked
from zarr_core.storage.temporary import strip_temp_suffix

# Shards of a sample that each worker copies at the same time.
_SHARDS_AT_A_TIME = 4
# Names of a group in the copy. Names after the first replace names that are tombstoned or hold something else.
_NAMES = 4
# Errors of the target after which no other sample can be copied either.
_FATAL = (errno.ENOSPC, errno.EDQUOT, errno.EROFS)


@dataclass(frozen=True)
class StagedSample:
    """Result of staging one sample.

    Attributes:
        sample_id: id of the sample.
        entry: its entry in the manifest of the copy; None if it could not be copied.
        copied: bytes of shards that were copied.
        kept: bytes of shards that the copy already had.
        problem: why the sample could not be copied, or "".
    """

    sample_id: str
    entry: SampleEntry | None
    copied: int = 0
    kept: int = 0
    problem: str = ""


@dataclass(frozen=True)
class StageTask:
    """The part of a staging run that every worker needs.

    Attributes:
        source, target: the stores.
        arrays: canonical field names by array name, of the chosen fields.
        check: read shards that a manifest of the copy already names, instead of comparing sizes.
        tombstoned: groups of the target that are pending deletion.
    """

    source: Storage
    target: Storage
    arrays: Mapping[str, str]
    check: bool
    tombstoned: frozenset[str] = frozenset()


def stage_sample(task: StageTask, item: tuple[str, SampleEntry, str | None]) -> StagedSample:
    """Copy one sample. Errors of the sample are reported in the result and do not stop the other samples.

    Args:
        task: what to copy from where to where.
        item: sample id, its entry in the source, and its group in the copy (None if the copy does not have it).

    Raises:
        StoreError: the target is full or read-only.
    """
    sample_id, entry, known = item
    try:
        return _SampleCopy.plan(task, sample_id, entry, known).copy()
    except ZarrCoreError as error:
        return StagedSample(sample_id, None, problem=str(error))
    except FileNotFoundError as error:
        problem = f"an object of {entry.relpath} is missing ({error}); if garbage collection removed it, stage again"
        return StagedSample(sample_id, None, problem=problem)
    except Exception as error:  # remote filesystems raise the errors of their clients, which have no common base
        if isinstance(error, OSError) and error.errno in _FATAL:
            raise StoreError(f"{task.target.url} cannot be written: {error}") from error
        return StagedSample(sample_id, None, problem=f"{type(error).__name__}: {error}")


def not_staged(item: tuple[str, SampleEntry, str | None], error: Exception) -> StagedSample:
    """The result of a sample whose worker process died; raises the errors of :func:`stage_sample`."""
    if isinstance(error, StoreError):
        raise error
    return StagedSample(item[0], None, problem=str(error))


@dataclass(frozen=True)
class _SampleCopy:
    """One sample to copy.

    Attributes:
        group: content of its ``zarr.json`` in the copy.
        relpath: path of its group in the copy.
        layouts: layout by array name, of the arrays to copy.
        meshes: objects of the sample's meshes; none if the copy has only part of its fields.
        trusted: whether the shards were checked earlier, because a manifest of the copy names the group.
        source_sizes, target_sizes: bytes by object.
    """

    task: StageTask
    sample_id: str
    entry: SampleEntry
    group: bytes
    relpath: str
    layouts: Mapping[str, ArrayLayout]
    meshes: Sequence[str]
    trusted: bool
    source_sizes: Mapping[str, int]
    target_sizes: Mapping[str, int]

    @classmethod
    def plan(cls, task: StageTask, sample_id: str, entry: SampleEntry, known: str | None) -> _SampleCopy:
        """List both groups; raises ZarrCoreError if the source group cannot be read."""
        group, relpath = task.source.read(f"{entry.relpath}/{ZARR_JSON}"), entry.relpath
        try:
            document = parse_json(group)
            recorded = recorded_attributes(document)
            layouts = group_arrays(document)
            wanted = {name: layout for name, layout in layouts.items() if name in task.arrays}
            recorded_mesh = sum(mesh_bytes(recorded or {}).values()) if len(wanted) == len(layouts) else 0
            if 0 < len(wanted) < len(layouts):
                group = _reduced(document, recorded, {name: task.arrays[name] for name in wanted}, relpath)
        except ValueError as error:
            raise StoreError(f"{relpath}/{ZARR_JSON} cannot be read: {error}") from error
        if not wanted:
            raise StoreError(f"it has none of {', '.join(task.arrays.values())}")
        found = task.source.infos(entry.relpath)
        sizes = {name: info.size for name, info in found.items()}
        whole = len(wanted) == len(layouts)
        meshes = [name for name in found if whole and name.startswith(f"{entry.relpath}/{MESH}/")]
        mesh_size = chunk_object_bytes({name: sizes[name] for name in meshes}, entry.relpath)
        if recorded_mesh != mesh_size:
            raise CorruptChunkError(f"its meshes have {mesh_size:,} bytes, {recorded_mesh:,} were recorded")
        content: list[Any] = [entry.relpath, sorted(wanted)]
        if not entry.is_ours:  # another program may overwrite its group
            content.append([(name, info.size, info.version) for name, info in found.items()])
        if len(wanted) < len(layouts) or not entry.is_ours:
            # Different content needs a different name: caches and pinned readers identify groups by name.
            relpath = _group_name(sample_id, content)
        # A suspended garbage collector may still delete objects below a tombstoned name, so nothing is written there.
        names = [relpath, *(_group_name(sample_id, [relpath, again]) for again in range(1, _NAMES))]
        allowed = [name for name in names if name == known or name not in task.tombstoned]
        allowed.sort(key=lambda name: name != known)
        relpath = next((name for name in allowed if not _holds_another(task.target, name, group)), relpath)
        return cls(
            task,
            sample_id,
            entry,
            group,
            relpath,
            wanted,
            [name[len(entry.relpath) + 1 :] for name in meshes if not strip_temp_suffix(name)[1]],
            trusted=known == relpath and not task.check,
            source_sizes=sizes,
            target_sizes=task.target.list(relpath),
        )

    def copy(self) -> StagedSample:
        """Copy what is missing, the group's ``zarr.json`` last."""
        if is_local(self.task.target.root):  # the stage lock excludes other writers, so these are leftovers
            self.task.target.delete([name for name in self.target_sizes if strip_temp_suffix(name)[1]])
        shards = [(name, shard) for name, layout in self.layouts.items() for shard in range(layout.n_shards)]
        with ThreadPoolExecutor(_SHARDS_AT_A_TIME) as threads:
            results = list(threads.map(lambda place: self._copy_shard(*place), shards))
        folders = {name.rpartition("/")[0] for name in self.layouts}
        for name in sorted(folders | set(self.layouts)):
            self._write(f"{name}/{ZARR_JSON}", self.task.source.read(f"{self.entry.relpath}/{name}/{ZARR_JSON}"))
        for name in self.meshes:
            self._copy_mesh_object(name)
        self._write(ZARR_JSON, self.group)
        copied, kept = sum(copied for copied, _ in results), sum(kept for _, kept in results)
        domains = {name.partition("/")[0] for name in self.layouts}
        entry = replace(
            self.entry,
            relpath=self.relpath,
            domains={domain: grid for domain, grid in self.entry.domains.items() if domain in domains},
            fields=self._fields,
            bytes=copied + kept if self.entry.bytes else 0,
        )
        return StagedSample(self.sample_id, entry, copied, kept)

    @property
    def _fields(self) -> dict[str, ArrayColumn] | None:
        if self.entry.fields is None:
            return None
        return {name: column for name, column in self.entry.fields.items() if column.array_name in self.layouts}

    def _copy_shard(self, array: str, shard: int) -> tuple[int, int]:
        """Copy a shard unless the copy has it; returns bytes copied and bytes kept."""
        layout = self.layouts[array]
        name = f"{array}/{layout.shard_key(shard)}"
        original, copy = f"{self.entry.relpath}/{name}", f"{self.relpath}/{name}"
        size = self.source_sizes.get(original)
        if size is None:
            if layout.checksum:
                raise CorruptChunkError(f"{original} is missing")
            return 0, 0  # other programs do not write shards that hold only zeros
        if self.target_sizes.get(copy) == size and (self.trusted or self._is_intact(copy, layout, shard, size)):
            return 0, size
        self.task.target.write(copy, _checked_pieces(self.task.source, original, layout, shard, size))
        return size, 0

    def _copy_mesh_object(self, name: str) -> None:
        original = f"{self.entry.relpath}/{name}"
        size = self.source_sizes[original]
        if not (self.trusted and self.target_sizes.get(f"{self.relpath}/{name}") == size):
            self._write(name, read_checked(self.task.source, original, 0, size, partial(check_mesh_object, original)))

    def _is_intact(self, name: str, layout: ArrayLayout, shard: int, size: int) -> bool:
        try:
            for _ in _checked_pieces(self.task.target, name, layout, shard, size):
                pass
        except (CorruptChunkError, OSError):
            return False
        return True

    def _write(self, name: str, data: bytes) -> None:
        path = f"{self.relpath}/{name}"
        if self.target_sizes.get(path) != len(data) or self.task.target.read(path) != data:
            self.task.target.write(path, [data])


def _holds_another(target: Storage, relpath: str, group: bytes) -> bool:
    """Whether the copy has another group at this path. Earlier versions of this library replaced objects of groups."""
    try:
        return bool(parse_json(target.read(f"{relpath}/{ZARR_JSON}")) != parse_json(group))
    except (FileNotFoundError, ValueError):  # none, or a damaged one, which is repaired
        return False


def _group_name(sample_id: str, content: list[Any]) -> str:
    return f"{sample_folder(sample_id)}/{digest(content)}"


def _reduced(
    document: dict[str, Any], recorded: dict[str, Any] | None, names: Mapping[str, str], relpath: str
) -> bytes:
    """A group's ``zarr.json`` with a subset of its arrays, given as canonical field names by array name."""
    below = document["consolidated_metadata"]
    domains = {name.rpartition("/")[0] for name in names}
    kept = {name: metadata for name, metadata in below["metadata"].items() if name in names or name in domains}
    attributes = dict(document.get("attributes", {}))
    if recorded is not None:
        reduced = dict(recorded)
        for key in {"moments", "stored_bytes", "rounding"} & recorded.keys():
            by_field = expect(dict, recorded[key], key)
            reduced[key] = {field: value for field, value in by_field.items() if field in names.values()}
        reduced.pop("meshes", None)
        attributes[ATTRIBUTES_KEY] = reduced | {"staged_from": relpath}
    document = document | {"attributes": attributes, "consolidated_metadata": below | {"metadata": kept}}
    return (json.dumps(document, separators=(",", ":"), allow_nan=False) + "\n").encode()


def _checked_pieces(storage: Storage, name: str, layout: ArrayLayout, shard: int, size: int) -> Iterator[bytes]:
    """The bytes of a shard object in pieces, each chunk compared with its checksum before its piece is yielded.

    Raises:
        CorruptChunkError: names the object and the chunk.
    """
    end = max(size - layout.index_bytes, 0)
    try:
        tail, chunks = read_checked(storage, name, end, size, partial(_check_index, layout, shard, end))
        position = 0
        groups = coalesce(chunks, max_gap=size, max_bytes=MAX_READ_BYTES)
        for group in groups:
            # Bytes between chunks belong to the object and are copied as well.
            stop = group[-1].stop if group is not groups[-1] else end
            yield read_checked(storage, name, position, stop, partial(_check_chunks, layout, group, position, stop))
            position = stop
        if position < end:
            yield read_checked(storage, name, position, end, partial(_check_chunks, layout, (), position, end))
        yield tail
    except CorruptChunkError as error:
        raise CorruptChunkError(f"{name}: {error}") from error


def _check_index(layout: ArrayLayout, shard: int, end: int, tail: bytes) -> tuple[bytes, list[ChunkRange]]:
    """The index as stored, and the ranges of all chunks in stored order."""
    chunks = chunk_ranges(layout, shard, tail, end)
    if layout.checksum:
        first = shard * layout.chunks_per_shard
        expected = range(first, min(first + layout.chunks_per_shard, layout.n_chunks))
        for number in sorted(set(expected) - {chunk.number for chunk in chunks})[:1]:
            raise CorruptChunkError(f"chunk {number}: not in the shard's index")
    chunks.sort(key=lambda chunk: chunk.start)
    if any(chunk.start < before.stop for before, chunk in pairwise(chunks)):
        raise CorruptChunkError("shard index: names bytes that overlap")
    return tail, chunks


def _check_chunks(layout: ArrayLayout, chunks: Sequence[ChunkRange], start: int, stop: int, data: bytes) -> bytes:
    """Bytes ``[start, stop)`` of a shard, if every chunk in them is intact."""
    if len(data) != stop - start:
        raise CorruptChunkError(f"bytes {start} to {stop}: only {len(data)} bytes were read")
    for chunk in chunks:
        try:
            check_chunk(layout, data[chunk.start - start : chunk.stop - start])
        except CorruptChunkError as error:
            raise CorruptChunkError(f"chunk {chunk.number}: {error}") from error
    return data
