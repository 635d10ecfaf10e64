"""Converts a whole dataset to a store.

A run lists the source, skips samples that the store already has, converts the rest in worker processes, and commits the
results. If it is interrupted, the next run continues from there.
"""

from __future__ import annotations

import logging
import os
import time
from collections import defaultdict
from collections.abc import Collection, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import dataclass
from functools import partial
from typing import Any

from tqdm import tqdm

from zarr_core._util.arguments import whole_number
from zarr_core._util.budget import Budget
from zarr_core._util.processes import (
    EXECUTOR_IN_FLIGHT,
    WorkerDiedError,
    WorkerPool,
    calls_in_flight,
    each_result,
    map_in_processes,
)
from zarr_core._util.time_limit import TimeLimitError, sample_seconds
from zarr_core._util.units import format_size
from zarr_core.errors import SourceError, StoreError
from zarr_core.format.object_names import ZARR_JSON, sample_folder
from zarr_core.points.convert.job import ConversionJob
from zarr_core.points.convert.plan import Task, plan
from zarr_core.points.convert.publish import MAX_RETIRED_SHARE, Pending, PublishReport, commit_results
from zarr_core.points.convert.sample import ConversionResult, Status, convert_sample, failure, quarantined
from zarr_core.points.store.columns import expected_columns, misfit
from zarr_core.points.store.manifest import StoreManifest
from zarr_core.sources.left_out import notes_by_reason, some
from zarr_core.sources.parts import Part
from zarr_core.sources.sample import SourceSample
from zarr_core.sources.selection import DatasetKind, open_source
from zarr_core.storage import is_local
from zarr_core.versioning.generations import Retention

logger = logging.getLogger(__name__)

# Seconds between commits of a long conversion, so that readers can use its samples before it ends.
_COMMIT_SECONDS = 60.0
# Samples from a network that this process converts at a time, and how large their files may be together. A larger
# sample is converted alone.
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
    """

    results: list[ConversionResult]
    manifest: StoreManifest
    seconds: float
    retired: list[str]
    notes: tuple[str, ...] = ()
    remaining: int = 0

    def having(self, status: Status) -> list[ConversionResult]:
        """The results with a status."""
        return [result for result in self.results if result.status == status]

    @property
    def ok(self) -> bool:
        """Whether the store now has every selected sample (with ``limit``: every one up to the limit)."""
        return all(result.status in ("converted", "up to date") for result in self.results)


def convert(
    dataset_kind: DatasetKind,
    store_root: str | os.PathLike[str],
    *,
    root: str | os.PathLike[str] | None = None,
    source_url: str | None = None,
    splits: Sequence[str] | None = None,
    sample_ids: Collection[str] | None = None,
    part: Part | None = None,
    limit: int | None = None,
    dataset_name: str | None = None,
    retry_quarantined: bool = False,
    force: bool = False,
    retire_vanished: bool = False,
    max_retired_share: float = MAX_RETIRED_SHARE,
    reconvert: bool = False,
    fingerprint: str | None = None,
    workers: int = 1,
    executor: Executor | None = None,
    progress: bool = False,
    **settings: Any,
) -> ConversionReport:
    """Convert and commit the samples that are new or changed.

    Dataset name, kind and settings are part of the store: a later conversion takes from the store what is not given. If
    there is no store yet and every sample is refused, nothing is committed and the location stays empty; but a part
    commits its refusals in any case.

    Args:
        dataset_kind: short name ("ahmedml"), dotted path, YAML file, description, class or dataset object.
        store_root: the store, a local path or fsspec URL.
        root: local folder of the dataset, converted by split.
        source_url: fsspec location of the dataset, found by listing and streamed without a local copy.
        splits: splits to convert; None: everything that is there.
        sample_ids: only these.
        part: only the samples of this part. Processes that convert one part each, at the same time or not, make the
            store that one process would make; each commits its own samples.
        limit: convert at most this many of the samples that are missing or changed.
        dataset_name: name of the store; the kind's name if None and the store is new.
        retry_quarantined: convert refused samples again, even if their source and the settings are unchanged.
        force: convert all selected samples again, even if they are up to date. Damaged and missing objects of their
            groups are repaired, in every generation that names them. A sample whose source has other content under the
            same sizes and times gets a new group, and earlier generations keep the old one.
        retire_vanished: remove samples from the manifest that the source no longer holds. Excludes ``splits``, because
            the whole source has to be listed. The groups stay as long as a kept generation names them.
        max_retired_share: maximum share of the store's samples, from 0 to 1, that are retired at once. A single sample
            may be retired in any case, unless the share is 0. If more vanished, RetirementError is raised after
            everything else is committed.
        reconvert: use the given settings even if the store has others, and convert all samples again: a migration. It
            first commits the new settings, so that every later conversion, which takes them from the store, continues
            what this one did not finish. Readers see each sample's earlier group until its new one is committed.
        fingerprint: how to notice changed samples. "version" compares names, sizes, and etags or modification times of
            the files. "content" compares the SHA-256 of each file, which copies of the data share; every file is read
            once more at each conversion. None: as the store does; "version" for a new store.
        workers: processes; 1 converts in this process, several small samples at a time if the source is on a network.
            The stored bytes are the same. Any error of a sample, also that
            its worker process was killed for memory, is its own result and does not stop the others. So is that it took
            more than ``ZARR_CORE_SAMPLE_SECONDS`` (six hours if the environment does not set it). In this process a
            sample that kills it ends the run, and one in C code that keeps Python's lock is not interrupted.
        executor: runs the conversions instead of ``workers`` processes; it is not shut down. With ``workers > 1``, it
            has ``2 * workers + 2`` samples at a time, otherwise up to 1,024.
        progress: show a progress bar.
        **settings: ``chunk_points``, ``shard_points``, ``values_dtype``, ``field_dtypes``, ``codec`` and
            ``shuffle_seed``, as in :class:`zarr_core.points.store.settings.ConversionSettings`.

    Raises:
        SourceError: the source cannot be used, or holds nothing to convert; a setting is invalid.
        StoreError: the store cannot be used, or holds another dataset, or was converted with other settings; samples
            converted before are committed.
    """
    if retire_vanished and splits is not None:
        raise SourceError("retire_vanished needs the whole source to be listed; do not give splits")
    workers = whole_number("workers", workers, 1, error=SourceError)
    if limit is not None:
        limit = whole_number("limit", limit, 1, error=SourceError)
    started = committed_at = time.monotonic()
    job = ConversionJob.open(
        open_source(dataset_kind, root=root, source_url=source_url, splits=splits),
        store_root,
        settings,
        splits=splits,
        sample_ids=sample_ids,
        dataset_name=dataset_name,
        reconvert=reconvert,
        fingerprint=fingerprint,
    )
    finished, todo = plan(job, retry_quarantined, force, part)
    remaining = 0 if limit is None else max(len(todo) - limit, 0)
    todo = todo[:limit]
    pending = Pending()

    def save(*, retire: bool = False) -> PublishReport:
        nonlocal pending
        # Commit each result once only: later, other converters may have replaced it.
        saved, pending = pending, Pending()
        report = commit_results(
            job,
            saved,
            retire_vanished=retire,
            max_retired_share=max_retired_share,
            create_empty=part is not None and part.count > 1,  # other parts may convert samples
        )
        if not report.manifest.generation:
            pending = saved  # all refused so far: they are recorded as soon as a sample is converted
        for at, result in enumerate(finished):
            if result.sample_id in report.misfits:
                finished[at] = quarantined(result.sample_id, report.misfits[result.sample_id], result.seconds)
            if result.sample_id in report.collected:
                reason = "its group was garbage collected before the commit; run again"
                finished[at] = ConversionResult(result.sample_id, "failed", reason=reason)
        return report

    if reconvert and job.manifest is not None:
        save()  # The new settings: whatever ends this run, every later conversion continues it.
    with closing(convert_samples(job, todo, retry_quarantined, workers, executor)) as running:
        try:
            for result in _with_progress(running, len(todo)) if progress else running:
                finished.append(result)
                if result.written is not None:
                    pending.written[result.sample_id] = result.written
                if result.quarantine is not None:
                    pending.refused[result.sample_id] = result.quarantine
                if time.monotonic() - committed_at > _COMMIT_SECONDS:
                    save()
                    committed_at = time.monotonic()
        except BaseException:
            # Commit the converted samples even if the run is interrupted.
            if pending.written or pending.refused:
                save()
            raise
    report = save(retire=retire_vanished)
    if job.manifest is None and not report.manifest.generation:
        _remove_refused(job, pending)
    seconds = time.monotonic() - started
    of_samples = notes_by_reason({r.sample_id: r.notes for r in finished if r.status == "converted"})
    notes = (*report.notes, *_replaced_contents(job, finished), *of_samples)
    return ConversionReport(finished, report.manifest, seconds, report.retired, notes, remaining)


def _replaced_contents(job: ConversionJob, results: Iterable[ConversionResult]) -> list[str]:
    """A sentence that names the samples whose source was replaced under the same version, if there are any."""
    before = job.manifest.samples if job.manifest else {}
    written = {result.sample_id: result.written for result in results if result.written}
    replaced = [
        i for i, entry in written.items() if entry.content and i in before and before[i].version != entry.version
    ]
    if not replaced:
        return []
    return [
        f"samples whose files have other content under the same sizes and times ({len(replaced)}): {some(replaced)}; "
        "earlier generations keep what they were converted from"
    ]


def _remove_refused(job: ConversionJob, pending: Pending) -> None:
    """Remove everything that refused samples left in a location without a store, where no garbage is collected."""
    storage, samples = job.writer.storage, job.selection.samples
    paths = [job.writer.relpath(sample_id, samples[sample_id].fingerprint) for sample_id in pending.refused]
    storage.delete([name for path in paths for name in storage.list(path)])


def iter_convert(
    dataset_kind: DatasetKind,
    store_root: str | os.PathLike[str],
    *,
    root: str | os.PathLike[str] | None = None,
    source_url: str | None = None,
    splits: Sequence[str] | None = None,
    sample_ids: Collection[str] | None = None,
    dataset_name: str | None = None,
    retry_quarantined: bool = False,
    force: bool = False,
    reconvert: bool = False,
    fingerprint: str | None = None,
    workers: int = 1,
    executor: Executor | None = None,
    **settings: Any,
) -> Iterator[ConversionResult]:
    """Convert the samples that are new or changed, and yield each result when it is done.

    :func:`zarr_core.points.convert.publish.publish` commits. It finds groups by the versions of their source files, so
    samples whose files have other content under the same version are committed here, at the end. Arguments are those of
    :func:`convert`.
    """
    workers = whole_number("workers", workers, 1, error=SourceError)
    job = ConversionJob.open(
        open_source(dataset_kind, root=root, source_url=source_url, splits=splits),
        store_root,
        settings,
        splits=splits,
        sample_ids=sample_ids,
        dataset_name=dataset_name,
        reconvert=reconvert,
        fingerprint=fingerprint,
    )
    for note in job.selection.notes:
        logger.warning("%s", note)
    done, todo = plan(job, retry_quarantined, force)
    yield from done
    expected = expected_columns(job.manifest, {sample.sample_id: sample for sample, _ in todo})
    replaced: list[ConversionResult] = []
    try:
        for result in convert_samples(job, todo, retry_quarantined, workers, executor):
            refusal = None if result.written is None else misfit(result.written, expected)
            if result.written is not None and result.written.content and refusal is None:
                replaced.append(result)
            yield result if refusal is None else quarantined(result.sample_id, refusal, result.seconds)
    finally:
        if replaced:
            commit_results(job, Pending({result.sample_id: result.written for result in replaced if result.written}))
            for note in _replaced_contents(job, replaced):
                logger.warning("%s", note)


def convert_samples(
    job: ConversionJob,
    tasks: Sequence[Task],
    retry_quarantined: bool = False,
    workers: int = 1,
    executor: Executor | None = None,
) -> Generator[ConversionResult, None, None]:
    """Convert samples in this process, in worker processes or on an executor; yields each result when it is done."""
    source, writer, seconds = job.selection.source, job.writer, sample_seconds()
    if executor is None and (workers == 1 or len(tasks) < 2):
        if len(tasks) > 1 and not is_local(source.url):
            yield from _convert_overlapping(job, tasks, retry_quarantined, seconds)
            return
        for sample, repair in tasks:
            yield convert_sample(writer, source, sample, retry_quarantined, repair, seconds)
        return

    # Every call carries its writer, so the writer carries only its sample's tombstones.
    tombstones: dict[str, dict[str, int]] = defaultdict(dict)
    for path, since in writer.retention.tombstones.items():
        tombstones[path.rpartition("/")[0]][path] = since

    def call(sample: SourceSample, repair: str | None) -> tuple[str, partial[ConversionResult]]:
        mine = tombstones.get(sample_folder(sample.sample_id), {})
        own = writer.with_retention(Retention({}, mine, writer.retention.collections))
        return sample.sample_id, partial(convert_sample, own, source, sample, retry_quarantined, repair, seconds)

    with ExitStack() as cleanup:
        executor = executor or cleanup.enter_context(WorkerPool(workers))
        if isinstance(executor, WorkerPool):
            workers = executor.workers
        in_flight = calls_in_flight(workers) if isinstance(executor, WorkerPool) or workers > 1 else EXECUTOR_IN_FLIGHT
        for sample_id, result in each_result(executor, (call(*task) for task in tasks), in_flight):
            if isinstance(result, WorkerDiedError) and result.seconds > result.deaths * seconds:
                # It ended itself, because its code could not be interrupted; or it waited for a worker of the cluster.
                result = TimeLimitError(seconds, str(result) if result.last else "")
            yield failure(sample_id, result) if isinstance(result, Exception) else _shared(job, result)


def _shared(job: ConversionJob, result: ConversionResult) -> ConversionResult:
    """The result of a worker; a failure if its group is not in the store as this process sees it."""
    if result.written is not None:
        try:
            job.writer.storage.check_shared(f"{result.written.relpath}/{ZARR_JSON}")
        except StoreError as error:
            return failure(result.sample_id, error)
    return result


def _convert_overlapping(
    job: ConversionJob, tasks: Sequence[Task], retry_quarantined: bool, seconds: float
) -> Generator[ConversionResult, None, None]:
    """Convert samples in threads of this process, so that some wait for the network while others are encoded."""
    budget = Budget(_OVERLAPPING_BYTES)

    def convert_one(task: Task) -> ConversionResult:
        sample, repair = task
        with budget.taking(sample.n_bytes):
            return convert_sample(job.writer, job.selection.source, sample, retry_quarantined, repair, seconds)

    with ThreadPoolExecutor(_OVERLAPPING, thread_name_prefix="zarr_core.convert") as threads:
        yield from map_in_processes(
            convert_one, tasks, 1, lambda task, error: failure(task[0].sample_id, error), threads
        )


def _with_progress(results: Iterable[ConversionResult], total: int) -> Iterator[ConversionResult]:
    """Yield the results and show a progress bar: samples, samples/s, time left, bytes read and written."""
    read = written = 0
    with tqdm(total=total, unit="sample", dynamic_ncols=True) as bar:
        for result in results:
            read, written = read + result.bytes_read, written + result.bytes_written
            bar.set_postfix_str(f"{format_size(read)} read, {format_size(written)} written", refresh=False)
            bar.update()
            yield result
