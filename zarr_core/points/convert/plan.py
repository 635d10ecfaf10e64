"""What a conversion does with each sample of its source."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from zarr_core.points.convert.job import ConversionJob
from zarr_core.points.convert.publish import vanished_samples
from zarr_core.points.convert.request import ConversionRequest
from zarr_core.points.convert.sample import ConversionResult, quarantined
from zarr_core.points.convert.writer import Repair
from zarr_core.points.store.manifest import SampleEntry, StoreManifest
from zarr_core.points.store.settings import describe_changes
from zarr_core.sources.formats import require_libraries
from zarr_core.sources.parts import Part
from zarr_core.sources.sample import SourceSample

#: A sample to convert, and the group that it is compared with; None: a new group.
Task = tuple[SourceSample, Repair | None]


@dataclass(frozen=True)
class Plan:
    """Results of the samples that need no conversion; the samples to convert now; how many ``limit`` leaves to do."""

    done: list[ConversionResult]
    todo: list[Task]
    remaining: int


def plan(job: ConversionJob) -> Plan:
    """What a conversion does with the selected samples.

    Raises:
        SourceError: there are samples to convert, and a library that reads their files is not installed.
    """
    part = job.request.part or Part(0, 1)
    done = [ConversionResult(i, "failed", reason=why) for i, why in job.unreadable.items() if part.has(i)]
    todo: list[Task] = []
    for sample_id, sample in job.selection.samples.items():
        if part.has(sample_id):
            step = _step(job, sample)
            if isinstance(step, ConversionResult):
                done.append(step)
            else:
                todo.append(step)
    if todo:  # a missing library is one error, not one per sample
        fields = job.selection.source.description.fields.values()
        require_libraries([file.filename for file in fields if file.choice is not None])
    limit = len(todo) if job.request.limit is None else job.request.limit
    return Plan(done, todo[:limit], max(len(todo) - limit, 0))


def _step(job: ConversionJob, sample: SourceSample) -> ConversionResult | Task:
    """The result of a sample that needs no conversion, or the sample with the group that it is compared with."""
    request, sample_id = job.request, sample.sample_id
    entry, refusal = job.samples.get(sample_id), job.refused.get(sample_id)
    is_current = job.is_current(entry, sample)
    if refusal is not None and not job.is_current(refusal, sample):
        refusal = None
    # It has both if it was refused after its files had changed under the same version.
    retried = is_current and refusal is not None and request.retry_quarantined
    if request.force or retried:
        return sample, Repair(entry.relpath, entry.head) if entry is not None and is_current else Repair()
    if is_current and refusal is None:
        return ConversionResult(sample_id, "up to date")
    if refusal is None or request.retry_quarantined:
        return sample, None
    # A sample that was converted, but did not fit the columns of the store, may fit them now.
    if not is_current and isinstance(job.writer.find(sample_id, sample.fingerprint), SampleEntry):
        return sample, None
    return quarantined(sample_id, refusal)


@dataclass(frozen=True)
class ConversionPreview:
    """What a conversion would do.

    Attributes:
        to_convert: source samples by reason: "new"; "changed" at the source; "stale", because they have other settings;
            "again", because they are up to date or were refused, and the conversion is forced.
        changes: how the settings differ from those of the stale samples: "values_dtype: 'float16' -> 'float32'".
        others: results of the selected samples that would not be converted.
        remaining: number of samples that would still be to convert, because of ``limit``.
        retired: ids of the samples that would be retired.
        excess: ids of samples that vanished from the source, if they are too many to be retired.
        manifest: of the store; None if there is no store yet.
        notes: as in :class:`zarr_core.points.convert.conversion.ConversionReport`.
    """

    to_convert: Mapping[str, Sequence[SourceSample]]
    changes: str
    others: Sequence[ConversionResult]
    remaining: int
    retired: Sequence[str]
    excess: Sequence[str]
    manifest: StoreManifest | None
    notes: tuple[str, ...]


def preview(request: ConversionRequest) -> ConversionPreview:
    """What a conversion of this request would do. Nothing is written.

    Raises:
        SourceError, StoreError: as :func:`zarr_core.points.convert.conversion.convert`.
    """
    job = ConversionJob.open(request)
    planned = plan(job)
    settings = job.writer.settings
    to_convert: dict[str, list[SourceSample]] = {"new": [], "changed": [], "stale": [], "again": []}
    stale: set[str] = set()
    for sample, _ in planned.todo:
        entry = job.samples.get(sample.sample_id) or job.refused.get(sample.sample_id)
        if entry is None:
            to_convert["new"].append(sample)
        elif entry.fingerprint != sample.fingerprint:
            to_convert["changed"].append(sample)
        elif entry.settings != settings.digest:
            to_convert["stale"].append(sample)
            stale.add(entry.settings)
        else:
            to_convert["again"].append(sample)
    changes = describe_changes(job.manifest, stale, settings) if job.manifest and stale else ""
    retired, excess = vanished_samples(request, job.selection, job.manifest) if job.manifest else (set(), set())
    return ConversionPreview(
        to_convert,
        changes,
        planned.done,
        planned.remaining,
        sorted(retired),
        sorted(excess),
        job.manifest,
        job.selection.notes,
    )
