"""Copies a matrix, or some of its batches, to faster storage: from a bucket to local scratch.

The copy has the id, the batches and the rows of the matrix that it was made from, and the same objects below the same
names. So datasets over it have the same fingerprint, and a training run can continue on it. Every chunk is compared
with its checksum while it is copied, and the head of the copy names a batch only when all of it is there. A later call
finishes an interrupted copy. Nothing else is ever written to a copy: samples are appended to the original.
"""

from __future__ import annotations

import errno
import hashlib
import os
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field, replace
from functools import partial
from typing import NamedTuple

from tqdm import tqdm

from zarr_core._util.arguments import check_names, whole_number
from zarr_core._util.commands import shell
from zarr_core._util.processes import map_in_processes
from zarr_core._util.units import format_size
from zarr_core.errors import CorruptChunkError, StoreError, TransferError, UnknownFieldError, ZarrCoreError
from zarr_core.format.array_metadata import ArrayLayout
from zarr_core.matrix.store.copies import Copy
from zarr_core.matrix.store.metadata import announce
from zarr_core.matrix.store.state import HEAD, ColumnBlock, MatrixBatch, MatrixState, Origin, named
from zarr_core.storage import Storage
from zarr_core.storage.shards import StoredShard, is_intact
from zarr_core.versioning.gc import TOMBSTONE_SECONDS
from zarr_core.versioning.generations import Retention, commit, load, load_same

# Errors of the target after which no other shard can be copied either.
_FATAL = (errno.ENOSPC, errno.EDQUOT, errno.EROFS)


class StagedShard(NamedTuple):
    """Result of copying one shard: bytes copied, bytes that were there already, and what prevented it, or ""."""

    name: str
    copied: int = 0
    kept: int = 0
    problem: str = ""


@dataclass
class MatrixStageReport:
    """Result of :func:`stage_matrix`.

    Attributes:
        state: of the copy, after the commit.
        shards: result per shard of the requested batches.
        batches: requested batches.
        failed: requested batches that could not be copied, each with the reason.
        seconds: duration.
    """

    state: MatrixState
    batches: tuple[str, ...]
    shards: list[StagedShard] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)
    seconds: float = 0.0

    @property
    def copied(self) -> int:
        """Bytes of shards that were copied."""
        return sum(shard.copied for shard in self.shards)

    @property
    def kept(self) -> int:
        """Bytes of shards that the copy already had."""
        return sum(shard.kept for shard in self.shards)

    @property
    def ok(self) -> bool:
        """Whether every requested batch is in the copy, and all that its column-major copy needs."""
        return not self.failed and not any(shard.problem for shard in self.shards)


class _ShardTask(NamedTuple):
    """A shard to copy; ``trusted``: the copy's head names it, so that its size is enough."""

    name: str
    layout: ArrayLayout
    trusted: bool


def stage_matrix(
    source_root: str | os.PathLike[str],
    target_root: str | os.PathLike[str],
    *,
    values: Sequence[str] | None = None,
    sample_ids: Collection[str] | None = None,
    generation: int | str | None = None,
    check: bool = False,
    workers: int = 1,
    executor: Executor | None = None,
    progress: bool = False,
) -> MatrixStageReport:
    """Copy a matrix, or the batches that hold some samples, and commit the copy.

    Batches of earlier calls stay in the copy as long as they are unchanged in the source.

    Args:
        source_root: the matrix to copy, a local path or fsspec URL.
        target_root: local path or fsspec URL of the copy: empty, or an earlier copy of the same matrix.
        values: only these value tables.
        sample_ids: only the batches that hold these samples; a shard holds many samples.
        generation: number or tag of the generation to copy; the latest by default.
        check: read shards that the head of the copy already names, instead of comparing their sizes.
        workers: processes.
        executor: works instead of processes, such as that of a cluster; it is not shut down.
        progress: show a progress bar.

    Raises:
        StoreError: a root cannot be used, the target is not a copy of the source or is full, or no batch could be
            copied.
        UnknownFieldError: the source holds no such value table or sample.
        CorruptChunkError: the names of the features or the metadata are damaged.
    """
    workers = whole_number("workers", workers, 1)
    check_names("values", values, error=UnknownFieldError)
    check_names("sample_ids", sample_ids, error=UnknownFieldError)
    source, target = Storage(source_root), Storage(target_root)
    if source.identity == target.identity:
        raise StoreError(f"{source.url} cannot be staged onto itself")
    started = time.monotonic()
    state = load(source, HEAD, generation)
    wanted = _with_values(source.url, state, values)
    chosen = _batches_of(source.url, wanted, sample_ids)
    origin = Origin(source.identity, state.generation)
    current = load(target, HEAD) if target.exists(HEAD.name) else None
    _check_target(target.url, current, wanted, origin, chosen)
    part = _part(wanted, chosen)
    if current is not None:
        _check_not_collected(target.url, current, part)
    known = set() if current is None else {name for copy in _copies(current) for name in _shards(copy)}
    tasks = [
        _ShardTask(name, copy.layouts[value].flat, name in known and not check)
        for copy in _copies(part)
        for value in part.values
        for name in copy.shard_names(value)
    ]
    _copy_small(source, target, state)
    report = MatrixStageReport(part, tuple(chosen))
    results = map_in_processes(partial(_stage_shard, source, target), tasks, workers, _not_staged, executor)
    with tqdm(total=len(tasks), unit="shard", desc="stage", dynamic_ncols=True, disable=not progress) as bar:
        for result in results:
            if not result.problem and executor is not None:
                target.check_shared(result.name)
            report.shards.append(result)
            bar.set_postfix_str(f"{format_size(report.copied)} copied", refresh=False)
            bar.update()
    problems = {shard.name: f"{shard.name}: {shard.problem}" for shard in report.shards if shard.problem}
    report.failed = _failed_batches(part, problems)
    if chosen and len(report.failed) == len(chosen):
        raise StoreError(
            f"none of {len(chosen)} batches could be copied; the first problem: {next(iter(problems.values()))}"
        )
    whole = _part(wanted, [name for name in chosen if name not in report.failed], problems)
    load_same(source, HEAD, state)  # what was copied is of this matrix, if it is still there
    report.state = _commit(target, wanted, whole, origin, chosen)
    report.seconds = time.monotonic() - started
    return report


def _with_values(url: str, state: MatrixState, values: Sequence[str] | None) -> MatrixState:
    """The state with some of its value tables."""
    if values is None:
        return state
    for value in values:
        if value not in state.values:
            raise UnknownFieldError(f"{url} has no value table {value!r}; it has {', '.join(state.values)}")
    kept = {value: dtype for value, dtype in state.values.items() if value in values}

    def sizes(stored: Mapping[str, int]) -> dict[str, int]:
        return {value: stored[value] for value in kept}

    return replace(
        state,
        values=kept,
        batches={name: replace(batch, bytes=sizes(batch.bytes)) for name, batch in state.batches.items()},
        column_blocks=tuple(replace(block, bytes=sizes(block.bytes)) for block in state.column_blocks),
    )


def _batches_of(url: str, state: MatrixState, sample_ids: Collection[str] | None) -> list[str]:
    if sample_ids is None:
        return list(state.batches)
    for sample_id in sample_ids:
        if sample_id not in state.rows:
            raise UnknownFieldError(f"{url}, generation {state.generation}: no sample {sample_id!r}")
    wanted = set(sample_ids)
    chosen = [name for name, batch in state.batches.items() if not wanted.isdisjoint(batch.sample_ids)]
    if not chosen:
        raise ZarrCoreError(f"{url}: no sample is selected")
    return chosen


def _part(state: MatrixState, batches: Collection[str], problems: Collection[str] = ()) -> MatrixState:
    """The state with some of its batches, and the blocks of the column-major copy that hold no others."""
    kept = {name: batch for name, batch in state.batches.items() if name in batches}
    blocks = [
        block
        for block in state.column_blocks
        if kept.keys() >= set(block.batches)
        and not any(name in problems for name in _shards(replace(state, column_blocks=(block,)).column_copy))
    ]
    return replace(state, batches=kept, column_blocks=tuple(blocks))


def _copies(state: MatrixState) -> tuple[Copy, Copy]:
    return state.row_copy, state.column_copy


def _shards(copy: Copy) -> Iterator[str]:
    for value in copy.layouts:
        yield from copy.shard_names(value)


def _failed_batches(state: MatrixState, problems: Mapping[str, str]) -> dict[str, str]:
    """Batches with a damaged row-major shard, each with the problem."""
    failed = {}
    for name, batch in state.batches.items() if problems else ():
        shards = _shards(replace(state, batches={name: batch}, column_blocks=()).row_copy)
        if first := next((shard for shard in shards if shard in problems), None):
            failed[name] = problems[first]
    return failed


def _check_target(
    url: str, current: MatrixState | None, wanted: MatrixState, origin: Origin, chosen: Collection[str]
) -> None:
    """Raise StoreError if the target holds something else than a copy of this matrix with these value tables."""
    if current is None:
        return
    if current.origin is None or current.matrix_id != wanted.matrix_id or current.origin.store != origin.store:
        raise StoreError(f"{url} holds a matrix that is not a copy of {origin.store}; use an empty target")
    others = current.batches.keys() - set(chosen)
    if others and current.values.keys() != wanted.values.keys():
        raise StoreError(
            f"{url} holds {len(others)} more batches, with the value tables {', '.join(current.values)}; all batches "
            "of a matrix have the same: request these, or choose another target"
        )


def _check_not_collected(url: str, current: MatrixState, part: MatrixState) -> None:
    """Raise StoreError if the copy was collected so lately that no commit can name some of these objects yet."""
    tombstones = current.retention.tombstones
    if pending := sorted((set(named(part)) - set(named(current))) & tombstones.keys()):
        over = time.gmtime(max(tombstones[name] for name in pending) + TOMBSTONE_SECONDS)
        raise StoreError(
            f"{url}: {pending[0]} and {len(pending) - 1} more objects are pending deletion since the last garbage "
            f"collection of this copy. Choose another target, or run `{shell('gc', url)}` after "
            f"{time.strftime('%Y-%m-%d %H:%M', over)} UTC, and stage again"
        )


def _copy_small(source: Storage, target: Storage, state: MatrixState) -> None:
    """Copy the names of the features and the metadata, unless they are there."""
    digests = {state.axis.path: state.axis.sha256} | {table.path: table.sha256 for table in state.metadata.values()}
    for name, sha256 in digests.items():
        if target.exists(name) and hashlib.sha256(target.read(name)).hexdigest() == sha256:
            continue
        data = source.read(name)
        if hashlib.sha256(data).hexdigest() != sha256:
            raise CorruptChunkError(f"{source.url}/{name} is not what was committed")
        target.write(name, [data])


def _stage_shard(source: Storage, target: Storage, task: _ShardTask) -> StagedShard:
    """Copy one shard; damage and missing objects are reported in the result."""
    try:
        size = source.size(task.name)
        is_there = target.exists(task.name) and target.size(task.name) == size
        if is_there and (task.trusted or is_intact(target, task.name, task.layout, sparse=True)):
            return StagedShard(task.name, kept=size)
        shard = StoredShard.open(source, task.name, task.layout, size=size, sparse=True)
        return StagedShard(task.name, copied=target.write(task.name, shard.pieces()))
    except FileNotFoundError:
        return StagedShard(task.name, problem="committed but missing")


def _not_staged(task: _ShardTask, error: Exception) -> StagedShard:
    """The result of a shard that raised; raises where no other shard can be copied either."""
    if isinstance(error, OSError) and error.errno in _FATAL:
        raise StoreError(f"the target cannot be written: {error}") from error
    if isinstance(error, CorruptChunkError | TransferError):
        return StagedShard(task.name, problem=str(error))
    if isinstance(error, ZarrCoreError):
        raise error
    return StagedShard(task.name, problem=f"{type(error).__name__}: {error}")


def _commit(
    target: Storage, wanted: MatrixState, whole: MatrixState, origin: Origin, chosen: Collection[str]
) -> MatrixState:
    """Commit the batches that were copied, beside those of earlier calls that are unchanged in the source."""
    for copy in _copies(whole):  # the head names the arrays of both, also where one has no samples
        announce(target, copy)

    def change(current: MatrixState | None) -> MatrixState:
        _check_target(target.url, current, wanted, origin, chosen)
        batches: dict[str, MatrixBatch] = {}
        blocks: tuple[ColumnBlock, ...] = ()
        if current is not None and current.values == wanted.values:
            batches = {name: batch for name, batch in current.batches.items() if wanted.batches.get(name) == batch}
            blocks = tuple(block for block in current.column_blocks if block in wanted.column_blocks)
        batches |= whole.batches
        blocks = tuple(block for block in wanted.column_blocks if block in blocks or block in whole.column_blocks)
        changed = replace(
            wanted,
            generation=0 if current is None else current.generation,
            batches=dict(sorted(batches.items(), key=lambda item: item[1].row)),
            column_blocks=blocks,
            origin=origin,
            retention=Retention() if current is None else current.retention,
        )
        return current if current == changed else changed

    return commit(target, HEAD, change)
