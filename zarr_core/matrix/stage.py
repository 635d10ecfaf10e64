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
from collections.abc import Collection, Mapping, Sequence
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
from zarr_core.matrix.store.batch_names import among, outside
from zarr_core.matrix.store.claims import announce
from zarr_core.matrix.store.head import HEAD, named
from zarr_core.matrix.store.state import Axis, ColumnBlock, MatrixBatch, MatrixState, MetadataTable, Origin, in_order
from zarr_core.storage import Storage
from zarr_core.storage.checked import StoredShard, is_intact
from zarr_core.versioning.gc import TOMBSTONE_SECONDS
from zarr_core.versioning.generations import commit, load, load_same

#: Holds the id of the matrix whose shards the target of a copy has, before the copy has a head.
COPY_OF = "claims/copy_of"

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
    started = time.monotonic()
    source, target = Storage(source_root), Storage(target_root)
    if target.is_at(source.identity):
        raise StoreError(f"{source.url} cannot be staged onto itself")
    wanted = _with_values(source.url, load(source, HEAD, generation), values)
    chosen = _batches_of(source.url, wanted, sample_ids)
    copy = _MatrixCopy(source, target, wanted, chosen, _part(wanted, chosen))
    tasks = copy.prepare(check)
    report = MatrixStageReport(copy.part, tuple(chosen))
    problems: dict[str, str] = {}
    results = map_in_processes(partial(_stage_shard, source, target), tasks, workers, _not_staged, executor)
    with tqdm(total=len(tasks), unit="shard", desc="stage", dynamic_ncols=True, disable=not progress) as bar:
        for result in results:
            if result.problem:
                problems[result.name] = f"{result.name}: {result.problem}"
            elif executor is not None:
                target.check_shared(result.name)
            report.shards.append(result)
            bar.set_postfix_str(f"{format_size(report.copied)} copied", refresh=False)
            bar.update()
    report.failed = _failed_batches(copy.part, problems)
    if chosen and len(report.failed) == len(chosen):
        first = next(iter(problems.values()))
        raise StoreError(f"none of {len(chosen)} batches could be copied; the first problem: {first}")
    report.state = copy.commit(report.failed, problems)
    report.seconds = time.monotonic() - started
    return report


@dataclass(frozen=True)
class _MatrixCopy:
    """What is copied from where to where.

    Attributes:
        wanted: the generation of the source, with the requested value tables.
        chosen: the requested batches.
        part: the state of a copy that holds these alone.
    """

    source: Storage
    target: Storage
    wanted: MatrixState
    chosen: Sequence[str]
    part: MatrixState

    def prepare(self, check: bool) -> list[_ShardTask]:
        """Check the target, copy the small objects to it, and return the shards to copy."""
        known: set[str] = set()
        if self.target.exists(HEAD.name):
            current = load(self.target, HEAD)
            self._check_target(current)
            known.update(named(current))
            self._check_not_collected(current.retention.tombstones, known)
        self._claim_target(has_head=bool(known))
        self._copy_small()
        tasks = []
        for copy in (self.part.row_copy, self.part.column_copy):
            for name, layout in copy.shards():
                tasks.append(_ShardTask(name, layout.flat, name in known and not check))
        return tasks

    def _claim_target(self, has_head: bool) -> None:
        """Record whose shards the target holds: their names and checksums may be right for another matrix, too.

        Raises:
            StoreError: it holds those of another matrix, or of an unknown one.
        """
        url = self.target.url
        if not has_head and not self.target.exists(COPY_OF):
            for root in HEAD.roots(self.wanted):
                found = next(iter(self.target.objects(root)), None)
                if found is not None:
                    raise StoreError(f"{url} is not a copy, but holds {found.name}; use an empty target")
        matrix_id = self.wanted.matrix_id.encode()
        if not self.target.create(COPY_OF, matrix_id) and self.target.read(COPY_OF) != matrix_id:
            raise StoreError(f"{url}: a copy of another matrix was begun here; use an empty target")

    def _check_target(self, current: MatrixState) -> None:
        """Raise StoreError if the target holds something else than a copy of this matrix with these value tables."""
        url, wanted, origin = self.target.url, self.wanted, current.origin
        if origin is None or current.matrix_id != wanted.matrix_id or not self.source.is_at(origin.store):
            raise StoreError(f"{url} holds a matrix that is not a copy of {self.source.identity}; use an empty target")
        others = current.batches.keys() - set(self.chosen)
        if others and current.values.keys() != wanted.values.keys():
            raise StoreError(
                f"{url} holds {len(others)} more batches, with the value tables {', '.join(current.values)}; all "
                "batches of a matrix have the same: request these, or choose another target"
            )

    def _check_not_collected(self, tombstones: Mapping[str, int], known: Collection[str]) -> None:
        """Raise StoreError if garbage collection of the copy has tombstoned objects that this commit must name."""
        pending = sorted(set(named(self.part)).difference(known) & tombstones.keys())
        if pending:
            over = time.gmtime(max(tombstones[name] for name in pending) + TOMBSTONE_SECONDS)
            raise StoreError(
                f"{self.target.url}: {pending[0]} and {len(pending) - 1} more objects are pending deletion since the "
                "last garbage collection of this copy. Choose another target, or run "
                f"`{shell('gc', self.target.url)}` after {time.strftime('%Y-%m-%d %H:%M', over)} UTC, and stage again"
            )

    def _copy_small(self) -> None:
        """Copy the names of the features and the metadata, unless they are there."""
        objects: list[Axis | MetadataTable] = [self.wanted.axis, *self.wanted.metadata.values()]
        for recorded in objects:
            name = recorded.path
            if self.target.exists(name) and hashlib.sha256(self.target.read(name)).hexdigest() == recorded.sha256:
                continue
            data = self.source.read(name)
            if hashlib.sha256(data).hexdigest() != recorded.sha256:
                raise CorruptChunkError(f"{self.source.url}/{name} is not what was committed")
            self.target.write(name, [data])

    def commit(self, failed: Collection[str], problems: Collection[str]) -> MatrixState:
        """Commit the batches that were copied, beside those of earlier calls that are unchanged in the source."""
        whole = _part(self.wanted, set(self.chosen) - set(failed), problems)
        load_same(self.source, HEAD, self.wanted)  # what was copied is of this matrix, if it is still there
        for copy in (whole.row_copy, whole.column_copy):  # the head names the arrays of both, also without samples
            announce(self.target, copy)

        def change(current: MatrixState | None) -> MatrixState:
            batches, blocks = dict(whole.batches), list(whole.column_blocks)
            if current is not None:
                self._check_target(current)
                if current.values == self.wanted.values:
                    for name, batch in current.batches.items():
                        if self.wanted.batches.get(name) == batch:
                            batches[name] = batch
                    blocks.extend(current.column_blocks)
            return replace(
                self.wanted,
                batches=in_order(batches),
                column_blocks=tuple(block for block in self.wanted.column_blocks if block in blocks),
                origin=Origin(self.source.identity, self.wanted.generation),
            )

        return commit(self.target, HEAD, change)


def _with_values(url: str, state: MatrixState, values: Sequence[str] | None) -> MatrixState:
    """The state with some of its value tables."""
    if values is None:
        return state
    for value in outside(values, state.values):
        raise UnknownFieldError(f"{url} has no value table {value!r}; it has {', '.join(state.values)}")
    kept = {value: state.values[value] for value in among(state.values, set(values))}

    def sizes(part: MatrixBatch | ColumnBlock) -> dict[str, int]:
        return {value: part.bytes[value] for value in kept}

    batches = {name: replace(batch, bytes=sizes(batch)) for name, batch in state.batches.items()}
    blocks = tuple(replace(block, bytes=sizes(block)) for block in state.column_blocks)
    return replace(state, values=kept, batches=batches, column_blocks=blocks)


def _batches_of(url: str, state: MatrixState, sample_ids: Collection[str] | None) -> list[str]:
    """The batches that hold some samples."""
    if sample_ids is None:
        return list(state.batches)
    for sample_id in outside(sample_ids, state.rows):
        raise UnknownFieldError(f"{url}, generation {state.generation}: no sample {sample_id!r}")
    chosen = {state.batch_of[sample_id] for sample_id in sample_ids}
    if not chosen:
        raise ZarrCoreError(f"{url}: no sample is selected")
    return among(state.batches, chosen)


def _part(state: MatrixState, batches: Collection[str], problems: Collection[str] = ()) -> MatrixState:
    """The state with some of its batches, and those blocks of the column-major copy that hold no other batches.

    A block with a shard among ``problems`` is left out.
    """
    blocks = []
    for block, samples in zip(state.column_blocks, state.column_copy.blocks, strict=True):
        shards = dict(state.column_copy.shards([samples]))
        if set(batches).issuperset(block.batches) and shards.keys().isdisjoint(problems):
            blocks.append(block)
    kept = {name: batch for name, batch in state.batches.items() if name in batches}
    return replace(state, batches=kept, column_blocks=tuple(blocks))


def _failed_batches(state: MatrixState, problems: Mapping[str, str]) -> dict[str, str]:
    """Batches with a damaged row-major shard, each with the last problem."""
    failed = {}
    for name, block in zip(state.batches, state.row_copy.blocks, strict=True):
        for shard, _ in state.row_copy.shards([block]):
            if shard in problems:
                failed[name] = problems[shard]
    return failed


def _stage_shard(source: Storage, target: Storage, task: _ShardTask) -> StagedShard:
    """Copy one shard; what it raises becomes its result in :func:`_not_staged`."""
    size = source.size(task.name)
    found = target.find(task.name)
    is_there = found is not None and found.size == size
    if is_there and (task.trusted or is_intact(target, task.name, task.layout, sparse=True)):
        return StagedShard(task.name, kept=size)
    shard = StoredShard(source, task.name, task.layout, size=size, sparse=True)
    return StagedShard(task.name, copied=target.write(task.name, shard.pieces()))


def _not_staged(task: _ShardTask, error: Exception) -> StagedShard:
    """The result of a shard that raised; raises where no other shard can be copied either."""
    if isinstance(error, OSError) and error.errno in _FATAL:
        raise StoreError(f"the target cannot be written: {error}") from error
    if isinstance(error, FileNotFoundError):
        return StagedShard(task.name, problem="committed but missing")
    if isinstance(error, CorruptChunkError | TransferError):
        return StagedShard(task.name, problem=str(error))
    if isinstance(error, ZarrCoreError):
        raise error
    return StagedShard(task.name, problem=f"{type(error).__name__}: {error}")
