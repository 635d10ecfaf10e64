"""The default engine: plans of byte ranges, fetched together, decoded in place.

What a read needs to know of a sample (layouts, and where the chunks lie) comes with its group's ``zarr.json`` in one
request and is kept. From then on a field of a draw is one range of one object. Groups without the chunk lengths in
their attributes (the first that this library wrote, and other writers') cost one more request per shard, once.
"""

from __future__ import annotations

import reprlib
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from zarr_core._util.documents import parse_json
from zarr_core._util.redaction import printable_cause
from zarr_core.errors import (
    CorruptChunkError,
    ManifestError,
    SourceError,
    StoreError,
    TransferError,
    TruncatedError,
)
from zarr_core.format.array_metadata import ArrayLayout
from zarr_core.format.names import check_relative_path
from zarr_core.format.shards import ChunkIndex, decode_shard_index, unpack_lengths
from zarr_core.points.engines import Engine, FieldRead, check_origin, damaged_group, missing_group
from zarr_core.points.manifest import SampleEntry
from zarr_core.points.read_plan import ByteRange, plan_read, unpack
from zarr_core.storage import Storage
from zarr_core.storage import byte_ranges as objects
from zarr_core.storage.byte_ranges import CachedObjects, Objects, Request, open_objects
from zarr_core.storage.disk_cache import DiskCache
from zarr_core.storage.memory_cache import MemoryCache
from zarr_core.storage.retries import describe

# Memory for what is known of samples, in every process that reads: about 3,000 samples of seven fields and a million
# points. Samples beyond that cost their metadata request again.
_KNOWN_BYTES = 32 << 20
_ARRAY_BYTES = 1000  # of an array without its index
_SCRATCHES = 8  # shapes of chunks that each thread keeps room for
_KEY = "zarr_core"  # of the attributes that the writer left


class DirectEngine:
    """Executes read plans.

    Args:
        root: the store.
        objects_factory: opens the objects below a root.
        fallback: makes the engine for arrays in layouts that this library does not write.
        cache: keeps what was fetched on a fast disk.
        cache_bytes: of memory in each process for what was fetched from afar or from the cache; None keeps nothing.
    """

    def __init__(
        self,
        root: str,
        objects_factory: Callable[[str], Objects] | None = None,
        fallback: Callable[[], Engine] | None = None,
        cache: DiskCache | None = None,
        cache_bytes: int | None = None,
    ) -> None:
        self.root = root
        self._objects_factory = objects_factory or open_objects
        self._make_fallback = fallback
        self._cache = cache
        self._cache_bytes = cache_bytes
        self._fallback: Engine | None = None
        self._process: _Process | None = None

    def read(self, reads: Sequence[FieldRead], out: Sequence[np.ndarray] | None = None) -> list[np.ndarray]:
        """Read fields with at most three batches of requests; with one where the samples are known."""
        process = self._this_process
        arrays = self._arrays(process, reads)
        results: list[np.ndarray] = []
        foreign: list[int] = []
        work: list[tuple[FieldRead, _Array, ByteRange, np.ndarray]] = []
        requests: list[Request] = []
        for place, (read, known) in enumerate(zip(reads, arrays, strict=True)):
            if known is None:
                results.append(np.empty(0) if out is None else out[place])
                foreign.append(place)
                continue
            layout, index = known.layout, known.index
            assert index is not None
            target = read.allocate(known.dtype) if out is None else out[place]
            results.append(target)
            plan = plan_read(layout, index, read.drawn)
            for _, _, _, copies in plan.absent:
                _fill_absent(read, copies, target)
            for fetched in plan.ranges:
                work.append((read, known, fetched, target))
                requests.append(Request(known.shards[fetched.shard], fetched.start, fetched.stop))
        if requests:
            self._execute(process, work, requests)
        if foreign:
            self._read_foreign(reads, foreign, results, out is None)
        return results

    def attributes(self, where: str, entry: SampleEntry) -> dict[str, Any]:
        """See :class:`zarr_core.points.engines.Engine`; one request, by which the sample is known as well."""
        process = self._this_process
        request = Request(f"{entry.relpath}/zarr.json")
        (data,) = process.objects.fetch([request])
        group = self._group(process, where, entry, request, data)
        process.keep(entry.relpath, _Sample.of(where, entry, group))
        return dict(group.get("attributes", {}))

    # --- what is known of samples

    def _arrays(self, process: _Process, reads: Sequence[FieldRead]) -> list[_Array | None]:
        """The array of each read, with its chunk index; None where another engine has to read it."""
        samples = {read.entry.relpath: process.samples.get(read.entry.relpath) for read in reads}
        unknown = {read.entry.relpath: read for read in reads if samples[read.entry.relpath] is None}
        if unknown:
            wanted = [Request(f"{relpath}/zarr.json") for relpath in unknown]
            fetched = process.objects.fetch(wanted)
            for (relpath, read), request, data in zip(unknown.items(), wanted, fetched, strict=True):
                group = self._group(process, read.where, read.entry, request, data)
                samples[relpath] = sample = _Sample.of(read.where, read.entry, group)
                process.keep(relpath, sample)
        found: list[_Array | None] = []
        for read in reads:
            known = samples[read.entry.relpath]
            assert known is not None
            array = known.arrays.get(read.array_name)
            if array is None and not known.foreign and read.array_name not in known.arrays:
                raise read.missing_array()
            if known.sample_id not in (None, read.sample_id):
                said = f"the manifest names {read.entry.relpath}"
                raise ManifestError(f"{read.where}: {said}, which is the group of {known.sample_id!r}")
            if array is not None:
                read.check_shape((array.layout.n_points, array.layout.dim), array.layout.chunk_points)
            found.append(array)
        unindexed = {
            read.path: (read, array)
            for read, array in zip(reads, found, strict=True)
            if array is not None and array.index is None
        }
        if unindexed:
            self._fetch_indices(process, unindexed.values())
        return found

    def _group(
        self, process: _Process, where: str, entry: SampleEntry, request: Request, data: np.ndarray | Exception
    ) -> dict[str, Any]:
        """A sample group's ``zarr.json``; damage that came over a network is fetched once more, as with chunks."""
        try:
            return _group(where, entry, request, data)
        except CorruptChunkError:
            if not process.objects.remote:
                raise
        process.objects.discard([request])
        (again,) = process.objects.fetch([request])
        return _group(where, entry, request, again)

    def _fetch_indices(self, process: _Process, unindexed: Iterable[tuple[FieldRead, _Array]]) -> None:
        arrays = list(unindexed)
        requests = [Request(key, -array.layout.index_bytes) for _, array in arrays for key in array.shards]
        fetched = iter(process.objects.fetch(requests))
        for read, array in arrays:
            shards: list[np.ndarray | None] = []
            for key in array.shards:
                data = next(fetched)
                if isinstance(data, FileNotFoundError) and not read.entry.fingerprint:
                    shards.append(None)  # all zeros, and left out by zarr-python
                    continue
                try:
                    shards.append(decode_shard_index(array.layout, _arrived(key, data).tobytes()))
                except Exception as error:
                    raise self._named(read, f"shard index of {key}", error) from error
            array.index = ChunkIndex.from_shards(array.layout, shards)

    # --- fetching

    def _execute(
        self,
        process: _Process,
        work: Sequence[tuple[FieldRead, _Array, ByteRange, np.ndarray]],
        requests: Sequence[Request],
    ) -> None:
        """Fetch, decode, put in place; damage that came over a network is fetched once more before it is believed."""
        damaged: list[int] = []
        scratch = process.scratch
        for place, data in enumerate(process.objects.fetch(requests)):
            read, array, fetched, target = work[place]
            try:
                if isinstance(data, Exception):
                    _arrived(requests[place].key, data)
                else:
                    unpack(array.layout, fetched, data, target, scratch.rows(array))
            except CorruptChunkError as error:
                if not process.objects.remote:
                    raise self._named(read, str(requests[place]), error) from error
                damaged.append(place)
            except Exception as error:
                raise self._named(read, str(requests[place]), error) from error
        if not damaged:
            return
        # With what pointed to them: where a cache has kept a damaged group, it is fetched anew at the next read.
        groups = {Request(f"{work[place][0].entry.relpath}/zarr.json") for place in damaged}
        process.objects.discard([*groups, *(requests[place] for place in damaged)])
        for place, data in zip(damaged, process.objects.fetch([requests[i] for i in damaged]), strict=True):
            read, array, fetched, target = work[place]
            try:
                unpack(array.layout, fetched, _arrived(requests[place].key, data), target, scratch.rows(array))
            except Exception as error:
                raise self._named(read, str(requests[place]), error) from error

    def _named(self, read: FieldRead, what: str, error: Exception) -> Exception:
        """The error in words that name store, sample, field and range."""
        if isinstance(error, CorruptChunkError):
            detail = f"{what}: {error}" if isinstance(error, TruncatedError) else str(error)
            return CorruptChunkError(
                f"{read.where}: {read.points()} cannot be read: {detail}; convert the sample again"
            )
        return StoreError(f"{read.where}: {what} cannot be fetched: {_cause(error)}")

    def _read_foreign(
        self, reads: Sequence[FieldRead], places: Sequence[int], results: list[np.ndarray], replace: bool
    ) -> None:
        if self._fallback is None:
            if self._make_fallback is None:
                raise StoreError(f"{reads[places[0]].where}: only zarr-python reads this array; use engine='zarr'")
            self._fallback = self._make_fallback()
        targets = None if replace else [results[place] for place in places]
        for place, points in zip(places, self._fallback.read([reads[i] for i in places], targets), strict=True):
            results[place] = points

    # --- processes

    @property
    def _this_process(self) -> _Process:
        process = self._process
        if process is None or process.forks != objects.forks:
            opened = self._objects_factory(self.root)
            if self._cache is not None:
                opened = CachedObjects(opened, self._cache, Storage(self.root).identity)
            if self._cache_bytes is not None and opened.remote:  # local files are in the system's page cache already
                opened = CachedObjects(opened, MemoryCache(self._cache_bytes), identity="")  # of this store alone
            process = self._process = _Process(opened, process)
        return process

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_process": None}


class _Process:
    """What an engine has in one process: a fork takes along what is known of samples, and nothing that is open."""

    def __init__(self, opened: Objects, parent: _Process | None) -> None:
        self.forks = objects.forks
        self.objects = opened
        self.samples: OrderedDict[str, _Sample] = OrderedDict() if parent is None else parent.samples.copy()
        self.scratch = _Scratch()
        self._bytes: int = 0 if parent is None else parent._bytes
        self._lock = threading.Lock()

    def keep(self, relpath: str, sample: _Sample) -> None:
        """Remember a sample, and forget those that came first where there are too many."""
        with self._lock:
            if relpath in self.samples:
                return
            self.samples[relpath] = sample
            self._bytes += sample.size
            while self._bytes > _KNOWN_BYTES and len(self.samples) > 1:
                self._bytes -= self.samples.popitem(last=False)[1].size


class _Scratch(threading.local):
    """Chunks of rows for each thread, used again and again."""

    def __init__(self) -> None:
        self._kept: dict[tuple[int, int, str], np.ndarray] = {}

    def rows(self, array: _Array) -> np.ndarray:
        """Room for a chunk of an array; undefined content."""
        layout = array.layout
        key = (layout.chunk_points, layout.dim, layout.dtype)
        rows = self._kept.get(key)
        if rows is None:
            if len(self._kept) >= _SCRATCHES:
                self._kept.clear()
            rows = self._kept[key] = np.empty((layout.chunk_points, layout.dim), array.dtype)
        return rows


class _Array:
    """An array that plans can be made for."""

    __slots__ = ("dtype", "index", "layout", "shards")

    def __init__(self, path: str, layout: ArrayLayout, index: ChunkIndex | None) -> None:
        self.layout = layout
        self.index = index
        self.dtype = np.dtype(layout.dtype).newbyteorder("<")
        self.shards = [f"{path}/{layout.shard_key(shard)}" for shard in range(layout.n_shards)]


class _Sample(NamedTuple):
    """What is known of a sample.

    Attributes:
        arrays: by name; None where this library does not write such a layout.
        sample_id: as the group records it, None where it does not.
        foreign: whether the group does not say which arrays it holds, so that another engine has to look.
        size: bytes that this takes in memory, roughly.
    """

    arrays: dict[str, _Array | None]
    sample_id: str | None
    foreign: bool
    size: int

    @classmethod
    def of(cls, where: str, entry: SampleEntry, group: Mapping[str, Any]) -> _Sample:
        try:
            if "consolidated_metadata" not in group:
                return cls({}, None, True, _ARRAY_BYTES)
            attributes = group.get("attributes", {}).get(_KEY, {})
            recorded = attributes.get("chunk_bytes", {})
            check_origin(where, entry, attributes)
            arrays: dict[str, _Array | None] = {}
            for name, metadata in group["consolidated_metadata"]["metadata"].items():
                if metadata["node_type"] != "array":
                    continue
                try:
                    layout = ArrayLayout.from_zarr_json(metadata)
                except StoreError:
                    arrays[name] = None
                    continue
                path = f"{entry.relpath}/{check_relative_path(name)}"
                arrays[name] = _Array(path, layout, _recorded_index(layout, recorded.get(name)))
        except (ValueError, KeyError, TypeError, AttributeError, SourceError) as error:
            raise damaged_group(where, entry, error) from error
        known = [array for array in arrays.values() if array is not None]
        size = sum(_ARRAY_BYTES + 16 * array.layout.n_chunks + 150 * len(array.shards) for array in known)
        return cls(arrays, attributes.get("sample_id"), False, size)


def _recorded_index(layout: ArrayLayout, packed: Any) -> ChunkIndex | None:
    if not isinstance(packed, str) or not layout.checksum:
        return None  # without checksums, wrong lengths might go unnoticed
    try:
        return ChunkIndex.from_lengths(layout, unpack_lengths(packed))
    except ValueError:
        return None


def _group(where: str, entry: SampleEntry, request: Request, data: np.ndarray | Exception) -> dict[str, Any]:
    """A sample group's ``zarr.json``."""
    if isinstance(data, FileNotFoundError):
        raise missing_group(where, entry) from data
    if isinstance(data, Exception) and not isinstance(data, CorruptChunkError):
        raise StoreError(f"{where}: {request} cannot be fetched: {_cause(data)}") from printable_cause(data)
    try:
        if isinstance(data, Exception):
            raise data
        group = parse_json(data.tobytes())
        if not isinstance(group, dict) or group.get("node_type") != "group":
            raise ValueError("this is no Zarr group")
        attributes = group.get("attributes", {})
        if not (isinstance(attributes, dict) and isinstance(attributes.get(_KEY, {}), dict)):
            raise ValueError(f"attributes are {reprlib.repr(attributes)}")
    except (ValueError, CorruptChunkError) as error:
        raise damaged_group(where, entry, error) from error
    return group


def _cause(error: Exception) -> str:
    return str(error) if isinstance(error, TransferError) else describe(error)


def _arrived(key: str, data: np.ndarray | Exception) -> np.ndarray:
    if isinstance(data, FileNotFoundError):
        raise CorruptChunkError(f"{key} is missing") from data
    if isinstance(data, Exception):
        raise data
    return data


def _fill_absent(read: FieldRead, copies: Iterable[tuple[int, int, int]], target: np.ndarray) -> None:
    """Zeros where zarr-python leaves out chunks that hold nothing else; this library stores every chunk."""
    if read.entry.fingerprint:
        raise CorruptChunkError(
            f"{read.where}: {read.points()} cannot be read: a chunk is not in the shard's index; "
            "convert the sample again"
        )
    for first, last, to in copies:
        target[to : to + last - first] = 0
