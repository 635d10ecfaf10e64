"""Points of a stored sample, as NumPy arrays: which bytes hold a draw, and fetching them.

This reader goes through zarr-python, whose word on the format is final. A sample's group is opened with one metadata
request (its ``zarr.json`` holds the metadata of all its arrays) and kept; a field costs the shard index and one range
per chunk of its draw; a field that was not asked for costs nothing.
"""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar, cast

import numpy as np
import zarr
from zarr.abc.store import ByteRequest, Store
from zarr.core.buffer import Buffer, BufferPrototype
from zarr.storage import WrapperStore

from zarr_core.cache import DEFAULT_LIMIT, DiskCache
from zarr_core.draw import Draw, draw
from zarr_core.errors import CorruptChunkError, ManifestError, UnknownFieldError, ZarrCoreError
from zarr_core.manifest import DomainGrid, SampleEntry, StoreManifest, load_manifest
from zarr_core.storage import Storage, redact_url
from zarr_core.stores import CachedStore, make_store

if TYPE_CHECKING:
    from zarr_core.draw import Generator

# An opened sample of seven fields takes about 100 kB; sample groups beyond these are opened again when needed.
_OPEN_SAMPLES = 512
# What damaged bytes make codecs and the parsing of metadata raise.
_DAMAGE = (ValueError, RuntimeError, KeyError, TypeError, AttributeError, CorruptChunkError)

_Result = TypeVar("_Result")


class ZarrChunkReader:
    """Reads drawn or whole samples of one store.

    Safe to fork, pickle and share between threads: handles are opened on first use in each process.

    Args:
        root: local path or fsspec URL of the store.
        store_factory: opens the Zarr store below a root; a module-level function where the reader is to be pickled.
            ``lambda root: CountingStore(make_store(root))`` counts requests and bytes.
        read_concurrency: how many fields of a sample are read at the same time, in threads.
        generation: read the store as that commit left it; the latest by default.
        cache_dir: folder on a fast local disk where ranges that were fetched are kept, shared by all processes of the
            host; None keeps none. Samples of stores that another program wrote may change and are not kept.
        cache_limit: bytes to keep there, as in "200GB".

    Attributes:
        manifest: what the store holds, as it was when the reader was made.
        cache: the cache of this process, None without ``cache_dir``; counts hits and misses.

    Raises:
        StoreError: there is no store at the root, or no such generation.
        ManifestError: its manifest is unreadable.
        ZarrCoreError: ``read_concurrency`` is not positive.
    """

    def __init__(
        self,
        root: str | os.PathLike[str],
        *,
        store_factory: Callable[[str], Store] = make_store,
        read_concurrency: int = 1,
        generation: int | None = None,
        cache_dir: str | os.PathLike[str] | None = None,
        cache_limit: int | str = DEFAULT_LIMIT,
    ) -> None:
        if read_concurrency < 1:
            raise ZarrCoreError(f"read_concurrency must be 1 or more, not {read_concurrency}")
        self.root = os.fspath(root)
        self.read_concurrency = read_concurrency
        self.manifest: StoreManifest = load_manifest(self.root, generation)
        self.cache = None if cache_dir is None else DiskCache(cache_dir, cache_limit)
        self._store_factory = store_factory
        self._columns = self.manifest.fields
        self._domain_of = {name: domain for domain, layout in self.manifest.domains.items() for name in layout.arrays}
        self._opened: _Handles | None = None

    @property
    def sample_ids(self) -> list[str]:
        """All samples, in the manifest's order."""
        return list(self.manifest.samples)

    @property
    def fields(self) -> list[str]:
        """Canonical names of all fields, in the manifest's order."""
        return list(self._columns)

    def read_sample(
        self,
        sample_id: str,
        num_points: Mapping[str, int | None] | None = None,
        fields: Iterable[str] | None = None,
        seed: int = 0,
        epoch: int = 0,
        generator: Generator | None = None,
    ) -> dict[str, np.ndarray]:
        """Read fields of a sample, the same points in every field of a domain.

        Args:
            sample_id: a sample of the manifest.
            num_points: points to draw by domain, ``{"surface": 4096}``; a domain that is absent, None, or has no more
                points than that is read whole, in stored order. Domains are drawn independently.
            fields: canonical names to read; all by default.
            seed: of the training run.
            epoch: other epochs draw other points.
            generator: takes the place of ``seed`` and ``epoch`` as the source of randomness.

        Returns:
            Arrays of the stored dtype by canonical name, each (points, dim).

        Raises:
            UnknownFieldError: no such sample, field or domain.
            ZarrCoreError: a number of points is not positive.
            CorruptChunkError: stored bytes are missing or damaged.
        """
        entry = self._entry(sample_id)
        names = self._check_fields(sample_id, entry, fields)
        num_points = dict(num_points or {})
        self.check_num_points(num_points)
        draws = {
            domain: self._draw(sample_id, entry, domain, num_points.get(domain), domain, seed, epoch, generator)
            for domain in dict.fromkeys(self._domain_of[name] for name in names)
        }
        reads = [(name, draws[self._domain_of[name]]) for name in names]
        if self.read_concurrency == 1 or len(reads) == 1:
            return {name: self._read_field(sample_id, entry, name, drawn) for name, drawn in reads}
        self._open(sample_id, entry)  # once, not in every thread
        threads = self._handles.threads
        futures = {name: threads.submit(self._read_field, sample_id, entry, name, drawn) for name, drawn in reads}
        return {name: future.result() for name, future in futures.items()}

    def read_coords(
        self,
        sample_id: str,
        domain: str = "surface",
        num_points: int | None = None,
        seed: int = 0,
        epoch: int = 0,
        stream: str = "geometry",
        generator: Generator | None = None,
    ) -> np.ndarray:
        """Read positions of a domain, drawn independently of :meth:`read_sample` and of other streams.

        Returns:
            (points, 3) of the stored dtype. Arguments and errors as for :meth:`read_sample`.
        """
        entry = self._entry(sample_id)
        self.check_num_points({domain: num_points})
        (name,) = self._check_fields(sample_id, entry, [self.manifest.domains[domain].position])
        drawn = self._draw(sample_id, entry, domain, num_points, f"{domain}:{stream}", seed, epoch, generator)
        return self._read_field(sample_id, entry, name, drawn)

    def read_attributes(self, sample_id: str) -> dict[str, Any]:
        """What the conversion recorded of a sample: source files, parameters, moments, byte counts.

        Returns:
            The group's "zarr_core" attributes; empty in a store that another program wrote.
        """
        group = self._open(sample_id, self._entry(sample_id)).group
        return dict(cast("dict[str, Any]", group.attrs.get("zarr_core", {})))

    def check_fields(self, fields: Iterable[str]) -> list[str]:
        """The names as a list; raises UnknownFieldError for a field that the store does not hold."""
        if isinstance(fields, str):
            raise UnknownFieldError(f"fields must be a collection of names; for one field pass [{fields!r}]")
        names = list(dict.fromkeys(fields))
        for name in names:
            if name not in self._columns:
                raise UnknownFieldError(f"{self._url}: no field {name!r}; fields are {', '.join(self.fields)}")
        return names

    def check_num_points(self, num_points: Mapping[str, int | None]) -> None:
        """Raise unless every domain exists and every number of points is None or positive."""
        for domain, wanted in num_points.items():
            if domain not in self.manifest.domains:
                known = ", ".join(self.manifest.domains)
                raise UnknownFieldError(f"{self._url}: no domain {domain!r}; domains are {known}")
            if wanted is not None and wanted <= 0:
                raise ZarrCoreError(
                    f"num_points of {domain!r} must be positive, not {wanted}; None reads all points of the domain"
                )

    # --- which points, of which arrays

    @property
    def _url(self) -> str:
        return redact_url(self.root)

    def _entry(self, sample_id: str) -> SampleEntry:
        try:
            return self.manifest.samples[sample_id]
        except KeyError:
            pass
        refused = self.manifest.quarantine.get(sample_id)
        if refused:
            reason = f"it was refused at conversion ({refused.field}: {refused.reason})"
        else:
            some = ", ".join(self.sample_ids[:5])
            reason = f"the store holds {len(self.manifest.samples)}, the first of them {some}"
        raise UnknownFieldError(f"{self._url}: no sample {sample_id!r}; {reason}")

    def _check_fields(self, sample_id: str, entry: SampleEntry, fields: Iterable[str] | None) -> list[str]:
        names = self.fields if fields is None else self.check_fields(fields)
        for name in names:
            if self._domain_of[name] not in entry.domains:
                raise UnknownFieldError(f"{self._url}, {sample_id}: this sample has no {name}")
        return names

    def _draw(
        self,
        sample_id: str,
        entry: SampleEntry,
        domain: str,
        num_points: int | None,
        stream: str,
        seed: int,
        epoch: int,
        generator: Generator | None,
    ) -> Draw:
        grid: DomainGrid = entry.domains[domain]
        wanted = grid.n_points if num_points is None else num_points
        return draw(
            grid.n_points,
            grid.chunk_points,
            wanted,
            seed=seed,
            epoch=epoch,
            sample_id=sample_id,
            stream=stream,
            generator=generator,
        )

    # --- fetching

    def _read_field(self, sample_id: str, entry: SampleEntry, name: str, drawn: Draw) -> np.ndarray:
        where = f"{self._url}, {sample_id}, {name}"
        column = self._columns[name]
        opened = self._open(sample_id, entry)
        with self._metadata_errors(sample_id, entry):
            array = opened.array(column.array_name)
        if array is None:
            raise ManifestError(f"{where}: the manifest names this field but the sample's group does not hold it")
        expected = (entry.domains[self._domain_of[name]].n_points, column.dim)
        if array.shape != expected:
            raise ManifestError(f"{where}: the manifest says {expected}, the array is {array.shape}")
        start, stop = drawn.span
        grid = entry.domains[self._domain_of[name]]
        shards = range(start // grid.shard_points, -(-stop // grid.shard_points))
        objects = [f"{entry.relpath}/{column.array_name}/c/{shard}/0" for shard in shards]
        try:
            points = self._past_damage(lambda: cast("np.ndarray", array[start:stop]), objects)
        except (ValueError, RuntimeError, CorruptChunkError) as error:
            # What codecs raise on damaged bytes; a network that fails raises OSError or its client's own errors.
            raise CorruptChunkError(
                f"{where}: points {start} to {stop} cannot be read: {error}; convert the sample again"
            ) from error
        if len(drawn.runs) == 1:
            return points
        return np.concatenate([points[first - start : last - start] for first, last in drawn.runs])

    def _open(self, sample_id: str, entry: SampleEntry) -> _OpenSample:
        handles = self._handles
        with self._metadata_errors(sample_id, entry):
            return self._past_damage(lambda: handles.sample(entry), [f"{entry.relpath}/zarr.json"])

    def _past_damage(self, read: Callable[[], _Result], objects: list[str]) -> _Result:
        """Read; where the bytes turn out damaged, forget what the cache has of these objects and read once more."""
        cached = self._handles.cached
        try:
            return read()
        except _DAMAGE:
            if cached is None:
                raise
            cached.discard(objects)
        return read()

    @contextmanager
    def _metadata_errors(self, sample_id: str, entry: SampleEntry) -> Iterator[None]:
        """Give what opening a group raises a name and a place."""
        try:
            yield
        except FileNotFoundError as error:
            raise ManifestError(
                f"{self._url}, {sample_id}: the manifest names the group {entry.relpath}, which is not there"
            ) from error
        except (ValueError, KeyError, TypeError, AttributeError, CorruptChunkError) as error:
            reason = f"{entry.relpath}/zarr.json cannot be read: {type(error).__name__}: {error}"
            raise CorruptChunkError(f"{self._url}, {sample_id}: {reason}; convert the sample again") from error

    # --- processes

    @property
    def _handles(self) -> _Handles:
        if self._opened is None or self._opened.pid != os.getpid():
            self._opened = _Handles(self.root, self._store_factory, self.read_concurrency, self.cache)
        return self._opened

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_opened": None}


class _Handles:
    """What a reader has open in one process: sockets, locks and threads of a parent do not work after a fork."""

    def __init__(self, root: str, store_factory: Callable[[str], Store], threads: int, cache: DiskCache | None) -> None:
        self.pid = os.getpid()
        self.threads = ThreadPoolExecutor(threads, thread_name_prefix="zarr_core.reader")  # starts none until used
        self._store = store_factory(root)
        self.cached = None if cache is None else CachedStore(self._store, cache, Storage(root).identity)
        self._samples: OrderedDict[str, _OpenSample] = OrderedDict()
        self._lock = threading.Lock()

    def sample(self, entry: SampleEntry) -> _OpenSample:
        """An opened sample, from memory if it was used lately."""
        with self._lock:
            if entry.relpath in self._samples:
                self._samples.move_to_end(entry.relpath)
                return self._samples[entry.relpath]
        # Our writer stores every chunk; others may leave out those that hold nothing but zeros.
        ours = bool(entry.fingerprint)
        store = _CompleteStore(self.cached or self._store) if ours else _CheckedStore(self._store)
        opened = _OpenSample(zarr.open_group(store, path=entry.relpath, mode="r", zarr_format=3))
        with self._lock:
            self._samples[entry.relpath] = opened
            while len(self._samples) > _OPEN_SAMPLES:
                self._samples.popitem(last=False)
        return opened


class _OpenSample:
    """A sample's group and those of its arrays that were read; making an array parses its codecs, so it is kept."""

    def __init__(self, group: zarr.Group) -> None:
        self.group = group
        self._arrays: dict[str, zarr.Array[Any] | None] = {}

    def array(self, name: str) -> zarr.Array[Any] | None:
        if name not in self._arrays:
            found = self.group.get(name)
            self._arrays[name] = found if isinstance(found, zarr.Array) else None
        return self._arrays[name]


class _CheckedStore(WrapperStore[Store]):
    """Of any writer: zarr-python would read an empty object as one that was left out, hence as zeros."""

    async def get(self, key: str, prototype: BufferPrototype, byte_range: ByteRequest | None = None) -> Buffer | None:
        found = await super().get(key, prototype, byte_range)
        if found is not None and len(found) == 0:
            raise CorruptChunkError(f"{key} is empty")
        return found


class _CompleteStore(_CheckedStore):
    """Of a writer that stores every chunk: zarr-python would read an object that is gone as zeros."""

    async def get(self, key: str, prototype: BufferPrototype, byte_range: ByteRequest | None = None) -> Buffer | None:
        found = await super().get(key, prototype, byte_range)
        if found is None and not key.endswith("zarr.json"):
            raise CorruptChunkError(f"{key} is missing")
        return found
