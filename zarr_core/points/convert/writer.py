"""Writes one sample as one Zarr group: shuffled, chunked, sharded, checksummed, with its moments and source recorded.

The writer commits nothing. Readers ignore a group until a manifest names it. The group's ``zarr.json`` is written last,
so a group that has one is complete.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from zarr_core._util.documents import expect, parse_json
from zarr_core.errors import SampleError, StoreError
from zarr_core.format.array_metadata import EMPTY_GROUP, ArrayLayout, group_zarr_json
from zarr_core.format.moments import FieldMoments, MomentsAccumulator
from zarr_core.format.names import FieldName, check_sample_id
from zarr_core.format.object_names import ATTRIBUTES_KEY, QUARANTINE, ZARR_JSON, sample_folder
from zarr_core.format.rounding import RoundingAccumulator, RoundingError
from zarr_core.format.shards import encode_shard, pack_lengths
from zarr_core.format.shuffle import shuffle_permutation
from zarr_core.points.convert.comparison import GroupComparison
from zarr_core.points.convert.stored_values import as_points, checked_rounding, is_lossless, not_finite, stored_blocks
from zarr_core.points.store.group import GROUP_FORMAT, entry_of, group_of, is_complete
from zarr_core.points.store.manifest import Quarantine, SampleEntry
from zarr_core.points.store.mesh import write_mesh
from zarr_core.points.store.settings import ConversionSettings, digest
from zarr_core.sources.description import FieldFile
from zarr_core.sources.formats.contents import Mesh
from zarr_core.storage import Storage
from zarr_core.storage.uploads import Uploads
from zarr_core.versioning.generations import Retention

if TYPE_CHECKING:
    import torch

# Possible names of a group. Names after the first replace names that are tombstoned.
_NAMES = 4


@dataclass(frozen=True)
class Unfinished:
    """Objects in the folder of a group that is not complete: its conversion runs or was killed, or it is damaged."""


class GroupWriter:
    """Writes sample groups below a store root. Picklable; many processes may write to the same store.

    The stored objects of a group are never replaced by those of other content. Such a group gets another name, and
    its manifest entry has a digest of that content.

    Args:
        root: the store, a local path or fsspec URL.
        settings: how to write; the defaults if None. A conversion into an existing store takes the store's instead.
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

    def with_retention(self, retention: Retention) -> GroupWriter:
        """The same writer with another retention."""
        return GroupWriter(self.storage.root, self.settings, retention)

    def relpath(self, sample_id: str, fingerprint: str, content: str = "") -> str:
        """Path of the group of a sample made from these source files: the first of its names that is not tombstoned.

        A suspended garbage collector may still delete objects below a tombstoned name, so nothing is written there.

        Args:
            sample_id: id of the sample.
            fingerprint: of the source files.
            content: digest of the group's content, if another group of these source files has other content.

        Raises:
            StoreError: all names are tombstoned.
        """
        for path in self._relpaths(sample_id, fingerprint, content):
            if path not in self.retention.tombstones:
                return path
        reason = f"its groups were collected {_NAMES} times within a day; run gc with a longer grace period"
        raise StoreError(f"{self.storage.url}, {sample_id}: {reason}")

    def _relpaths(self, sample_id: str, fingerprint: str, content: str = "") -> list[str]:
        inputs = [GROUP_FORMAT, sample_id, fingerprint, self.settings.digest] + [content] * bool(content)
        digests = [digest(inputs + [again] * bool(again)) for again in range(_NAMES)]
        return [f"{sample_folder(check_sample_id(sample_id))}/{name}" for name in digests]

    def write_sample(
        self,
        sample_id: str,
        fields: Sequence[FieldFile],
        load: Callable[[str], torch.Tensor],
        *,
        fingerprint: str,
        source: Mapping[str, Any] | None = None,
        parameters: Mapping[str, Any] | None = None,
        relpath: str | None = None,
        meshes: Mapping[str, Callable[[], Mesh]] | None = None,
        uploads: Uploads | None = None,
    ) -> SampleEntry:
        """Write one sample.

        Memory: one source tensor, the permutation of its domain, one encoded shard and a few blocks of points, and what
        waits for its upload.

        Args:
            sample_id: id of the sample.
            fields: the fields to write, each domain's position first.
            load: returns the tensor of a field, (n_points,) or (n_points, dim), given its canonical name.
            fingerprint: of the source files.
            source: location of the source files; ``verify`` uses it.
            parameters: scalars of the whole sample.
            meshes: load the mesh of a domain; called after the fields of the domain.
            relpath: path of a group of the sample that may exist. Its damaged and missing objects are written, all
                others stay as they are. If it has other content, the sample is written to another path. Either way
                ``load`` is called again for every field. None: nothing is at the path of the sample's group.
            uploads: writes a new group's objects, several at a time; the group is complete when it has finished.

        Raises:
            SampleError: a field is empty, misaligned, of the wrong width, not finite, does not fit its stored dtype, or
                would lose too much by rounding (:mod:`zarr_core.format.rounding`).
        """
        make = partial(
            self._write_arrays, sample_id, fields, load, fingerprint, source or {}, parameters or {}, meshes or {}
        )
        if relpath is None or not self._holds_objects(relpath):
            write = (uploads or self.storage).write
            relpath = relpath or self.relpath(sample_id, fingerprint)
            group = make(relpath, write, {})
            if uploads is not None:
                uploads.finish()  # the last object tells that the others are there
            write(f"{relpath}/{ZARR_JSON}", _json(group))
            return entry_of(relpath, group)
        stored = GroupComparison(self.storage, relpath)
        group = make(relpath, stored.compare, stored.layouts)
        content = stored.content(group)
        if relpath in self._relpaths(sample_id, fingerprint):
            same = stored.is_same(group)
            content = "" if same else content
        else:  # the path itself tells the content
            same = relpath in self._relpaths(sample_id, fingerprint, content)
        if content:
            group["attributes"][ATTRIBUTES_KEY]["content"] = content
        stored.compare(f"{relpath}/{ZARR_JSON}", _json(group))
        if not same:
            relpath = self.relpath(sample_id, fingerprint, content)
        if not same or stored.differs:
            make(relpath, self._repair, {})
            self._repair(f"{relpath}/{ZARR_JSON}", _json(group))
        return entry_of(relpath, group)

    def _holds_objects(self, relpath: str) -> bool:
        """Whether there is any object of a group at a path, besides an earlier refusal."""
        return any(group_of(name) and not name.endswith(f"/{QUARANTINE}") for name in self.storage.list(relpath))

    def _write_arrays(
        self,
        sample_id: str,
        fields: Sequence[FieldFile],
        load: Callable[[str], torch.Tensor],
        fingerprint: str,
        source: Mapping[str, Any],
        parameters: Mapping[str, Any],
        meshes: Mapping[str, Callable[[], Mesh]],
        relpath: str,
        write: Callable[[str, Iterable[bytes]], int],
        arrays: dict[str, ArrayLayout],
    ) -> dict[str, Any]:
        """Write everything but the group's ``zarr.json``, and return that; adds each layout to ``arrays``."""
        moments: dict[str, Any] = {}
        rounding: dict[str, Any] = {}
        stored: dict[str, int] = {}
        chunk_bytes: dict[str, str] = {}
        kept: dict[str, Any] = {}
        permutation, domain = np.empty(0, np.int64), ""
        for number, file in enumerate(fields):
            name = file.field
            values = as_points(sample_id, name, load(name.canonical))
            if name.domain != domain:
                domain = name.domain
                permutation = shuffle_permutation(self.settings.shuffle_seed, sample_id, domain, len(values))
            if len(values) != len(permutation):
                reason = f"has {len(values)} points, {domain}_position has {len(permutation)}"
                way_out = "every field of a domain must describe the same points in the same order"
                raise SampleError(sample_id, name.canonical, reason, way_out)
            layout = self.settings.layout(name, len(values), values.shape[1])
            layout = replace(layout, units=file.choice.units if file.choice else "")
            if layout.excess:
                reason = f"has {layout.excess}; no reader opens such an array"
                raise SampleError(sample_id, name.canonical, reason, "check the shape and chunk_points")
            arrays[name.array_name] = layout
            lengths: list[int] = []
            written = self._write_array(sample_id, name, layout, values, permutation, relpath, lengths, write)
            moments[name.canonical], rounding[name.canonical] = written[0].to_json(), written[1].to_json()
            stored[name.canonical] = written[2]
            if max(lengths) < 2**32:  # otherwise readers use the shard index
                chunk_bytes[name.array_name] = pack_lengths(lengths)
            del values
            load_mesh = meshes.get(domain)
            if load_mesh is not None and not any(other.domain == domain for other in fields[number + 1 :]):
                kept[domain] = write_mesh(write, relpath, domain, load_mesh())
        attributes = {
            "format": GROUP_FORMAT,
            "sample_id": sample_id,
            "fingerprint": fingerprint,
            "settings": self.settings.digest,
            "shuffle_seed": self.settings.shuffle_seed,
            "source": dict(source),
            "parameters": dict(parameters),
            "moments": moments,
            "rounding": rounding,
            "stored_bytes": stored,
            "chunk_bytes": chunk_bytes,
        } | ({"meshes": kept} if kept else {})
        group = group_zarr_json({ATTRIBUTES_KEY: attributes}, arrays)
        for domain in sorted({name.partition("/")[0] for name in arrays}):
            write(f"{relpath}/{domain}/{ZARR_JSON}", _json(EMPTY_GROUP))
        for array_name, layout in arrays.items():
            write(f"{relpath}/{array_name}/{ZARR_JSON}", _json(layout.to_zarr_json()))
        return group

    def write_quarantine(self, sample_id: str, fingerprint: str, error: SampleError) -> Quarantine:
        """Write ``quarantine.json`` in place of the group. The next commit adds it to the manifest."""
        quarantine = Quarantine(fingerprint, self.settings.digest, error.field, error.explanation)
        record = {name: getattr(quarantine, name) for name in quarantine.__slots__}
        self.storage.write(f"{self.relpath(sample_id, fingerprint)}/{QUARANTINE}", _json(record))
        return quarantine

    def find(self, sample_id: str, fingerprint: str) -> SampleEntry | Quarantine | Unfinished | None:
        """The result of an earlier attempt: a complete group, a refusal, or something else; None without any."""
        # Without any garbage collection, a group always has the first of its names.
        names = self._relpaths(sample_id, fingerprint)[: _NAMES if self.retention.collections else 1]
        found: Unfinished | None = None
        for path in names:
            result = None if path in self.retention.tombstones else self._find(path, fingerprint)
            if isinstance(result, SampleEntry | Quarantine):
                return result
            found = found or result
        return found

    def _find(self, relpath: str, fingerprint: str) -> SampleEntry | Quarantine | Unfinished | None:
        wanted = (fingerprint, self.settings.digest)
        try:
            sizes = self.storage.list(relpath)
        except FileNotFoundError:
            return None
        if not sizes:  # of a new sample: one request
            return None
        try:
            group = parse_json(self.storage.read(f"{relpath}/{ZARR_JSON}"))
            if not is_complete(self.storage, relpath, group, sizes):
                return Unfinished()
            written = entry_of(relpath, group)
            return written if (written.fingerprint, written.settings) == wanted else Unfinished()
        except (FileNotFoundError, ValueError, StoreError):
            pass  # missing, or damaged by a crash or a disk: convert again
        try:
            record = expect(dict, parse_json(self.storage.read(f"{relpath}/{QUARANTINE}")), QUARANTINE)
            refusal = Quarantine(*(expect(str, record.get(name), name) for name in Quarantine.__slots__))
        except (FileNotFoundError, ValueError):
            return Unfinished()
        return refusal if (refusal.fingerprint, refusal.settings) == wanted else Unfinished()

    def _write_array(
        self,
        sample_id: str,
        name: FieldName,
        layout: ArrayLayout,
        values: torch.Tensor,
        permutation: np.ndarray,
        relpath: str,
        lengths: list[int],
        write: Callable[[str, Iterable[bytes]], int],
    ) -> tuple[FieldMoments, RoundingError, int]:
        """Gather, cast, encode and write one array; appends to ``lengths``.

        Returns:
            The array's moments, rounding error and stored bytes.
        """
        moments = MomentsAccumulator()
        rounding = None if is_lossless(values, layout.dtype) else RoundingAccumulator(layout.dim)
        size = 0

        def chunks(rows: np.ndarray) -> Iterator[np.ndarray]:
            for points in stored_blocks(values, rows, layout, rounding):
                moments.add(points)
                for start in range(0, len(points), layout.chunk_points):
                    yield points[start : start + layout.chunk_points]

        for shard in range(layout.n_shards):
            rows = permutation[shard * layout.shard_points : (shard + 1) * layout.shard_points]
            pieces = encode_shard(layout, chunks(rows), lengths)
            size += write(f"{relpath}/{name.array_name}/{layout.shard_key(shard)}", pieces)
        result = moments.result()
        if not np.isfinite([result.min, result.max]).all():
            raise not_finite(sample_id, name, layout, values)
        if not result.is_finite:
            reason = (
                f"largest value {max(result.max.max(), -result.min.min()):.6g} is so large that its square is infinite"
            )
            raise SampleError(sample_id, name.canonical, reason, "repair the source, or leave the sample out")
        if rounding is None:
            return result, RoundingError.none(layout.dim), size
        return result, checked_rounding(sample_id, name, layout, values, rounding, result), size

    def _repair(self, name: str, pieces: Iterable[bytes]) -> int:
        """Write an object, unless it has these bytes already; returns their number."""
        data = b"".join(pieces)
        try:
            if self.storage.read(name) == data:
                return len(data)
        except OSError:
            pass  # missing or not readable
        return self.storage.write(name, [data])


def _json(document: Mapping[str, Any]) -> list[bytes]:
    return [(json.dumps(document, separators=(",", ":"), allow_nan=False) + "\n").encode()]
