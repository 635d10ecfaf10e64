"""Append a batch of samples to a matrix: check it, claim shards, write them, commit."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from zarr_core._util.arguments import check_mapping, check_names
from zarr_core._util.commands import shell
from zarr_core._util.plain_arrays import check_labels, plain_array
from zarr_core._util.redaction import refuse_credentials
from zarr_core.errors import MatrixError
from zarr_core.matrix.store.axis import FeatureAxis
from zarr_core.matrix.store.batch_names import home_of, is_name
from zarr_core.matrix.store.claims import announce, claim_shards, create_shard
from zarr_core.matrix.store.head import commit
from zarr_core.matrix.store.state import MatrixBatch, MatrixState, in_order
from zarr_core.storage import Storage

logger = logging.getLogger(__name__)

#: Samples that a printed command names at most.
MOST_NAMED = 25


@dataclass(frozen=True, eq=False)
class NewBatch:
    """A batch to append, as :func:`check_batch` returns it.

    Attributes:
        where: the matrix and the batch, for messages.
        tables: (samples, features) plain arrays of the stored dtype by value, NaN for missing cells.
        source: recorded with the batch.
    """

    batch_id: str
    where: str
    sample_ids: Sequence[str]
    tables: Mapping[str, np.ndarray]
    source: Mapping[str, str]

    def digest(self) -> str:
        """Digest of samples and values, independent of their order."""
        order = sorted(range(len(self.sample_ids)), key=self.sample_ids.__getitem__)
        ordered = [self.sample_ids[row] for row in order]
        return digest_rows(ordered, {value: map(table.__getitem__, order) for value, table in self.tables.items()})


def check_batch(
    url: str,
    state: MatrixState,
    axis: Callable[[], FeatureAxis],
    batch_id: str,
    sample_ids: Sequence[str],
    values: Mapping[str, Any],
    source: Mapping[str, str] | None,
) -> NewBatch:
    """The batch with plain arrays, NaN where they are masked; MatrixError if it does not fit the matrix.

    The names of the columns, ``axis``, are read only for tables that have labels, and for messages.
    """
    where = f"{url}, batch {batch_id!r}"
    check_names("sample_ids", sample_ids, error=MatrixError)
    sample_ids = [] if sample_ids is None else list(sample_ids)  # a pandas.Series is indexed by its labels
    if not is_name(batch_id):
        raise MatrixError(f"{where}: batch_id must be a string of valid Unicode that is not empty")
    refuse_credentials(batch_id)
    if not sample_ids:
        raise MatrixError(f"{where}: sample_ids must be a sequence of at least one sample")
    seen: set[str] = set()
    for sample_id in sample_ids:
        if not is_name(sample_id):
            raise MatrixError(f"{where}: sample ids must be strings of valid Unicode, not {sample_id!r:.80}")
        if sample_id in seen:
            raise MatrixError(f"{where}: duplicate sample {sample_id!r}")
        seen.add(sample_id)
    check_mapping("values", values, "{'beta': cells}", error=MatrixError)
    if values.keys() != state.values.keys():
        expected, got = ", ".join(state.values), ", ".join(values) or "none"
        raise MatrixError(f"{where}: the value tables of this matrix are {expected}; given: {got}")
    tables, shape = {}, (len(sample_ids), state.axis.length)
    for value, dtype in state.values.items():
        try:
            check_labels(values[value], lambda: sample_ids, axis)
            table = plain_array(values[value], masked_is_nan=True)
        except ValueError as error:
            raise MatrixError(f"{where}: {value} {error}") from error
        if table.shape != shape:
            raise MatrixError(f"{where}: {value} has shape {table.shape}, (samples, features) is {shape}")
        if table.dtype != np.dtype(dtype):
            raise MatrixError(f"{where}: {value} is {table.dtype}, the matrix stores {dtype}; convert it")
        tables[value] = table
        for sample_id, row in zip(sample_ids, table, strict=True):
            infinite = np.isinf(row)
            if infinite.any():
                feature = axis()[int(np.argmax(infinite))]
                raise MatrixError(f"{where}: {value} of sample {sample_id!r} is infinite at feature {feature!r}")
    return NewBatch(batch_id, where, sample_ids, tables, dict(source or {}))


def append_batch(storage: Storage, state: MatrixState, batch: NewBatch) -> tuple[MatrixState, bool]:
    """Write the shards of a batch and commit it; returns the new state, and False if it already held the batch."""
    digest = batch.digest()
    if _holds(storage.url, state, batch, digest):
        logger.info("%s: already in the matrix", batch.where)
        return state, False
    copy, samples = state.row_copy, len(batch.sample_ids)
    purpose, way_out = f"batch {batch.batch_id!r}", "Create a new matrix with a larger max_shards and append to it"
    first = claim_shards(storage, state, copy, samples, purpose, way_out)
    announce(storage, copy, first * state.shard_rows + samples)
    written = {}
    for value, table in batch.tables.items():
        shards = ([table[top : top + state.shard_rows]] for top in range(0, samples, state.shard_rows))
        written[value] = write_shards(storage, state, value, first, shards)
    record = MatrixBatch(first * state.shard_rows, tuple(batch.sample_ids), digest, written, batch.source)

    def change(current: MatrixState) -> MatrixState:
        if _holds(storage.url, current, batch, digest):
            return current
        return replace(current, batches=in_order({**current.batches, batch.batch_id: record}))

    committed = commit(storage, state, change)
    added = committed.batches[batch.batch_id].row == record.row  # nobody else writes to these rows
    if not added:
        logger.info("%s: added by another writer in the meantime", batch.where)
    return committed, added


def _holds(url: str, state: MatrixState, batch: NewBatch, digest: str) -> bool:
    """Whether the state holds the batch; MatrixError if with other content, or if the batch or a sample was retired."""
    retired = sorted(state.retired.sample_ids.intersection(batch.sample_ids))
    home = home_of(batch.batch_id, state.retired.batches)
    if home or retired:
        what = f"sample {retired[0]!r}" if retired else "the batch"
        named = ["--batches", home] if home else ["--samples", *retired[:MOST_NAMED]]
        undo = shell("matrix", "retire", url, *named, "--undo")
        way_out = f"matrix.reinstate(...), or `{undo}`, allows it again"
        raise MatrixError(f"{batch.where}: {what} was retired; {way_out}")
    present = state.batches.get(batch.batch_id)
    if present is not None:
        if differing := set(present.sample_ids).symmetric_difference(batch.sample_ids):
            text = f"already in the matrix with other samples; they differ in {min(differing)!r}"
            raise MatrixError(f"{batch.where}: {text}")
        if present.digest != digest:
            raise MatrixError(f"{batch.where}: already in the matrix with the same samples but other values")
        return True
    for sample_id in batch.sample_ids:
        if sample_id in state.rows:
            other = state.batch_of[sample_id]
            raise MatrixError(f"{batch.where}: sample {sample_id!r} is already in batch {other!r}")
    return False


def write_shards(
    storage: Storage, state: MatrixState, value: str, first: int, shards: Iterable[Iterable[np.ndarray]]
) -> int:
    """Write claimed row-major shards of one value, each given as blocks of rows; returns their size in bytes."""
    copy = state.row_copy
    return sum(
        create_shard(storage, copy.shard_name(value, number), copy.layouts[value].encode_blocks(blocks))
        for number, blocks in enumerate(shards, first)
    )


def digest_rows(sample_ids: Sequence[str], tables: Mapping[str, Iterable[np.ndarray]]) -> str:
    """SHA-256 of a batch's samples and values, independent of the payload of a NaN.

    Args:
        sample_ids: sorted, so that the digest is independent of their order in the batch.
        tables: by value, the rows of the samples, in this order.
    """
    found = hashlib.sha256()
    for sample_id, *rows in zip(sample_ids, *(tables[value] for value in sorted(tables)), strict=True):
        found.update(json.dumps(sample_id).encode())
        for cells in rows:
            missing = np.isnan(cells)
            if missing.any():
                cells = np.where(missing, np.nan, cells)
            found.update(np.ascontiguousarray(cells).data)
    return found.hexdigest()
