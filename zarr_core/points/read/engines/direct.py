"""The default engine: plans byte ranges, fetches them together and decodes them into the output.

A sample's metadata (array layouts and chunk ranges) comes with its group's ``zarr.json`` in one request and is kept in
memory; the first request for a small archive on a remote store fetches all of it. After that, a field of a draw costs
one range of one object. Groups whose attributes lack the chunk lengths (written by other programs, or by the first
version of this library) cost one more request per shard, once.
"""

from __future__ import annotations

import threading
from collections import Counter, OrderedDict
from collections.abc import Callable, Collection, Iterable, Sequence
from itertools import islice
from typing import Any

import numpy as np

from zarr_core.errors import CorruptChunkError, ManifestError, TruncatedError
from zarr_core.format.ranges import MAX_READ_BYTES
from zarr_core.format.shards import ChunkIndex, decode_shard_index
from zarr_core.points.read.engines import Engine, FieldRead, fetch_failure
from zarr_core.points.read.engines.mapped import MappedSample
from zarr_core.points.read.engines.sample_metadata import KnownArray, KnownSample, group_request, parse_group
from zarr_core.points.read.engines.straight import MAX_GAP, StraightRead, read_straight
from zarr_core.points.read.plan import MAX_GAP_BYTES, PlannedChunk, RowSpan, plan_read, unpack
from zarr_core.points.read.selection import Pieces, SampleDraws
from zarr_core.points.store.manifest import SampleEntry
from zarr_core.storage import Storage, byte_ranges
from zarr_core.storage.byte_ranges import (
    CachedObjects,
    JoinedObjects,
    LocalObjects,
    MemoryCache,
    Objects,
    Request,
    WholeObjects,
    open_objects,
)
from zarr_core.storage.checked import fetch_checked
from zarr_core.storage.disk_cache import DiskCache

# Memory for the sample metadata of a dataset in each process: about 3,000 samples of seven fields and a million points.
# Older samples are dropped and cost their metadata request again.
_METADATA_BYTES = 32 << 20
# Archives of at most this size are fetched whole, to save a request.
_WHOLE_BYTES = MAX_GAP_BYTES


class DirectEngine(Engine):
    """Executes read plans. See :class:`zarr_core.points.read.reader.ZarrChunkReader` for the arguments."""

    def __init__(
        self,
        root: str,
        objects_factory: Callable[[str], Objects] | None = None,
        cache: DiskCache | None = None,
        cache_bytes: int | None = None,
    ) -> None:
        self.root = root
        self._objects_factory = objects_factory or open_objects
        self._cache = cache
        self._cache_bytes = cache_bytes
        self._fallback: Engine | None = None
        self._process: _Process | None = None

    def read(self, reads: Sequence[FieldRead], out: Sequence[np.ndarray] | None = None) -> list[np.ndarray]:
        """Read fields in at most three batches of requests; in one if the metadata of the samples is known."""
        process = self._this_process
        whole: dict[str, np.ndarray] = {}
        arrays = self._arrays(process, reads, whole)
        results: list[np.ndarray] = []
        fallback_places: list[int] = []
        work: list[tuple[FieldRead, KnownArray, list[PlannedChunk], np.ndarray]] = []
        requests: list[Request] = []
        straight: list[StraightRead] = []
        files = process.files
        for place, (read, known) in enumerate(zip(reads, arrays, strict=True)):
            if known is None:
                results.append(np.empty(0) if out is None else out[place])
                fallback_places.append(place)
                continue
            layout, index = known.layout, known.index
            assert index is not None
            if out is None:
                target = read.allocate(known.dtype, layout.dim)
            else:
                target = out[place]
                read.check_output(known.dtype, layout.dim, target)
            results.append(target)
            if files is not None and known.is_straight:
                straight.append(StraightRead(read, known, target))
                continue
            # In an archive, the chunks of other fields lie between those of one field: requests are joined below.
            max_gap = 0 if read.entry.head else MAX_GAP_BYTES
            ranges, missing = plan_read(layout, index, read.drawn, max_gap)
            for chunk in missing:
                _fill_missing(read, chunk.rows, target)
            for chunks in ranges:
                work.append((read, known, chunks, target))
                requests.append(Request(known.shard_name(chunks[0].shard), chunks[0].start, chunks[-1].stop))
        if files is not None and straight:
            read_straight(files, straight)
        if requests:
            order = _in_order_of_archives([read for read, *_ in work], requests)
            source = WholeObjects(process.objects, whole) if whole else process.objects
            self._execute(source, [work[number] for number in order], [requests[number] for number in order])
        if fallback_places:
            targets = None if out is None else [out[place] for place in fallback_places]
            points = self._fallback_engine.read([reads[place] for place in fallback_places], targets)
            for place, found in zip(fallback_places, points, strict=True):
                results[place] = found
        return results

    def mapped_pieces(self, sample: SampleDraws) -> Pieces | None:
        """See :class:`zarr_core.points.read.engines.Engine`."""
        process, entry = self._this_process, sample.entry
        mapped = process.mapped.get(entry.relpath)
        if mapped is None:
            known = process.samples.get(entry.relpath)
            # Files of other programs may change.
            if known is None or not entry.is_ours or process.files is None:
                return None
            mapped = process.map(entry, known, process.files)
        return mapped.pieces(sample.columns, sample.draws)

    def attributes(self, samples: Sequence[tuple[str, SampleEntry]]) -> list[dict[str, Any]]:
        """See :class:`zarr_core.points.read.engines.Engine`. A request each, which also caches the metadata."""
        process = self._this_process
        found = []
        for (where, entry), group in zip(samples, self._fetch_groups(process, samples, None), strict=True):
            process.keep(entry.relpath, KnownSample.of(where, entry, group))
            found.append(dict(group.get("attributes", {})))
        return found

    # --- metadata of samples

    def _arrays(
        self, process: _Process, reads: Sequence[FieldRead], whole: dict[str, np.ndarray]
    ) -> list[KnownArray | None]:
        """The array of each read, with its chunk index; None if the fallback engine has to read it.

        Archives that were fetched for it are added to ``whole``.
        """
        samples = {read.entry.relpath: process.samples.get(read.entry.relpath) for read in reads}
        if None in samples.values():
            unknown = {read.entry.relpath: read for read in reads if samples[read.entry.relpath] is None}
            groups = self._fetch_groups(process, [(read.where, read.entry) for read in unknown.values()], whole)
            for (relpath, read), group in zip(unknown.items(), groups, strict=True):
                samples[relpath] = sample = KnownSample.of(read.where, read.entry, group)
                process.keep(relpath, sample)
        found: list[KnownArray | None] = []
        unindexed: dict[str, tuple[FieldRead, KnownArray]] = {}
        for read in reads:
            known = samples[read.entry.relpath]
            assert known is not None
            array = known.arrays.get(read.column.array_name)
            if array is None and not known.unlisted and read.column.array_name not in known.arrays:
                raise read.missing_array()
            if known.sample_id not in (None, read.sample_id):
                named = f"the manifest names {read.entry.relpath}"
                raise ManifestError(f"{read.where}: {named}, which is the group of {known.sample_id!r}")
            if array is not None:
                layout = array.layout
                if array.accepted is not read.entry:
                    read.check_array((layout.n_points, layout.dim), (layout.chunk_points, layout.dim), array.dtype)
                    array.accepted = read.entry
                if array.index is None:
                    unindexed[read.path] = (read, array)
            found.append(array)
        if unindexed:
            self._fetch_indices(process, unindexed.values())
        return found

    def _fetch_groups(
        self, process: _Process, samples: Sequence[tuple[str, SampleEntry]], whole: dict[str, np.ndarray] | None
    ) -> list[dict[str, Any]]:
        """The ``zarr.json`` of samples, each given as its name in messages and its manifest entry.

        Archives that are fetched whole are added to ``whole``; None for the ``zarr.json`` alone.
        """
        are_whole = [whole is not None and process.fetches_whole(entry) for _, entry in samples]
        requests = [group_request(entry, is_whole) for (_, entry), is_whole in zip(samples, are_whole, strict=True)]
        groups: list[dict[str, Any]] = [{}] * len(samples)

        def use(number: int, data: np.ndarray | Exception) -> None:
            groups[number] = parse_group(*samples[number], requests[number], data)
            if are_whole[number] and whole is not None:
                whole[requests[number].key] = np.array(data)

        fetch_checked(process.objects, requests, use)
        return groups

    def _fetch_indices(self, process: _Process, unindexed: Collection[tuple[FieldRead, KnownArray]]) -> None:
        shards = [(read, array, shard) for read, array in unindexed for shard in range(array.layout.n_shards)]
        requests = [Request(array.shard_name(shard), -array.layout.index_bytes) for _, array, shard in shards]
        indices: list[np.ndarray | None] = [None] * len(shards)

        def use(number: int, data: np.ndarray | Exception) -> None:
            read, array, shard = shards[number]
            if isinstance(data, FileNotFoundError) and not read.entry.is_ours:
                return  # zarr-python does not write shards of zeros
            key = array.shard_name(shard)
            try:
                indices[number] = decode_shard_index(array.layout, _fetched(key, data).tobytes())
            except Exception as error:
                raise _read_error(read, f"shard index of {key}", error) from error

        fetch_checked(process.objects, requests, use)
        remaining = iter(indices)
        for read, array in unindexed:
            try:
                array.index = ChunkIndex.from_shards(array.layout, list(islice(remaining, array.layout.n_shards)))
            except CorruptChunkError as error:
                raise _read_error(read, "shard index", error) from error

    # --- fetching

    def _execute(
        self,
        source: Objects,
        work: Sequence[tuple[FieldRead, KnownArray, list[PlannedChunk], np.ndarray]],
        requests: Sequence[Request],
    ) -> None:
        """Fetch the ranges and decode them into their targets."""
        scratch: dict[tuple[int, int, str], np.ndarray] = {}

        def use(number: int, data: np.ndarray | Exception) -> None:
            read, array, chunks, target = work[number]
            layout = array.layout
            shape = layout.chunk_points, layout.dim, layout.dtype
            try:
                if shape not in scratch:  # new memory for each chunk takes a tenth more time
                    scratch[shape] = np.empty(shape[:2], array.dtype)
                if isinstance(data, Exception):
                    data = _fetched(requests[number].key, data)
                unpack(layout, chunks, data, target, scratch[shape])
            except Exception as error:
                raise _read_error(read, str(requests[number]), error) from error

        # A damaged group may have given wrong ranges: if a cache holds it, the next read fetches it again.
        fetch_checked(source, requests, use, lambda number: [group_request(work[number][0].entry)])

    @property
    def _fallback_engine(self) -> Engine:
        """Reads arrays in layouts that this library does not write, through zarr-python."""
        if self._fallback is None:
            from zarr_core.points.read.engines.reference import ZarrEngine  # imports zarr-python

            self._fallback = ZarrEngine(self.root)
        return self._fallback

    # --- processes

    @property
    def objects(self) -> Objects | None:
        """What is read from, below all caches; None if another engine reads, too."""
        return None if self._fallback is not None else self._this_process.base

    @property
    def _this_process(self) -> _Process:
        process = self._process
        if process is None or process.forks != byte_ranges.forks:
            base = opened = self._objects_factory(self.root)
            if base.remote:
                opened = JoinedObjects(base, MAX_GAP_BYTES, MAX_READ_BYTES)
            elif isinstance(base, LocalObjects):
                opened = JoinedObjects(base, MAX_GAP, MAX_READ_BYTES)
            if self._cache is not None:
                opened = CachedObjects(opened, self._cache, Storage(self.root).identity)
            if self._cache_bytes is not None and opened.remote:  # the operating system caches local files already
                opened = CachedObjects(opened, MemoryCache(self._cache_bytes), identity="")  # of this store alone
            process = self._process = _Process(base, opened, process)
        return process

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_process": None}


class _Process:
    """State of an engine in one process. A forked child inherits the sample metadata, but no open handles.

    Attributes:
        base: what is read from, below all caches.
        objects: the same as it is read.
        files: the same where local files are read without a cache.
    """

    def __init__(self, base: Objects, opened: Objects, parent: _Process | None) -> None:
        self.forks = byte_ranges.forks
        self.base = base
        self.objects = opened
        self.files = base if isinstance(base, LocalObjects) and not isinstance(opened, CachedObjects) else None
        self.samples: OrderedDict[str, KnownSample] = OrderedDict() if parent is None else parent.samples.copy()
        self.mapped: dict[str, MappedSample] = {}
        self._bytes: int = 0 if parent is None else parent._bytes
        self._lock = threading.Lock()

    def fetches_whole(self, entry: SampleEntry) -> bool:
        """Whether the first request for a sample fetches all of its archive.

        It does where this saves a request. A cache would keep the archive, and the ranges of later draws besides.
        """
        is_small = 0 < entry.size <= _WHOLE_BYTES
        return is_small and self.base.remote and not isinstance(self.objects, CachedObjects)

    def keep(self, relpath: str, sample: KnownSample) -> None:
        """Keep the metadata of a sample, and drop the oldest if they need too much memory."""
        with self._lock:
            if relpath in self.samples:
                return
            self.samples[relpath] = sample
            self._bytes += sample.size
            while self._bytes > _METADATA_BYTES and len(self.samples) > 1:
                oldest, dropped = self.samples.popitem(last=False)
                self.mapped.pop(oldest, None)
                self._bytes -= dropped.size

    def map(self, entry: SampleEntry, known: KnownSample, files: LocalObjects) -> MappedSample:
        """The mapped arrays of a sample, kept as long as its metadata."""
        mapped = MappedSample(files, known, entry)
        with self._lock:
            if self.samples.get(entry.relpath) is not known:  # another thread has dropped it
                return mapped
            return self.mapped.setdefault(entry.relpath, mapped)


def _in_order_of_archives(reads: Sequence[FieldRead], requests: Sequence[Request]) -> list[int]:
    """Numbers of the requests, sorted so that neighbours in an archive follow each other; others stay in their order.

    Samples that are read again follow those that are read the first time: equal ranges are never joined.
    """
    times: Counter[Request] = Counter()
    positions: list[tuple[str, int, int]] = []
    for read, request in zip(reads, requests, strict=True):
        if read.entry.head:
            positions.append((request.key, times[request], request.start))
            times[request] += 1
        else:
            positions.append(("", 0, 0))
    return sorted(range(len(positions)), key=positions.__getitem__)


def _read_error(read: FieldRead, request: str, error: Exception) -> Exception:
    """The error with store, sample, field and range in its message."""
    if isinstance(error, CorruptChunkError):
        return read.unreadable(f"{request}: {error}" if isinstance(error, TruncatedError) else str(error))
    return fetch_failure(read.where, request, error)


def _fetched(key: str, data: np.ndarray | Exception) -> np.ndarray:
    """The bytes; raises what kept them from being fetched, CorruptChunkError if the object is missing."""
    if isinstance(data, FileNotFoundError):
        raise CorruptChunkError(f"{key} is missing") from data
    if isinstance(data, Exception):
        raise data
    return data


def _fill_missing(read: FieldRead, rows: Iterable[RowSpan], target: np.ndarray) -> None:
    """Fill the rows of a chunk that was not written. zarr-python leaves out chunks of zeros; this library does not."""
    if read.entry.is_ours:
        raise read.unreadable("a chunk is not in the shard's index")
    for first, last, to in rows:
        target[to : to + last - first] = 0
