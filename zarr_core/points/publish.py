"""Committing what conversions wrote: finished groups and refusals become the next generation of the manifest."""

from __future__ import annotations

import logging
import os
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any

from zarr_core.errors import CollectedError, SourceError
from zarr_core.points.manifest import (
    HEAD,
    ArrayColumn,
    DomainLayout,
    Quarantine,
    SampleEntry,
    StoreManifest,
    load_manifest,
)
from zarr_core.points.settings import ConversionSettings
from zarr_core.points.writer import WrittenSample, ZarrStoreWriter
from zarr_core.sources.sample import SampleSource, SourceSample
from zarr_core.sources.selection import DatasetKind, Selection, open_source, select_samples
from zarr_core.storage import Storage
from zarr_core.versioning.generations import commit

logger = logging.getLogger(__name__)

# Metadata reads in flight while finished groups are looked for: on an object store each is a round trip.
_LOOKUPS = 16


@dataclass(frozen=True)
class PublishReport:
    """What a commit changed.

    Attributes:
        manifest: the state of the store now.
        added, replaced, retired: sample ids.
        quarantined: refusals on record now, by sample id.
        committed: whether there is a new generation; False where nothing had changed.
        collected: sample ids whose new groups garbage collection took before they were named; they are to be converted
            again.
    """

    manifest: StoreManifest
    added: list[str]
    replaced: list[str]
    retired: list[str]
    quarantined: Mapping[str, Quarantine]
    committed: bool
    collected: list[str]


@dataclass
class Results:
    """What conversions came to, by sample id."""

    written: dict[str, WrittenSample] = field(default_factory=dict)
    refused: dict[str, Quarantine] = field(default_factory=dict)


def publish(
    dataset_kind: DatasetKind,
    store_root: str | os.PathLike[str],
    *,
    root: str | os.PathLike[str] | None = None,
    source_url: str | None = None,
    splits: Sequence[str] | None = None,
    dataset_name: str | None = None,
    retire_vanished: bool = False,
    **settings: Any,
) -> PublishReport:
    """Commit every finished group that belongs to the source as it is now, in one generation (none if nothing changed).

    Groups are found by what they were made from, so it does not matter which process or machine wrote them, or whether
    it lived to say so.

    Args:
        dataset_kind, root, source_url, splits, settings: as for :func:`zarr_core.points.convert.convert`.
        store_root: the store.
        dataset_name: name in the manifest; the kind's name where None.
        retire_vanished: drop samples that the source no longer holds (their bytes stay).
    """
    conversion = ConversionSettings(**settings)
    writer = ZarrStoreWriter(store_root, conversion)
    source = open_source(dataset_kind, root=root, source_url=source_url, splits=splits)
    selection = select_samples(source, splits)
    current = load_if_any(writer.storage)
    if current is not None:
        writer = writer.with_retention(current.retention)
    results = _find_finished(writer, selection, current)
    return commit_results(
        writer.storage, selection, conversion, results, dataset_name=dataset_name, retire_vanished=retire_vanished
    )


def load_if_any(storage: Storage) -> StoreManifest | None:
    """The current manifest, None where there is no store yet."""
    return load_manifest(storage) if storage.exists("manifest.json") else None


def commit_results(
    storage: Storage,
    selection: Selection,
    settings: ConversionSettings,
    results: Results,
    *,
    dataset_name: str | None = None,
    retire_vanished: bool = False,
) -> PublishReport:
    """Commit what is known of the selected samples; the split files of the source go along."""
    for name, text in selection.source.split_documents().items():
        storage.write(name, [text.encode()])
    before: StoreManifest | None = None
    retired: list[str] = []

    def change(current: StoreManifest | None) -> StoreManifest:
        nonlocal before, retired, results
        before = current
        results = _without_stale(results, current, selection)
        description = selection.source.description
        start = current or StoreManifest(dataset_name or description.name)
        changed = replace(
            start,
            dataset_name=dataset_name or start.dataset_name,
            shuffle_seed=settings.shuffle_seed,
            values_dtype=settings.values_dtype,
            compressor=settings.codec,
            dataset_kind=description.name,
            splits=dict(start.splits) | selection.splits,
            excluded=selection.excluded,
        )
        retired = [i for i in start.samples if i not in selection.present] if retire_vanished else []
        if retired:  # another converter may have committed what has come since
            there = selection.source.discover(retired)
            retired = [i for i in retired if i not in there]
        changed = _with_results(_without(changed, retired), results)
        return current if current == changed else changed

    collected: list[str] = []
    while True:
        try:
            manifest = commit(storage, HEAD, change)
            break
        except CollectedError as error:
            gone = [i for i, written in results.written.items() if written.entry.relpath in error.names]
            if not gone:
                raise
            results = Results({i: w for i, w in results.written.items() if i not in gone}, results.refused)
            collected += gone
    known = before.samples if before else {}
    return PublishReport(
        manifest,
        added=[i for i in results.written if i not in known and i in manifest.samples],
        replaced=[i for i, w in results.written.items() if i in known and known[i] != w.entry],
        retired=retired,
        quarantined=manifest.quarantine,
        committed=before is None or manifest.generation != before.generation,
        collected=collected,
    )


def _find_finished(writer: ZarrStoreWriter, selection: Selection, current: StoreManifest | None) -> Results:
    """Groups and refusals on record for the selected samples that the manifest does not know yet."""
    digest = writer.settings.digest
    unknown = [
        sample
        for sample in selection.samples.values()
        if not is_current(current.samples.get(sample.sample_id) if current else None, sample.fingerprint, digest)
    ]
    results = Results()
    with ThreadPoolExecutor(_LOOKUPS) as pool:
        found = pool.map(lambda sample: writer.find(sample.sample_id, sample.fingerprint), unknown)
        for sample, outcome in zip(unknown, found, strict=True):
            match outcome:
                case WrittenSample():
                    results.written[sample.sample_id] = outcome
                case Quarantine():
                    results.refused[sample.sample_id] = outcome
    return results


def is_current(entry: SampleEntry | Quarantine | None, fingerprint: str, settings_digest: str) -> bool:
    """Whether what is on record was made from these files with these settings."""
    return entry is not None and (entry.fingerprint, entry.settings) == (fingerprint, settings_digest)


def _without_stale(results: Results, current: StoreManifest | None, selection: Selection) -> Results:
    """The results without those of an earlier state of the source than what somebody else has committed meanwhile.

    Fingerprints do not say which of two is the later one, but the source does: it is the one that it has now. Where it
    has both (two copies of a dataset) or cannot say, the later commit wins.
    """
    stale = set()
    made_from = {sample_id: written.entry.fingerprint for sample_id, written in results.written.items()}
    made_from |= {sample_id: refusal.fingerprint for sample_id, refusal in results.refused.items()}
    for sample_id, fingerprint in made_from.items():
        entry = current.samples.get(sample_id) if current else None
        if entry is None or not entry.fingerprint or entry.fingerprint == fingerprint:
            continue
        sample = selection.samples.get(sample_id)
        if sample is not None and _has_changed(selection.source, sample):
            stale.add(sample_id)
            logger.warning(
                "%s: its source has changed since it was converted, and what is committed (source %s) stays; run again "
                "for the newest (this was of source %s)",
                sample_id,
                entry.fingerprint,
                fingerprint,
            )
        elif sample_id in results.written:
            logger.info("%s: source %s replaces %s", sample_id, fingerprint, entry.fingerprint)
    if not stale:
        return results
    return Results(
        {i: written for i, written in results.written.items() if i not in stale},
        {i: refusal for i, refusal in results.refused.items() if i not in stale},
    )


def _has_changed(source: SampleSource, sample: SourceSample) -> bool:
    try:
        return not source.is_unchanged(sample)
    except (SourceError, OSError) as error:
        logger.warning("%s: its source cannot be asked, so the later commit wins: %s", sample.sample_id, error)
        return False


def _without(manifest: StoreManifest, sample_ids: Collection[str]) -> StoreManifest:
    gone = set(sample_ids)
    return replace(
        manifest,
        samples={i: entry for i, entry in manifest.samples.items() if i not in gone},
        quarantine={i: entry for i, entry in manifest.quarantine.items() if i not in gone},
    )


def _with_results(manifest: StoreManifest, results: Results) -> StoreManifest:
    """The manifest with the results on top. A refused sample keeps the group that an earlier version of it had."""
    samples, quarantine = dict(manifest.samples), dict(manifest.quarantine)
    domains = {name: DomainLayout(layout.position, dict(layout.arrays)) for name, layout in manifest.domains.items()}
    for sample_id, written in sorted(results.written.items()):
        misfit = _misfit(domains, written)
        if misfit:
            entry = written.entry
            quarantine[sample_id] = Quarantine(entry.fingerprint, entry.settings, misfit[0], misfit[1])
            continue
        for domain, layout in written.domains.items():
            arrays = domains[domain].arrays if domain in domains else {}
            domains[domain] = DomainLayout(layout.position, dict(arrays) | dict(layout.arrays))
        samples[sample_id] = written.entry
        quarantine.pop(sample_id, None)
    quarantine |= results.refused
    return replace(manifest, domains=domains, samples=samples, quarantine=quarantine)


def _misfit(domains: Mapping[str, DomainLayout], written: WrittenSample) -> tuple[str, str] | None:
    """The first field whose width differs from what the store has, and the reason to refuse it."""
    for domain, layout in written.domains.items():
        columns: Mapping[str, ArrayColumn] = domains[domain].arrays if domain in domains else {}
        for canonical, column in layout.arrays.items():
            if canonical in columns and columns[canonical].dim != column.dim:
                reason = f"has {column.dim} components per point, the store's samples have {columns[canonical].dim}"
                return canonical, reason
    return None
