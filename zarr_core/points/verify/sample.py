"""Verification of one sample: its metadata, its objects and every chunk of its arrays."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from zarr_core._util.documents import expect, parse_json
from zarr_core._util.processes import WorkerDiedError
from zarr_core.errors import CorruptChunkError, StoreError, ZarrCoreError
from zarr_core.format.array_metadata import ArrayLayout
from zarr_core.format.moments import FieldMoments
from zarr_core.format.object_names import ATTRIBUTES_KEY, QUARANTINE, ZARR_JSON
from zarr_core.points.read.scan import read_chunks
from zarr_core.points.store.group import chunk_object_bytes, recorded_moments, recorded_rounding, stored_bytes
from zarr_core.points.store.manifest import ArrayColumn, DomainGrid, SampleEntry, StoreManifest
from zarr_core.points.store.mesh import mesh_bytes, mesh_names, read_meshes
from zarr_core.points.verify.report import FieldTally, SampleFindings
from zarr_core.points.verify.source import Comparison, SourceFiles
from zarr_core.sources.recorded import RecordedSource
from zarr_core.storage import Storage
from zarr_core.storage.temporary import strip_temp_suffix


@dataclass(frozen=True)
class Columns:
    """The part of the manifest that all samples share. Small, because every task of a worker process carries it."""

    shuffle_seed: int
    domains: Mapping[str, Mapping[str, ArrayColumn]]

    @classmethod
    def of(cls, manifest: StoreManifest) -> Columns:
        """From a manifest."""
        return cls(manifest.shuffle_seed, {name: dict(domain.arrays) for name, domain in manifest.domains.items()})


#: Id and manifest entry of a sample, and, if another program wrote it, what a conversion would record of its files.
Item = tuple[str, SampleEntry, Mapping[str, Any] | None]


def check_sample(storage: Storage, source: RecordedSource | None, columns: Columns, item: Item) -> SampleFindings:
    """Check one sample."""
    sample_id, entry, listed = item
    found = SampleFindings(sample_id)
    try:
        _check(storage, source, columns, entry, listed, found)
    except ValueError as error:  # metadata is untrusted JSON
        found.add("", f"its metadata is invalid: {error}")
    return found


def not_checked(item: Item, error: Exception) -> SampleFindings:
    """The findings of a sample whose check raised an error or whose worker process died."""
    found = SampleFindings(item[0])
    known = isinstance(error, ZarrCoreError | WorkerDiedError)
    reason = str(error) if known else f"{type(error).__name__}: {error}"
    found.add("", f"could not be checked: {reason}", damage=False)
    return found


def _check(
    storage: Storage,
    source: RecordedSource | None,
    columns: Columns,
    entry: SampleEntry,
    listed: Mapping[str, Any] | None,
    found: SampleFindings,
) -> None:
    group = _read_json(found, storage, f"{entry.relpath}/{ZARR_JSON}", "")
    if group is None:
        return
    objects = storage.list(entry.relpath)
    attributes = expect(dict, group.get("attributes", {}), "attributes")
    recorded = expect(dict, attributes.get(ATTRIBUTES_KEY, {}), f"attribute {ATTRIBUTES_KEY!r}")
    _check_attributes(found, entry, recorded)
    files = None if source is None else SourceFiles.find(source, found, recorded, columns.shuffle_seed, listed)
    expected = {f"{entry.relpath}/{ZARR_JSON}", f"{entry.relpath}/{QUARANTINE}"}  # of an earlier refusal
    for domain, grid in entry.domains.items():
        expected.add(f"{entry.relpath}/{domain}/{ZARR_JSON}")
        if domain not in columns.domains:
            found.add("", f"the manifest lists no arrays of its domain {domain!r}")
        own = columns.domains.get(domain, {})
        if entry.fields is not None:
            own = {name: column for name, column in entry.fields.items() if name in own}
        elif entry.is_ours:  # earlier versions did not record the dtype of each sample, and mixed dtypes
            own = {name: replace(column, dtype="") for name, column in own.items()}
        for name, column in own.items():
            array = _Array(storage, f"{entry.relpath}/{column.array_name}", name, column, grid, found)
            expected |= array.check(group, objects, recorded, files.rows(domain, name) if files else None)
        if files is not None:
            files.check_rows(domain)
    total = sum(tally.bytes for tally in found.fields.values())
    if entry.is_ours and not found.problems and entry.bytes != total:
        found.add("", f"its arrays have {total:,} bytes, the manifest says {entry.bytes:,}")
    meshes = tuple(f"{entry.relpath}/{name}" for name in mesh_names(recorded))
    of_meshes = {path: size for path, size in objects.items() if meshes and path.startswith(meshes)}
    size = chunk_object_bytes(of_meshes, entry.relpath)
    if size != sum(mesh_bytes(recorded).values()):
        found.add("", f"its meshes have {size:,} bytes, {sum(mesh_bytes(recorded).values()):,} were recorded")
    elif meshes:
        try:
            for _ in read_meshes(storage.root, entry.relpath, recorded):
                pass
        except CorruptChunkError as error:
            found.add("", f"its mesh cannot be read: {error}")
    for path in sorted(set(objects) - expected - of_meshes.keys()):
        if not strip_temp_suffix(path)[1]:  # temporary files belong to a running or killed converter; gc removes them
            found.add("", f"{path.removeprefix(entry.relpath + '/')} belongs to no array of the manifest")


def _check_attributes(found: SampleFindings, entry: SampleEntry, recorded: Mapping[str, Any]) -> None:
    if not entry.is_ours:
        return  # another program wrote the group and recorded nothing
    expected = {"sample_id": found.sample_id, "fingerprint": entry.fingerprint, "settings": entry.settings}
    for key, value in expected.items():
        if recorded.get(key) != value:
            found.add("", f"its group's {key} is {recorded.get(key)!r}, the manifest says {value!r}")


def _read_json(found: SampleFindings, storage: Storage, path: str, name: str) -> dict[str, Any] | None:
    """A JSON object of the store; None and a problem if it cannot be read."""
    try:
        return expect(dict, parse_json(storage.read(path)), "the document")
    except FileNotFoundError:
        found.add(name, f"{path} is missing")
    except (ValueError, OSError) as error:
        found.add(name, f"{path} is not readable: {error}")
    return None


@dataclass(frozen=True)
class _Array:
    """One array to check."""

    storage: Storage
    path: str
    name: str
    column: ArrayColumn
    grid: DomainGrid
    found: SampleFindings

    def check(
        self,
        group: Mapping[str, Any],
        objects: Mapping[str, int],
        recorded: dict[str, Any],
        source: Callable[[ArrayLayout], Comparison | None] | None,
    ) -> set[str]:
        """Check the array; returns the names of its objects."""
        expected = {f"{self.path}/{ZARR_JSON}"}
        layout = self._layout(group)
        if layout is None:
            return expected
        shards = [f"{self.path}/{layout.shard_key(shard)}" for shard in range(layout.n_shards)]
        size = sum(objects.get(shard, 0) for shard in shards)
        recorded_size = stored_bytes(recorded).get(self.name, size) if "stored_bytes" in recorded else size
        if recorded_size != size and all(shard in objects for shard in shards):
            self.found.add(self.name, f"its shards have {size:,} bytes, {recorded_size:,} were recorded")
        tally = self.found.fields[self.name] = FieldTally(samples=1, bytes=size)
        comparison = source(layout) if source is not None else None
        moments = self._read(layout, tally, comparison)
        if moments is not None and comparison is not None and not comparison.n_different:
            problem = comparison.rounding_problem(moments, recorded_rounding(recorded).get(self.name))
            if problem:
                self.found.add(self.name, problem)
        if moments is not None and "moments" in recorded:
            expected_moments = recorded_moments(recorded).get(self.name)
            if expected_moments is not None:
                self._check_moments(moments, expected_moments)
        return expected | set(shards)

    def _layout(self, group: Mapping[str, Any]) -> ArrayLayout | None:
        """The stored layout of the array; None if its metadata is unreadable."""
        own = _read_json(self.found, self.storage, f"{self.path}/{ZARR_JSON}", self.name)
        consolidated = expect(dict, group.get("consolidated_metadata") or {}, "consolidated_metadata")
        inlined = expect(dict, consolidated.get("metadata", {}), "metadata").get(self.column.array_name)
        if inlined is None:
            self.found.add(self.name, "is not in the metadata of its group")
        elif own is not None and own != inlined:
            self.found.add(self.name, "its zarr.json differs from the copy in that of its group")
        metadata = own or inlined
        if metadata is None:
            return None
        try:
            layout = ArrayLayout.from_zarr_json(metadata)
        except StoreError as error:
            self.found.add(self.name, str(error))
            return None
        pairs = {
            "points": (layout.n_points, self.grid.n_points),
            "points per chunk": (layout.chunk_points, self.grid.chunk_points),
            "points per shard": (layout.shard_points, self.grid.shard_points),
            "chunks": (layout.n_chunks, self.grid.n_chunks),
            "components": (layout.dim, self.column.dim),
            "dtype": (layout.dtype, self.column.dtype),
        }
        for name, (stored, expected) in pairs.items():
            if stored != expected and expected != "":
                self.found.add(self.name, f"{name}: the array has {stored}, the manifest says {expected}")
        return layout

    def _read(self, layout: ArrayLayout, tally: FieldTally, comparison: Comparison | None) -> FieldMoments | None:
        """Check the checksum, values and source rows of every chunk; returns the moments if all are intact."""
        moments: FieldMoments | None = None
        intact = True
        for chunk in read_chunks(self.storage, self.path, layout):
            tally.chunks += 1
            if chunk.rows is None or chunk.number is None:
                intact = False
                where = f"shard {chunk.shard}" if chunk.number is None else f"chunk {chunk.number}"
                place = f"{self.column.array_name}/{layout.shard_key(chunk.shard)}"
                self.found.add(self.name, f"{where}: {chunk.problem} ({place})")
                continue
            tally.points += len(chunk.rows)
            if comparison is not None:
                comparison.compare(chunk.number * layout.chunk_points, chunk.rows)
            n_bad = int(np.count_nonzero(~np.isfinite(chunk.rows)))
            if n_bad:
                intact = False
                self.found.add(self.name, f"chunk {chunk.number}: {n_bad} values are not finite")
            else:
                part = FieldMoments.of(chunk.rows)
                moments = moments.merge(part) if moments else part
        if comparison is not None and comparison.n_different:
            self.found.add(self.name, comparison.message)
        return moments if intact else None

    def _check_moments(self, taken: FieldMoments, recorded: FieldMoments) -> None:
        for name in taken.differing(recorded):
            now, then = np.asarray(getattr(taken, name)).tolist(), np.asarray(getattr(recorded, name)).tolist()
            self.found.add(self.name, f"recorded {name} {then} differs from that of its points, {now}")
