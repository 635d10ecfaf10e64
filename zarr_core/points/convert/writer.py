"""Writes one sample as one Zarr group: shuffled, chunked, sharded, checksummed, with its moments and source recorded.

The writer commits nothing. Readers ignore a group until a manifest names it. The group's ``zarr.json`` is written last,
so a group that has one is complete.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from pydantic import TypeAdapter

from zarr_core._util.documents import parse_json, parse_model, to_json
from zarr_core.errors import CorruptChunkError, SampleError, StoreError
from zarr_core.format.array_metadata import EMPTY_GROUP, ArrayLayout, group_zarr_json
from zarr_core.format.names import check_sample_id
from zarr_core.format.object_names import ATTRIBUTES_KEY, CONVENTION, CONVENTIONS_KEY, QUARANTINE, ZARR_JSON
from zarr_core.format.packed import SUFFIX, Archive
from zarr_core.format.shards import pack_lengths
from zarr_core.format.shuffle import shuffle_permutation
from zarr_core.points.convert.comparison import ComparedGroup, stored_forms
from zarr_core.points.convert.stored_values import WrittenArray, as_points, bounded, write_array
from zarr_core.points.store.group import GROUP_FORMAT, entry_of, group_of, head_of, is_complete
from zarr_core.points.store.manifest import Quarantine, SampleEntry
from zarr_core.points.store.mesh import Write, write_mesh
from zarr_core.points.store.packing import Packing, is_stored, on_this_machine, was_cut_off
from zarr_core.points.store.settings import GROUP_NAMES, ConversionSettings, group_name
from zarr_core.sources.description import FieldFile
from zarr_core.sources.formats.contents import Mesh
from zarr_core.storage import Storage
from zarr_core.storage.archives import is_archive
from zarr_core.storage.uploads import Uploads
from zarr_core.versioning.generations import Retention

if TYPE_CHECKING:
    import torch

_REFUSAL = TypeAdapter(Quarantine)


class Repair(NamedTuple):
    """A group that may be there already: not complete, because its conversion runs or was killed, or damaged.

    Attributes:
        relpath: its path; "" for that of the group's name.
        head: bytes of its head, of an archive that a manifest names; 0 if they are not known.
        content: digest that the group's name shall have instead, if its source files have had other content under the
            same version. The sample is written to a path that tells its content.
    """

    relpath: str = ""
    head: int = 0
    content: str = ""


@dataclass(frozen=True)
class SampleContent:
    """A sample to write.

    Attributes:
        sample_id: id of the sample.
        fingerprint: of the source files.
        fields: the fields to write, each domain's position first.
        load: returns the tensor of a field, (n_points,) or (n_points, dim), given its canonical name.
        source: location of the source files; ``verify`` uses it.
        parameters: scalars, and arrays of one axis with at most 1,000 numbers, of the whole sample.
        meshes: load the mesh of a domain; called after the fields of the domain.
    """

    sample_id: str
    fingerprint: str
    fields: Sequence[FieldFile]
    load: Callable[[str], torch.Tensor]
    source: Mapping[str, Any]
    parameters: Mapping[str, Any]
    meshes: Mapping[str, Callable[[], Mesh]]


class GroupWriter:
    """Writes sample groups below a store root. Picklable; many processes may write to the same store.

    The stored objects of a group are never replaced by those of other content. Such a group gets another name, and
    its manifest entry has a digest of that content.

    Args:
        root: the store, a local path or fsspec URL.
        settings: how to write; the defaults if None.
        retention: of the store's current manifest. The writer neither finds nor writes tombstoned groups.
    """

    def __init__(
        self,
        root: str | os.PathLike[str],
        settings: ConversionSettings | None = None,
        retention: Retention | None = None,
    ) -> None:
        self.storage = Storage(root)
        self.settings = settings or ConversionSettings()
        self.retention = retention or Retention()

    def relpath(self, sample_id: str, fingerprint: str, content: str = "") -> str:
        """Path of the group of a sample made from these source files: the first of its names that is not tombstoned.

        A suspended garbage collector may still delete objects below a tombstoned name, so nothing is written there.
        Raises StoreError if all names are tombstoned. ``content`` is the digest of the group's content, if another
        group of these source files has other content.
        """
        for path in self.relpaths(sample_id, fingerprint, content):
            if not self.retention.is_tombstoned(path):
                return path
        reason = f"its groups were collected {GROUP_NAMES} times within a day; run gc with a longer grace period"
        raise StoreError(f"{self.storage.url}, {sample_id}: {reason}")

    def relpaths(self, sample_id: str, fingerprint: str, content: str = "") -> list[str]:
        """Every path that a conversion may give the group of a sample, in the order of preference."""
        inputs = [GROUP_FORMAT, sample_id, fingerprint, self.settings.digest]
        if content:
            inputs.append(content)
        names = [inputs, *([*inputs, again] for again in range(1, GROUP_NAMES))]
        is_packed = self.settings.is_packed
        return [group_name(check_sample_id(sample_id), name, is_packed=is_packed) for name in names]

    def write_sample(self, content: SampleContent, *, repair: Repair | None = None) -> SampleEntry:
        """Write one sample; returns its entry of the manifest.

        Memory: one source tensor, the permutation of its domain, one encoded shard and a few blocks of points, and what
        waits for its upload.

        Args:
            content: the sample.
            repair: a group of the sample that may exist. Its damaged and missing objects are written, all others stay
                as they are. If it has other content, the sample is written to another path. None: nothing is at the
                path of the sample's group.

        Raises:
            SampleError: a field is empty, misaligned, of the wrong width, not finite, does not fit its stored dtype, or
                would lose too much by rounding (:mod:`zarr_core.format.rounding`).
        """
        relpath, head, known = repair or Repair()
        relpath = relpath or self.relpath(content.sample_id, content.fingerprint, known)
        if repair is not None and (known or self._holds_objects(relpath)):
            if is_archive(relpath):
                return self._pack_over(content, relpath, head)
            return self._write_over(content, relpath)
        if is_archive(relpath):
            return self._write_packed(content, relpath, head)
        with Uploads(self.storage) as uploads:
            group = self._write_arrays(content, relpath, uploads.write, {})
        # The last object tells that the others are there.
        self.storage.write(f"{relpath}/{ZARR_JSON}", [to_json(group)])
        return entry_of(relpath, group)

    def _write_packed(self, content: SampleContent, relpath: str, head: int) -> SampleEntry:
        """Write a sample as one object."""
        with closing(Packing(relpath)) as packing:
            group = self._write_arrays(content, relpath, packing.write, {})
            forms = stored_forms(self.storage, relpath, group) if head else [group]
            archive = _archives(packing, content, forms, head)[0]
            self.storage.write(relpath, packing.pieces(archive))
        return entry_of(relpath, group, len(archive.head))

    def _pack_over(self, content: SampleContent, relpath: str, head: int) -> SampleEntry:
        """Repair an archive if it has this content; otherwise write the sample to another path."""
        with on_this_machine(self.storage, relpath) as place, closing(ComparedGroup(place, relpath)) as made:
            group = self._write_arrays(content, relpath, made.write, made.layouts)
            path = relpath
            archive = _found_archive(place, made, _archives(made, content, stored_forms(place, relpath, group), head))
            if archive is None:
                path = self._path_of(content, made, group)
                if path != relpath:
                    place, head = self.storage, 0
                archive = _archives(made, content, stored_forms(place, path, group), head)[0]
            if not is_stored(place, path, 0, made.pieces(archive)):
                self.storage.write(path, made.pieces(archive))
        return entry_of(path, group, len(archive.head))

    def _write_over(self, content: SampleContent, relpath: str) -> SampleEntry:
        """Repair the group at a path if it has this content; otherwise write the sample to another path."""
        with closing(ComparedGroup(self.storage, relpath)) as made:
            group = self._write_arrays(content, relpath, made.write, made.layouts)
            path = self._path_of(content, made, group)
            group = stored_forms(self.storage, path, group)[0]
            for name, differs in made.differs.items():
                if differs or path != relpath:
                    self._repair(f"{path}/{name}", made.read(name))
        self._repair(f"{path}/{ZARR_JSON}", [to_json(group)])
        return entry_of(path, group)

    def _path_of(self, content: SampleContent, made: ComparedGroup, group: dict[str, Any]) -> str:
        """The path of a new group: that of the stored one if it has the same content.

        Otherwise the new group records the digest of its content.
        """
        other = made.content(group)
        if made.relpath in self.relpaths(content.sample_id, content.fingerprint):
            same = made.is_same(group)
            other = "" if same else other
        else:  # the path itself tells the content
            same = made.relpath in self.relpaths(content.sample_id, content.fingerprint, other)
        if other:
            group["attributes"][ATTRIBUTES_KEY]["content"] = other
        return made.relpath if same else self.relpath(content.sample_id, content.fingerprint, other)

    def _holds_objects(self, relpath: str) -> bool:
        """Whether there is any object of a group at a path, besides an earlier refusal."""
        if is_archive(relpath):
            return self.storage.exists(relpath)
        return any(group_of(name) and not name.endswith(f"/{QUARANTINE}") for name in self.storage.list(relpath))

    def _write_arrays(
        self, content: SampleContent, relpath: str, write: Write, arrays: dict[str, ArrayLayout]
    ) -> dict[str, Any]:
        """Write everything but the group's ``zarr.json``, and return that; adds each layout to ``arrays``."""
        written: dict[str, WrittenArray] = {}
        chunk_bytes: dict[str, str] = {}
        meshes: dict[str, Any] = {}
        permutation, domain = np.empty(0, np.int64), ""
        last_fields = {file.field.domain: file for file in content.fields}
        for file in content.fields:
            name = file.field
            values = as_points(content.sample_id, name, content.load(name.canonical))
            if name.domain != domain:
                domain = name.domain
                permutation = shuffle_permutation(self.settings.shuffle_seed, content.sample_id, domain, len(values))
            if len(values) != len(permutation):
                reason = f"has {len(values)} points, {domain}_position has {len(permutation)}"
                way_out = (
                    "every field of a domain must describe the same points in the same order; give one of other points "
                    "the name of its own domain in the description"
                )
                raise SampleError(content.sample_id, name.canonical, reason, way_out)
            layout = self._layout(content.sample_id, file, values)
            arrays[name.array_name] = layout
            path = f"{relpath}/{name.array_name}"
            array = write_array(content.sample_id, name, layout, values, permutation, path, write)
            written[name.canonical] = array
            if layout.sharded and max(array.lengths) < 2**32:  # otherwise readers use the shard index
                chunk_bytes[name.array_name] = pack_lengths(array.lengths)
            del values
            if domain in content.meshes and file is last_fields[domain]:
                meshes[domain] = write_mesh(write, relpath, domain, content.meshes[domain]())
        attributes = {
            "format": GROUP_FORMAT,
            "sample_id": content.sample_id,
            "fingerprint": content.fingerprint,
            "settings": self.settings.digest,
            "shuffle_seed": self.settings.shuffle_seed,
            "source": dict(content.source),
            "parameters": dict(content.parameters),
            "moments": {name: array.moments.to_json() for name, array in written.items()},
            "rounding": {name: array.rounding.to_json() for name, array in written.items()},
            "stored_bytes": {name: array.size for name, array in written.items()},
        }
        if not self.settings.is_packed:
            attributes["chunk_bytes"] = chunk_bytes
        if meshes:
            attributes["meshes"] = meshes
        group = group_zarr_json({ATTRIBUTES_KEY: attributes, CONVENTIONS_KEY: [CONVENTION]}, arrays)
        write_metadata(write, relpath, arrays)
        return group

    def _layout(self, sample_id: str, file: FieldFile, values: torch.Tensor) -> ArrayLayout:
        """The layout of the array that stores a field."""
        layout = self.settings.array_layout(file.field, len(values), values.shape[1])
        if file.choice is not None:
            layout = replace(layout, units=file.choice.units)
        bound = self.settings.bound_of(file.field)
        if bound is not None:
            layout = bounded(layout, bound, values)
        if layout.excess:
            reason = f"has {layout.excess}; no reader opens such an array"
            raise SampleError(sample_id, file.field.canonical, reason, "check the shape and chunk_points")
        return layout

    def write_quarantine(self, sample_id: str, fingerprint: str, error: SampleError) -> Quarantine:
        """Write ``quarantine.json`` in place of the group. The next commit adds it to the manifest."""
        quarantine = Quarantine(fingerprint, self.settings.digest, error.field, error.explanation)
        name = _refusal_name(self.relpath(sample_id, fingerprint))
        self.storage.write(name, [to_json(asdict(quarantine))])
        return quarantine

    def find(self, sample_id: str, fingerprint: str) -> SampleEntry | Quarantine | Repair | None:
        """The result of an earlier attempt: a complete group, a refusal, or objects to repair; None without any."""
        # Without any garbage collection, a group always has the first of its names.
        names = self.relpaths(sample_id, fingerprint)[: GROUP_NAMES if self.retention.collections else 1]
        found: Repair | None = None
        for path in names:
            result = None if self.retention.is_tombstoned(path) else self._find(path, fingerprint)
            if isinstance(result, SampleEntry | Quarantine):
                return result
            found = found or result
        return found

    def _find(self, relpath: str, fingerprint: str) -> SampleEntry | Quarantine | Repair | None:
        wanted = (fingerprint, self.settings.digest)
        if is_archive(relpath):  # of a new sample: one request
            names = self.storage.list(relpath.rpartition("/")[0])
            if names.keys().isdisjoint((relpath, _refusal_name(relpath))):
                return None
        sizes: dict[str, int] = {}
        try:
            sizes = self.storage.list(relpath)
            if not sizes and not is_archive(relpath):  # of a new sample: one request
                return None
            group = parse_json(self.storage.read(f"{relpath}/{ZARR_JSON}"))
            if not is_complete(self.storage, relpath, group, sizes):
                return Repair()
            written = entry_of(relpath, group, head_of(sizes, relpath))
            return written if (written.fingerprint, written.settings) == wanted else Repair()
        except FileNotFoundError:
            unfinished = Repair() if sizes else None
        except (ValueError, StoreError, CorruptChunkError):
            unfinished = Repair()  # damaged by a crash or a disk: convert again
        try:
            refusal = parse_model(_REFUSAL, self.storage.read(_refusal_name(relpath)))
        except FileNotFoundError:
            return unfinished
        except ValueError:
            return Repair()
        return refusal if (refusal.fingerprint, refusal.settings) == wanted else Repair()

    def _repair(self, name: str, pieces: Iterable[bytes]) -> None:
        """Write an object, unless it has these bytes already."""
        data = b"".join(pieces)
        with suppress(OSError):  # missing or not readable
            if self.storage.read(name) == data:
                return
        self.storage.write(name, [data])


def write_metadata(write: Write, relpath: str, arrays: Mapping[str, ArrayLayout]) -> None:
    """Write the ``zarr.json`` of each domain and array of a group."""
    for domain in sorted({name.partition("/")[0] for name in arrays}):
        write(f"{relpath}/{domain}/{ZARR_JSON}", [to_json(EMPTY_GROUP)])
    for name, layout in arrays.items():
        write(f"{relpath}/{name}/{ZARR_JSON}", [to_json(layout.to_zarr_json())])


def _refusal_name(relpath: str) -> str:
    """Name of the object that holds the refusal of the sample with a group at this path."""
    return f"{relpath.removesuffix(SUFFIX)}/{QUARANTINE}"


def _archives(packing: Packing, content: SampleContent, forms: Iterable[dict[str, Any]], head: int) -> list[Archive]:
    """The archives of forms of a group: the one whose head has this many bytes, or else all of them."""
    arrays = [file.field.array_name for file in content.fields]
    archives = [packing.arrange(form, arrays) for form in forms]
    return [archive for archive in archives if len(archive.head) == head] or archives


def _found_archive(place: Storage, made: ComparedGroup, archives: Iterable[Archive]) -> Archive | None:
    """The first of these archives whose bytes are stored, apart from its head or from what a power cut took away."""
    for archive in archives:
        # Without its head, only the bytes after it tell what an archive holds.
        after_head = is_stored(place, made.relpath, len(archive.head), made.pieces(archive))
        if after_head or was_cut_off(place, made.relpath, made.pieces(archive)):
            return archive
    return None
