"""Commits conversions: finished groups and refusals become the next generation of the manifest."""

from __future__ import annotations

import logging
import os
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any

from zarr_core.errors import CollectedError, RetirementError, SourceError
from zarr_core.points.convert.job import ConversionJob, check_dataset
from zarr_core.points.store.columns import find_misfits, with_recorded_fields
from zarr_core.points.store.head import HEAD
from zarr_core.points.store.manifest import Quarantine, SampleEntry, StoreManifest, columns_of
from zarr_core.points.store.recorded_settings import check_agreement, current_settings, recorded_conversion
from zarr_core.sources.sample import SampleSource, SourceSample
from zarr_core.sources.selection import DatasetKind, Selection, open_source, overlaps, with_current_splits
from zarr_core.storage import Storage
from zarr_core.versioning.generations import commit

logger = logging.getLogger(__name__)

# Share of a store's samples that one commit may retire, unless its caller confirms more.
MAX_RETIRED_SHARE = 0.1
# Metadata reads in flight during the search for finished groups. On an object store, each is a round trip.
_LOOKUPS = 16


@dataclass(frozen=True)
class PublishReport:
    """Result of a commit.

    Attributes:
        manifest: the store's manifest after the commit. Of generation 0 if there is no store, because no sample was
            converted.
        added, replaced, retired: sample ids.
        quarantined: all refusals in the manifest, by sample id.
        committed: whether there is a new generation; False if nothing changed, or if no sample was converted into a
            location without a store.
        misfits: refusals of samples that were converted but do not fit the columns of the store, by sample id.
        collected: sample ids whose new groups were garbage collected before the commit; convert them again.
        notes: sentences that name what the selection left out.
    """

    manifest: StoreManifest
    added: list[str]
    replaced: list[str]
    retired: list[str]
    quarantined: Mapping[str, Quarantine]
    committed: bool
    collected: list[str]
    misfits: Mapping[str, Quarantine]
    notes: tuple[str, ...] = ()


@dataclass
class Pending:
    """Written and refused samples to commit, by sample id."""

    written: dict[str, SampleEntry] = field(default_factory=dict)
    refused: dict[str, Quarantine] = field(default_factory=dict)


class _NoSamplesError(Exception):
    """There is no store, and a commit would create one without samples."""

    def __init__(self, manifest: StoreManifest) -> None:
        self.manifest = manifest


def publish(
    dataset_kind: DatasetKind,
    store_root: str | os.PathLike[str],
    *,
    root: str | os.PathLike[str] | None = None,
    source_url: str | None = None,
    splits: Sequence[str] | None = None,
    dataset_name: str | None = None,
    retire_vanished: bool | Collection[str] = False,
    max_retired_share: float = MAX_RETIRED_SHARE,
    reconvert: bool = False,
    fingerprint: str | None = None,
    **settings: Any,
) -> PublishReport:
    """Commit every finished group that belongs to the source as it is now, in one generation (none if nothing changed).

    No store is created without a sample: as long as all samples were refused, nothing is committed.

    Groups are found by the digest in their name, so it does not matter which process or machine wrote them, or whether
    that process died later.

    Args:
        dataset_kind, root, source_url, splits, reconvert, fingerprint, settings: as for
            :func:`zarr_core.points.convert.conversion.convert`.
        store_root: the store.
        dataset_name: name of the store; the kind's name if None and the store is new.
        retire_vanished: remove samples from the manifest that the source no longer holds, all or only those of a
            collection; gc deletes the groups.
        max_retired_share: maximum share of the store's samples, from 0 to 1, that one commit retires. A single sample
            may be retired in any case, unless the share is 0.

    Raises:
        RetirementError: more samples vanished. None is retired; everything else is committed.
        StoreError: the store is another dataset's, or has other settings.
    """
    job = ConversionJob.open(
        open_source(dataset_kind, root=root, source_url=source_url, splits=splits),
        store_root,
        settings,
        splits=splits,
        dataset_name=dataset_name,
        reconvert=reconvert,
        fingerprint=fingerprint,
    )
    finished = _find_finished(job)
    return commit_results(job, finished, retire_vanished=retire_vanished, max_retired_share=max_retired_share)


def commit_results(
    job: ConversionJob,
    pending: Pending,
    *,
    retire_vanished: bool | Collection[str] = False,
    max_retired_share: float = MAX_RETIRED_SHARE,
    create_empty: bool = False,
) -> PublishReport:
    """Commit results of the selected samples, and the splits and split files that the source has now.

    Args:
        job: the conversion.
        pending: its results.
        retire_vanished, max_retired_share: as for :func:`publish`.
        create_empty: whether a store is created without a sample, to record refusals.

    Raises:
        RetirementError: more samples vanished than may be retired. None is retired; everything else is committed.
        StoreError: the store is another dataset's, another conversion has committed other settings meanwhile, or the
            store was deleted or replaced.
    """
    if not 0 <= max_retired_share <= 1:
        raise SourceError(f"max_retired_share must be from 0 to 1, not {max_retired_share}")
    storage, selection, settings = job.writer.storage, job.selection, job.writer.settings
    before: StoreManifest | None = None
    retired: list[str] = []
    excess: list[str] = []
    misfits: dict[str, Quarantine] = {}
    known_fields: dict[str, SampleEntry] = {}
    # A migration replaces the settings that it has found, not those of another migration that began after it.
    replaceable = [current_settings(job.manifest)] if job.reconvert and job.manifest else []

    def change(current: StoreManifest | None) -> StoreManifest:
        nonlocal before, retired, excess, pending, misfits, selection
        before, excess = current, []
        description = selection.source.description
        check_dataset(storage, current, description.name, job.dataset_name)
        recorded = None if current is None else current_settings(current)
        if current is not None and current.samples and recorded is not None and recorded not in replaceable:
            check_agreement(storage, recorded, settings)
        pending = _without_stale(pending, current, selection)
        start = current or StoreManifest(job.dataset_name or description.name)
        if not start.generation and job.manifest is not None:  # the published format keeps splits in files
            start = replace(start, splits=job.manifest.splits, excluded=job.manifest.excluded)
        selection = _with_current_splits(job, start)
        changed = replace(
            start,
            shuffle_seed=settings.shuffle_seed,
            values_dtype=settings.values_dtype,
            compressor=settings.codec,
            dataset_kind=description.name,
            samples=with_recorded_fields(storage, start, known_fields),
            splits=selection.source.merge_splits(start.splits, selection.splits),
            excluded=selection.excluded if selection.source.lists_all_splits else start.excluded,
            fingerprints=start.fingerprints if start.samples or start.quarantine else job.fingerprints,
        )
        vanished = [i for i in {**start.samples, **start.quarantine} if i not in selection.present]
        if retire_vanished and vanished:  # another converter may have committed samples that arrived later
            found = selection.source.discover(vanished)
            chosen = frozenset(vanished if isinstance(retire_vanished, bool) else retire_vanished)
            vanished = [i for i in vanished if i not in found and i in chosen]
            excess = [i for i in vanished if i in start.samples]
            if len(excess) > (max_retired_share and max(1, max_retired_share * len(start.samples))):
                vanished = []
            else:
                excess = []
            changed = _without(changed, vanished)
        retired = [i for i in start.samples if i not in changed.samples]
        misfits = find_misfits(changed.samples, pending.written)
        changed = _with_pending(changed, pending, misfits)
        changed = replace(changed, conversion=recorded_conversion(changed, settings))
        if current is None and not changed.samples and not create_empty:
            raise _NoSamplesError(changed)
        for name, text in selection.documents.items():
            storage.write(name, [text.encode()])
        return current if current == changed else changed

    collected: list[str] = []
    while True:
        try:
            manifest = commit(storage, HEAD, change, job.manifest)
            break
        except _NoSamplesError as error:
            manifest = error.manifest
            break
        except CollectedError as error:
            gone = [i for i, written in pending.written.items() if written.relpath in error.names]
            if not gone:
                raise
            pending = Pending({i: w for i, w in pending.written.items() if i not in gone}, pending.refused)
            collected += gone
    if before is not None and (stale := _stale_documents(storage, before, selection)):
        storage.delete(stale)
    if excess:
        raise RetirementError(
            f"{len(excess)} of {len(before.samples) if before else 0} samples of {storage.url} are no longer at the "
            f"source ({', '.join(excess[:3])}{', ...' if len(excess) > 3 else ''}): more than max_retired_share="
            f"{max_retired_share:g} allows. None was retired, everything else is committed. If they are gone for good: "
            "--max-retired-share 1 (max_retired_share=1)"
        )
    known = before.samples if before else {}
    return PublishReport(
        manifest,
        added=[i for i in pending.written if i not in known and i not in misfits],
        replaced=[i for i, w in pending.written.items() if i in known and i not in misfits and _differ(known[i], w)],
        retired=retired,
        quarantined=manifest.quarantine,
        committed=manifest.generation != (before.generation if before else 0),
        collected=collected,
        misfits=misfits,
        # Of a dataset object, the splits were merged with those that the store had.
        notes=tuple(dict.fromkeys((*selection.notes, *overlaps(manifest.splits, manifest.excluded)))),
    )


def _with_current_splits(job: ConversionJob, current: StoreManifest) -> Selection:
    """The selection, with the splits of the source as it is now.

    Another converter that listed the source later than this one may have committed samples and splits already.
    """
    listed = {} if job.manifest is None else {**job.manifest.samples, **job.manifest.quarantine}
    arrived = {**current.samples, **current.quarantine}.keys() - listed.keys()
    try:
        return with_current_splits(job.selection, arrived)
    except SourceError as error:
        logger.warning("the splits are committed as they were when the conversion started: %s", error)
        return job.selection


def _stale_documents(storage: Storage, before: StoreManifest, selection: Selection) -> list[str]:
    """Copies of split files and blacklists that the source no longer has."""
    if not selection.source.lists_all_splits:
        return []
    description = selection.source.description
    copied = [name for split, name in description.split_files.items() if split in before.splits]
    copied += description.blacklists if before.excluded else ()
    return [name for name in copied if name not in selection.documents and storage.exists(name)]


def _find_finished(job: ConversionJob) -> Pending:
    """Groups and refusals of the selected samples that the manifest does not have yet."""
    known = job.manifest.samples if job.manifest else {}
    unknown = [s for i, s in job.selection.samples.items() if not job.is_current(known.get(i), s)]
    pending = Pending()
    with ThreadPoolExecutor(_LOOKUPS) as pool:
        found = pool.map(lambda sample: job.writer.find(sample.sample_id, sample.fingerprint), unknown)
        for sample, result in zip(unknown, found, strict=True):
            match result:
                case SampleEntry():
                    pending.written[sample.sample_id] = result
                case Quarantine():
                    pending.refused[sample.sample_id] = result
    return pending


def _without_stale(pending: Pending, current: StoreManifest | None, selection: Selection) -> Pending:
    """The results, without those of an older state of the source than another converter has committed meanwhile.

    Fingerprints have no order, so the source decides: its current state is the newer one. If the source has both (two
    copies of a dataset) or cannot be read, the later commit wins.
    """
    stale = set()
    made_from = {sample_id: written.fingerprint for sample_id, written in pending.written.items()}
    made_from |= {sample_id: refusal.fingerprint for sample_id, refusal in pending.refused.items()}
    for sample_id, fingerprint in made_from.items():
        entry = current.samples.get(sample_id) if current else None
        if entry is None or not entry.is_ours or entry.fingerprint == fingerprint:
            continue
        sample = selection.samples.get(sample_id)
        if sample is not None and _has_changed(selection.source, sample):
            stale.add(sample_id)
            logger.warning(
                "%s: its source changed after this conversion read it (source %s), so the committed sample (source %s) "
                "stays; run again to convert the current source",
                sample_id,
                fingerprint,
                entry.fingerprint,
            )
        elif sample_id in pending.written:
            logger.info("%s: source %s replaces %s", sample_id, fingerprint, entry.fingerprint)
    if not stale:
        return pending
    return Pending(
        {i: written for i, written in pending.written.items() if i not in stale},
        {i: refusal for i, refusal in pending.refused.items() if i not in stale},
    )


def _has_changed(source: SampleSource, sample: SourceSample) -> bool:
    try:
        return not source.is_unchanged(sample)
    except (SourceError, OSError) as error:
        logger.warning("%s: its source cannot be read, so the later commit wins: %s", sample.sample_id, error)
        return False


def _without(manifest: StoreManifest, sample_ids: Collection[str]) -> StoreManifest:
    gone = set(sample_ids)
    return replace(
        manifest,
        retired=manifest.retired | (gone & manifest.samples.keys()),
        samples={i: entry for i, entry in manifest.samples.items() if i not in gone},
        quarantine={i: entry for i, entry in manifest.quarantine.items() if i not in gone},
    )


def _with_pending(manifest: StoreManifest, pending: Pending, misfits: Mapping[str, Quarantine]) -> StoreManifest:
    """The manifest with the results added. A refused sample keeps its earlier group, if it has one."""
    fitting = {i: written for i, written in pending.written.items() if i not in misfits}
    samples = {**manifest.samples, **fitting}
    quarantine = {i: refusal for i, refusal in manifest.quarantine.items() if i not in fitting}
    return replace(
        manifest,
        domains=columns_of(samples),
        samples=samples,
        retired=manifest.retired.difference(samples),
        quarantine=quarantine | dict(misfits) | pending.refused,
    )


def _differ(entry: SampleEntry, written: SampleEntry) -> bool:
    """Whether a committed sample is another one than the written one; fields may not have been recorded yet."""
    return replace(entry, fields=None) != replace(written, fields=None)
