"""Copy a matrix to another feature axis, from its stored rows and without the warehouse.

The axis of a matrix is fixed, so the copy is a new matrix at another location. It is committed once, when all of it is
written: until then its location holds no matrix.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np
from tqdm import tqdm

from zarr_core.errors import MatrixError
from zarr_core.matrix.append import digest_rows
from zarr_core.matrix.axis import FeatureAxis
from zarr_core.matrix.claims import claim, create_shard
from zarr_core.matrix.create import CHUNK_FEATURES, check_vacant, commit_new, new_state
from zarr_core.matrix.fetch import ChunkFetcher
from zarr_core.matrix.metadata import announce
from zarr_core.matrix.rows import ChunkCells, pick_chunks, read_rows
from zarr_core.matrix.state import MatrixBatch, MatrixState
from zarr_core.storage import Storage

_BLOCK_BYTES = 64 << 20  # cells of one value that are in memory together, beside the encoded shard that they go to

logger = logging.getLogger(__name__)


class Reindexing:
    """Copy of one state of a matrix to another axis.

    Args:
        fetcher: fetches chunks of the matrix.
        source: the state to copy.
        old: its axis.
        new: axis of the copy.

    Raises:
        MatrixError: the axes have no feature in common.
    """

    def __init__(self, fetcher: ChunkFetcher, source: MatrixState, old: FeatureAxis, new: FeatureAxis) -> None:
        self._fetcher, self._source, self._new = fetcher, source, new
        self._from, self._to = old.shared(new)
        if not len(self._from):
            raise MatrixError(f"none of the {len(new):,} features is on the axis of the matrix ({len(old):,} features)")
        self._dropped = len(old) - len(self._from)
        if self._dropped:
            kept = np.zeros(len(old), bool)
            kept[self._from] = True
            logger.warning(
                "%d of %d features are not on the new axis and are left out, such as %r; "
                "matrix.feature_ids.union(...) keeps them",
                *(self._dropped, len(old), old[int(np.argmin(kept))]),
            )

    def write(self, storage: Storage, progress: bool = False) -> MatrixState:
        """Write the copy and commit it. Memory: the two axes, an encoded shard twice, 64 MiB of cells per value.

        Args:
            storage: root of the copy.
            progress: show a progress bar on stderr.

        Raises:
            MatrixError: the location holds a matrix, or the copy needs more shards than a matrix can have.
        """
        check_vacant(storage)
        state = self._empty_copy()
        count = sum(state.row_copy.shards_of(len(batch.sample_ids)) for batch in self._source.batches.values())
        if not count:
            return commit_new(storage, self._new, state)
        # An earlier call for this location may have died, or may be running: each writes to shards of its own.
        first = claim(storage, "rows", 0, count, f"copy of matrix {self._source.matrix_id} to another axis")
        if first + count > state.max_shards:
            raise MatrixError(
                f"{storage.url}: the copy needs {count:,} shards of {state.shard_rows} samples, the matrix may have "
                f"{state.max_shards:,}, and earlier writers took {first:,}; choose another location"
            )
        batches: dict[str, MatrixBatch] = {}
        with tqdm(total=len(self._source.rows), unit="sample", disable=not progress) as bar:
            for batch_id, batch in self._source.batches.items():
                batches[batch_id] = self._write_batch(storage, state, batch.sample_ids, first)
                first += state.row_copy.shards_of(len(batch.sample_ids))
                bar.update(len(batch.sample_ids))
        state = replace(state, batches=batches)
        announce(storage, state.row_copy)
        return commit_new(storage, self._new, state)

    def _empty_copy(self) -> MatrixState:
        """The state of the copy without batches: settings of the source, layout for the new axis."""
        source = self._source
        # A source of a single chunk per row has no width of its own choice.
        one_chunk = source.axis.length <= source.chunk_features
        state = new_state(
            self._new,
            source.values,
            codec=source.codec,
            chunk_features=max(source.chunk_features, CHUNK_FEATURES) if one_chunk else source.chunk_features,
            shard_rows=None,
            max_shards=source.max_shards,
            column_chunk=source.column_chunk,
        )
        return replace(state, shard_rows=min(state.shard_rows, source.shard_rows))

    def _write_batch(
        self, storage: Storage, state: MatrixState, sample_ids: tuple[str, ...], first: int
    ) -> MatrixBatch:
        """Write the shards of a batch, from number ``first`` on."""
        written = {
            value: sum(self._write_shards(storage, state, value, sample_ids, first)) for value in self._source.values
        }
        return MatrixBatch(first * state.shard_rows, sample_ids, self._digest(sample_ids), written)

    def _write_shards(
        self, storage: Storage, state: MatrixState, value: str, sample_ids: Sequence[str], first: int
    ) -> Iterator[int]:
        layout = state.row_copy.layouts[value]
        for number, start in enumerate(range(0, len(sample_ids), state.shard_rows)):
            blocks = self._blocks(value, sample_ids[start : start + state.shard_rows])
            name = state.row_copy.shard_name(value, first + number)
            yield create_shard(storage, name, layout.encode_blocks(blocks))

    def _digest(self, sample_ids: Sequence[str]) -> str:
        """Digest of the batch on the new axis, by which a later append recognizes it. Reads the rows once more."""
        ordered = sorted(sample_ids)

        def rows() -> Iterator[tuple[str, Mapping[str, np.ndarray]]]:
            names = iter(ordered)
            for blocks in zip(*(self._blocks(value, ordered) for value in self._source.values), strict=True):
                for cells in zip(*blocks, strict=True):
                    yield next(names), dict(zip(self._source.values, cells, strict=True))

        return digest_rows(rows())

    def _blocks(self, value: str, sample_ids: Sequence[str]) -> Iterator[np.ndarray]:
        """Rows of samples on the new axis, as many at a time as fit into a block; for all values equally many."""
        layout, length = self._source.row_copy.layouts[value], len(self._new)
        picked = [ChunkCells(number, cells, self._to[at]) for number, cells, at in pick_chunks(layout, self._from)]
        itemsize = max(np.dtype(dtype).itemsize for dtype in self._source.values.values())
        count = max(1, _BLOCK_BYTES // (itemsize * length))
        for start in range(0, len(sample_ids), count):
            members = sample_ids[start : start + count]
            cells = np.full((len(members), length), np.nan, layout.dtype)
            read_rows(self._fetcher, self._source, value, members, picked, cells, np.arange(len(members)))
            yield cells
