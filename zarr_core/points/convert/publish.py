"""Commits conversions: finished groups and refusals become the next generation of the manifest."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any

from zarr_core.errors import CollectedError, RetirementError, SourceError, StoreError
from zarr_core.points.convert.documents import copy_documents, remove_stale_documents
from zarr_core.points.convert.job import ConversionJob, check_dataset
from zarr_core.points.convert.request import ConversionRequest, of_fields
from zarr_core.points.store.columns import columns_of, find_misfits, with_recorded_fields, without
from zarr_core.points.store.group import METADATA_READS
from zarr_core.points.store.head import HEAD, as_its_own
from zarr_core.points.store.manifest import Quarantine, SampleEntry, StoreManifest
from zarr_core.points.store.settings import check_agreement, current_settings, recorded_conversion
from zarr_core.sources.left_out import counted, some
from zarr_core.sources.sample import FoundSamples, SampleSource, SourceSample
from zarr_core.sources.selection import Selection, overlaps, with_current_splits
from zarr_core.versioning.generations import commit

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class PublishReport:
    """Result of a commit.

    Attributes:
        manifest: the store's manifest after the commit. Of generation 0 if there is no store, because no sample was
            converted.
        added, replaced, retired: sample ids.
        quarantined: all refusals in the manifest, by sample id.
        committed: whether there is a new generation; False if nothing changed, or if there is neither store nor sample.
        misfits: refusals of samples that were converted but do not fit the columns of the store, by sample id.
        collected: sample ids whose new groups were garbage collected before the commit; convert them again.
        notes: sentences that name what the selection left out.
        stale: sample ids whose source changed after it was read, so that what is committed stays; convert them again.
        excess: sample ids that vanished from the source, if they are too many to be retired, so that none of them was.
    """

    manifest: StoreManifest = field(repr=False)
    added: list[str]
    replaced: list[str]
    retired: list[str]
    quarantined: Mapping[str, Quarantine]
    committed: bool
    collected: list[str]
    misfits: Mapping[str, Quarantine]
    notes: tuple[str, ...] = ()
    stale: Collection[str] = ()
    excess: Collection[str] = ()


@dataclass
class Pending:
    """Written and refused samples to commit, by sample id."""

    written: dict[str, SampleEntry] = field(default_factory=dict)
    refused: dict[str, Quarantine] = field(default_factory=dict)

    def without(self, sample_ids: Collection[str]) -> Pending:
        """The results of all other samples."""
        return Pending(without(self.written, sample_ids), without(self.refused, sample_ids))


class _NoSamplesError(Exception):
    """There is no store, and a commit would create one without samples."""


@dataclass(frozen=True)
class _Attempt:
    """What one attempt of a commit makes of ``before``, the state that it found: an empty one if there is no store.

    ``after`` equals it if nothing changes. ``selection`` has the splits that the source has now. ``excess`` are samples
    that vanished from the source, if they are too many to be retired.
    """

    before: StoreManifest
    after: StoreManifest
    selection: Selection
    misfits: Mapping[str, Quarantine]
    excess: Collection[str]
    stale: Collection[str]


def publish_finished(request: ConversionRequest, found: FoundSamples | None = None) -> PublishReport:
    """Commit every finished group that belongs to the source as it is now, in one generation (none if nothing changed).

    No store is created without a sample: as long as all samples were refused, nothing is committed. Groups are found by
    the digest in their name, so it does not matter which process or machine wrote them, or whether that process died
    later.

    Args:
        request: what is published. ``retire_vanished`` is True for all samples that the source no longer has, or names
            some of them.
        found: the whole source, if it was just listed. Samples that vanished are looked for again before they are
            retired, and samples that another converter has committed meanwhile before they are replaced. Those that
            are named to be retired and are at the source again stay.

    Returns:
        Which samples were ``added``, ``replaced`` and ``retired``, whether there is a new generation (``committed``),
        and ``notes`` of what was left out.

    Raises:
        SourceError: the source still has a sample that is named to be retired.
        RetirementError: more samples vanished than may be retired. None is retired; everything else is committed.
        StoreError: the store is another dataset's, or has other settings.
    """
    job = ConversionJob.open(request, found)
    if found is None:
        check_vanished(job)
    report = commit_results(job, _find_finished(job))
    if report.excess:
        raise RetirementError(too_many(job, report))
    return report


_NOT_PUBLISHED = ("sample_ids", "part", "limit", "retry_quarantined", "force", "found")
publish = of_fields("publish", publish_finished, without=_NOT_PUBLISHED)


def check_vanished(job: ConversionJob) -> None:
    """Raise SourceError if the source has a sample that is named to be retired, or the store does not know one."""
    if isinstance(job.request.retire_vanished, bool):
        return
    named = dict.fromkeys(job.request.retire_vanished)
    present = [i for i in named if i in job.selection.present]
    if present:
        raise SourceError(
            f"retire_vanished names samples that {job.selection.source.url} still has ({some(present)}): delete them "
            "there first; or leave them in the store, and out of every split, by a file of `blacklists` in the "
            "description of the source"
        )
    known = {*job.held.samples, *job.held.quarantine, *job.held.retired}
    unknown = [i for i in named if i not in known]
    if unknown:
        raise StoreError(f"{job.writer.storage.url} has no such samples to retire: {some(unknown)}")


def commit_results(job: ConversionJob, pending: Pending, *, retire: bool = True) -> PublishReport:
    """Commit results of the selected samples, and the splits and split files that the source has now.

    Samples that vanished are retired if that was requested, but not in the middle of a conversion (``retire=False``).

    Raises:
        StoreError: the store is another dataset's, another conversion has committed other settings meanwhile, or the
            store was deleted or replaced.
    """
    storage, part = job.writer.storage, job.request.part
    is_shared = part is not None and part.count > 1  # other processes convert other parts
    attempts: list[_Attempt] = []
    collected: list[str] = []

    def change(current: StoreManifest | None) -> StoreManifest:
        attempt = _attempt(job, pending, current, retire)
        attempts.append(attempt)
        if current is None and not attempt.after.samples and not is_shared:
            raise _NoSamplesError
        copy_documents(storage, attempt.selection)
        return attempt.after

    while True:
        try:
            manifest = commit(storage, HEAD, change, job.manifest)
            break
        except _NoSamplesError:
            manifest = attempts[-1].after
            break
        except CollectedError as error:
            gone = [i for i, entry in pending.written.items() if entry.relpath in error.names]
            if not gone:
                raise
            pending = pending.without(gone)
            collected += gone
    last = attempts[-1]
    selections = [attempt.selection for attempt in attempts]
    if remove_stale_documents(storage, last.before, last.after, selections):
        copy_documents(storage, last.selection)  # another converter may have copied one that the source has again
    return _report(job.request, last, manifest, collected)


def preview_commit(job: ConversionJob) -> PublishReport:
    """What a commit would do before any sample is converted. Nothing is written."""
    attempt = _attempt(job, Pending(), job.manifest, retire=True)
    return _report(job.request, attempt, attempt.after, [])


def too_many(job: ConversionJob, report: PublishReport) -> str:
    """Why samples that vanished were not retired, and the way out."""
    held = len(report.manifest.samples) - len(report.added)
    return (
        f"{len(report.excess)} of {held} samples of {job.writer.storage.url} are no longer at the source "
        f"({some(sorted(report.excess))}): more than max_retired_share={job.request.max_retired_share:g} allows. "
        "None was retired, everything else is committed. If they are gone for good: --max-retired-share 1 "
        "(max_retired_share=1)"
    )


def _attempt(job: ConversionJob, pending: Pending, current: StoreManifest | None, retire: bool) -> _Attempt:
    """The next state of a store, made from the current one; None if there is no store."""
    request, storage, settings = job.request, job.writer.storage, job.writer.settings
    description = job.selection.source.description
    before = current or StoreManifest(request.dataset_name or description.name)
    check_dataset(storage, before, description.name, request.dataset_name)
    _check_settings(job, before)
    stale = _stale(pending, before, job)
    pending = pending.without(stale)
    start = as_its_own(before, storage)
    if not start.generation and job.manifest is not None:  # the published format keeps splits in files
        start = replace(start, splits=job.manifest.splits, excluded=job.manifest.excluded)
    selection = _with_current_splits(job, start)
    vanished, excess = _vanished(request, selection, start) if retire else (set(), set())
    samples = with_recorded_fields(storage, start)
    kept = without(samples, vanished)
    if pending.written:  # others may have committed since it was asked before the conversion
        others = without(kept, pending.written)
        selection.source.check_others([entry.fields or () for entry in others.values()])
    misfits = find_misfits(kept, pending.written)
    fitting = without(pending.written, misfits)
    # A refused sample keeps its earlier group, if it has one.
    stored = kept | fitting
    source = selection.source
    taken = source.merge_splits(start.splits, selection.splits)
    splits = _with_others(taken, start.splits, _not_of_source(selection, stored))
    # Whoever described no splits described no blacklists either.
    keeps_excluded = not source.lists_all_splits or (
        not source.description.blacklists and not selection.splits and bool(taken)
    )
    refused = without(start.quarantine, vanished | fitting.keys() | _restored(job, start))
    after = replace(
        start,
        shuffle_seed=settings.shuffle_seed,
        values_dtype=settings.values_dtype,
        compressor=settings.codec,
        dataset_kind=description.name,
        domains=columns_of(stored),
        samples=stored,
        splits=splits,
        excluded=start.excluded if keeps_excluded else selection.excluded,
        quarantine=refused | misfits | pending.refused,
        retired=(start.retired | (vanished & samples.keys())).difference(stored),
        fingerprints=job.fingerprints,
        origin=_origin(job, start, stored),
    )
    after = replace(after, conversion=recorded_conversion(after, settings))
    return _Attempt(before, after, selection, misfits, excess, stale)


def _vanished(request: ConversionRequest, selection: Selection, start: StoreManifest) -> tuple[set[str], set[str]]:
    """The samples to retire, because the source no longer has them; and those that are too many to be retired."""
    known = {*start.samples, *start.quarantine} - selection.present
    if not isinstance(request.retire_vanished, bool):
        known.intersection_update(request.retire_vanished)
    if not known or not request.retire_vanished:
        return set(), set()
    # Another converter may have committed samples that arrived later.
    vanished = known.difference(selection.source.discover(sorted(known)))
    stored = vanished & start.samples.keys()
    share = request.max_retired_share
    most = max(1, share * len(start.samples)) if share else 0
    return (set(), stored) if len(stored) > most else (vanished, set())


def _origin(job: ConversionJob, start: StoreManifest, stored: Mapping[str, SampleEntry]) -> Mapping[str, Any]:
    """The origin of a copy, without the points that it was reduced to if all its samples have been converted again."""
    if "points" in start.origin and all(job.is_converted(sample_id, entry) for sample_id, entry in stored.items()):
        whole = {key: start.origin[key] for key in start.origin if key != "points"}
        return as_its_own(replace(start, origin=whole), job.writer.storage).origin
    return start.origin


def _restored(job: ConversionJob, current: StoreManifest) -> set[str]:
    """Refused samples whose source is again as it was when the store's sample was converted.

    The source was listed after the job found the refusal, so it is the newer state.
    """
    restored = set()
    for sample_id, refusal in current.quarantine.items():
        sample = job.selection.samples.get(sample_id)
        if sample is None or refusal != job.held.quarantine.get(sample_id) or refusal.fingerprint == sample.fingerprint:
            continue
        if job.is_current(current.samples.get(sample_id), sample):
            restored.add(sample_id)
    return restored


def _not_of_source(selection: Selection, stored: Collection[str]) -> set[str]:
    """The samples of a store that the source neither has nor lists, such as those of ``write_sample``."""
    return set(stored).difference(selection.present, selection.excluded, *selection.splits.values())


def _with_others(
    splits: Mapping[str, list[str]], known: Mapping[str, list[str]], others: Collection[str]
) -> dict[str, list[str]]:
    """The splits that a store takes over from its source; the samples of others stay in the known ones."""
    merged = {split: list(ids) for split, ids in splits.items()}
    for split, ids in known.items():
        kept = [i for i in ids if i in others]
        listed = merged.get(split, [])
        if listed == [i for i in ids if i not in others]:
            merged[split] = ids  # the source changed nothing: the order stays, too
        elif kept:
            merged[split] = list(dict.fromkeys([*listed, *kept]))
    return merged


def _check_settings(job: ConversionJob, current: StoreManifest) -> None:
    """Raise StoreError if another conversion has committed other settings since the job was opened."""
    if current.fingerprints != job.fingerprints and (current.samples or current.quarantine):
        raise StoreError(
            f"{job.writer.storage.url}: another conversion has made this store meanwhile, which identifies samples by "
            f"the {current.fingerprints} of their files, not by {job.fingerprints}: run again without fingerprint"
        )
    recorded = current_settings(current)
    if not current.samples or recorded is None:
        return
    # A migration replaces the settings that it has found, not those of another migration that began after it.
    replaced = current_settings(job.manifest) if job.request.reconvert else None
    if recorded != replaced:
        check_agreement(job.writer.storage, recorded, job.writer.settings)


def _report(
    request: ConversionRequest, attempt: _Attempt, manifest: StoreManifest, collected: list[str]
) -> PublishReport:
    """What a commit has changed."""
    known, stored = attempt.before.samples, manifest.samples
    selection = attempt.selection
    notes = [*selection.notes, *overlaps(manifest.splits, manifest.excluded)]
    lists_all = selection.source.lists_all_splits
    if lists_all:
        notes += _of_others(manifest, _not_of_source(selection, stored))
    if selection.is_whole and not request.retire_vanished:
        absent = sorted(stored.keys() - selection.present - selection.excluded)
        notes += counted("samples of the store that the source does not have, which --retire-vanished removes", absent)
    if lists_all and manifest.splits and not selection.splits and selection.source.description.splits is None:
        notes.append(
            f"the source lists no splits, so those of the store stay ({', '.join(manifest.splits)}); with "
            "`splits: {rule: folders, folders: {}}` in its description, they are removed"
        )
    notes += _behind(manifest, selection)
    added = list(without(stored, known))
    replaced = [i for i, entry in known.items() if i in stored and entry.differs(stored[i])]
    if manifest.origin and (added or replaced):
        notes.append(
            f"this store is a copy of {manifest.origin.get('store')}, and staging it again removes what it has not: "
            f"convert into that store ({some([*added, *replaced])})"
        )
    if "points" in manifest.origin:
        points = f"only {manifest.origin['points']} of the samples that were up to date"
        notes.append(f"this store is a thin copy, and has {points}; --force converts them whole")
    return PublishReport(
        manifest,
        added=added,
        replaced=replaced,
        retired=list(without(known, stored)),
        quarantined=manifest.quarantine,
        committed=manifest.generation != attempt.before.generation,
        collected=collected,
        misfits=attempt.misfits,
        # Of a dataset object, the splits were merged with those that the store had.
        notes=tuple(dict.fromkeys(notes)),
        stale=attempt.stale,
        excess=attempt.excess,
    )


def _behind(manifest: StoreManifest, selection: Selection) -> list[str]:
    """Sentences that name the samples of the source that no conversion brings to what others of the store are."""
    current = manifest.conversion.current if manifest.conversion else ""
    incomplete = []
    for sample_id, sample in selection.samples.items():
        entry = manifest.samples.get(sample_id)
        if sample.missing and entry is not None and entry.fingerprint == sample.fingerprint:
            incomplete.append(f"{sample_id} ({some(sample.missing)})")
    excluded = []
    for sample_id in sorted(selection.excluded & manifest.samples.keys()):
        if manifest.samples[sample_id].settings not in ("", current):
            excluded.append(sample_id)
    return [
        *counted("samples that stay without files that the description requires by now", incomplete),
        *counted("samples on a blacklist that keep their former settings until they are taken off it", excluded),
    ]


def _of_others(manifest: StoreManifest, others: Collection[str]) -> list[str]:
    """Sentences that name what the samples that are not of the source keep, their splits and other settings."""
    kept = []
    for split, ids in manifest.splits.items():
        kept += [f"{i} ({split})" for i in ids if i in others]
    current = manifest.conversion.current if manifest.conversion else ""
    stale = [i for i in manifest.samples if i in others and manifest.samples[i].settings != current]
    settings = "samples that are not of this source and keep other settings, until write_sample writes them again"
    return counted("samples that are not of this source and keep their splits", kept) + counted(settings, stale)


def _with_current_splits(job: ConversionJob, current: StoreManifest) -> Selection:
    """The selection, with the splits of the source as it is now.

    Another converter that listed the source later than this one may have committed samples and splits already.
    """
    arrived = {*current.samples, *current.quarantine} - {*job.held.samples, *job.held.quarantine}
    try:
        return with_current_splits(job.selection, arrived)
    except SourceError as error:
        logger.warning("the splits are committed as they were when the conversion started: %s", error)
        return job.selection


def _find_finished(job: ConversionJob) -> Pending:
    """Groups and refusals of the selected samples that the manifest does not have yet."""
    unknown = []
    for sample_id, sample in job.selection.samples.items():
        if not job.is_current(job.held.samples.get(sample_id), sample) and not job.content_of(sample):
            unknown.append(sample)
    pending = Pending()
    with ThreadPoolExecutor(METADATA_READS) as pool:
        found = pool.map(lambda sample: job.writer.find(sample.sample_id, sample.fingerprint), unknown)
        for sample, result in zip(unknown, found, strict=True):
            if isinstance(result, SampleEntry):
                pending.written[sample.sample_id] = result
            elif isinstance(result, Quarantine):
                pending.refused[sample.sample_id] = result
    return pending


def _stale(pending: Pending, current: StoreManifest, job: ConversionJob) -> list[str]:
    """The samples whose results are of an older state of the source than what is committed, or was retired.

    Fingerprints have no order, so the source decides: its current state is the newer one. If the source has both (two
    copies of a dataset) or cannot be read, the later commit wins.
    """
    stale: list[str] = []
    results: dict[str, SampleEntry | Quarantine] = {**pending.written, **pending.refused}
    for sample_id, result in results.items():
        other: SampleEntry | Quarantine | None = current.samples.get(sample_id)
        refusal = current.quarantine.get(sample_id)
        if refusal != job.held.quarantine.get(sample_id):
            other = refusal or other  # it came after the job was opened
        if other is None and not _is_retired(sample_id, current, job):
            continue
        if other is not None and other.fingerprint in ("", result.fingerprint):
            continue
        sample = job.selection.samples.get(sample_id)
        if sample is not None and _has_changed(job.selection.source, sample, may_be_gone=other is None):
            stale.append(sample_id)
            stays = "it stays retired" if other is None else f"what is committed (source {other.fingerprint}) stays"
            logger.warning(
                "%s: its source changed after this conversion read it (source %s), so %s; run again to convert the "
                "current source",
                sample_id,
                result.fingerprint,
                stays,
            )
        elif other is not None and sample_id in pending.written:
            logger.info("%s: source %s replaces %s", sample_id, result.fingerprint, other.fingerprint)
    return stale


def _is_retired(sample_id: str, current: StoreManifest, job: ConversionJob) -> bool:
    """Whether another conversion has retired a sample, or its refusal, since the job was opened."""
    if sample_id in current.samples or sample_id in current.quarantine:
        return False
    was_held = sample_id in job.held.samples or sample_id in job.held.quarantine
    return was_held or sample_id in current.retired - job.held.retired


def _has_changed(source: SampleSource, sample: SourceSample, may_be_gone: bool) -> bool:
    try:
        if may_be_gone and sample.sample_id not in source.discover([sample.sample_id]):
            return True
        return not source.is_unchanged(sample)
    except (SourceError, OSError) as error:
        logger.warning("%s: its source cannot be read, so the later commit wins: %s", sample.sample_id, error)
        return False
