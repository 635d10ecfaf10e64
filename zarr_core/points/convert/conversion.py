"""Converts a whole dataset to a store.

A run lists the source, skips samples that the store already has, converts the rest in worker processes, and commits the
results. If it is interrupted, the next run continues from there.
"""

from __future__ import annotations

import logging
import time
from collections import defaultdict
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import dataclass, field, replace
from functools import partial

from tqdm import tqdm

from zarr_core._util.arguments import whole_number
from zarr_core._util.processes import (
    EXECUTOR_IN_FLIGHT,
    TimeLimitError,
    WorkerDiedError,
    WorkerPool,
    calls_in_flight,
    each_result,
    sample_seconds,
)
from zarr_core._util.units import format_size
from zarr_core.errors import CommitConflict, RetirementError, SourceError, StoreError
from zarr_core.format.object_names import ZARR_JSON, sample_folder, spelled_alike
from zarr_core.format.packed import SUFFIX
from zarr_core.points.convert.job import ConversionJob, Task, plan
from zarr_core.points.convert.publish import Pending, PublishReport, check_vanished, commit_results, too_many
from zarr_core.points.convert.request import ConversionRequest, of_fields
from zarr_core.points.convert.sample import ConversionResult, Status, convert_sample, failure, quarantined
from zarr_core.points.convert.writer import GroupWriter
from zarr_core.points.store.columns import expected_columns, misfit
from zarr_core.points.store.head import moved
from zarr_core.points.store.manifest import SampleEntry, StoreManifest
from zarr_core.sources.left_out import counted, notes_by_reason
from zarr_core.sources.sample import FoundSamples
from zarr_core.sources.selection import with_all_present
from zarr_core.storage import is_local
from zarr_core.versioning.generations import Change, Retention

logger = logging.getLogger(__name__)

# Seconds between commits of a long conversion, so that readers can use its samples before it ends.
_COMMIT_SECONDS = 60.0
# Samples that this process converts at a time if the source or the store is on a network, and how large their files
# may be together.
_OVERLAPPING = 4
_OVERLAPPING_BYTES = 512 << 20


@dataclass(frozen=True)
class ConversionReport:
    """Result of a conversion.

    Attributes:
        results: one per selected sample.
        manifest: the store's manifest after the last commit; of generation 0 if there is no store, because every sample
            was refused.
        seconds: duration.
        retired: samples removed from the manifest because the source no longer holds them, if requested.
        notes: sentences that name what the source has and the conversion left out: folders, files, listed ids, cells;
            and what is odd in the converted samples.
        remaining: number of samples that are still to be converted, because of ``limit``.
        split_changes: samples that the store had and that are now in other splits, and splits in another order.
    """

    results: list[ConversionResult]
    manifest: StoreManifest = field(repr=False)
    seconds: float
    retired: list[str]
    notes: tuple[str, ...] = ()
    remaining: int = 0
    split_changes: Sequence[Change] = ()

    def having(self, status: Status) -> list[ConversionResult]:
        """The results with a status."""
        return [result for result in self.results if result.status == status]

    @property
    def ok(self) -> bool:
        """Whether the store now has every selected sample (with ``limit``: every one up to the limit)."""
        return all(result.status in ("converted", "up to date") for result in self.results)


def run_conversion(
    request: ConversionRequest, *, workers: int = 1, executor: Executor | None = None, progress: bool = False
) -> ConversionReport:
    """Convert and commit the samples that are new or changed.

    If there is no store yet and every sample is refused, nothing is committed and the location stays empty; but a part
    commits its refusals in any case.

    Args:
        request: what to convert.
        workers: processes; 1 converts in this process, several small samples at a time if the source is on a network.
            The stored bytes are the same. An error of a sample, also that its worker process was killed for memory or
            that it took more than ``ZARR_CORE_SAMPLE_SECONDS`` (six hours if the environment does not set it), is its
            own result and does not stop the others. In this process a sample that kills it ends the run, and one in C
            code that keeps Python's lock is not interrupted.
        executor: runs the conversions instead of ``workers`` processes; it is not shut down. With ``workers > 1``, it
            has ``2 * workers + 2`` samples at a time, otherwise up to 1,024.
        progress: show a progress bar.

    Raises:
        SourceError: the source cannot be used, or holds nothing to convert; a setting is invalid.
        RetirementError: more samples vanished than may be retired. None is retired; everything else is committed.
        StoreError: the store cannot be used, or holds another dataset, or was converted with other settings; samples
            converted before are committed.
    """
    if request.retire_vanished and request.splits is not None:
        raise SourceError("retire_vanished needs the whole source to be listed; do not give splits")
    workers = whole_number("workers", workers, 1, error=SourceError)
    started = time.monotonic()
    job = ConversionJob.open(request)
    check_vanished(job)
    planned = plan(job)
    run = _Run(job, planned.done)
    if request.reconvert and job.manifest is not None:
        run.commit()  # The new settings: whatever ends this run, every later conversion continues it.
    with closing(convert_samples(job, planned.todo, workers, executor)) as running:
        try:
            for result in _with_progress(running, len(planned.todo)) if progress else running:
                run.add(result)
                if time.monotonic() - run.committed_at > _COMMIT_SECONDS:
                    run.commit_so_far()
        except BaseException:
            # Commit the converted samples even if the run is interrupted.
            if run.pending.written or run.pending.refused:
                run.commit()
            raise
    report = run.commit(retire=True)
    if job.manifest is None and not report.manifest.generation:
        _remove_refused(job, run.pending)
    seconds = time.monotonic() - started
    of_samples = notes_by_reason({r.sample_id: r.notes for r in run.results if r.status == "converted"})
    written = {r.sample_id: r.written for r in run.results if r.written is not None}
    notes = (*report.notes, *_replaced_contents(job, written), *of_samples)
    split_changes = () if job.manifest is None else tuple(moved(job.manifest, report.manifest))
    done = ConversionReport(
        run.results, report.manifest, seconds, report.retired, notes, planned.remaining, split_changes
    )
    if report.excess:
        raise RetirementError(too_many(job, report), done)
    return done


convert = of_fields("convert", run_conversion)


class _Run:
    """A conversion that runs: its results, and those that are not committed yet."""

    def __init__(self, job: ConversionJob, results: list[ConversionResult]) -> None:
        self.results = results
        self.pending = Pending()
        self.committed_at = time.monotonic()
        self._job = job

    def add(self, result: ConversionResult) -> None:
        """Take the result of a sample."""
        self.results.append(result)
        if result.written is not None:
            self.pending.written[result.sample_id] = result.written
        if result.quarantine is not None:
            self.pending.refused[result.sample_id] = result.quarantine

    def commit_so_far(self) -> None:
        """Commit what is pending, or leave it to the next commit if other writers kept coming first."""
        try:
            self.commit()
        except CommitConflict as error:
            logger.warning("%s; the samples converted so far wait for the next commit", error)
            self.committed_at = time.monotonic()

    def commit(self, *, retire: bool = False) -> PublishReport:
        """Commit what is pending. Results of samples that were not committed are replaced by the reason."""
        # Commit each result once only: later, other converters may have replaced it.
        saved, self.pending = self.pending, Pending()
        try:
            report = commit_results(self._job, saved, retire=retire)
        except CommitConflict:
            self.pending = saved
            raise
        self.committed_at = time.monotonic()
        if not report.manifest.generation:
            self.pending = saved  # all refused so far: they are recorded as soon as a sample is converted
        for at, result in enumerate(self.results):
            if result.sample_id in report.misfits:
                self.results[at] = quarantined(result.sample_id, report.misfits[result.sample_id], result.seconds)
            reason = ""
            if result.sample_id in report.collected:
                reason = "its group was garbage collected before the commit; run again"
            elif result.sample_id in report.stale:
                reason = "its source changed after it was read, so what is committed stays; run again"
            if reason:
                self.results[at] = ConversionResult(result.sample_id, "failed", reason=reason)
        return report


def _replaced_contents(job: ConversionJob, written: Mapping[str, SampleEntry]) -> list[str]:
    """A sentence that names the samples whose source was replaced under the same version, if there are any."""
    replaced = []
    for sample_id, new in written.items():
        old = job.held.samples.get(sample_id)
        if old is None or not new.content or new.version == old.version:
            continue
        if not old.content or old.settings == new.settings:  # otherwise a migration of a sample that was named before
            replaced.append(sample_id)
    reason = "samples whose files have other content under the same sizes and times, or whose record was damaged"
    return [f"{sentence}; earlier generations keep what they have" for sentence in counted(reason, replaced)]


def _remove_refused(job: ConversionJob, pending: Pending) -> None:
    """Remove everything that refused samples left in a location without a store, where no garbage is collected."""
    storage, samples = job.writer.storage, job.selection.samples
    left: list[str] = []
    for sample_id in pending.refused:
        relpath = job.writer.relpath(sample_id, samples[sample_id].fingerprint)
        left.extend(storage.list(relpath.removesuffix(SUFFIX)))
    storage.delete(left)


def convert_each(
    request: ConversionRequest,
    *,
    found: FoundSamples | None = None,
    workers: int = 1,
    executor: Executor | None = None,
) -> Iterator[ConversionResult]:
    """Convert the samples that are new or changed, and yield each result when it is done.

    :func:`zarr_core.points.convert.publish.publish` commits. It finds groups by the versions of their source files, so
    samples whose files have other content under the same version are committed here, at the end.

    Args:
        request: what to convert.
        found: the requested samples, if they were just listed.
        workers: as for :func:`convert`.
        executor: as for :func:`convert`.
    """
    workers = whole_number("workers", workers, 1, error=SourceError)
    job = ConversionJob.open(request, found)
    for note in job.selection.notes:
        logger.warning("%s", note)
    planned = plan(job)
    yield from planned.done
    expected = expected_columns(job.held, {sample.sample_id for sample, _ in planned.todo})
    pending = Pending()
    try:
        for result in convert_samples(job, planned.todo, workers, executor):
            entry = result.written
            refusal = None if entry is None else misfit(entry, expected)
            if refusal is not None:
                yield quarantined(result.sample_id, refusal, result.seconds)
                continue
            if entry is not None and entry.content:
                pending.written[result.sample_id] = entry
            yield result
    finally:
        if pending.written:
            # A commit takes over the splits of all samples.
            job = replace(job, selection=with_all_present(job.selection))
            commit_results(job, pending, retire=False)
            for note in _replaced_contents(job, pending.written):
                logger.warning("%s", note)


_NOT_ITERATED = ("part", "limit", "retire_vanished", "max_retired_share", "found")
iter_convert = of_fields("iter_convert", convert_each, without=_NOT_ITERATED)


def convert_samples(
    job: ConversionJob, tasks: Sequence[Task], workers: int = 1, executor: Executor | None = None
) -> Generator[ConversionResult, None, None]:
    """Convert samples in this process, in worker processes or on an executor; yields each result when it is done."""
    storage, seconds = job.writer.storage, sample_seconds()
    if executor is None and (workers == 1 or len(tasks) < 2):
        yield from _convert_here(job, tasks, seconds)
        return
    with ExitStack() as cleanup:
        executor = executor or cleanup.enter_context(WorkerPool(workers))
        # Processes of a pool have the disks and the settings of this one, and only memory of their own.
        is_shared = isinstance(executor, WorkerPool) and not storage.root.startswith("memory:")
        in_flight = EXECUTOR_IN_FLIGHT
        if isinstance(executor, WorkerPool):
            in_flight = calls_in_flight(executor.workers)
        elif workers > 1:
            in_flight = calls_in_flight(workers)
        for sample_id, result in each_result(executor, _calls(job, tasks, seconds), in_flight):
            if isinstance(result, WorkerDiedError) and result.seconds > result.deaths * seconds:
                # It ended itself, because its code could not be interrupted; or it waited for a worker of the cluster.
                result = TimeLimitError(seconds, str(result) if result.last else "")
            if isinstance(result, ConversionResult) and result.written is not None and not is_shared:
                try:  # whether the group is in the store as this process sees it
                    storage.check_shared(f"{result.written.relpath}/{ZARR_JSON}")
                except StoreError as error:
                    result = error
            yield failure(sample_id, result) if isinstance(result, Exception) else result


def _calls(
    job: ConversionJob, tasks: Sequence[Task], seconds: float
) -> Iterator[tuple[str, partial[ConversionResult]]]:
    """Id of each sample, and the call that converts it in a worker, with a writer that has only its tombstones."""
    source, writer, again = job.selection.source, job.writer, job.request.retry_quarantined
    tombstones: dict[str, dict[str, int]] = defaultdict(dict)
    for path, since in writer.retention.tombstones.items():
        tombstones[spelled_alike(path.rpartition("/")[0])][path] = since
    for sample, repair in tasks:
        mine = tombstones.get(spelled_alike(sample_folder(sample.sample_id)), {})
        own = GroupWriter(writer.storage.root, writer.settings, Retention({}, mine, writer.retention.collections))
        yield sample.sample_id, partial(convert_sample, own, source, sample, again, repair, seconds)


def _convert_here(job: ConversionJob, tasks: Sequence[Task], seconds: float) -> Iterator[ConversionResult]:
    """Convert samples in this process; in threads, some wait for a network while others are encoded."""
    source, writer = job.selection.source, job.writer
    # As many at a time as the largest of them would let it.
    largest = max((sample.n_bytes for sample, _ in tasks), default=0)
    together = min(len(tasks), _OVERLAPPING, _OVERLAPPING_BYTES // max(largest, 1))
    if is_local(source.url) and writer.storage.is_local:
        together = 1

    def convert_one(task: Task) -> ConversionResult:
        sample, repair = task
        return convert_sample(writer, source, sample, job.request.retry_quarantined, repair, seconds)

    if together <= 1:
        yield from map(convert_one, tasks)
        return
    with ThreadPoolExecutor(together, thread_name_prefix="zarr_core.convert") as threads:
        yield from threads.map(convert_one, tasks)


def _with_progress(results: Iterable[ConversionResult], total: int) -> Iterator[ConversionResult]:
    """Yield the results and show a progress bar: samples, samples/s, time left, bytes read and written."""
    read = written = 0
    with tqdm(total=total, unit="sample", dynamic_ncols=True) as bar:
        for result in results:
            read, written = read + result.bytes_read, written + result.bytes_written
            bar.set_postfix_str(f"{format_size(read)} read, {format_size(written)} written", refresh=False)
            bar.update()
            yield result
