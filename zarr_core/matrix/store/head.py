"""How a matrix keeps its state, for the code that is shared by all kinds of stores."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping

from zarr_core.format.object_names import ZARR_JSON
from zarr_core.matrix.store.batch_names import among, outside
from zarr_core.matrix.store.claims import CLAIMS
from zarr_core.matrix.store.state import AXIS, HEAD_NAME, METADATA, MatrixState
from zarr_core.storage import Storage
from zarr_core.versioning import generations
from zarr_core.versioning.generations import Change, Head

_OTHER = re.compile(
    rf"({AXIS}/[0-9a-f]{{16}}\.npy|{METADATA}/[0-9a-f]{{16}}\.parquet|[a-z][a-z0-9_]*\.zarr/zarr\.json)(\.lock)?"
)
#: Pattern of the names of shards, of both copies.
SHARD = re.compile(r"[a-z][a-z0-9_]*\.zarr/c/\d+/\d+")


def named(state: MatrixState) -> Iterator[str]:
    """Every object that a state needs: shards, the names of the features, metadata of the arrays."""
    yield state.axis.path
    for table in state.metadata.values():
        yield table.path
    for copy in (state.row_copy, state.column_copy):
        for value in state.values:
            yield f"{copy.path(value)}/{ZARR_JSON}"
        for name, _ in copy.shards():
            yield name


def _roots(state: MatrixState) -> Iterator[str]:
    yield AXIS
    yield METADATA
    for value in state.values:
        yield state.row_copy.path(value)
        yield state.column_copy.path(value)


def _owner(name: str) -> str | None:
    """Unit of garbage collection: the object itself, or None for objects that no writer of matrices creates."""
    if SHARD.fullmatch(name):
        return name
    other = _OTHER.fullmatch(name)
    return other[1] if other else None  # the lock of an object on a local disk belongs to the object


def changes(before: MatrixState | None, after: MatrixState) -> list[Change]:
    """Batches that a commit added to each copy, and what it retired or reinstated."""
    if before is None:
        tables = ", ".join(f"{value} {dtype}" for value, dtype in after.values.items())
        return [Change("created", note=f"{after.axis.length:,} features; {tables}; {after.codec}")]
    found = []
    if added := outside(after.batches, before.batches):
        sources = dict.fromkeys(describe_source(after.batches[batch_id].source) for batch_id in added)
        note = "; ".join([f"{len(after.samples_of(added)):,} samples", *filter(None, sources)])
        found.append(Change("added", tuple(added), note))
    if gone := outside(before.batches, after.batches):
        found.append(Change("retired", tuple(gone), f"batches, {len(before.samples_of(gone)):,} samples"))
    fewer = outside(before.samples_of(among(before.batches, after.batches)), after.rows)
    unloaded = outside(outside(after.retired.samples, set(before.retired.samples)), before.rows)
    if fewer or unloaded:
        found.append(Change("retired", (*fewer, *unloaded)))
    again = outside(before.retired.batches, after.retired.batches)
    again += outside(before.retired.samples, set(after.retired.samples))
    if again:
        found.append(Change("reinstated", tuple(again)))
    if transposed := outside(after.transposed, before.transposed):
        found.append(Change("transposed", tuple(transposed)))
    for kind in ("samples", "batches"):
        table = after.metadata.get(kind)
        if table != before.metadata.get(kind):
            note = f"{table.rows:,} rows: {', '.join(table.columns)}" if table else "removed"
            found.append(Change(f"metadata of {kind}", note=note))
    return found


def describe_source(source: Mapping[str, str]) -> str:
    """The source of a batch on one line, as in "iceberg, table lab.long, snapshot 123"; "" if none was recorded."""
    parts = []
    for name, value in source.items():
        shown = value[:12] if name == "sha256" else value
        parts.append(shown if name == "kind" else f"{name} {shown}")
    return ", ".join(parts)


def _extends(before: MatrixState, after: MatrixState) -> bool:
    if after.generation > before.generation:
        return before.matrix_id == after.matrix_id
    return (before.matrix_id, _places(before)) == (after.matrix_id, _places(after))


def _places(state: MatrixState) -> dict[str, tuple[int, str]]:
    return {name: (batch.row, batch.digest) for name, batch in state.batches.items()}


#: A shard is created whole or not at all, so what exists is whole.
HEAD = Head(HEAD_NAME, MatrixState.from_json, _roots, named, _owner, Storage.exists, changes, _extends, (CLAIMS,))


class Overtaken(Exception):
    """Other commits changed what a change is based on, so it must be made again."""


def commit(storage: Storage, since: MatrixState, change: Callable[[MatrixState], MatrixState]) -> MatrixState:
    """Commit the next state of a matrix, as ``generations.commit`` does."""

    def step(current: MatrixState | None) -> MatrixState:
        assert current is not None  # otherwise the commit has compared it with ``since``
        return change(current)

    return generations.commit(storage, HEAD, step, since)
