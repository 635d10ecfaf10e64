"""Verification of one sample: its metadata, its objects and every chunk of its arrays; of a packed one, its archive."""

from __future__ import annotations

import copy
import zlib
from collections.abc import Mapping
from contextlib import nullcontext
from typing import Any

import numpy as np

from zarr_core._util.documents import expect, parse_json
from zarr_core._util.processes import WorkerDiedError
from zarr_core.errors import CorruptChunkError, StoreError, ZarrCoreError
from zarr_core.format.array_metadata import CHECKSUM_BYTES, MAX_CHUNK_BYTES, ArrayLayout
from zarr_core.format.moments import FieldMoments
from zarr_core.format.object_names import ATTRIBUTES_KEY, QUARANTINE, ZARR_JSON
from zarr_core.format.packed import Archive, Entry, PackedGroup, in_order, parse_head
from zarr_core.format.shards import ChunkIndex, passes_checksum, unpack_lengths
from zarr_core.points.read.scan import read_chunks
from zarr_core.points.store.group import (
    chunk_object_bytes,
    recorded_moments,
    recorded_rounding,
    source_points,
    stored_bytes,
)
from zarr_core.points.store.manifest import ArrayColumn, DomainGrid, DomainLayout, SampleEntry
from zarr_core.points.store.mesh import mesh_bytes, mesh_names, read_meshes
from zarr_core.points.store.packing import on_this_machine
from zarr_core.points.verify.report import FieldTally, SampleFindings
from zarr_core.points.verify.source import ComparedSource, Comparison, Item, SourceFiles
from zarr_core.storage import Storage
from zarr_core.storage.temporary import strip_temp_suffix

# Bytes of an entry's header and padding, at most.
_MAX_HEADER = 1 << 16
# Where a local header has the CRC-32 of its entry.
_CRC32 = slice(14, 18)


def check_sample(
    storage: Storage,
    source: ComparedSource | None,
    shuffle_seed: int,
    domains: Mapping[str, DomainLayout],
    item: Item,
) -> SampleFindings:
    """Check one sample of a manifest with this seed and these domains, and compare it with its source if given."""
    entry, found = item.entry, SampleFindings(item.sample_id)
    try:
        with on_this_machine(storage, entry.relpath) if entry.head else nullcontext(storage) as place:
            if not entry.head or check_archive(place, entry.relpath, entry.head, found):
                group = _read_json(place, f"{entry.relpath}/{ZARR_JSON}", "", found)
                if group is not None:
                    _SampleCheck(place, entry, group, found).run(source, shuffle_seed, domains, item)
    except FileNotFoundError:
        found.add("", f"{entry.relpath} is missing")
    except ValueError as error:  # metadata is untrusted JSON
        found.add("", f"its metadata is invalid: {error}")
    return found


def not_checked(item: Item, error: Exception) -> SampleFindings:
    """The findings of a sample whose check raised an error or whose worker process died."""
    found = SampleFindings(item.sample_id)
    known = isinstance(error, ZarrCoreError | WorkerDiedError)
    reason = str(error) if known else f"{type(error).__name__}: {error}"
    found.add("", f"could not be checked: {reason}", damage=False)
    return found


class _SampleCheck:
    """The check of one sample: its ``zarr.json``, what this library recorded in it, and the bytes of all its objects.

    ``source_points`` are those that domains have in the source, if they have fewer here; ``expected`` are the names of
    the objects that belong to the sample.
    """

    def __init__(self, storage: Storage, entry: SampleEntry, group: dict[str, Any], found: SampleFindings) -> None:
        self.storage, self.entry, self.group, self.found = storage, entry, group, found
        attributes = expect(dict, group.get("attributes", {}), "attributes")
        self.recorded = expect(dict, attributes.get(ATTRIBUTES_KEY, {}), f"attribute {ATTRIBUTES_KEY!r}")
        self.source_points = source_points(self.recorded)
        self.objects = storage.list(entry.relpath)
        self.expected = {f"{entry.relpath}/{name}" for name in (ZARR_JSON, QUARANTINE)}  # the latter from earlier

    def run(
        self, source: ComparedSource | None, shuffle_seed: int, domains: Mapping[str, DomainLayout], item: Item
    ) -> None:
        """Check the sample; compare it with its source if that is given. The problems are added to the findings."""
        if self.entry.is_ours:  # another program recorded nothing
            self._check_attributes()
        files = None
        if source is not None:
            files = SourceFiles.find(source, item, self.recorded, shuffle_seed, self.found)
            # Another program recorded no parameters. Without files, there is a problem that says so.
            if self.entry.is_ours and files is not None:
                source.compare_parameters(self.recorded, item.at_source, self.found)
        for domain in self.entry.domains:
            self._check_domain(domain, domains, files)
        total = sum(tally.bytes for tally in self.found.fields.values())
        if self.entry.is_ours and not self.found.problems and self.entry.bytes != total:
            self.found.add("", f"its arrays have {total:,} bytes, the manifest says {self.entry.bytes:,}")
        self._check_meshes()
        for path in sorted(self.objects.keys() - self.expected):
            if not strip_temp_suffix(path)[1]:  # those belong to a running or killed converter; gc removes them
                name = path.removeprefix(f"{self.entry.relpath}/")
                self.found.add("", f"{name} belongs to no array of the manifest")

    def _check_attributes(self) -> None:
        said = {
            "sample_id": self.found.sample_id,
            "fingerprint": self.entry.fingerprint,
            "settings": self.entry.settings,
        }
        for key, value in said.items():
            if self.recorded.get(key) != value:
                self.found.add("", f"its group's {key} is {self.recorded.get(key)!r}, the manifest says {value!r}")

    def _check_domain(self, domain: str, domains: Mapping[str, DomainLayout], files: SourceFiles | None) -> None:
        """Check the arrays of a domain, and compare them with their files if these are given."""
        self.expected.add(f"{self.entry.relpath}/{domain}/{ZARR_JSON}")
        if domain not in domains:
            self.found.add("", f"the manifest lists no arrays of its domain {domain!r}")
        columns = domains[domain].arrays if domain in domains else {}
        if self.entry.fields is not None:
            columns = {name: column for name, column in self.entry.fields.items() if name in columns}
        for name, column in columns.items():
            self._check_array(domain, name, column, files)
        if files is not None:
            files.check_rows(domain)

    def _check_meshes(self) -> None:
        folders = tuple(f"{self.entry.relpath}/{name}" for name in mesh_names(self.recorded))
        objects = {path: size for path, size in self.objects.items() if path.startswith(folders)} if folders else {}
        self.expected.update(objects)
        size, recorded = chunk_object_bytes(objects, self.entry.relpath), sum(mesh_bytes(self.recorded).values())
        if size != recorded:
            self.found.add("", f"its meshes have {size:,} bytes, {recorded:,} were recorded")
            return
        try:
            for _ in read_meshes(self.storage.root, self.entry.relpath, self.recorded):
                pass
        except CorruptChunkError as error:
            self.found.add("", f"its mesh cannot be read: {error}")

    def _check_array(self, domain: str, name: str, column: ArrayColumn, files: SourceFiles | None) -> None:
        path = f"{self.entry.relpath}/{column.array_name}"
        self.expected.add(f"{path}/{ZARR_JSON}")
        layout = self._layout(path, name, column, self.entry.domains[domain])
        if layout is None:
            return
        shards = [f"{path}/{layout.shard_key(shard)}" for shard in range(layout.n_shards)]
        self.expected.update(shards)
        size = sum(self.objects.get(shard, 0) for shard in shards)
        recorded_size = stored_bytes(self.recorded).get(name, size) if "stored_bytes" in self.recorded else size
        if recorded_size != size and self.objects.keys() >= set(shards):
            self.found.add(name, f"its shards have {size:,} bytes, {recorded_size:,} were recorded")
        self.found.fields[name] = FieldTally(samples=1, bytes=size)
        # A copy with the first points only has the records of all points of its source.
        n_points = self.source_points.get(domain, layout.n_points)
        is_cut = n_points != layout.n_points
        comparison = files.compare(domain, name, layout, n_points) if files is not None else None
        moments = self._read(name, column, layout, comparison)
        if moments is None:
            return
        if comparison is not None and not comparison.n_different and not is_cut:
            problem = comparison.rounding_problem(moments, recorded_rounding(self.recorded).get(name))
            if problem:
                self.found.add(name, problem)
        recorded = recorded_moments(self.recorded).get(name) if "moments" in self.recorded else None
        if recorded is None:
            return
        if is_cut:
            if recorded.count != n_points:
                self.found.add(name, f"its recorded moments are of {recorded.count:,} points, not of {n_points:,}")
            return
        for moment in moments.differing(recorded):
            now, then = np.asarray(getattr(moments, moment)).tolist(), np.asarray(getattr(recorded, moment)).tolist()
            self.found.add(name, f"recorded {moment} {then} differs from that of its points, {now}")

    def _layout(self, path: str, name: str, column: ArrayColumn, grid: DomainGrid) -> ArrayLayout | None:
        """The stored layout of an array; None if its metadata is unreadable."""
        own = _read_json(self.storage, f"{path}/{ZARR_JSON}", name, self.found)
        consolidated = expect(dict, self.group.get("consolidated_metadata") or {}, "consolidated_metadata")
        inlined = expect(dict, consolidated.get("metadata", {}), "metadata").get(column.array_name)
        if inlined is None:
            self.found.add(name, "is not in the metadata of its group")
        elif own is not None and own != inlined:
            self.found.add(name, "its zarr.json differs from the copy in that of its group")
        metadata = own or inlined
        if metadata is None:
            return None
        try:
            layout = ArrayLayout.from_zarr_json(metadata)
        except StoreError as error:
            self.found.add(name, str(error))
            return None
        pairs = {
            "points": (layout.n_points, grid.n_points),
            "points per chunk": (layout.chunk_points, grid.chunk_points),
            "points per shard": (layout.shard_points, grid.shard_points),
            "chunks": (layout.n_chunks, grid.n_chunks),
            "components": (layout.dim, column.dim),
            "dtype": (layout.dtype, column.dtype),
        }
        for what, (stored, said) in pairs.items():
            if stored != said:
                self.found.add(name, f"{what}: the array has {stored}, the manifest says {said}")
        return layout

    def _read(
        self, name: str, column: ArrayColumn, layout: ArrayLayout, comparison: Comparison | None
    ) -> FieldMoments | None:
        """Check the checksum, values and source rows of every chunk; returns the moments if all are intact."""
        moments: FieldMoments | None = None
        intact, tally = True, self.found.fields[name]
        places: list[tuple[int, int]] = []
        for chunk in read_chunks(self.storage, f"{self.entry.relpath}/{column.array_name}", layout):
            tally.chunks += 1
            if chunk.rows is None or chunk.number is None:
                intact = False
                where = f"shard {chunk.shard}" if chunk.number is None else f"chunk {chunk.number}"
                place = f"{column.array_name}/{layout.shard_key(chunk.shard)}"
                self.found.add(name, f"{where}: {chunk.problem} ({place})")
                continue
            tally.points += len(chunk.rows)
            places.append((chunk.start, chunk.length))
            if comparison is not None:
                comparison.compare(chunk.number * layout.chunk_points, chunk.rows)
            n_bad = int(np.count_nonzero(~np.isfinite(chunk.rows)))
            if n_bad:
                intact = False
                self.found.add(name, f"chunk {chunk.number}: {n_bad} values are not finite")
            else:
                part = FieldMoments.of(chunk.rows)
                moments = moments.merge(part) if moments else part
        if comparison is not None and comparison.n_different:
            differ = f"{comparison.n_different:,} of {comparison.n_rows:,} rows differ from the source"
            self.found.add(name, f"{differ}: {comparison.first}{comparison.changed}")
        if len(places) == layout.n_chunks:
            self._check_recorded_places(name, column, layout, places)
        return moments if intact else None

    def _check_recorded_places(
        self, name: str, column: ArrayColumn, layout: ArrayLayout, places: list[tuple[int, int]]
    ) -> None:
        """Compare where the chunks of an array lie with the recorded lengths, by which training finds them."""
        lengths = expect(dict, self.recorded.get("chunk_bytes", {}), "chunk_bytes").get(column.array_name)
        if lengths is None:
            return
        try:
            recorded = ChunkIndex.from_lengths(layout, unpack_lengths(expect(str, lengths, "chunk_bytes")))
            same = places == list(zip(recorded.starts, recorded.lengths, strict=True))
        except ValueError:
            same = False
        if not same:
            self.found.add(name, "the recorded lengths of its chunks, chunk_bytes, are not those in its shards")


def _read_json(storage: Storage, path: str, name: str, found: SampleFindings) -> dict[str, Any] | None:
    """A JSON object of the store; None and a problem of a field if it cannot be read."""
    try:
        return expect(dict, parse_json(storage.read(path)), "the document")
    except FileNotFoundError:
        found.add(name, f"{path} is missing")
    except (ValueError, OSError) as error:
        found.add(name, f"{path} is not readable: {error}")
    return None


def check_archive(storage: Storage, relpath: str, head: int, found: SampleFindings) -> bool:
    """Compare the bytes around the entries of an archive with those that the entries and the document make.

    The entries themselves are not checked: those that are damaged by their own checksums are left to others. Returns
    whether the entries can be found; raises FileNotFoundError if there is no archive. The store is local, and ``head``
    is what the manifest says.
    """
    size = storage.size(relpath)
    data = storage.read(relpath, 0, head)
    try:
        group = parse_head(data)
        if (group.head, group.size) != (head, size):
            recorded = f"{group.size:,} and {head:,} are recorded"
            raise CorruptChunkError(f"it has {size:,} bytes, and a head of {group.head:,}; {recorded}")
        entries, headers = _entries(storage, relpath, group)
    except (CorruptChunkError, ValueError) as error:
        found.add("", f"its archive cannot be read: {error}")
        return False
    made = Archive(copy.deepcopy(dict(group.document)), entries)
    if (made.head, made.size) != (data, size):
        found.add("", "the head of its archive is not the one of its entries")
    for entry, header, expected in zip(entries, headers, made.headers(), strict=True):
        if header != expected:
            found.add("", f"{entry.name}: its header in the archive is not the one of its bytes")
    fields = [entry.name.removesuffix("/c/0/0") for entry in entries if entry.name.endswith("/c/0/0")]
    if [entry.name for entry in entries] != [entry.name for entry in in_order(entries, fields)]:
        found.add("", "the entries of its archive are not ordered by chunks")
    directory = made.directory
    if storage.read(relpath, max(size - len(directory), 0), size) != directory:
        found.add("", "the central directory of its archive is not the one of its entries")
    return True


def _entries(storage: Storage, relpath: str, group: PackedGroup) -> tuple[list[Entry], list[bytes]]:
    """All entries after the first one in their order, and the bytes before each; raises CorruptChunkError."""
    entries: list[Entry] = []
    headers: list[bytes] = []
    end = group.head
    for name, place in group.entries.items():
        if name == ZARR_JSON:
            continue
        if not 0 <= place.start - end <= _MAX_HEADER or place.size > MAX_CHUNK_BYTES + CHECKSUM_BYTES:
            raise CorruptChunkError(
                f"its head says that {name} has the bytes {place.start} to {place.start + place.size}"
            )
        header = storage.read(relpath, end, place.start)
        end = place.start + place.size
        data = storage.read(relpath, place.start, end)
        crc32 = zlib.crc32(data)
        if "/c/" in name and not passes_checksum(data):  # a damaged chunk is reported with its field
            crc32 = int.from_bytes(header[_CRC32], "little")
        entries.append(Entry(name, len(data), crc32))
        headers.append(header)
    return entries, headers
