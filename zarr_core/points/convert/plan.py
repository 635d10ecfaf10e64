"""What a conversion does with each sample of its source."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from zarr_core.points.convert.job import ConversionJob
from zarr_core.points.convert.sample import ConversionResult, quarantined
from zarr_core.points.store.manifest import Quarantine, SampleEntry, StoreManifest
from zarr_core.points.store.recorded_settings import describe_changes
from zarr_core.sources.formats import require_libraries
from zarr_core.sources.parts import Part
from zarr_core.sources.sample import SourceSample
from zarr_core.sources.selection import DatasetKind, open_source

#: A sample to convert, and the path of the group that it is compared with ("": that of its name; None: a new group).
Task = tuple[SourceSample, str | None]


def plan(
    job: ConversionJob, retry_quarantined: bool, force: bool, part: Part | None = None
) -> tuple[list[ConversionResult], list[Task]]:
    """Results of samples that need no conversion, and the samples to convert.

    Raises:
        SourceError: there are samples to convert, and a library that reads their files is not installed.
    """
    entries = job.manifest.samples if job.manifest else {}
    refusals = job.manifest.quarantine if job.manifest else {}
    part = part or Part(0, 1)
    unreadable = {sample_id: reason for sample_id, reason in job.unreadable.items() if part.has(sample_id)}
    done = [ConversionResult(sample_id, "failed", reason=reason) for sample_id, reason in unreadable.items()]
    todo: list[Task] = []
    for sample_id, sample in job.selection.samples.items():
        if not part.has(sample_id):
            continue
        entry, refusal = entries.get(sample_id), refusals.get(sample_id)
        current = job.is_current(entry, sample)
        if not job.is_current(refusal, sample):
            refusal = None
        # Both, if the sample was refused after its files had changed under the same version.
        if force or (current and refusal and retry_quarantined):
            todo.append((sample, entry.relpath if entry and current else ""))
        elif current and refusal is None:
            done.append(ConversionResult(sample_id, "up to date"))
        elif (
            refusal
            and not retry_quarantined
            # A sample that was converted, but did not fit the columns of the store, may fit them now.
            and (current or not isinstance(job.writer.find(sample_id, sample.fingerprint), SampleEntry))
        ):
            done.append(quarantined(sample_id, refusal))
        else:
            todo.append((sample, None))
    if todo:  # a missing library is one error, not one per sample
        fields = job.selection.source.description.fields.values()
        require_libraries([file.filename for file in fields if file.choice is not None])
    return done, todo


@dataclass(frozen=True)
class ConversionPreview:
    """What a conversion would do.

    Attributes:
        to_convert: source samples by reason: "new"; "changed" at the source; "stale", because they have other settings;
            "again", because they are up to date or were refused, and the conversion is forced.
        changes: how the settings differ from those of the stale samples: "values_dtype: 'float16' -> 'float32'".
        others: results of the selected samples that would not be converted.
        remaining: number of samples that would still be to convert, because of ``limit``.
        manifest: of the store; None if there is no store yet.
        notes: as in :class:`zarr_core.points.convert.conversion.ConversionReport`.
    """

    to_convert: Mapping[str, Sequence[SourceSample]]
    changes: str
    others: Sequence[ConversionResult]
    remaining: int
    manifest: StoreManifest | None
    notes: tuple[str, ...]


def preview(
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
    reconvert: bool = False,
    fingerprint: str | None = None,
    **settings: Any,
) -> ConversionPreview:
    """What :func:`zarr_core.points.convert.conversion.convert` would do with the same arguments. Nothing is written.

    Raises:
        SourceError, StoreError: as :func:`zarr_core.points.convert.conversion.convert`.
    """
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
    others, todo = plan(job, retry_quarantined, force, part)
    entries: dict[str, SampleEntry | Quarantine] = {}
    if job.manifest is not None:
        entries = {**job.manifest.quarantine, **job.manifest.samples}
    digest = job.writer.settings.digest
    to_convert: dict[str, list[SourceSample]] = {"new": [], "changed": [], "stale": [], "again": []}
    for sample, _ in todo[:limit]:
        entry = entries.get(sample.sample_id)
        if entry is None:
            to_convert["new"].append(sample)
        elif entry.fingerprint != sample.fingerprint:
            to_convert["changed"].append(sample)
        else:
            to_convert["stale" if entry.settings != digest else "again"].append(sample)
    stale = {entries[sample.sample_id].settings for sample in to_convert["stale"]}
    changes = describe_changes(job.manifest, stale, job.writer.settings) if job.manifest and stale else ""
    remaining = 0 if limit is None else max(len(todo) - limit, 0)
    return ConversionPreview(to_convert, changes, others, remaining, job.manifest, job.selection.notes)
