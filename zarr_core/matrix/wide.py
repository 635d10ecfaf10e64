"""``WideMatrix``: create, open and read a matrix of samples and features.

Shards are written once, by the one writer that has claimed the place. A commit of ``HEAD.json`` names the objects that
belong to the matrix; readers trust it alone.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from zarr_core.errors import MatrixError
from zarr_core.matrix.ingest.append import append_batch, check_batch
from zarr_core.matrix.ingest.derive import derive_columns
from zarr_core.matrix.ingest.reindex import reindex
from zarr_core.matrix.ingest.retire import Retirement, forget, reinstate, retire
from zarr_core.matrix.read.reader import MatrixReader
from zarr_core.matrix.store import sample_table
from zarr_core.matrix.store.axis import FeatureAxis
from zarr_core.matrix.store.create import CHUNK_FEATURES, COLUMN_CHUNK, MAX_SHARDS, VALUES, commit_new, new_state
from zarr_core.matrix.store.head import HEAD
from zarr_core.matrix.store.sample_table import Kind, MetadataReport
from zarr_core.storage import Storage
from zarr_core.storage.byte_ranges import Objects, open_objects
from zarr_core.storage.disk_cache import DEFAULT_LIMIT, DiskCache
from zarr_core.versioning.gc import GcReport
from zarr_core.versioning.generations import load

logger = logging.getLogger(__name__)


class WideMatrix(MatrixReader):
    """A matrix of samples and features with one table per value. NaN means missing.

    Made by :meth:`create` or :meth:`open`. Reads see one generation: the one that was opened, until :meth:`refresh` or
    an append of this object. Safe to pickle, to fork and to share between threads.

    Attributes:
        url: location of the matrix, without credentials.

    Examples:
        >>> import numpy as np
        >>> matrix = WideMatrix.create("betas", ["cg1", "cg2"], {"beta": "float32"})
        >>> matrix.append("study_1", ["person_1"], {"beta": np.array([[0.1, 0.9]], np.float32)})
        True
        >>> WideMatrix.open("betas").sample_ids
        ['person_1']
    """

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
            codec: compressor of the chunks, "name" or "name:level". Array betas hardly compress, and without a codec
                are read at the speed of the disk; docs/matrix.md compares codecs. The column-major copy uses the same
                codec, or "blosc-lz4" instead of none, because its chunks are small and often partly empty.
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
        matrix = cls(storage, commit_new(storage, axis, state))
        matrix._axis = axis
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
                ``lambda url: CountingObjects(open_objects(url))`` counts requests and bytes; both names are in
                ``zarr_core.storage.byte_ranges``.

        Raises:
            StoreError: there is no matrix, or no such generation.
            ManifestError: the head cannot be read.
        """
        storage = Storage(url)
        state = load(storage, HEAD, generation)
        cache = None if cache_dir is None else DiskCache(cache_dir, cache_limit)
        pinned = generation is not None
        return cls(storage, state, pinned=pinned, cache=cache, objects_factory=objects_factory or open_objects)

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
        batch = check_batch(self.url, self._state, lambda: self.feature_ids, batch_id, sample_ids, values, source)
        self.refresh()
        self._state, added = append_batch(self._storage, self._state, batch)
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
        given = sample_table.read_table(table, kind, key)
        self.refresh()
        self._state, report = sample_table.set_metadata(self._storage, self._state, kind, given, replace_all=replace)
        for misfit in report.misfits(kind):
            logger.warning("%s: %s", self.url, misfit)
        return report

    def derive_columns(self, *, progress: bool = False) -> list[str]:
        """Bring the column-major copy up to date; only batches that it lacks are read and written.

        Reads of few features of many samples then use it automatically. Each block of batches has a commit of its own,
        so work done before a crash counts. Others may append or derive at the same time.

        Args:
            progress: show a progress bar on stderr.

        Returns:
            Batches that this call added to the copy.

        Raises:
            MatrixError: the matrix was opened at a generation, or the copy is full.
        """
        self._check_writable("derive columns")
        self.refresh()
        self._state, added = derive_columns(self._storage, self._fetcher, self._state, progress)
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

        Readers that have pinned such a generation fail. Objects of an append that died are left to ``gc``, because a
        writer may be at work on them: ``young`` of the result is their number.

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
        axis = self.feature_ids if feature_ids is None else FeatureAxis(feature_ids)
        storage = Storage(target)
        matrix = WideMatrix(storage, reindex(self, axis, storage, codec, chunk_features, progress))
        matrix._axis = axis
        return matrix

    def _check_writable(self, purpose: str) -> None:
        if self._pinned:
            raise MatrixError(
                f"{self.url} was opened at generation {self.generation}; open it without generation= to {purpose}"
            )
        if origin := self._state.origin:
            raise MatrixError(f"{self.url} is a staged copy: {purpose} in {origin.store}, and stage it again")
