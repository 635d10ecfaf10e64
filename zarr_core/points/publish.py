"""Commits conversions: finished groups and refusals become the next generation of the manifest."""

from __future__ import annotations

import logging
import os
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any

from zarr_core.errors import CollectedError, SourceError
from zarr_core.format.object_names import MANIFEST
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
from zarr_core.sources.selection import DatasetKind, Selection, hash_samples, open_source, select_samples
from zarr_core.storage import Storage
from zarr_core.versioning.generations import commit

#: How source files can be identified: by name, size and etag or modification time, or by name, size and SHA-256.
FINGERPRINTS = ("version", "content")

logger = logging.getLogger(__name__)

# Metadata reads in flight during the search for finished groups. On an object store, each is a round trip.
_LOOKUPS = 16


@dataclass(frozen=True)
class PublishReport:
    """Result of a commit.

    Attributes:
        manifest: the store's manifest after the commit.
        added, replaced, retired: sample ids.
        quarantined: all refusals in the manifest, by sample id.
        committed: whether there is a new generation; False if nothing changed.
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
    notes: tuple[str, ...] = ()


@dataclass
class Pending:
    """Written and refused samples to commit, by sample id."""

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
    fingerprint: str | None = None,
    **settings: Any,
) -> PublishReport:
    """Commit every finished group that belongs to the source as it is now, in one generation (none if nothing changed).

    Groups are found by the digest in their name, so it does not matter which process or machine wrote them, or whether
    that process died later.

    Args:
        dataset_kind, root, source_url, splits, fingerprint, settings: as for :func:`zarr_core.points.convert.convert`.
        store_root: the store.
        dataset_name: name in the manifest; the kind's name if None.
        retire_vanished: remove samples from the manifest that the source no longer holds; gc deletes the groups.
    """
    conversion = ConversionSettings(**settings)
    writer = ZarrStoreWriter(store_root, conversion)
    source = open_source(dataset_kind, root=root, source_url=source_url, splits=splits)
    selection = select_samples(source, splits)
    current = load_if_any(writer.storage)
    if current is not None:
        writer = writer.with_retention(current.retention)
    fingerprints = choose_fingerprints(current, fingerprint)
    if fingerprints == "content":
        selection, _ = hash_samples(selection)
    pending = _find_finished(writer, selection, current)
    return commit_results(
        writer.storage,
        selection,
        conversion,
        pending,
        dataset_name=dataset_name,
        retire_vanished=retire_vanished,
        fingerprints=fingerprints,
    )


def load_if_any(storage: Storage) -> StoreManifest | None:
    """The current manifest; None if there is no store yet."""
    return load_manifest(storage) if storage.exists(MANIFEST) else None


def choose_fingerprints(manifest: StoreManifest | None, requested: str | None) -> str:
    """How the samples of a store are identified: the store's way, or for a new store the requested one.

    Raises:
        SourceError: there is no such way, or the store's samples have other fingerprints.
    """
    if requested not in (None, *FINGERPRINTS):
        raise SourceError(f"fingerprint {requested!r} is not one of {', '.join(FINGERPRINTS)}")
    if manifest is None or not (manifest.samples or manifest.quarantine):
        return requested or (manifest.fingerprints if manifest else FINGERPRINTS[0])
    if requested not in (None, manifest.fingerprints):
        raise SourceError(
            f"the store identifies samples by the {manifest.fingerprints} of their files, not by {requested}: leave "
            "fingerprint out, or convert to a new store"
        )
    return manifest.fingerprints


def commit_results(
    storage: Storage,
    selection: Selection,
    settings: ConversionSettings,
    pending: Pending,
    *,
    dataset_name: str | None = None,
    retire_vanished: bool = False,
    fingerprints: str = FINGERPRINTS[0],
) -> PublishReport:
    """Commit results of the selected samples, and write the split files of the source."""
    for name, text in selection.documents.items():
        storage.write(name, [text.encode()])
    before: StoreManifest | None = None
    retired: list[str] = []

    def change(current: StoreManifest | None) -> StoreManifest:
        nonlocal before, retired, pending
        before = current
        pending = _without_stale(pending, current, selection)
        description = selection.source.description
        start = current or StoreManifest(dataset_name or description.name)
        changed = replace(
            start,
            dataset_name=dataset_name or start.dataset_name,
            shuffle_seed=settings.shuffle_seed,
            values_dtype=settings.values_dtype,
            compressor=settings.codec,
            dataset_kind=description.name,
            # A dataset object lists one split only, so the others stay.
            splits=(selection.splits if selection.source.lists_all_splits else dict(start.splits) | selection.splits),
            excluded=selection.excluded,
            fingerprints=start.fingerprints if start.samples or start.quarantine else fingerprints,
        )
        retired = [i for i in start.samples if i not in selection.present] if retire_vanished else []
        if retired:  # another converter may have committed samples that arrived later
            found = selection.source.discover(retired)
            retired = [i for i in retired if i not in found]
        changed = _with_pending(_without(changed, retired), pending)
        return current if current == changed else changed

    collected: list[str] = []
    while True:
        try:
            manifest = commit(storage, HEAD, change)
            break
        except CollectedError as error:
            gone = [i for i, written in pending.written.items() if written.entry.relpath in error.names]
            if not gone:
                raise
            pending = Pending({i: w for i, w in pending.written.items() if i not in gone}, pending.refused)
            collected += gone
    if before is not None and (stale := _stale_documents(storage, before, selection)):
        storage.delete(stale)
    known = before.samples if before else {}
    return PublishReport(
        manifest,
        added=[i for i in pending.written if i not in known and i in manifest.samples],
        replaced=[i for i, w in pending.written.items() if i in known and known[i] != w.entry],
        retired=retired,
        quarantined=manifest.quarantine,
        committed=before is None or manifest.generation != before.generation,
        collected=collected,
        notes=selection.notes,
    )


def _stale_documents(storage: Storage, before: StoreManifest, selection: Selection) -> list[str]:
    """Copies of split files and blacklists that the source no longer has."""
    description = selection.source.description
    copied = [name for split, name in description.split_files.items() if split in before.splits]
    copied += description.blacklists if before.excluded else ()
    return [name for name in copied if name not in selection.documents and storage.exists(name)]


def _find_finished(writer: ZarrStoreWriter, selection: Selection, current: StoreManifest | None) -> Pending:
    """Groups and refusals of the selected samples that the manifest does not have yet."""
    digest = writer.settings.digest
    unknown = [
        sample
        for sample in selection.samples.values()
        if not is_current(current.samples.get(sample.sample_id) if current else None, sample.fingerprint, digest)
    ]
    pending = Pending()
    with ThreadPoolExecutor(_LOOKUPS) as pool:
        found = pool.map(lambda sample: writer.find(sample.sample_id, sample.fingerprint), unknown)
        for sample, result in zip(unknown, found, strict=True):
            match result:
                case WrittenSample():
                    pending.written[sample.sample_id] = result
                case Quarantine():
                    pending.refused[sample.sample_id] = result
    return pending


def is_current(entry: SampleEntry | Quarantine | None, fingerprint: str, settings_digest: str) -> bool:
    """Whether an entry was made from these source files with these settings."""
    return entry is not None and (entry.fingerprint, entry.settings) == (fingerprint, settings_digest)


def _without_stale(pending: Pending, current: StoreManifest | None, selection: Selection) -> Pending:
    """The results, without those of an older state of the source than another converter has committed meanwhile.

    Fingerprints have no order, so the source decides: its current state is the newer one. If the source has both (two
    copies of a dataset) or cannot be read, the later commit wins.
    """
    stale = set()
    made_from = {sample_id: written.entry.fingerprint for sample_id, written in pending.written.items()}
    made_from |= {sample_id: refusal.fingerprint for sample_id, refusal in pending.refused.items()}
    for sample_id, fingerprint in made_from.items():
        entry = current.samples.get(sample_id) if current else None
        if entry is None or not entry.fingerprint or entry.fingerprint == fingerprint:
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
        samples={i: entry for i, entry in manifest.samples.items() if i not in gone},
        quarantine={i: entry for i, entry in manifest.quarantine.items() if i not in gone},
    )


def _with_pending(manifest: StoreManifest, pending: Pending) -> StoreManifest:
    """The manifest with the results added. A refused sample keeps its earlier group, if it has one."""
    samples, quarantine = dict(manifest.samples), dict(manifest.quarantine)
    domains = {name: DomainLayout(layout.position, dict(layout.arrays)) for name, layout in manifest.domains.items()}
    for sample_id, written in sorted(pending.written.items()):
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
    quarantine |= pending.refused
    return replace(manifest, domains=domains, samples=samples, quarantine=quarantine)


def _misfit(domains: Mapping[str, DomainLayout], written: WrittenSample) -> tuple[str, str] | None:
    """The first field whose width differs from that of the store's samples, and the reason to refuse it."""
    for domain, layout in written.domains.items():
        columns: Mapping[str, ArrayColumn] = domains[domain].arrays if domain in domains else {}
        for canonical, column in layout.arrays.items():
            if canonical in columns and columns[canonical].dim != column.dim:
                reason = f"has {column.dim} components per point, the store's samples have {columns[canonical].dim}"
                return canonical, reason
    return None
