"""``WideMatrix``: make it, append batches of samples to it, read rows and columns of it.

Everything but ``HEAD.json`` is written once, and only by the one writer that has claimed the place. A commit names what
is there; readers trust it alone.
"""

from __future__ import annotations

import datetime
import hashlib
import json
import logging
import math
import os
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from zarr_core.errors import ManifestError, MatrixError, StoreError, UnknownFieldError
from zarr_core.format.codecs import DEFAULT_CODEC, Codec
from zarr_core.matrix import columns as transposed
from zarr_core.matrix import rows as row_copy
from zarr_core.matrix.axis import FeatureAxis
from zarr_core.matrix.claims import claim, create_shard
from zarr_core.matrix.fetch import ChunkFetcher, Cost
from zarr_core.matrix.rows import pick_chunks, read_rows
from zarr_core.matrix.state import (
    AXIS,
    HEAD,
    SHARD,
    Axis,
    Batch,
    ColumnBlock,
    MatrixState,
    array_path,
    check_values,
    columns_path,
)
from zarr_core.storage import Storage
from zarr_core.storage import byte_ranges as objects
from zarr_core.storage.byte_ranges import CachedObjects, Objects, open_objects
from zarr_core.storage.disk_cache import DEFAULT_LIMIT, DiskCache
from zarr_core.versioning.generations import commit, load

logger = logging.getLogger(__name__)

_VALUES = {"beta": "float32", "coverage": "float32"}
_SHARD_BYTES = 800_000_000
# The index of a shard, 16 bytes a chunk, is written and read whole, however few rows a batch has.
_SHARD_CHUNKS = 8_192
_CHUNK_FEATURES = 45_000
_COLUMN_CHUNK = (16, 256)
_MAX_SHARDS = 65_536


class WideMatrix:
    """A matrix of samples and features with one table a value, NaN for what is missing.

    Made by :meth:`create` or :meth:`open`. Reads see one generation: the one that was opened, until :meth:`refresh` or
    an append of this object. Safe to pickle, to fork and to share between threads.

    Attributes:
        url: where it is, without credentials.
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
        self._fetcher: ChunkFetcher | None = None
        self._forks = -1

    @classmethod
    def create(
        cls,
        url: str | os.PathLike[str],
        feature_ids: Sequence[str] | Sequence[int] | np.ndarray,
        values: Mapping[str, str] | None = None,
        *,
        codec: str = "none",
        chunk_features: int = _CHUNK_FEATURES,
        shard_rows: int | None = None,
        max_shards: int = _MAX_SHARDS,
        column_chunk: tuple[int, int] = _COLUMN_CHUNK,
    ) -> WideMatrix:
        """Make an empty matrix.

        Args:
            url: a local path or any fsspec URL; nothing but a matrix must be there.
            feature_ids: names of the columns, all different, fixed for ever.
            values: stored dtype by value table; by default ``{"beta": "float32", "coverage": "float32"}``.
            codec: compressor, "name" or "name:level". Betas of arrays hardly compress and are read as fast as the disk
                without one; docs/matrix.md says when another pays. The transposed copy has it as well, or
                "blosc-lz4" instead of none: its chunks are small, and partly empty where few samples came together.
            chunk_features: features of a chunk, about; chunks are one sample high.
            shard_rows: samples of a shard, which is as wide as the matrix; by default what makes 800 MB, and no more
                than 8,192 chunks. Each batch begins a new shard, and short shards are fine.
            max_shards: room for shards. It costs nothing: it is the length that other Zarr readers see.
            column_chunk: (features, samples) of a chunk of the transposed copy.

        Raises:
            MatrixError: there is one already, or an argument is not possible.
        """
        axis = FeatureAxis(feature_ids)
        tables = dict(_VALUES if values is None else values)
        try:
            check_values(tables)
        except ValueError as error:
            raise MatrixError(str(error)) from error
        if min(chunk_features, max_shards, *column_chunk, 1 if shard_rows is None else shard_rows) < 1:
            raise MatrixError("chunk_features, shard_rows, max_shards and column_chunk are positive")
        # As many chunks as it takes, all of about the same width, and whole chunks of the transposed copy.
        n_chunks = math.ceil(len(axis) / chunk_features)
        chunk_features = column_chunk[0] * math.ceil(len(axis) / n_chunks / column_chunk[0])
        if shard_rows is None:
            itemsize = max(np.dtype(dtype).itemsize for dtype in tables.values())
            shard_rows = max(1, min(_SHARD_BYTES // (itemsize * len(axis)), _SHARD_CHUNKS // n_chunks))
        data = axis.to_npy()
        sha256 = hashlib.sha256(data).hexdigest()
        state = MatrixState(
            matrix_id=uuid.uuid4().hex,
            created_at=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
            # Named by its content: the axis of a creation that died, or lost a race, is not taken for this one.
            axis=Axis(f"{AXIS}/{sha256[:16]}.npy", len(axis), sha256),
            values=tables,
            codec=str(Codec.parse(codec)),
            column_codec=str(Codec.parse(DEFAULT_CODEC if codec == "none" else codec)),
            chunk_features=chunk_features,
            shard_rows=shard_rows,
            max_shards=max_shards,
            column_chunk=column_chunk,
        )
        storage = Storage(url)
        if storage.exists(HEAD.name):
            raise MatrixError(f"{storage.url} holds a matrix already; open it, or choose another place")
        storage.create(state.axis.path, data)
        created = commit(storage, HEAD, lambda current: current or state)
        if created.matrix_id != state.matrix_id:
            raise MatrixError(f"{storage.url}: somebody else has just made a matrix here; open that one")
        matrix = cls(storage, created)
        matrix._axis = axis
        matrix._ensure_metadata()
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
        """Open a matrix as it is now, or as a generation of it was.

        Args:
            url: where it is.
            generation: number of a commit, or a tag; the latest commit by default.
            cache_dir: folder on a fast local disk where ranges that were fetched are kept, shared by all processes of
                the host.
            cache_limit: bytes to keep there, as in "200GB".
            objects_factory: opens the objects below a URL; a module-level function where the matrix is to be pickled.
                ``lambda url: CountingObjects(open_objects(url))`` counts requests and bytes.

        Raises:
            StoreError: there is no matrix, or no such generation.
            ManifestError: its head cannot be read.
        """
        storage = Storage(url)
        state = load(storage, HEAD, generation)
        cache = None if cache_dir is None else DiskCache(cache_dir, cache_limit)
        pinned = generation is not None
        return cls(storage, state, pinned=pinned, cache=cache, objects_factory=objects_factory or open_objects)

    # --- what it holds

    @property
    def generation(self) -> int:
        """The commit that reads see."""
        return self._state.generation

    @property
    def matrix_id(self) -> str:
        """Random, given at creation: cells that a matrix of this id was given never change."""
        return self._state.matrix_id

    @property
    def values(self) -> dict[str, str]:
        """Stored dtype by value table."""
        return dict(self._state.values)

    @property
    def batches(self) -> dict[str, list[str]]:
        """Sample ids by batch, both in the order in which they were appended."""
        return {batch_id: list(batch.sample_ids) for batch_id, batch in self._state.batches.items()}

    @property
    def sample_ids(self) -> list[str]:
        """Every sample, in the order of the rows."""
        return list(self._state.rows)

    @property
    def rows(self) -> dict[str, int]:
        """Row of each sample in the Zarr arrays, which other readers need; rows that no sample has are not written."""
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
                raise StoreError(f"{where}: the names of the features are not there") from error
            found = FeatureAxis.from_npy(data, axis.sha256, where)
            if len(found) != axis.length:
                raise ManifestError(f"{where}: {len(found)} features where {HEAD.name} says {axis.length}")
            self._axis = found
        return self._axis

    @property
    def shape(self) -> tuple[int, int]:
        """(samples, features)."""
        return len(self._state.rows), self._state.axis.length

    def refresh(self) -> WideMatrix:
        """See what was committed meanwhile; returns the matrix. A matrix opened at a generation stays there."""
        if not self._pinned:
            self._state = load(self._storage, HEAD)
        return self

    # --- appending

    def append(self, batch_id: str, sample_ids: Sequence[str], values: Mapping[str, np.ndarray]) -> bool:
        """Add a batch of samples: its shards and one commit are written, nothing else.

        May be called by any number of processes at once, and again after it died anywhere: what is there counts, and
        what a dead writer left is never touched.

        Args:
            batch_id: name of the batch.
            sample_ids: its samples.
            values: for each value table (samples, features) of the stored dtype, NaN where missing.

        Returns:
            True where the batch was added, False where it was there already with the same samples and values, in
            whatever order.

        Raises:
            MatrixError: shapes, dtypes, tables or samples do not fit, a value is infinite, the batch is there with
                other samples or values, a sample is there in another batch, or the matrix is full.
        """
        if self._pinned:
            raise MatrixError(f"{self.url} was opened at generation {self.generation}; open it without to append")
        tables = self._checked(batch_id, sample_ids, values)
        digest = _digest(sample_ids, tables)
        self.refresh()
        if self._holds(self._state, batch_id, sample_ids, digest):
            logger.info("%s: batch %r is there already, nothing to do", self.url, batch_id)
            return False
        self._ensure_metadata()
        state = self._state
        first = claim(self._storage, "rows", state.next_shard, state.shards_of(len(sample_ids)), f"batch {batch_id!r}")
        if first + state.shards_of(len(sample_ids)) > state.max_shards:
            raise MatrixError(
                f"{self.url} is full: it has room for {state.max_shards} shards of {state.shard_rows} samples; "
                "make a new matrix with a larger max_shards and append the batches to it"
            )
        written = {value: self._write_shards(value, first, table) for value, table in tables.items()}
        batch = Batch(first * state.shard_rows, tuple(sample_ids), digest, written)
        added = False

        def change(current: MatrixState | None) -> MatrixState:
            nonlocal added
            if current is None or current.matrix_id != state.matrix_id:
                raise MatrixError(
                    f"{self.url}: the matrix was removed or made anew while batch {batch_id!r} was written"
                )
            added = not self._holds(current, batch_id, sample_ids, digest)
            if not added:
                return current
            batches = {**current.batches, batch_id: batch}
            return replace(current, batches=dict(sorted(batches.items(), key=lambda item: item[1].row)))

        self._state = commit(self._storage, HEAD, change)
        if not added:
            logger.info("%s: batch %r was added by somebody else meanwhile", self.url, batch_id)
        return added

    def _checked(
        self, batch_id: str, sample_ids: Sequence[str], values: Mapping[str, np.ndarray]
    ) -> dict[str, np.ndarray]:
        where = f"{self.url}, batch {batch_id!r}"
        if not isinstance(batch_id, str) or not batch_id:
            raise MatrixError(f"{where}: a batch is named by a string")
        if isinstance(sample_ids, str) or not len(sample_ids):
            raise MatrixError(f"{where}: a batch is a sequence of at least one sample")
        seen: set[str] = set()
        for sample_id in sample_ids:
            if not isinstance(sample_id, str) or not sample_id:
                raise MatrixError(f"{where}: samples are named by strings, not {sample_id!r}")
            if sample_id in seen:
                raise MatrixError(f"{where}: sample {sample_id!r} is named twice")
            seen.add(sample_id)
        if values.keys() != self._state.values.keys():
            expected, got = ", ".join(self._state.values), ", ".join(values) or "none"
            raise MatrixError(f"{where}: the value tables of this matrix are {expected}; given: {got}")
        tables = {}
        for value, dtype in self._state.values.items():
            table = np.asarray(values[value])
            shape = (len(sample_ids), self._state.axis.length)
            if table.shape != shape:
                raise MatrixError(f"{where}: {value} has shape {table.shape}, (samples, features) is {shape}")
            if table.dtype != np.dtype(dtype):
                raise MatrixError(f"{where}: {value} is {table.dtype}, the matrix stores {dtype}; convert it")
            for sample_id, row in zip(sample_ids, table, strict=True):
                infinite = np.isinf(row)
                if infinite.any():
                    feature = self.feature_ids[int(np.argmax(infinite))]
                    raise MatrixError(f"{where}: {value} of sample {sample_id!r} is infinite at feature {feature!r}")
            tables[value] = table
        return tables

    def _holds(self, state: MatrixState, batch_id: str, sample_ids: Sequence[str], digest: str) -> bool:
        """Whether the batch is there with the same content; an error where something else is there."""
        where = f"{self.url}, batch {batch_id!r}"
        present = state.batches.get(batch_id)
        if present is not None:
            differing = sorted(set(present.sample_ids) ^ set(sample_ids))
            if differing:
                raise MatrixError(f"{where}: it is there already with other samples; they differ in {differing[0]!r}")
            if present.digest != digest:
                raise MatrixError(f"{where}: it is there already with the same samples but other values")
            return True
        for sample_id in sample_ids:
            if sample_id in state.rows:
                other = next(name for name, batch in state.batches.items() if sample_id in batch.sample_ids)
                raise MatrixError(f"{where}: sample {sample_id!r} is there already, in batch {other!r}")
        return False

    def _write_shards(self, value: str, first: int, table: np.ndarray) -> int:
        """Write a batch's shards of one value; their bytes."""
        layout = self._state.row_layout[value]
        written = 0
        for number, top in enumerate(range(0, len(table), layout.shard[0])):
            name = f"{array_path(value)}/{layout.shard_key(first + number, 0)}"
            written += create_shard(self._storage, name, layout.encode_shard(table[top : top + layout.shard[0]]))
        return written

    def _ensure_metadata(self, *, columns: bool = False) -> None:
        """Write the ``zarr.json`` of the arrays of a copy where it is missing: all of it follows from the head."""
        for value in self._state.values:
            layout = (self._state.column_layout if columns else self._state.row_layout)[value]
            name = f"{(columns_path if columns else array_path)(value)}/zarr.json"
            if not self._storage.exists(name):
                self._storage.create(name, json.dumps(layout.to_zarr_json(), indent=1).encode())

    def derive_columns(self) -> list[str]:
        """Bring the transposed copy up to the current generation; only batches that it lacks are read and written.

        Reads of few features of many samples then take it by themselves. Each block of batches is a commit of its own,
        so what was done before a crash counts. May run while others append or derive.

        Returns:
            Batches that were added to it by this call.

        Raises:
            MatrixError: the matrix was opened at a generation, or the transposed copy is full.
        """
        if self._pinned:
            raise MatrixError(
                f"{self.url} was opened at generation {self.generation}; open it without to derive columns"
            )
        self.refresh()
        self._ensure_metadata(columns=True)
        added: list[str] = []
        while blocks := transposed.plan_blocks(self._state):  # anew: others may have derived some of them meanwhile
            state, batches = self._state, blocks[0]
            count = math.ceil(sum(len(state.batches[i].sample_ids) for i in batches) / state.column_chunk[1])
            first = claim(self._storage, "columns", state.next_column_shard, count, f"batches {', '.join(batches)}")
            if first + count > state.max_shards:
                raise MatrixError(f"{self.url}: the transposed copy is full: it has room for {state.max_shards} shards")
            block = transposed.write_block(self._storage, self._this_fetcher, state, batches, first)
            if self._commit_block(state.matrix_id, block):
                added += batches
        return added

    def _commit_block(self, matrix_id: str, block: ColumnBlock) -> bool:
        """Whether the block was committed; not where somebody else has derived one of its batches meanwhile."""
        added = False

        def change(current: MatrixState | None) -> MatrixState:
            nonlocal added
            if current is None or current.matrix_id != matrix_id:
                raise MatrixError(f"{self.url}: the matrix was removed or made anew while columns were derived")
            held = {batch_id for known in current.column_blocks for batch_id in known.batches}
            added = held.isdisjoint(block.batches)
            return replace(current, column_blocks=(*current.column_blocks, block)) if added else current

        self._state = commit(self._storage, HEAD, change)
        return added

    # --- reading

    def read(
        self,
        sample_ids: Sequence[str],
        feature_ids: Sequence[str] | Sequence[int] | np.ndarray | None = None,
        value: str = "beta",
        out: np.ndarray | None = None,
    ) -> np.ndarray:
        """Cells of samples and features, in the order asked for.

        Args:
            sample_ids: rows.
            feature_ids: columns, all by default.
            value: which table.
            out: where the cells go, of the shape and dtype of the result.

        Returns:
            (samples, features) of the stored dtype, NaN where missing.

        Raises:
            UnknownFieldError: a sample, feature or value is not in this generation of the matrix; names it.
            CorruptChunkError: stored bytes are missing or damaged.
            StoreError: the matrix cannot be reached.
        """
        state = self._state
        if value not in state.values:
            raise UnknownFieldError(f"{self.url} has no value table {value!r}; it has {', '.join(state.values)}")
        if isinstance(sample_ids, str):
            raise UnknownFieldError(f"sample_ids is a sequence of ids, not the id {sample_ids!r}")
        for sample_id in sample_ids:
            if sample_id not in state.rows:
                raise UnknownFieldError(f"{self.url}, generation {state.generation}: no sample {sample_id!r}")
        columns = None if feature_ids is None else self.feature_ids.positions(feature_ids)
        shape = len(sample_ids), state.axis.length if columns is None else len(columns)
        dtype = np.dtype(state.values[value])
        if out is None:
            out = self._room(shape, dtype)
        elif out.shape != shape or out.dtype != dtype:
            raise MatrixError(f"out has shape {out.shape} and dtype {out.dtype}; the result has {shape} and {dtype}")
        if not out.size:
            return out
        places: dict[str, int] = {}
        again: list[tuple[int, int]] = []
        for place, sample_id in enumerate(sample_ids):
            first = places.setdefault(sample_id, place)
            if first != place:
                again.append((place, first))
        self._read(state, value, places, columns, out)
        for place, first in again:
            out[place] = out[first]
        return out

    def _read(
        self, state: MatrixState, value: str, places: Mapping[str, int], columns: np.ndarray | None, out: np.ndarray
    ) -> None:
        """Read each sample from the copy that is the cheaper one, and say so to who wants to know."""
        fetcher = self._this_fetcher
        picked = pick_chunks(state.row_layout[value], columns)
        held = [] if columns is None else [i for i in places if i in state.column_rows]
        if columns is not None and held:
            by_rows = row_copy.expected_cost(state, value, held, picked)
            by_columns = transposed.expected_cost(state, value, held, columns)
            if by_columns.weight < by_rows.weight:
                started = time.perf_counter()
                at = np.array([places[i] for i in held])
                cost = transposed.read_columns(fetcher, state, value, held, columns, out, at)
                self._say("columns", value, len(held), out.shape[1], cost, started, by_rows)
                taken = set(held)
                places = {i: place for i, place in places.items() if i not in taken}
        if places:
            started = time.perf_counter()
            cost = read_rows(fetcher, state, value, list(places), picked, out, np.array(list(places.values())))
            self._say("rows", value, len(places), out.shape[1], cost, started)

    def _room(self, shape: tuple[int, int], dtype: np.dtype[Any]) -> np.ndarray:
        try:
            return np.empty(shape, dtype)
        except (MemoryError, ValueError) as error:  # ValueError: more than can be addressed
            raise StoreError(
                f"{self.url}: {shape[0]:,} samples x {shape[1]:,} features do not fit in memory; read fewer at a time"
            ) from error

    def _say(
        self, copy: str, value: str, samples: int, features: int, cost: Cost, started: float, other: Cost | None = None
    ) -> None:
        logger.debug(
            "%s: %s of %d samples x %d features from %s: %s, %.1f ms%s",
            *(self.url, value, samples, features, copy, cost, (time.perf_counter() - started) * 1e3),
            f" (rows: about {other})" if other else "",
        )

    @property
    def _this_fetcher(self) -> ChunkFetcher:
        fetcher = self._fetcher
        if fetcher is None or self._forks != objects.forks:
            opened = self._objects_factory(self._storage.root)
            if self._cache is None:
                fetcher = ChunkFetcher(opened, self.url)
            else:
                identity = f"{self._storage.identity}, matrix {self._state.matrix_id}"
                cached = partial(CachedObjects, cache=self._cache, identity=identity, immutable=SHARD)
                fetcher = ChunkFetcher(opened, self.url, cached)
            self._fetcher = fetcher
            self._forks = objects.forks
        return fetcher

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_fetcher": None, "_forks": -1}

    def __repr__(self) -> str:
        samples, features = self.shape
        return f"<WideMatrix {self.url}, generation {self.generation}: {samples:,} samples x {features:,} features>"


def _digest(sample_ids: Sequence[str], tables: Mapping[str, np.ndarray]) -> str:
    """Of samples and values, the same whatever the order of either, and whatever the payload of a NaN."""
    found = hashlib.sha256()
    for row in sorted(range(len(sample_ids)), key=sample_ids.__getitem__):
        found.update(json.dumps(sample_ids[row]).encode())
        for value in sorted(tables):
            cells = tables[value][row]
            missing = np.isnan(cells)
            found.update(np.ascontiguousarray(np.where(missing, np.nan, cells) if missing.any() else cells).data)
    return found.hexdigest()
