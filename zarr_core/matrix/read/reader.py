"""``MatrixReader``: what one generation of a wide matrix holds, and its cells."""

from __future__ import annotations

import copy
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import repeat
from typing import TYPE_CHECKING, Any

import numpy as np

from zarr_core._util import reused_memory
from zarr_core.errors import CorruptChunkError, MatrixError, StoreError, UnknownFieldError
from zarr_core.matrix.read import lazy
from zarr_core.matrix.read.cells import copy_rows, read_cells
from zarr_core.matrix.read.fetch import ChunkFetcher
from zarr_core.matrix.read.selection import Duplicates, FeatureSelection, Unknown, select_names, select_regions
from zarr_core.matrix.store import sample_table
from zarr_core.matrix.store.axis import FeatureAxis, load_axis
from zarr_core.matrix.store.axis_file import read_axis_ids
from zarr_core.matrix.store.head import HEAD, SHARD
from zarr_core.matrix.store.state import MatrixState, Retired
from zarr_core.storage import Storage
from zarr_core.storage import byte_ranges as objects
from zarr_core.storage.byte_ranges import CachedObjects, Objects, open_objects
from zarr_core.storage.disk_cache import DiskCache
from zarr_core.versioning.generations import check_kept, load_same
from zarr_core.versioning.replaced import ReplacementCheck

if TYPE_CHECKING:
    from typing import Self

    import dask.array
    import pyarrow
    import xarray

logger = logging.getLogger(__name__)


class MatrixReader:
    """The reading half of ``WideMatrix``; see there."""

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
        # The samples that were read last, and where they lie: reads of columns nearly always name the same ones.
        nowhere = np.empty(0, np.int64)
        self._last: tuple[MatrixState, list[str], tuple[np.ndarray, np.ndarray]] = state, [], (nowhere, nowhere)
        self._kept_fetcher: ChunkFetcher | None = None
        self._forks = -1
        self._replaced = ReplacementCheck(storage, HEAD)

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
            self._axis = load_axis(self._storage, self._state.axis)
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

    def refresh(self) -> Self:
        """Switch to the latest commit and return the matrix. A matrix opened at a generation stays there.

        Raises:
            StoreError: the matrix was deleted, or replaced by another one at the same place.
        """
        if not self._pinned:
            self._state = load_same(self._storage, HEAD, self._state)
        return self

    def read(
        self,
        sample_ids: Sequence[str],
        feature_ids: FeatureSelection | Sequence[str] | Sequence[int] | np.ndarray | None = None,
        value: str | None = None,
        out: np.ndarray | None = None,
    ) -> np.ndarray:
        """Read cells of samples and features, in the given order.

        Args:
            sample_ids: names of the rows; may repeat.
            feature_ids: names of the columns, or the result of :meth:`select`; all by default.
            value: name of the value table; by default "beta", or the only one.
            out: plain NumPy array of the shape and dtype of the result, to write into.

        Returns:
            (samples, features) of the stored dtype, NaN for missing cells.

        Raises:
            UnknownFieldError: a sample, feature or value is not in this generation of the matrix.
            CorruptChunkError: stored bytes are missing or damaged.
            StoreError: the matrix cannot be reached, or was deleted or replaced by another one.
        """
        value = self.table_name(value)
        if isinstance(sample_ids, str):
            raise UnknownFieldError(f"sample_ids must be a sequence of ids, not the id {sample_ids!r}")
        sample_ids = list(sample_ids)  # a pandas.Series is indexed by its labels
        state = self._state
        dtype = np.dtype(state.values[value])
        if isinstance(feature_ids, FeatureSelection):
            if out is not None:
                _check_out(out, (len(sample_ids), len(feature_ids)), dtype)
            cells = feature_ids.combine(self.read(sample_ids, feature_ids.columns, value))
            if out is None:
                return cells
            out[...] = cells
            return out
        columns = None
        if feature_ids is not None:
            self._positions(state, sample_ids)
            columns = self.feature_ids.positions(feature_ids)
        shape = len(sample_ids), state.axis.length if columns is None else len(columns)
        if out is not None:
            _check_out(out, shape, dtype)
        else:
            try:
                out = reused_memory.empty(shape, dtype)
            except (MemoryError, ValueError) as error:  # ValueError: more than can be addressed
                size = f"{shape[0]:,} samples x {shape[1]:,} features"
                raise StoreError(f"{self.url}: {size} do not fit in memory; read fewer at a time") from error
        if not out.size:
            return out
        fetcher = self._fetcher
        try:
            if not copy_rows(fetcher, state.row_copy, value, sample_ids, columns, out):
                read_cells(fetcher, state, value, sample_ids, self._positions(state, sample_ids), columns, out)
            self._replaced.check(state, fetcher.objects)
        except CorruptChunkError as error:
            check_kept(self._storage, HEAD, state, error)
            raise
        return out

    def _positions(self, state: MatrixState, asked: list[str]) -> tuple[np.ndarray, np.ndarray]:
        """(samples,) int64 each: where samples lie in the row-major and the column-major copy, -1 where not.

        Raises:
            UnknownFieldError: the generation has no such sample.
        """
        of_state, last, positions = self._last
        if of_state is state and asked == last:
            return positions
        try:
            in_rows = np.fromiter(map(state.rows.__getitem__, asked), np.int64, len(asked))
        except KeyError as error:
            (sample_id,) = error.args
            reason = "; it was retired" if sample_id in state.retired.sample_ids else ""
            message = f"{self.url}, generation {state.generation}: no sample {sample_id!r}{reason}"
            raise UnknownFieldError(message) from None
        held = state.column_copy.positions
        in_columns = np.fromiter(map(held.get, asked, repeat(-1)), np.int64, len(asked))
        self._last = state, asked, (in_rows, in_columns)
        return in_rows, in_columns

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
                "cg00000029_TC21", selects its own column alone, or the column "cg00000029" where that is absent.
            duplicates: what a stem with several columns becomes: an "error", the "first" of them in the order of the
                axis, or the "mean" of those with a value.
            unknown: "skip" leaves names out that are not on the axis, with a warning. For regions, probes of the
                manifest that are not on the axis are always left out in this way.

        Raises:
            UnknownFieldError: a name or chromosome is not on the axis, or nothing is selected.
            MatrixError: an argument is invalid, or a file cannot be read.
        """
        if (names is None) == (regions is None):
            raise MatrixError("select needs names or regions")
        axis = self.feature_ids
        if regions is not None:
            found = select_regions(axis, regions, manifest, stem=stem, duplicates=duplicates)
        elif manifest is not None:
            raise MatrixError("a manifest is for regions")
        else:
            if isinstance(names, str | os.PathLike):
                names = read_axis_ids(os.fspath(names), axis.is_text)
            assert names is not None
            found = select_names(axis, names, stem=stem, duplicates=duplicates, unknown=unknown)
        if found.unknown:
            few = ", ".join(found.unknown[:5])
            logger.warning("%s: %d features are not on the axis: %s", self.url, len(found.unknown), few)
        return found

    def to_dask(self, value: str | None = None) -> dask.array.Array:
        """The samples of this generation as a dask array, in the order of :attr:`sample_ids`.

        A block has all features of the samples of one shard, or of as many of them as 128 MiB hold. Later commits do
        not change the array.

        Returns:
            (samples, features) of the stored dtype, NaN for missing cells; of "beta", or of the only value table, if
            ``value`` is None.

        Raises:
            UnknownFieldError: the matrix has no such value table.
            MatrixError: dask is not installed.
        """
        value = self.table_name(value)
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
            are floats, or Python's integers and None if a float would round one of them.

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
        fixed = self._fixed()
        return lazy.Cells(fixed.read, fixed._state, fixed.feature_ids, value)

    def _fixed(self) -> Self:
        """The matrix as it is now, which no refresh or append of this object changes. Both share the names."""
        self._axis = self.feature_ids
        return copy.copy(self)

    def table_name(self, value: str | None) -> str:
        """The name of a value table: by default "beta", or that of the only one.

        Raises:
            UnknownFieldError: there is no such value table, or there are several and none is named.
        """
        tables = list(self._state.values)
        if value is None:
            value = tables[0] if len(tables) == 1 else "beta"
        if value not in tables:
            raise UnknownFieldError(f"{self.url} has no value table {value!r}; it has {', '.join(tables)}")
        return value

    @property
    def _fetcher(self) -> ChunkFetcher:
        """The fetcher of this process."""
        if self._kept_fetcher is None or self._forks != objects.forks:
            cached: Callable[[Objects], Objects] | None = None
            if self._cache is not None:
                identity = f"{self._storage.identity}, matrix {self._state.matrix_id}"
                cached = partial(CachedObjects, cache=self._cache, identity=identity, immutable=SHARD)
            self._kept_fetcher = ChunkFetcher(self._objects_factory(self._storage.root), self.url, cached)
            self._forks = objects.forks
        return self._kept_fetcher

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_kept_fetcher": None, "_forks": -1}

    def __repr__(self) -> str:
        samples, features = self.shape
        return f"<WideMatrix {self.url}, generation {self.generation}: {samples:,} samples x {features:,} features>"


def _check_out(out: np.ndarray, shape: tuple[int, int], dtype: np.dtype[Any]) -> None:
    """Raise MatrixError if a result cannot be written into an array."""
    if type(out) not in (np.ndarray, np.memmap) or not out.flags.writeable:
        raise MatrixError(f"out must be a plain NumPy array that can be written, not {type(out).__name__}")
    if out.shape != shape or out.dtype != dtype:
        raise MatrixError(f"out has shape {out.shape} and dtype {out.dtype}; the result has {shape} and {dtype}")
