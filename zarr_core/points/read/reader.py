"""Reads points of stored samples as NumPy arrays. The reader selects points and arrays; an engine reads them.

With the default engine, a sample costs one metadata request, once, and a field costs one byte range (or several, of up
to 8 MiB, where it is large). Other fields cost nothing. All requests of a call are in flight together.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import copy
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np

from zarr_core._util import reused_memory
from zarr_core._util.arguments import check_mapping, check_names, whole_number
from zarr_core._util.units import parse_size
from zarr_core.errors import CorruptChunkError, ManifestError, UnknownFieldError
from zarr_core.format.object_names import ATTRIBUTES_KEY
from zarr_core.format.shuffle import in_source_order
from zarr_core.points.read.engines import Engine, FieldRead, OutputMismatchError
from zarr_core.points.read.engines.opening import open_engine
from zarr_core.points.read.sampling import Draw, draw_points
from zarr_core.points.read.selection import Coords, Pieces, SampleDraws, Selection, Share, join_pieces, read_together
from zarr_core.points.store.head import HEAD, load_manifest
from zarr_core.points.store.manifest import StoreManifest
from zarr_core.points.store.mesh import read_meshes
from zarr_core.sources.formats.contents import Mesh
from zarr_core.storage import Storage
from zarr_core.storage.disk_cache import DEFAULT_LIMIT, DiskCache
from zarr_core.versioning.generations import check_kept
from zarr_core.versioning.replaced import ReplacementCheck

if TYPE_CHECKING:
    from zarr.abc.store import Store

    from zarr_core.points.read.sampling import Generator
    from zarr_core.storage.byte_ranges import Objects


class ZarrChunkReader:
    """Reads drawn or whole samples of one store.

    Safe to fork, to pickle and to share between threads: each process opens its handles on first use.

    Args:
        root: local path or fsspec URL of the store.
        engine: "direct" (the default), "zarr" (zarr-python, the reference) or "tensorstore". All give equal results.
        store_factory: opens the Zarr store below a root; selects the engine "zarr". A module-level function if the
            reader is to be pickled. A ``zarr.storage.WrapperStore`` of ``make_store(root)`` can count requests.
        objects_factory: opens the objects below a root, for the engine "direct"; as above.
            ``lambda root: CountingObjects(open_objects(root))`` counts requests and bytes; both names are in
            ``zarr_core.storage.byte_ranges``.
        read_concurrency: fields that the engine "zarr" reads at the same time, in threads. The other engines have all
            fields in flight.
        generation: number or tag of the generation to read; the latest by default.
        cache_dir: folder on a fast local disk that keeps fetched ranges, shared by all processes of the host; for the
            engine "direct". Samples that another program wrote may change and are not kept.
        cache_limit: maximum size of ``cache_dir``, for example "200GB".
        cache_bytes: memory for fetched ranges, for example "2GB", per process and DataLoader worker; None keeps
            nothing. For the engine "direct", with a remote store or ``cache_dir``. The operating system caches local
            files already. Samples that another program wrote are not kept.

    Attributes:
        root: path or URL of the store; a path is absolute.
        manifest: manifest of the store at the time the reader was created.
        engine: name of the engine.
        cache: the disk cache, with counts of hits and misses of this process; None without ``cache_dir``.

    Raises:
        StoreError: there is no store at the root, or no such generation or tag.
        ManifestError: its manifest is unreadable.
        ZarrCoreError: ``read_concurrency`` is not positive, a size is invalid, or there is no such engine.

    Examples:
        >>> reader = ZarrChunkReader("store")
        >>> reader.read_sample("case_0", {"surface": 64}, ["surface_pressure"])["surface_pressure"].shape
        (64, 1)
    """

    def __init__(
        self,
        root: str | os.PathLike[str],
        *,
        engine: str | None = None,
        store_factory: Callable[[str], Store] | None = None,
        objects_factory: Callable[[str], Objects] | None = None,
        read_concurrency: int = 1,
        generation: int | str | None = None,
        cache_dir: str | os.PathLike[str] | None = None,
        cache_limit: int | str = DEFAULT_LIMIT,
        cache_bytes: int | str | None = None,
    ) -> None:
        self._storage = storage = Storage(root)
        self.root, self._url = storage.root, storage.url
        self.read_concurrency = whole_number("read_concurrency", read_concurrency, 1)
        self.manifest: StoreManifest = load_manifest(storage, generation)
        # The path of any other group names its content, so that another store has it at another path.
        self._unnamed = any(not entry.is_ours for entry in self.manifest.samples.values())
        self._replaced = ReplacementCheck(storage, HEAD)
        self.engine = engine or ("zarr" if store_factory else "direct")
        self._columns = self.manifest.fields
        # The last one without independent positions: most calls of ``read_sample`` select the same again.
        self._last_selection: Selection | None = None
        self.cache = None if cache_dir is None else DiskCache(cache_dir, cache_limit)
        memory = None if cache_bytes is None else parse_size(cache_bytes)
        self._engine: Engine = open_engine(
            self.engine, self.root, store_factory, objects_factory, self.read_concurrency, self.cache, memory
        )

    def __repr__(self) -> str:
        generation, samples = self.manifest.generation, len(self.manifest.samples)
        name = type(self).__name__
        return f"<{name} {self._url}, generation {generation}, engine {self.engine}: {samples:,} samples>"

    def with_samples(self, sample_ids: Collection[str]) -> ZarrChunkReader:
        """The same reader with a manifest that names only these samples, for another process.

        25,000 samples are a manifest of 3 MB as a pickle, which every DataLoader worker would get.
        """
        reader = copy(self)
        reader.manifest = self.manifest.with_samples(sample_ids)
        return reader

    @property
    def sample_ids(self) -> list[str]:
        """Ids of all samples, in the manifest's order."""
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
        """Read fields of a sample. All fields of a domain have the same points.

        Args:
            sample_id: id of the sample.
            num_points: points to draw by domain, ``{"surface": 4096}``. A domain that is absent, is None, or has at
                most that many points is read whole, in stored order. Domains are drawn independently.
            fields: canonical names of the fields to read; all that the sample has by default.
            seed: seed of the training run.
            epoch: number of the epoch; each epoch draws different points.
            generator: NumPy or torch generator that replaces ``seed`` and ``epoch``.

        Returns:
            Arrays of the stored dtype by canonical name, each (points, dim).

        Raises:
            UnknownFieldError: no such sample, field or domain; or the sample lacks a field of ``fields``.
            ZarrCoreError: an argument has the wrong type, or a number of points is not positive.
            CorruptChunkError: stored bytes are missing or damaged.
        """
        selection = self.selection(num_points, fields)
        (item,) = self.read_items([self.draws(selection, sample_id, seed=seed, epoch=epoch, generator=generator)])
        return item

    def read_coords(
        self,
        sample_id: str,
        domain: str = "surface",
        num_points: int | None = None,
        generator: Generator | None = None,
        *,
        seed: int = 0,
        epoch: int = 0,
        stream: str = "geometry",
    ) -> np.ndarray:
        """Read positions of a domain, drawn independently of :meth:`read_sample` and of other streams.

        Returns:
            (points, 3) of the stored dtype. Arguments and errors as for :meth:`read_sample`.
        """
        selection = Selection([], {}, self.coords("coords", domain, num_points, stream))
        drawn = self.draws(selection, sample_id, seed=seed, epoch=epoch, generator=generator)
        return self.read_items([drawn])[0]["coords"]

    def field_reads(
        self,
        sample_id: str,
        num_points: Mapping[str, int | None] | None = None,
        fields: Iterable[str] | None = None,
        seed: int = 0,
        epoch: int = 0,
        generator: Generator | None = None,
    ) -> dict[str, FieldRead]:
        """The reads of :meth:`read_sample` by canonical name, to be combined with other reads in :meth:`execute`."""
        drawn = self.draws(self.selection(num_points, fields), sample_id, seed=seed, epoch=epoch, generator=generator)
        return self.reads(drawn)

    def coords_read(
        self,
        sample_id: str,
        domain: str = "surface",
        num_points: int | None = None,
        generator: Generator | None = None,
        *,
        seed: int = 0,
        epoch: int = 0,
        stream: str = "geometry",
    ) -> FieldRead:
        """The read of :meth:`read_coords`."""
        selection = Selection([], {}, self.coords("coords", domain, num_points, stream))
        return self.reads(self.draws(selection, sample_id, seed=seed, epoch=epoch, generator=generator))["coords"]

    def selection(
        self,
        num_points: Mapping[str, int | None] | None = None,
        fields: Iterable[str] | None = None,
        coords: Coords | None = None,
    ) -> Selection:
        """What to read of every sample.

        Args:
            num_points, fields: as for :meth:`read_sample`.
            coords: positions to draw besides; from :meth:`coords`.

        Raises:
            UnknownFieldError, ZarrCoreError: as for :meth:`read_sample`.
        """
        if num_points is not None:
            check_mapping("num_points", num_points, "{'surface': 4096}")
        checked = self.check_num_points(num_points or {})
        names = None if fields is None else self.check_fields(fields)
        if coords is not None:
            return Selection(names, checked, coords)
        last = self._last_selection
        if last is None or (last.fields, last.num_points) != (names, checked):
            last = self._last_selection = Selection(names, checked)
        return last

    def coords(self, name: str, domain: str, num_points: int | None = None, stream: str = "geometry") -> Coords:
        """Positions to draw independently of the fields; raises as :meth:`read_coords`.

        Args:
            name: of the result.
            domain, num_points, stream: as for :meth:`read_coords`.
        """
        checked = self.check_num_points({domain: num_points})
        return Coords(name, domain, checked[domain], f"{domain}:{stream}")

    def draws(
        self,
        selection: Selection,
        sample_id: str,
        *,
        seed: int = 0,
        epoch: int = 0,
        repetition: int = 0,
        generator: Generator | None = None,
    ) -> SampleDraws:
        """Draw the points of a sample, for :meth:`read_batch`.

        Args:
            selection: from :meth:`selection`.
            sample_id, seed, epoch, generator: as for :meth:`read_sample`.
            repetition: how often the sample was drawn in this epoch before. Each time has independent draws.
        """
        chosen = selection.of(self.manifest, self._url, sample_id)
        seed, epoch = whole_number("seed", seed), whole_number("epoch", epoch)
        draws: dict[str, Draw] = {}
        for stream, n_points, chunk_points, wanted in chosen.streams:
            drawn = f"{repetition}.{stream}" if repetition else stream  # the name of no domain contains a "."
            draws[stream] = draw_points(n_points, chunk_points, wanted, seed, epoch, sample_id, drawn, generator)
        return SampleDraws(sample_id, chosen.entry, chosen.columns, draws, chosen.num_points)

    def reads(self, sample: SampleDraws) -> dict[str, FieldRead]:
        """The reads of a sample by name, to be combined with those of other samples in :meth:`execute`."""
        sample_id, entry, columns, draws, _ = sample
        reads = {}
        for name, column, domain, stream in columns:
            reads[name] = FieldRead(self._url, sample_id, entry, column, domain, draws[stream])
        return reads

    def read_batch(self, samples: Sequence[SampleDraws]) -> dict[str, np.ndarray] | None:
        """Read samples as one array per field.

        Args:
            samples: results of :meth:`draws`; at least one.

        Returns:
            (samples, points, dim) by name, of the stored dtypes; None if fields, dtypes or numbers of points differ, so
            that :meth:`read_items` has to read them. Errors as for :meth:`read_sample`.
        """
        return read_together([Share(self, samples, range(len(samples)))])

    def fill(
        self,
        samples: Sequence[SampleDraws],
        out: Sequence[np.ndarray],
        places: Sequence[int],
        mapped: dict[int, Pieces],
    ) -> bool:
        """Read samples into their places of the array of each column; False if a dtype differs.

        Points that lie in memory maps are not copied, but added to ``mapped``, by place.
        """
        reads: list[FieldRead] = []
        targets: list[np.ndarray] = []
        with self._same_store():
            for place, sample in zip(places, samples, strict=True):
                pieces = self._engine.mapped_pieces(sample)
                if pieces is None:
                    reads += self.reads(sample).values()
                    targets += [array[place] for array in out]
                else:
                    mapped[place] = pieces
            try:
                if reads:
                    self._engine.read(reads, targets)
            except OutputMismatchError:  # the manifest of an earlier version has one dtype for samples of several
                return False
        return True

    def read_items(self, samples: Sequence[SampleDraws]) -> list[dict[str, np.ndarray]]:
        """Read samples that may differ in their fields, dtypes and numbers of points.

        Args:
            samples: results of :meth:`draws`.

        Returns:
            (points, dim) by name, of the stored dtypes, for each sample. Errors as for :meth:`read_sample`.
        """
        mapped: list[Sequence[np.ndarray] | None] = []
        reads: list[FieldRead] = []
        with self._same_store():
            for sample in samples:
                pieces = self._engine.mapped_pieces(sample)
                if pieces is None:
                    mapped.append(None)
                    reads += self.reads(sample).values()
                else:
                    new = [rows[0] for rows in self.allocate(sample, 1)]
                    join_pieces([pieces], new)
                    mapped.append(new)
            read = iter(self._engine.read(reads) if reads else [])
        items = []
        for sample, copied in zip(samples, mapped, strict=True):
            arrays = list(islice(read, len(sample.columns))) if copied is None else copied
            items.append(dict(zip(sample.names, arrays, strict=True)))
        return items

    def allocate(self, sample: SampleDraws, items: int) -> list[np.ndarray]:
        """New arrays for the columns of a number of samples."""
        arrays = []
        try:
            for _, column, _, stream in sample.columns:
                arrays.append(reused_memory.empty((items, sample.draws[stream].num_points, column.dim), column.dtype))
        except (MemoryError, ValueError) as error:  # ValueError: more than can be addressed
            raise self.reads(sample)[sample.names[len(arrays)]].too_large() from error
        return arrays

    def execute(self, reads: Sequence[FieldRead], out: Sequence[np.ndarray] | None = None) -> list[np.ndarray]:
        """Read fields of any samples, all of them in flight together on remote stores.

        Args:
            reads: of any samples; values of :meth:`reads`.
            out: arrays to write into, C-contiguous, of each read's ``shape`` and of the stored dtype; new ones by
                default.

        Returns:
            The arrays, (points, dim) of the stored dtype. Errors as for :meth:`read_sample`, and OutputMismatchError if
            an array of ``out`` has another dtype or width than the stored one.
        """
        with self._same_store():
            return self._engine.read(reads, out)

    def read_attributes(self, sample_id: str) -> dict[str, Any]:
        """The group's "zarr_core" attributes: source files, parameters, moments, ...; empty if it has none."""
        return self.read_attributes_of([sample_id])[0]

    def read_attributes_of(self, sample_ids: Sequence[str]) -> list[dict[str, Any]]:
        """:meth:`read_attributes` of several samples, all requests in flight together."""
        samples = [(f"{self._url}, {sample_id}", self.manifest.entry(sample_id, self._url)) for sample_id in sample_ids]
        with self._same_store():
            return [dict(group.get(ATTRIBUTES_KEY, {})) for group in self._engine.attributes(samples)]

    def read_mesh(self, sample_id: str) -> dict[str, Mesh]:
        """The meshes of a sample by domain, with all its fields of the domain in the order of the solver.

        Only domains whose description has ``connectivity: true`` have one. Everything is read whole.

        Raises:
            UnknownFieldError: the store does not hold the sample, or the sample has no mesh.
            CorruptChunkError: an array is damaged.
        """
        entry, recorded = self.manifest.entry(sample_id, self._url), self.read_attributes(sample_id)
        with self._same_store():
            meshes = dict(read_meshes(self.root, entry.relpath, recorded))
        if not meshes:
            reason = "its description has no `connectivity: true`, or this is a copy of some of the fields"
            raise UnknownFieldError(f"{self._url}: {sample_id!r} has no mesh: {reason}")
        for domain, mesh in meshes.items():
            stored = [name for name in self.manifest.domains[domain].arrays if name in recorded["moments"]]
            for name, values in self.read_sample(sample_id, {}, stored).items():
                mesh.fields[name] = in_source_order(values, recorded["shuffle_seed"], sample_id, domain)
        return meshes

    def check_fields(self, fields: Iterable[str]) -> list[str]:
        """The names as a list without duplicates; raises UnknownFieldError if the store does not hold a field."""
        check_names("fields", fields, error=UnknownFieldError)
        names = list(dict.fromkeys(fields))
        for name in names:
            if name not in self._columns:
                raise UnknownFieldError(f"{self._url}: no field {name!r}; fields are {', '.join(self.fields)}")
        return names

    def check_num_points(self, num_points: Mapping[str, int | None]) -> dict[str, int | None]:
        """The numbers of points to draw by domain, as Python's integers.

        Raises:
            UnknownFieldError: the store has no such domain.
            ZarrCoreError: a number is neither None nor positive.
        """
        checked: dict[str, int | None] = {}
        for domain, wanted in num_points.items():
            if domain not in self.manifest.domains:
                known = ", ".join(self.manifest.domains)
                raise UnknownFieldError(f"{self._url}: no domain {domain!r}; domains are {known}")
            if wanted is not None:
                wanted = whole_number(f"num_points of {domain!r} (None reads all points)", wanted, 1)
            checked[domain] = wanted
        return checked

    @contextmanager
    def _same_store(self) -> Iterator[None]:
        """Raise StoreError for what was read of another store, or damaged because this generation was collected."""
        try:
            yield
        except (CorruptChunkError, ManifestError) as error:
            check_kept(self._storage, HEAD, self.manifest, error)
            raise
        if self._unnamed:
            self._replaced.check(self.manifest, self._engine.objects)

    def without_field(self, name: str) -> list[str]:
        """Ids of the samples that lack a field of the store."""
        return [sample_id for sample_id in self.manifest.samples if name not in self.manifest.fields_of(sample_id)]
