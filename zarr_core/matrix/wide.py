"""``WideMatrix``: create, open and read a matrix of samples and features.

Shards are written once, by the one writer that has claimed the place. A commit of ``HEAD.json`` names the objects that
belong to the matrix; readers trust it alone.
"""

from __future__ import annotations

import copy
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from zarr_core._util.arguments import check_names
from zarr_core.errors import CorruptChunkError, ManifestError, MatrixError, StoreError, UnknownFieldError
from zarr_core.matrix.ingest.append import append_batch, check_batch, find_infinite
from zarr_core.matrix.ingest.derive import derive_columns
from zarr_core.matrix.ingest.reindex import reindex
from zarr_core.matrix.ingest.retire import Retirement, forget, reinstate, retire
from zarr_core.matrix.read import lazy
from zarr_core.matrix.read.cells import read_cells
from zarr_core.matrix.read.fetch import ChunkFetcher
from zarr_core.matrix.read.selection import Duplicates, FeatureSelection, Unknown, select_names, select_regions
from zarr_core.matrix.store import sample_table
from zarr_core.matrix.store.axis import FeatureAxis
from zarr_core.matrix.store.axis_file import read_axis_ids
from zarr_core.matrix.store.create import CHUNK_FEATURES, COLUMN_CHUNK, MAX_SHARDS, VALUES, commit_new, new_state
from zarr_core.matrix.store.metadata import announce
from zarr_core.matrix.store.sample_table import Kind, MetadataReport
from zarr_core.matrix.store.state import HEAD, SHARD, MatrixState, Retired
from zarr_core.storage import Storage
from zarr_core.storage import byte_ranges as objects
from zarr_core.storage.byte_ranges import CachedObjects, Objects, open_objects
from zarr_core.storage.disk_cache import DEFAULT_LIMIT, DiskCache
from zarr_core.versioning.gc import GcReport
from zarr_core.versioning.generations import check_kept, load, load_same
from zarr_core.versioning.replaced import ReplacementCheck

if TYPE_CHECKING:
    import dask.array
    import pyarrow
    import xarray

logger = logging.getLogger(__name__)


class WideMatrix:
    """A matrix of samples and features with one table per value. NaN means missing.

    Made by :meth:`create` or :meth:`open`. Reads see one generation: the one that was opened, until :meth:`refresh` or
    an append of this object. Safe to pickle, to fork and to share between threads.

    Attributes:
        url: location of the matrix, without credentials.
    """

    def __init__(
        self,
        storage: Storage,
        state: MatrixState,
        *,
        pinned: bool = False,
        cache: DiskCache | None = None,
        objects_factory: Callable[[str], Objects] = open_objects,
    ) -> None:
        self.url = storage.url
        self._storage, self._state, self._pinned = storage, state, pinned
        self._cache, self._objects_factory = cache, objects_factory
        self._axis: FeatureAxis | None = None
        self._kept_fetcher: ChunkFetcher | None = None
        self._forks = -1
        self._replaced = ReplacementCheck(storage, HEAD)

    @classmethod
    def create(
        cls,
        url: str | os.PathLike[str],
        feature_ids: Sequence[str] | Sequence[int] | np.ndarray,
        values: Mapping[str, str] | None = None,
        *,
        codec: str = "none",
        chunk_features: int = CHUNK_FEATURES,
        shard_rows: int | None = None,
        max_shards: int = MAX_SHARDS,
        column_chunk: tuple[int, int] = COLUMN_CHUNK,
    ) -> WideMatrix:
        """Create an empty matrix.

        Args:
            url: a local path or any fsspec URL, used by nothing else.
            feature_ids: (features,) names of the columns, all different. They can never change: rows of other features
                cannot be loaded later. Give all features that you will ever need, such as a manufacturer's probe list;
                ``warehouse.feature_ids()`` are only those that the warehouse holds now. :meth:`reindex` copies a
                matrix to other features.
            values: stored dtype by value table; by default ``{"beta": "float32", "coverage": "float32"}``.
            codec: compressor, "name" or "name:level". Array betas hardly compress, and without a codec are read at the
                speed of the disk; docs/matrix.md compares codecs. The column-major copy uses the same codec, or
                "blosc-lz4" instead of none, because its chunks are small and often partly empty.
            chunk_features: approximate number of features per chunk; a chunk is one sample high.
            shard_rows: samples per shard; a shard is as wide as the matrix. By default 800 MB, at most 512
                samples and at most 8,192 chunks. Each batch begins a new shard; short shards cost nothing.
            max_shards: largest number of shards. It costs nothing: arrays grow with the batches.
            column_chunk: (features, samples) of a chunk of the column-major copy.

        Raises:
            MatrixError: there is a matrix already, or an argument is invalid.
        """
        axis = FeatureAxis(feature_ids)
        state = new_state(
            axis,
            VALUES if values is None else values,
            codec=codec,
            chunk_features=chunk_features,
            shard_rows=shard_rows,
            max_shards=max_shards,
            column_chunk=column_chunk,
        )
        storage = Storage(url)
        created = commit_new(storage, axis, state)
        matrix = cls(storage, created)
        matrix._axis = axis
        announce(storage, created.row_copy)
        return matrix

    @classmethod
    def open(
        cls,
        url: str | os.PathLike[str],
        generation: int | str | None = None,
        *,
        cache_dir: str | os.PathLike[str] | None = None,
        cache_limit: int | str = DEFAULT_LIMIT,
        objects_factory: Callable[[str], Objects] | None = None,
    ) -> WideMatrix:
        """Open the current state of a matrix, or an earlier generation.

        Args:
            url: location of the matrix.
            generation: number of a commit, or a tag; the latest commit by default.
            cache_dir: folder on a fast local disk for fetched byte ranges, shared by all processes of the host.
            cache_limit: size limit of the cache in bytes, or text such as "200GB".
            objects_factory: opens the objects below a URL; a module-level function if the matrix will be pickled.
                ``lambda url: CountingObjects(open_objects(url))`` counts requests and bytes.

        Raises:
            StoreError: there is no matrix, or no such generation.
            ManifestError: the head cannot be read.
        """
        storage = Storage(url)
        state = load(storage, HEAD, generation)
        cache = None if cache_dir is None else DiskCache(cache_dir, cache_limit)
        pinned = generation is not None
        return cls(storage, state, pinned=pinned, cache=cache, objects_factory=objects_factory or open_objects)

    # --- contents

    @property
    def generation(self) -> int:
        """Number of the commit that reads see."""
        return self._state.generation

    @property
    def matrix_id(self) -> str:
        """Random id, given at creation. Committed cells of a matrix with this id never change."""
        return self._state.matrix_id

    @property
    def values(self) -> dict[str, str]:
        """Stored dtype by value table."""
        return dict(self._state.values)

    @property
    def batches(self) -> dict[str, list[str]]:
        """Sample ids by batch, both in the order of the rows."""
        return {batch_id: list(batch.sample_ids) for batch_id, batch in self._state.batches.items()}

    @property
    def batch_sources(self) -> dict[str, dict[str, str]]:
        """State of the warehouse that each batch was loaded from; empty for a batch without a record."""
        return {batch_id: dict(batch.source) for batch_id, batch in self._state.batches.items()}

    @property
    def batch_digests(self) -> dict[str, str]:
        """Digest of the samples and values of each batch, independent of their order."""
        return {batch_id: batch.digest for batch_id, batch in self._state.batches.items()}

    @property
    def sample_ids(self) -> list[str]:
        """Every sample, in the order of the rows."""
        return list(self._state.rows)

    @property
    def rows(self) -> dict[str, int]:
        """Row of each sample in the Zarr arrays, for other Zarr readers. Rows without a sample are not written."""
        return dict(self._state.rows)

    @property
    def feature_ids(self) -> FeatureAxis:
        """Names of the columns: a sequence; ``np.asarray`` of it, or of its slices, gives arrays of names."""
        if self._axis is None:
            axis = self._state.axis
            where = f"{self.url}/{axis.path}"
            try:
                data = self._storage.read(axis.path)
            except FileNotFoundError as error:
                raise StoreError(f"{where}: the names of the features are missing") from error
            found = FeatureAxis.from_npy(data, axis.sha256, where)
            if len(found) != axis.length:
                raise ManifestError(f"{where}: {len(found)} features, but {HEAD.name} records {axis.length}")
            self._axis = found
        return self._axis

    @property
    def shape(self) -> tuple[int, int]:
        """(samples, features)."""
        return len(self._state.rows), self._state.axis.length

    @property
    def retired(self) -> Retired:
        """Batches and samples that were retired and are refused."""
        return self._state.retired

    @property
    def metadata_columns(self) -> list[str]:
        """Columns of the tables of samples and batches in this generation."""
        return list(sample_table.joined_columns(self._state))

    def samples(self, columns: Sequence[str] | None = None, sample_ids: Sequence[str] | None = None) -> pyarrow.Table:
        """The metadata of the samples in this generation, as an Arrow table.

        Args:
            columns: columns of the tables of samples and batches; all by default.
            sample_ids: samples in the order of the rows; by default all, in the order of :attr:`sample_ids`.

        Returns:
            ``sample_id``, ``batch_id`` and the columns; null where a sample or batch has no row.

        Raises:
            UnknownFieldError: there is no such column or sample.
            MatrixError: pyarrow is not installed.
            CorruptChunkError: a table is missing or damaged.
        """
        return sample_table.join(self._storage, self._state, columns, sample_ids)

    def refresh(self) -> WideMatrix:
        """Switch to the latest commit and return the matrix. A matrix opened at a generation stays there.

        Raises:
            StoreError: the matrix was deleted, or replaced by another one at the same place.
        """
        if not self._pinned:
            self._state = load_same(self._storage, HEAD, self._state)
        return self

    # --- writing

    def append(
        self,
        batch_id: str,
        sample_ids: Sequence[str],
        values: Mapping[str, np.ndarray],
        *,
        source: Mapping[str, str] | None = None,
    ) -> bool:
        """Append a batch of samples: writes its shards and one commit.

        Any number of processes may append at once. A call that died at any point can be repeated: committed batches
        are recognized, and what a dead writer left is never changed.

        Args:
            batch_id: name of the batch.
            sample_ids: (samples,) names of its samples.
            values: (samples, features) array of the stored dtype for each value table, NaN for missing cells. Masked
                cells are missing. A table with labels (pandas) must have those of the samples and features, in order.
            source: recorded with the batch: the kind of its source, and whatever identifies the state of it, as text.

        Returns:
            True if the batch was added, False if the matrix already holds it with the same samples and values, in any
            order.

        Raises:
            MatrixError: shapes, dtypes, labels, tables or samples do not fit, a table is not an array of numbers, a
                value is infinite, the matrix holds the batch with other samples or values, a sample is in another
                batch, or the matrix is full.
        """
        self._check_writable("append")
        where = f"{self.url}, batch {batch_id!r}"
        check_names("sample_ids", sample_ids, error=MatrixError)
        sample_ids = [] if sample_ids is None else list(sample_ids)  # a pandas.Series is indexed by its labels
        tables = check_batch(self._state, where, batch_id, sample_ids, values, lambda: self.feature_ids)
        if infinite := find_infinite(tables):
            value, row, column = infinite
            feature = self.feature_ids[column]
            raise MatrixError(f"{where}: {value} of sample {sample_ids[row]!r} is infinite at feature {feature!r}")
        self.refresh()
        self._state, added = append_batch(self._storage, self._state, batch_id, sample_ids, tables, source or {})
        return added

    def set_metadata(
        self, table: Any, kind: Kind = "samples", *, key: str | None = None, replace: bool = False
    ) -> MetadataReport:
        """Commit a table about the samples or the batches; :meth:`samples` joins both.

        A later table is merged: its columns of its ids replace earlier values, and everything else stays. Rows of
        samples that the matrix does not hold yet are kept for when they are loaded. Retiring a sample removes its row.

        Args:
            table: path or URL of a ``.csv``, ``.tsv`` or ``.parquet`` file, or a table of pyarrow, pandas or polars,
                with one row per sample or batch.
            kind: "samples" or "batches".
            key: column of the ids; by default ``sample_id`` or ``batch_id``. Ids are compared as text. A column
                ``batch_id`` in a table of samples is compared with the matrix and not stored.
            replace: drop the earlier table.

        Returns:
            Unknown and missing ids, which are also logged as warnings.

        Raises:
            MatrixError: the table cannot be read, an id is repeated, a column has another type than before or is in the
                other table, or the matrix was opened at a generation.
        """
        self._check_writable("change its metadata")
        if kind not in sample_table.KEYS:
            raise MatrixError(f"kind must be 'samples' or 'batches', not {kind!r:.80}")
        given = sample_table.read_table(table, kind, key)
        self.refresh()
        self._state, report = sample_table.set_metadata(self._storage, self._state, kind, given, replace_all=replace)
        for text, names in (
            ("rows of %d %s that the matrix does not hold are kept for later, such as %s", report.unknown),
            ("%d %s have no metadata, such as %s", report.missing),
            ("rows of %d retired %s were not stored, such as %s", report.retired),
        ):
            if names:
                logger.warning(f"%s: {text}", self.url, len(names), kind, ", ".join(names[:5]))
        return report

    def derive_columns(self) -> list[str]:
        """Bring the column-major copy up to date; only batches that it lacks are read and written.

        Reads of few features of many samples then use it automatically. Each block of batches has a commit of its own,
        so work done before a crash counts. Others may append or derive at the same time.

        Returns:
            Batches that this call added to the copy.

        Raises:
            MatrixError: the matrix was opened at a generation, or the copy is full.
        """
        self._check_writable("derive columns")
        self.refresh()
        self._state, added = derive_columns(self._storage, self._fetcher, self._state)
        return added

    def retire(self, sample_ids: Sequence[str] = (), batch_ids: Sequence[str] = ()) -> Retirement:
        """Remove samples and batches, and refuse them from now on.

        The samples that stay in a batch are written to new shards, so they move to other rows, behind all others. Their
        batches leave the column-major copy until :meth:`derive_columns`. Earlier generations still hold what was
        retired, and other Zarr readers its rows, until ``gc`` or :meth:`forget_retired` deletes them. Others may append
        at the same time. A call that died can be repeated.

        Args:
            sample_ids: names of samples, also of those that only the metadata holds because they were not loaded yet.
            batch_ids: names of batches; with the samples that joined them later, "<batch>@<digest>".

        Raises:
            UnknownFieldError: neither the matrix nor its metadata holds such a sample or batch, nor were they retired.
            MatrixError: the matrix was opened at a generation, or is full.
        """
        self._check_writable("retire")
        self.refresh()
        self._state, retirement = retire(self._storage, self._fetcher, self._state, sample_ids, batch_ids)
        return retirement

    def reinstate(self, sample_ids: Sequence[str] = (), batch_ids: Sequence[str] = ()) -> None:
        """Allow retired samples, and batches with their samples, to be appended again.

        Raises:
            UnknownFieldError: one of them was not retired.
            MatrixError: the matrix was opened at a generation.
        """
        self._check_writable("reinstate")
        self.refresh()
        self._state = reinstate(self._storage, self._state, sample_ids, batch_ids)

    def forget_retired(self) -> GcReport:
        """Delete every earlier generation that still holds a retired sample now, and its data; not undone by anything.

        Readers that have pinned such a generation fail.

        Raises:
            StoreError: such a generation has a tag; nothing is deleted.
        """
        return forget(self._storage, self._state)

    def reindex(
        self,
        target: str | os.PathLike[str],
        feature_ids: Sequence[str] | Sequence[int] | np.ndarray | None = None,
        *,
        codec: str | None = None,
        chunk_features: int | None = None,
        progress: bool = False,
    ) -> WideMatrix:
        """Copy the matrix to another feature axis or other settings, as a new matrix; without the warehouse.

        Batches, samples, values and metadata stay, and so do batch and sample order. Cells of features that this matrix
        lacks are missing (NaN). Features that are not on the new axis are left out, with a warning. Tags, earlier
        generations and the column-major copy are not copied. Nothing is visible at the location until everything is
        committed; a call that died can be repeated, and ``gc`` deletes what it left. Memory: the two axes, an encoded
        shard twice (800 MB at most, in pieces and joined), and 64 MiB per value.

        Args:
            target: location of the new matrix, used by nothing else.
            feature_ids: (features,) names of its columns, all different; by default those of this matrix.
                ``matrix.feature_ids.union(others)`` keeps all of this matrix.
            codec: compressor of the chunks, "name" or "name:level"; by default that of this matrix.
            chunk_features: approximate number of features per chunk; by default as in this matrix.
            progress: show a progress bar on stderr.

        Returns:
            The new matrix: what was committed here when the call began, or the generation that was opened.

        Raises:
            MatrixError: the location holds a matrix, a setting or name is invalid, or no name is on this axis.
            CorruptChunkError: stored bytes are missing or damaged.
        """
        self.refresh()
        old = self.feature_ids
        axis = old if feature_ids is None else FeatureAxis(feature_ids)
        storage = Storage(target)
        settings = codec, chunk_features
        copy = reindex(self._storage, self._fetcher, self._state, old, axis, storage, *settings, progress)
        matrix = WideMatrix(storage, copy)
        matrix._axis = axis
        announce(storage, copy.row_copy)
        return matrix

    def _check_writable(self, purpose: str) -> None:
        if self._pinned:
            raise MatrixError(f"{self.url} was opened at generation {self.generation}; open it without to {purpose}")
        if origin := self._state.origin:
            raise MatrixError(f"{self.url} is a staged copy: {purpose} in {origin.store}, and stage it again")

    # --- reading

    def read(
        self,
        sample_ids: Sequence[str],
        feature_ids: FeatureSelection | Sequence[str] | Sequence[int] | np.ndarray | None = None,
        value: str = "beta",
        out: np.ndarray | None = None,
    ) -> np.ndarray:
        """Read cells of samples and features, in the given order.

        Args:
            sample_ids: names of the rows; may repeat.
            feature_ids: names of the columns, or the result of :meth:`select`; all by default.
            value: name of the value table.
            out: plain NumPy array of the shape and dtype of the result, to write into.

        Returns:
            (samples, features) of the stored dtype, NaN for missing cells.

        Raises:
            UnknownFieldError: a sample, feature or value is not in this generation of the matrix.
            CorruptChunkError: stored bytes are missing or damaged.
            StoreError: the matrix cannot be reached, or was deleted or replaced by another one.
        """
        if out is not None and (type(out) not in (np.ndarray, np.memmap) or not out.flags.writeable):
            raise MatrixError(f"out must be a plain NumPy array that can be written, not {type(out).__name__}")
        if isinstance(feature_ids, FeatureSelection):
            cells = feature_ids.combine(self.read(sample_ids, feature_ids.columns, value))
            if out is None:
                return cells
            if (out.shape, out.dtype) != (cells.shape, cells.dtype):
                raise MatrixError(f"out is {out.dtype} {out.shape}; the result is {cells.dtype} {cells.shape}")
            out[...] = cells
            return out
        state = self._state
        if value not in state.values:
            raise self._unknown_value(value)
        if isinstance(sample_ids, str):
            raise UnknownFieldError(f"sample_ids must be a sequence of ids, not the id {sample_ids!r}")
        for sample_id in sample_ids:
            if sample_id not in state.rows:
                reason = "; it was retired" if sample_id in state.retired.sample_ids else ""
                raise UnknownFieldError(f"{self.url}, generation {state.generation}: no sample {sample_id!r}{reason}")
        columns = None if feature_ids is None else self.feature_ids.positions(feature_ids)
        shape = len(sample_ids), state.axis.length if columns is None else len(columns)
        dtype = np.dtype(state.values[value])
        if out is None:
            try:
                out = np.empty(shape, dtype)
            except (MemoryError, ValueError) as error:  # ValueError: more than can be addressed
                size = f"{shape[0]:,} samples x {shape[1]:,} features"
                raise StoreError(f"{self.url}: {size} do not fit in memory; read fewer at a time") from error
        elif out.shape != shape or out.dtype != dtype:
            raise MatrixError(f"out has shape {out.shape} and dtype {out.dtype}; the result has {shape} and {dtype}")
        if not out.size:
            return out
        places: dict[str, int] = {}
        repeated: list[tuple[int, int]] = []
        for place, sample_id in enumerate(sample_ids):
            first = places.setdefault(sample_id, place)
            if first != place:
                repeated.append((place, first))
        try:
            read_cells(self._fetcher, state, value, places, columns, out)
            self._replaced.check(state, self._fetcher.objects)
        except CorruptChunkError as error:
            check_kept(self._storage, HEAD, state, error)
            raise
        for place, first in repeated:
            out[place] = out[first]
        return out

    def select(
        self,
        names: str | os.PathLike[str] | Sequence[str] | Sequence[int] | np.ndarray | None = None,
        *,
        regions: Sequence[str] | None = None,
        manifest: Any = None,
        stem: bool = False,
        duplicates: Duplicates = "error",
        unknown: Unknown = "error",
    ) -> FeatureSelection:
        """Features by name or by region, for :meth:`read` and ``MatrixDataset``.

        Args:
            names: names in the order of the result, or a file of them: the first column of a ``.parquet`` file, the
                column with the names, such as probe_id, of a ``.csv``, ``.tsv`` or ``.bed`` file, or the words of
                another text file.
            regions: instead of names, such as ["chr1:1000-2000", "chr1:1500", "chr21"]: positions from the first to
                the last, both included, counted from 1. Features that are named "chromosome:position" have a position;
                others need a manifest. The prefix "chr" may be left out, and the case of letters does not matter.
            manifest: positions of probes: path or URL of a ``.csv``, ``.tsv``, ``.bed`` or ``.parquet`` file, or a
                table, with columns such as IlmnID, CHR and MAPINFO, or probe_id, chr and pos. Illumina's manifests may
                have their preamble, and BED files need no header. Positions are counted from 1, except in the columns
                CpG_beg and chromStart, and in the column start of a ``.bed`` file: there from 0.
            stem: find loci whose probes have suffixes, as in EPICv2: "cg00000029" selects all columns with that stem,
                such as "cg00000029_TC21" and, on an axis of several array types, "cg00000029". A full name,
                "cg00000029_TC21", selects its own column alone, or the column "cg00000029" where there is no such one.
            duplicates: what a stem with several columns becomes: an "error", the "first" of them in the order of the
                axis, or the "mean" of those with a value.
            unknown: "skip" leaves names out that are not on the axis, with a warning. For regions, probes of the
                manifest that are not on the axis are always left out so.

        Raises:
            UnknownFieldError: a name or chromosome is not on the axis, or nothing is selected.
            MatrixError: an argument is invalid, or a file cannot be read.
        """
        if (names is None) == (regions is None):
            raise MatrixError("select needs names or regions")
        axis = self.feature_ids
        if regions is not None:
            found = select_regions(axis, regions, manifest, stem=stem, duplicates=duplicates)
        else:
            if manifest is not None:
                raise MatrixError("a manifest is for regions")
            if isinstance(names, str | os.PathLike):
                names = read_axis_ids(os.fspath(names), axis.is_text)
            assert names is not None
            found = select_names(axis, names, stem=stem, duplicates=duplicates, unknown=unknown)
        if found.unknown:
            few = ", ".join(found.unknown[:5])
            logger.warning("%s: %d features are not on the axis: %s", self.url, len(found.unknown), few)
        return found

    def to_dask(self, value: str = "beta") -> dask.array.Array:
        """The samples of this generation as a dask array, in the order of :attr:`sample_ids`.

        A block has all features of the samples of one shard, or of as many of them as 128 MiB hold. Later commits do
        not change the array.

        Returns:
            (samples, features) of the stored dtype, NaN for missing cells.

        Raises:
            UnknownFieldError: the matrix has no such value table.
            MatrixError: dask is not installed.
        """
        return lazy.to_dask(self._cells(value), self._state, value)

    def to_xarray(self, *, chunked: bool = False) -> xarray.Dataset:
        """The samples of this generation as a dataset whose cells are read when they are used.

        ``dataset["beta"].sel(sample=[...], feature=[...])`` reads as :meth:`read` does, from the cheaper copy. Later
        commits do not change the dataset.

        Args:
            chunked: make dask arrays with the blocks of :meth:`to_dask`.

        Returns:
            A variable (sample, feature) for each value table, NaN for missing cells. Coordinates: ``sample``, ``batch``
            and the metadata of each sample, and ``feature``, without an index if there are more than 2^22 features.
            A column of metadata with the name of something else is called ``metadata_<name>``; whole numbers with nulls
            are floats.

        Raises:
            MatrixError: xarray is not installed, or pyarrow, which metadata need.
            CorruptChunkError: a table of metadata is missing or damaged.
        """
        tables = {value: self._cells(value) for value in self.values}
        metadata: Mapping[str, pyarrow.Array] = {}
        if self.metadata_columns:
            metadata = sample_table.named_columns(self.samples(), {"sample", "batch", "feature", *tables}, "_")
        return lazy.to_xarray(tables, self._state, self.feature_ids, metadata, self.url, chunked)

    def _cells(self, value: str) -> lazy.Cells:
        if value not in self._state.values:
            raise self._unknown_value(value)
        return lazy.Cells(copy.copy(self).read, self._state, self.feature_ids, value)

    def _unknown_value(self, value: str) -> UnknownFieldError:
        return UnknownFieldError(f"{self.url} has no value table {value!r}; it has {', '.join(self._state.values)}")

    @property
    def _fetcher(self) -> ChunkFetcher:
        """The fetcher of this process."""
        fetcher = self._kept_fetcher
        if fetcher is None or self._forks != objects.forks:
            opened = self._objects_factory(self._storage.root)
            if self._cache is None:
                fetcher = ChunkFetcher(opened, self.url)
            else:
                identity = f"{self._storage.identity}, matrix {self._state.matrix_id}"
                cached = partial(CachedObjects, cache=self._cache, identity=identity, immutable=SHARD)
                fetcher = ChunkFetcher(opened, self.url, cached)
            self._kept_fetcher = fetcher
            self._forks = objects.forks
        return fetcher

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_kept_fetcher": None, "_forks": -1}

    def __repr__(self) -> str:
        samples, features = self.shape
        return f"<WideMatrix {self.url}, generation {self.generation}: {samples:,} samples x {features:,} features>"
