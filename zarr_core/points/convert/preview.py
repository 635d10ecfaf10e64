"""What a conversion would do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from zarr_core.points.convert.job import ConversionJob, plan
from zarr_core.points.convert.publish import preview_commit
from zarr_core.points.convert.request import ConversionRequest
from zarr_core.points.convert.sample import ConversionResult
from zarr_core.points.store.head import moved
from zarr_core.points.store.manifest import StoreManifest
from zarr_core.points.store.settings import describe_changes
from zarr_core.sources.sample import SourceSample
from zarr_core.versioning.generations import Change


@dataclass(frozen=True)
class ConversionPreview:
    """What a conversion would do.

    Attributes:
        to_convert: source samples by reason: "new"; "changed" at the source; "stale", because they have other settings;
            "again", because they are up to date or were refused, and the conversion is forced.
        changes: how the settings differ from those that these samples have: "values_dtype: 'float16' -> 'float32'".
        others: results of the selected samples that would not be converted.
        remaining: number of samples that would still be to convert, because of ``limit``.
        retired: ids of the samples that would be retired.
        excess: ids of samples that vanished from the source, if they are too many to be retired.
        manifest: of the store; None if there is no store yet.
        split_changes, notes: as in :class:`zarr_core.points.convert.conversion.ConversionReport`.
    """

    to_convert: Mapping[str, Sequence[SourceSample]]
    changes: str
    others: Sequence[ConversionResult]
    remaining: int
    retired: Sequence[str]
    excess: Sequence[str]
    manifest: StoreManifest | None
    split_changes: Sequence[Change]
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
    former: set[str] = set()
    for sample, _ in planned.todo:
        entry = job.held.samples.get(sample.sample_id) or job.held.quarantine.get(sample.sample_id)
        if entry is None:
            to_convert["new"].append(sample)
        elif entry.fingerprint != sample.fingerprint:
            to_convert["changed"].append(sample)
        elif entry.settings != settings.digest:
            to_convert["stale"].append(sample)
        else:
            to_convert["again"].append(sample)
        if entry is not None and entry.fingerprint and entry.settings != settings.digest:
            former.add(entry.settings)
    changes = describe_changes(job.held, former, settings) if former else ""
    commit = preview_commit(job)
    return ConversionPreview(
        to_convert,
        changes,
        planned.done,
        planned.remaining,
        sorted(commit.retired),
        sorted(commit.excess),
        job.manifest,
        () if job.manifest is None else tuple(moved(job.manifest, commit.manifest)),
        commit.notes,
    )
