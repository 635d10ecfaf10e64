"""Write batches again from their stored rows: some of their samples, or all of them on another feature axis."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from zarr_core.matrix.ingest.append import digest_rows, write_shards
from zarr_core.matrix.read.cells import read_copy
from zarr_core.matrix.read.fetch import ChunkFetcher
from zarr_core.matrix.read.parts import feature_parts
from zarr_core.matrix.store.state import MatrixBatch, MatrixState
from zarr_core.storage import Storage

_BLOCK_BYTES = 64 << 20  # cells of one value that are in memory together, beside the encoded shard that they go to


@dataclass(frozen=True, eq=False)
class BatchRewriter:
    """Reads batches of one state of a matrix, and writes them to another state.

    Attributes:
        fetcher, source: the matrix and the state to read.
        length: number of features of the state to write.
        features: positions of the features that both have, in the source and in the state to write; None for all,
            where the axes are the same.
    """

    fetcher: ChunkFetcher
    source: MatrixState
    length: int
    features: tuple[np.ndarray, np.ndarray] | None = None

    def write(
        self, storage: Storage, state: MatrixState, batches: Mapping[str, Sequence[str]], first: int
    ) -> Iterator[tuple[str, MatrixBatch]]:
        """Write the shards of some samples of batches, from number ``first`` on; yields each batch's new entry.

        Memory: an encoded shard twice, and 64 MiB of cells per value. Each row is read twice, for its shard and for the
        digest by which a later append recognizes the batch.
        """
        height = state.shard_rows
        for batch_id, sample_ids in batches.items():
            parts = [sample_ids[start : start + height] for start in range(0, len(sample_ids), height)]
            written = {}
            for value in self.source.values:
                shards = map(partial(self._blocks, value), parts)
                written[value] = write_shards(storage, state, value, first, shards)
            source = self.source.batches[batch_id].source
            digest = self._digest(sample_ids)
            yield batch_id, MatrixBatch(first * height, tuple(sample_ids), digest, written, source)
            first += state.row_copy.shards_of(len(sample_ids))

    def _digest(self, sample_ids: Sequence[str]) -> str:
        ordered = sorted(sample_ids)

        def rows() -> Iterator[tuple[str, Mapping[str, np.ndarray]]]:
            names = iter(ordered)
            for blocks in zip(*(self._blocks(value, ordered) for value in self.source.values), strict=True):
                for cells in zip(*blocks, strict=True):
                    yield next(names), dict(zip(self.source.values, cells, strict=True))

        return digest_rows(rows())

    def _blocks(self, value: str, sample_ids: Sequence[str]) -> Iterator[np.ndarray]:
        """Rows of samples, as many at a time as fit into a block; for all values equally many."""
        copy = self.source.row_copy
        columns, to = self.features or (None, None)
        features = feature_parts(copy, value, columns, to)
        itemsize = max(np.dtype(dtype).itemsize for dtype in self.source.values.values())
        count = max(1, _BLOCK_BYTES // (itemsize * self.length))
        for start in range(0, len(sample_ids), count):
            members = sample_ids[start : start + count]
            cells = np.full((len(members), self.length), np.nan, copy.layouts[value].dtype)
            read_copy(self.fetcher, copy, value, dict(zip(members, range(len(members)), strict=True)), features, cells)
            yield cells
