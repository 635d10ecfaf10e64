"""Retire batches and samples of a matrix, for example because a donor has withdrawn consent.

A shard holds many samples and is never written twice. So the samples that stay in a batch are written to new shards,
and one commit names these instead of the old ones. Earlier generations still name the old shards: they stay readable
until garbage collection deletes the generations, or :func:`forget` does.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from zarr_core._util.arguments import check_names
from zarr_core.errors import CorruptChunkError, MatrixError, UnknownFieldError
from zarr_core.matrix.ingest.append import home_of
from zarr_core.matrix.ingest.rewrite import BatchRewriter
from zarr_core.matrix.read.fetch import ChunkFetcher
from zarr_core.matrix.store.claims import claim
from zarr_core.matrix.store.metadata import announce
from zarr_core.matrix.store.sample_table import Kind, described, without
from zarr_core.matrix.store.state import HEAD, MatrixBatch, MatrixState, MetadataTable, Retired
from zarr_core.storage import Storage
from zarr_core.versioning.archive import documents
from zarr_core.versioning.gc import GcReport, collect_garbage
from zarr_core.versioning.generations import commit, load, load_same


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


def retire(
    storage: Storage, fetcher: ChunkFetcher, state: MatrixState, sample_ids: Sequence[str], batch_ids: Sequence[str]
) -> tuple[MatrixState, Retirement]:
    """Commit a state without the samples and batches; arguments as for ``WideMatrix.retire``.

    What was retired before is left as it is, so a call that died can be repeated.

    Raises:
        UnknownFieldError: the matrix holds no such sample or batch, and its metadata has no row of the sample.
        MatrixError: the matrix is full.
        StoreError: the matrix was deleted or replaced.
    """
    check_names("sample_ids", sample_ids, error=UnknownFieldError)
    check_names("batch_ids", batch_ids, error=UnknownFieldError)
    while True:
        unloaded = _unloaded_samples(storage, state, sample_ids, batch_ids)
        gone = _samples_to_retire(state, sample_ids, batch_ids)
        staying = {
            batch_id: [i for i in state.batches[batch_id].sample_ids if i not in samples]
            for batch_id, samples in gone.items()
        }
        rewritten = _rewrite(storage, fetcher, state, {name: ids for name, ids in staying.items() if ids})
        metadata = without(storage, state, {*sample_ids, *(i for samples in gone.values() for i in samples)})
        committed = _commit(storage, state, gone, rewritten, sample_ids, batch_ids, metadata)
        if committed is not None:
            break
        # Another call has changed the metadata, or the batches or samples to retire.
        state = load_same(storage, HEAD, state)
    held = {batch_id for block in committed.column_blocks for batch_id in block.batches}
    before = {batch_id for block in state.column_blocks for batch_id in block.batches}
    return committed, Retirement(
        committed.generation,
        tuple(batch_id for batch_id in gone if batch_id not in rewritten),
        {batch_id: tuple(samples) for batch_id, samples in gone.items()},
        unloaded,
        tuple(batch_id for batch_id in state.batches if batch_id in committed.batches and batch_id in before - held),
        readable_in(storage, committed),
    )


def reinstate(
    storage: Storage, state: MatrixState, sample_ids: Collection[str], batch_ids: Collection[str]
) -> MatrixState:
    """Commit a state that takes retired samples and batches again when they are appended.

    Raises:
        UnknownFieldError: one of them was not retired.
    """

    def change(current: MatrixState | None) -> MatrixState:
        assert current is not None
        retired = current.retired
        for name in batch_ids:
            if name not in retired.batches:
                raise UnknownFieldError(f"{storage.url}: batch {name!r} was not retired")
        for name in sample_ids:
            if name not in retired.sample_ids:
                raise UnknownFieldError(f"{storage.url}: sample {name!r} was not retired")
        batches = {
            name: tuple(i for i in members if i not in sample_ids)
            for name, members in retired.batches.items()
            if name not in batch_ids
        }
        samples = tuple(name for name in retired.samples if name not in sample_ids)
        kept = replace(retired, batches=batches, samples=samples)
        return current if kept == retired else replace(current, retired=kept)

    return commit(storage, HEAD, change, state)


def readable_in(storage: Storage, state: MatrixState) -> dict[int, tuple[str, ...]]:
    """Earlier generations that still hold a retired sample, or its row of metadata, each with its tags."""
    retired = state.retired.sample_ids
    known: dict[str, bool] = {}
    found = {}
    for number in sorted(documents(storage)) if retired else []:
        if number < state.generation:
            earlier = load(storage, HEAD, number)
            if not retired.isdisjoint(earlier.rows) or _describes(storage, earlier, retired, known):
                found[number] = tuple(sorted(tag for tag, named in state.retention.tags.items() if named == number))
    return found


def forget(storage: Storage, state: MatrixState) -> GcReport:
    """Delete every generation that holds a retired sample now, and the shards that only such generations name.

    Nothing else is collected. Readers that have pinned one of these generations fail.

    Raises:
        StoreError: one of the generations has a tag, or the matrix was deleted or replaced; nothing is deleted.
    """
    return collect_garbage(storage, HEAD, float("inf"), drop=readable_in(storage, load_same(storage, HEAD, state)))


def _describes(storage: Storage, state: MatrixState, sample_ids: Collection[str], known: dict[str, bool]) -> bool:
    """Whether the metadata of a state has a row of one of the samples; ``known``: earlier answers by object."""
    table = state.metadata.get("samples")
    if table is None:
        return False
    if table.path not in known:
        try:
            known[table.path] = bool(described(storage, state, sample_ids))
        except CorruptChunkError:  # nobody can read from it whose rows its bytes hold
            known[table.path] = True
    return known[table.path]


def _unloaded_samples(
    storage: Storage, state: MatrixState, sample_ids: Sequence[str], batch_ids: Sequence[str]
) -> tuple[str, ...]:
    """The samples that only the metadata holds; raises UnknownFieldError for other unknown samples and batches."""
    homes = {home_of(name, batch_ids) for name in state.batches}
    for batch_id in batch_ids:
        if batch_id not in homes and batch_id not in state.retired.batches:
            raise UnknownFieldError(f"{storage.url}: no batch {batch_id!r}")
    retired = state.retired.sample_ids
    unloaded = dict.fromkeys(i for i in sample_ids if i not in state.rows and i not in retired)
    for sample_id in unloaded.keys() - described(storage, state, unloaded):
        raise UnknownFieldError(f"{storage.url}: no sample {sample_id!r}")
    return tuple(unloaded)


def _samples_to_retire(state: MatrixState, sample_ids: Sequence[str], batch_ids: Sequence[str]) -> dict[str, list[str]]:
    """Samples that the state holds and that are to be retired, by batch."""
    whole = {name: home_of(name, batch_ids) for name in state.batches}
    chosen = set(sample_ids)
    found = {
        name: [i for i in batch.sample_ids if whole[name] is not None or i in chosen]
        for name, batch in state.batches.items()
    }
    return {name: samples for name, samples in found.items() if samples}


def _rewrite(
    storage: Storage, fetcher: ChunkFetcher, state: MatrixState, staying: Mapping[str, Sequence[str]]
) -> dict[str, MatrixBatch]:
    """Write the samples that stay in their batches to new shards."""
    copy = state.row_copy
    count = sum(copy.shards_of(len(samples)) for samples in staying.values())
    if not count:
        return {}
    first = claim(storage, "rows", state.next_shard, count, f"batches without retired samples: {', '.join(staying)}")
    if first + count > state.max_shards:
        raise MatrixError(
            f"{storage.url} is full: it has room for {state.max_shards} shards of {state.shard_rows} samples, and "
            f"{count} are needed for the samples that stay. Retire whole batches, or copy the matrix without them"
        )
    announce(storage, copy, (first + count) * state.shard_rows)
    writer = BatchRewriter(fetcher, state, state.axis.length)
    rewritten = {}
    for batch_id, samples in staying.items():
        rewritten[batch_id] = writer.write(storage, state, samples, first, state.batches[batch_id].source)
        first += copy.shards_of(len(samples))
    return rewritten


def _commit(
    storage: Storage,
    state: MatrixState,
    gone: Mapping[str, Sequence[str]],
    rewritten: Mapping[str, MatrixBatch],
    sample_ids: Sequence[str],
    batch_ids: Sequence[str],
    metadata: Mapping[Kind, MetadataTable],
) -> MatrixState | None:
    """The committed state; None if the metadata, or a batch or sample to retire, was changed since ``state``."""
    overtaken = False

    def change(current: MatrixState | None) -> MatrixState:
        nonlocal overtaken
        assert current is not None
        changed = any(current.batches.get(name) != state.batches[name] for name in gone)
        # Samples may also have joined a batch: as a batch "<batch>@<digest>", or one that holds a sample to retire.
        joined = _samples_to_retire(current, sample_ids, batch_ids) != gone
        overtaken = changed or joined or current.metadata != state.metadata
        if overtaken:
            return current
        batches = {name: batch for name, batch in current.batches.items() if name not in gone} | dict(rewritten)
        retired = _with_retired(current, gone, sample_ids, batch_ids)
        if not gone and retired == current.retired and metadata == current.metadata:
            return current
        return replace(
            current,
            batches=dict(sorted(batches.items(), key=lambda item: item[1].row)),
            column_blocks=tuple(block for block in current.column_blocks if gone.keys().isdisjoint(block.batches)),
            retired=retired,
            metadata=metadata,
        )

    committed = commit(storage, HEAD, change, state)
    return None if overtaken else committed


def _with_retired(
    current: MatrixState, gone: Mapping[str, Sequence[str]], sample_ids: Sequence[str], batch_ids: Sequence[str]
) -> Retired:
    """What is retired after a retirement."""
    batches = {**dict.fromkeys(batch_ids, ()), **current.retired.batches}
    samples = dict.fromkeys(current.retired.samples)
    for name, members in gone.items():
        home = home_of(name, batch_ids)
        if home is None:
            samples |= dict.fromkeys(members)
        else:
            batches[home] = (*batches[home], *members)
    in_batches = set().union(*batches.values())
    samples |= dict.fromkeys(i for i in sample_ids if i not in in_batches)  # also those that no batch held yet
    return Retired(batches, tuple(samples), current.next_shard if gone else current.retired.next_shard)
