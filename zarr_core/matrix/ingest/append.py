"""Append a batch of samples to a matrix: check it, claim shards, write them, commit."""

from __future__ import annotations

import hashlib
import json
import logging
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from zarr_core._util.arguments import check_mapping
from zarr_core._util.commands import shell
from zarr_core._util.plain_arrays import check_labels, plain_array
from zarr_core._util.redaction import refuse_credentials
from zarr_core.errors import MatrixError
from zarr_core.matrix.store.claims import claim, create_shard
from zarr_core.matrix.store.metadata import announce
from zarr_core.matrix.store.state import HEAD, MatrixBatch, MatrixState, is_name
from zarr_core.storage import Storage
from zarr_core.versioning.generations import commit

logger = logging.getLogger(__name__)

# What :func:`later_part` appends. Any other "@" belongs to the name of a batch.
_LATER = re.compile(r"(.+)@[0-9a-f]{12}", re.DOTALL)


def later_part(batch_id: str, sample_ids: Sequence[str]) -> str:
    """Name of the batch that holds samples which joined a batch of the warehouse later: "<batch>@<digest>"."""
    return f"{batch_id}@{hashlib.sha256(chr(10).join(sample_ids).encode()).hexdigest()[:12]}"


# Samples that a printed command names at most.
_MOST_NAMED = 25


def home_of(batch_id: str, batch_ids: Collection[str]) -> str | None:
    """The one of the warehouse's batches that a batch of the matrix was loaded from; None if it is not among them."""
    if batch_id in batch_ids:
        return batch_id
    part = _LATER.fullmatch(batch_id)
    return part[1] if part and part[1] in batch_ids else None


def check_batch(
    state: MatrixState,
    where: str,
    batch_id: str,
    sample_ids: Sequence[str],
    values: Mapping[str, Any],
    features: Callable[[], Iterable[Any]],
) -> dict[str, np.ndarray]:
    """The value tables of a batch as plain arrays, NaN where they are masked.

    Args:
        state, where: of the matrix, and its place for messages.
        batch_id, sample_ids, values: as for ``WideMatrix.append``.
        features: returns the names of the columns; only called for tables that have labels.

    Raises:
        MatrixError: names, labels, shapes or dtypes do not fit the matrix.
        StoreError: the name of the batch is a URL with credentials.
    """
    if not is_name(batch_id):
        raise MatrixError(f"{where}: batch_id must be a string of valid Unicode that is not empty")
    refuse_credentials(batch_id)
    if not len(sample_ids):
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
    tables = {}
    shape = len(sample_ids), state.axis.length
    for value in state.values:
        try:
            check_labels(values[value], lambda: sample_ids, features)
            tables[value] = table = plain_array(values[value], masked_is_nan=True)
        except ValueError as error:
            raise MatrixError(f"{where}: {value} {error}") from error
        if table.shape != shape:
            raise MatrixError(f"{where}: {value} has shape {table.shape}, (samples, features) is {shape}")
        if table.dtype != np.dtype(state.values[value]):
            raise MatrixError(f"{where}: {value} is {table.dtype}, the matrix stores {state.values[value]}; convert it")
    return tables


def find_infinite(tables: Mapping[str, np.ndarray]) -> tuple[str, int, int] | None:
    """Value table, row and column of the first infinite value; None if there is none."""
    for value, table in tables.items():
        for number, row in enumerate(table):
            infinite = np.isinf(row)
            if infinite.any():
                return value, number, int(np.argmax(infinite))
    return None


def append_batch(
    storage: Storage,
    state: MatrixState,
    batch_id: str,
    sample_ids: Sequence[str],
    tables: Mapping[str, np.ndarray],
    source: Mapping[str, str],
) -> tuple[MatrixState, bool]:
    """Write the shards of a batch and commit it, unless the matrix already holds it.

    Args:
        storage, state: of the matrix, now.
        batch_id, sample_ids, tables: passed :func:`check_batch`; (samples, features) arrays by value.
        source: of the batch, for its record.

    Returns:
        The new state, and whether this call added the batch.

    Raises:
        MatrixError: the matrix holds other content under one of the ids, one of them was retired, or it is full.
        StoreError: the matrix was deleted or replaced.
    """
    where = f"{storage.url}, batch {batch_id!r}"
    _check_not_retired(storage.url, state, batch_id, sample_ids)
    digest = _digest(sample_ids, tables)
    if _holds(state, where, batch_id, sample_ids, digest):
        logger.info("%s: already in the matrix", where)
        return state, False
    count = state.row_copy.shards_of(len(sample_ids))
    first = claim(storage, "rows", state.next_shard, count, f"batch {batch_id!r}")
    if first + count > state.max_shards:
        raise MatrixError(
            f"{storage.url} is full: it has room for {state.max_shards} shards of {state.shard_rows} samples. "
            "Create a new matrix with a larger max_shards and append the batches to it"
        )
    announce(storage, state.row_copy, first * state.shard_rows + len(sample_ids))
    tops = range(0, len(sample_ids), state.shard_rows)
    written = {
        value: write_shards(storage, state, value, first, ([table[top : top + state.shard_rows]] for top in tops))
        for value, table in tables.items()
    }
    batch = MatrixBatch(first * state.shard_rows, tuple(sample_ids), digest, written, dict(source))
    added = False

    def change(current: MatrixState | None) -> MatrixState:
        nonlocal added
        assert current is not None
        _check_not_retired(storage.url, current, batch_id, sample_ids)
        added = not _holds(current, where, batch_id, sample_ids, digest)
        if not added:
            return current
        batches = {**current.batches, batch_id: batch}
        return replace(current, batches=dict(sorted(batches.items(), key=lambda item: item[1].row)))

    committed = commit(storage, HEAD, change, state)
    if not added:
        logger.info("%s: added by another writer in the meantime", where)
    return committed, added


def _check_not_retired(url: str, state: MatrixState, batch_id: str, sample_ids: Sequence[str]) -> None:
    retired = sorted(state.retired.sample_ids.intersection(sample_ids))
    batch = home_of(batch_id, state.retired.batches)
    if batch or retired:
        what = f"sample {retired[0]!r}" if retired else "the batch"
        named = ["--batches", batch] if batch else ["--samples", *retired[:_MOST_NAMED]]
        undo = shell("matrix", "retire", url, *named, "--undo")
        way_out = f"matrix.reinstate(...), or `{undo}`, allows it again"
        raise MatrixError(f"{url}, batch {batch_id!r}: {what} was retired; {way_out}")


def _holds(state: MatrixState, where: str, batch_id: str, sample_ids: Sequence[str], digest: str) -> bool:
    """Whether the state holds the batch with this content; raises MatrixError if it holds other content."""
    present = state.batches.get(batch_id)
    if present is not None:
        differing = sorted(set(present.sample_ids) ^ set(sample_ids))
        if differing:
            raise MatrixError(f"{where}: already in the matrix with other samples; they differ in {differing[0]!r}")
        if present.digest != digest:
            raise MatrixError(f"{where}: already in the matrix with the same samples but other values")
        return True
    for sample_id in sample_ids:
        if sample_id in state.rows:
            other = next(name for name, batch in state.batches.items() if sample_id in batch.sample_ids)
            raise MatrixError(f"{where}: sample {sample_id!r} is already in batch {other!r}")
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


def _digest(sample_ids: Sequence[str], tables: Mapping[str, np.ndarray]) -> str:
    rows = sorted(range(len(sample_ids)), key=sample_ids.__getitem__)
    return digest_rows((sample_ids[row], {value: table[row] for value, table in tables.items()}) for row in rows)


def digest_rows(rows: Iterable[tuple[str, Mapping[str, np.ndarray]]]) -> str:
    """SHA-256 of a batch's samples and values, independent of the payload of a NaN.

    Args:
        rows: each sample with its cells by value, sorted by sample, so that the digest is independent of their order.
    """
    found = hashlib.sha256()
    for sample_id, cells_by_value in rows:
        found.update(json.dumps(sample_id).encode())
        for value in sorted(cells_by_value):
            cells = cells_by_value[value]
            missing = np.isnan(cells)
            found.update(np.ascontiguousarray(np.where(missing, np.nan, cells) if missing.any() else cells).data)
    return found.hexdigest()
