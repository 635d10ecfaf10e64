"""Retire batches and samples of a matrix, for example because a donor has withdrawn consent.

A shard holds many samples and is never written twice. So the samples that stay in a batch are written to new shards,
and one commit names these instead of the old ones. Earlier generations still name the old shards: they stay readable
until garbage collection deletes the generations, or :func:`forget` does.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain

from zarr_core._util.arguments import check_names
from zarr_core.errors import CorruptChunkError, UnknownFieldError
from zarr_core.matrix.ingest.reindex import rewrite_batches
from zarr_core.matrix.read.fetch import ChunkFetcher
from zarr_core.matrix.store.batch_names import among, home_of, outside
from zarr_core.matrix.store.claims import announce, claim_shards
from zarr_core.matrix.store.head import HEAD, Overtaken, commit
from zarr_core.matrix.store.sample_table import Kind, described, without
from zarr_core.matrix.store.state import MatrixBatch, MatrixState, MetadataTable, Retired, in_order
from zarr_core.storage import Storage
from zarr_core.versioning.archive import documents
from zarr_core.versioning.gc import GcReport, collect_garbage
from zarr_core.versioning.generations import find_generation, load_same


@dataclass(frozen=True)
class Retirement:
    """Result of a retirement.

    Attributes:
        generation: the first generation without the samples.
        batches: batches that the matrix no longer holds.
        samples: samples that it no longer holds, by batch.
        unloaded: samples that no batch held yet. Their rows of metadata are gone, and they must not be appended.
        underived: batches that stay, but must be added to the column-major copy again (``derive_columns``).
        readable: earlier generations that still hold some of the samples, each with its tags.
    """

    generation: int
    batches: tuple[str, ...]
    samples: Mapping[str, tuple[str, ...]]
    unloaded: tuple[str, ...]
    underived: tuple[str, ...]
    readable: Mapping[int, tuple[str, ...]]


@dataclass(frozen=True)
class _Request:
    """Samples and batches to retire."""

    sample_ids: Collection[str]
    batch_ids: Collection[str]

    def held_by(self, state: MatrixState) -> dict[str, list[str]]:
        """Those of the samples that a state holds, by batch."""
        found = {}
        for name, batch in state.batches.items():
            samples = list(batch.sample_ids)
            if home_of(name, self.batch_ids) is None:
                samples = among(samples, self.sample_ids)
            if samples:
                found[name] = samples
        return found

    def retired_from(self, state: MatrixState) -> Retired:
        """What is retired after the retirement."""
        held = self.held_by(state)
        batches = {**dict.fromkeys(self.batch_ids, ()), **state.retired.batches}
        samples = dict.fromkeys(state.retired.samples)
        for name, members in held.items():
            home = home_of(name, self.batch_ids)
            if home is None:
                samples |= dict.fromkeys(members)
            else:
                batches[home] = (*batches[home], *members)
        in_batches = set().union(*batches.values())
        samples |= dict.fromkeys(outside(self.sample_ids, in_batches))  # also those that no batch held yet
        return Retired(batches, tuple(samples), state.next_shard if held else state.retired.next_shard)

    def only_described(self, storage: Storage, state: MatrixState) -> tuple[str, ...]:
        """The samples that only the metadata holds; raises UnknownFieldError for unknown samples and batches."""
        homes = {home_of(name, self.batch_ids) for name in state.batches}
        for batch_id in outside(self.batch_ids, homes.union(state.retired.batches)):
            raise UnknownFieldError(f"{storage.url}: no batch {batch_id!r}")
        known = state.retired.sample_ids.union(state.rows)
        unloaded = outside(self.sample_ids, known)
        for sample_id in outside(unloaded, described(storage, state, unloaded)):
            raise UnknownFieldError(f"{storage.url}: no sample {sample_id!r}")
        return tuple(unloaded)


def retire(
    storage: Storage, fetcher: ChunkFetcher, state: MatrixState, sample_ids: Sequence[str], batch_ids: Sequence[str]
) -> tuple[MatrixState, Retirement]:
    """Commit a state without the samples and batches; see ``WideMatrix.retire``.

    What was retired before is left as it is, so a call that died can be repeated.
    """
    check_names("sample_ids", sample_ids, error=UnknownFieldError)
    check_names("batch_ids", batch_ids, error=UnknownFieldError)
    request = _Request(dict.fromkeys(sample_ids), dict.fromkeys(batch_ids))
    while True:
        unloaded = request.only_described(storage, state)
        gone = request.held_by(state)
        rewritten = _rewrite_staying(storage, fetcher, state, gone)
        metadata = without(storage, state, {*request.sample_ids, *chain(*gone.values())})
        try:
            committed = commit(storage, state, partial(_without, state, request, gone, rewritten, metadata))
            break
        except Overtaken:  # another call has changed the metadata, or the batches or samples to retire
            state = load_same(storage, HEAD, state)
    underived = outside(among(state.batches, state.transposed), committed.transposed)
    return committed, Retirement(
        generation=committed.generation,
        batches=tuple(outside(gone, rewritten)),
        samples={batch_id: tuple(samples) for batch_id, samples in gone.items()},
        unloaded=unloaded,
        underived=tuple(among(underived, committed.batches)),
        readable=readable_in(storage, committed),
    )


def _rewrite_staying(
    storage: Storage, fetcher: ChunkFetcher, state: MatrixState, gone: Mapping[str, Sequence[str]]
) -> dict[str, MatrixBatch]:
    """Write the samples that stay in their batches to new shards."""
    copy = state.row_copy
    staying = {}
    for batch_id, samples in gone.items():
        if left := outside(state.batches[batch_id].sample_ids, set(samples)):
            staying[batch_id] = left
    if not staying:
        return {}
    rows = sum(copy.shards_of(len(samples)) for samples in staying.values()) * state.shard_rows
    way_out = "Samples that stay get new ones: retire whole batches, or copy the matrix without the samples"
    purpose = f"batches without retired samples: {', '.join(staying)}"
    first = claim_shards(storage, state, copy, rows, purpose, way_out)
    announce(storage, copy, first * state.shard_rows + rows)
    return dict(rewrite_batches(fetcher, state, storage, state, staying, first))


def _without(
    state: MatrixState,
    request: _Request,
    gone: Mapping[str, Sequence[str]],
    rewritten: Mapping[str, MatrixBatch],
    metadata: Mapping[Kind, MetadataTable],
    current: MatrixState,
) -> MatrixState:
    """The current state without samples; raises Overtaken if the metadata, or what to retire, differs in ``state``."""
    changed = any(current.batches.get(name) != state.batches[name] for name in gone)
    # Samples may also have joined a batch: as a batch "<batch>@<digest>", or one that holds a sample to retire.
    if changed or request.held_by(current) != gone or current.metadata != state.metadata:
        raise Overtaken
    retired = request.retired_from(current)
    if not gone and retired == current.retired and metadata == current.metadata:
        return current
    batches = {name: batch for name, batch in current.batches.items() if name not in gone}
    return replace(
        current,
        batches=in_order({**batches, **rewritten}),
        column_blocks=tuple(block for block in current.column_blocks if gone.keys().isdisjoint(block.batches)),
        retired=retired,
        metadata=metadata,
    )


def reinstate(storage: Storage, state: MatrixState, sample_ids: Sequence[str], batch_ids: Sequence[str]) -> MatrixState:
    """Commit a state that takes retired samples and batches again; see ``WideMatrix.reinstate``."""
    check_names("sample_ids", sample_ids, error=UnknownFieldError)
    check_names("batch_ids", batch_ids, error=UnknownFieldError)
    sample_ids, batch_ids = list(sample_ids), list(batch_ids)  # "in" asks a pandas.Series for its labels

    def change(current: MatrixState) -> MatrixState:
        retired = current.retired
        for name in outside(batch_ids, retired.batches):
            raise UnknownFieldError(f"{storage.url}: batch {name!r} was not retired")
        for name in outside(sample_ids, retired.sample_ids):
            raise UnknownFieldError(f"{storage.url}: sample {name!r} was not retired")
        batches = {}
        for name in outside(retired.batches, batch_ids):
            batches[name] = tuple(outside(retired.batches[name], sample_ids))
        kept = replace(retired, batches=batches, samples=tuple(outside(retired.samples, sample_ids)))
        return current if kept == retired else replace(current, retired=kept)

    return commit(storage, state, change)


def readable_in(storage: Storage, state: MatrixState) -> dict[int, tuple[str, ...]]:
    """Earlier generations that still hold a retired sample, or its row of metadata, each with its tags."""
    retired = state.retired.sample_ids
    describing: dict[str, bool] = {}
    found = {}
    for number in sorted(documents(storage)) if retired else []:
        if number >= state.generation:
            continue
        earlier = find_generation(storage, HEAD, state, number)
        if earlier is None:  # collected meanwhile
            continue
        table = earlier.metadata.get("samples")
        path = "" if table is None else table.path
        if path not in describing:
            try:
                describing[path] = bool(described(storage, earlier, retired))
            except CorruptChunkError:  # unreadable: assume that it holds them
                describing[path] = True
        if describing[path] or not retired.isdisjoint(earlier.rows):
            found[number] = tuple(sorted(tag for tag, named in state.retention.tags.items() if named == number))
    return found


def forget(storage: Storage, state: MatrixState) -> GcReport:
    """Delete the generations that hold a retired sample, and nothing else; see ``WideMatrix.forget_retired``."""
    return collect_garbage(storage, HEAD, float("inf"), drop=readable_in(storage, load_same(storage, HEAD, state)))
