"""Whether the samples of a dataset have the settings of their store, and the store those of its declaration.

Declared settings that differ from those of the store are pending: every sample, new ones too, is converted with the
settings of the store. The job ``<name>_migrate`` commits the declared settings to the store, and so begins a migration.
Which samples are still to be converted then follows from the store and from Dagster's records of the samples, whoever
began the migration and whatever was killed meanwhile.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Protocol

import dagster as dg
from zarr_core.platform.resources.stores import StoreAccess
from zarr_core.platform.sensors.dagster_internals.partitions import cancelled_partitions
from zarr_core.platform.sensors.deadline import within_the_tick
from zarr_core.platform.sensors.observations import KnownItems, WatchedSource

from zarr_core._util.units import format_size
from zarr_core.points.store.manifest import SampleEntry, StoreManifest
from zarr_core.points.store.settings import ConversionSettings, current_settings, describe_changes
from zarr_core.sources.left_out import some
from zarr_core.sources.listing import Listing

CHECK = "settings"


class MigratingDataset(WatchedSource, Protocol):
    """What this module needs to know of a declared dataset."""

    store: str

    @property
    def shown_store(self) -> str:
        """The store's URL without secrets."""

    @property
    def settings(self) -> ConversionSettings:
        """The declared settings."""

    @property
    def migration_job(self) -> str:
        """The job that begins a migration to the declared settings."""

    def code_version_of(self, settings_digest: str) -> str:
        """Code version of samples that were converted with these settings."""


def data_version_of(entry: SampleEntry) -> str:
    """Data version of a converted sample: the digest of its settings, and that of its group."""
    return f"{entry.settings}/{group_name(entry.relpath)}"


def group_name(path: str) -> str:
    """The last part of the path of a group, or of a data version: the digest that names the group."""
    return path.rpartition("/")[2]


def manifest_within_the_tick(dataset: MigratingDataset) -> StoreManifest | None:
    """The samples of a store now, for a sensor; raises Failure if the store does not answer in time."""
    what = f"reading the manifest of {dataset.shown_store}"
    return within_the_tick(what, lambda: StoreAccess().manifest_if_any(dataset.store))


def samples_to_migrate(instance: dg.DagsterInstance, dataset: MigratingDataset) -> list[str]:
    """Samples that a migration under way has still to convert, in the order of the partitions."""
    manifest = manifest_within_the_tick(dataset)
    held = settings_now(dataset, manifest)
    return [] if held is None else _without(held, _settings_of_samples(KnownItems(instance, dataset), manifest))


def check_settings(
    known: KnownItems, dataset: MigratingDataset, manifest: StoreManifest | None, listing: Listing
) -> dg.AssetCheckEvaluation:
    """Compare the settings of the samples with those of the store, and these with the declared ones.

    Args:
        known: what Dagster has recorded of the samples.
        dataset: of the samples.
        manifest: of its store.
        listing: of its source, for the sizes of the samples.
    """
    found = _settings_of_samples(known, manifest)
    held = settings_now(dataset, manifest)
    stale = _without(dataset.settings, found)
    left = [] if held is None else _without(held, found)
    sentences = []
    if held and manifest and left:
        changes = describe_changes(manifest, _digests(manifest, left), held)
        sentences.append(
            f"migration under way ({changes}): {len(found) - len(left):,} of {len(found):,} samples converted, "
            f"{_amount(left, listing)} left"
        )
        refused = [i for i in left if i in manifest.quarantine and manifest.quarantine[i].settings == held.digest]
        if refused:
            sentences.append(f"Refused, and kept as they were: {some(refused)}")
        cancelled = cancelled_partitions(known.instance, dataset.converted, [dataset.observed]).intersection(left)
        if cancelled:
            sentences.append(
                f"Paused, because conversions were cancelled; to go on, materialize {some(sorted(cancelled))}"
            )
    if manifest and stale and held != dataset.settings:
        changes = describe_changes(manifest, [held.digest] if held else _digests(manifest, stale), dataset.settings)
        sentences.append(
            f"declared, but not applied: {changes}; {_amount(stale, listing)} of {len(found):,} are stale. New samples "
            "are converted with the settings of the store. To convert all samples with the declared settings, run the "
            f"job {dataset.migration_job}; to drop the change, declare the settings of the store"
        )
    # Samples that vanished from the source have no partition, and stay in the store until they are retired.
    total = len(manifest.samples.keys() | found.keys()) if manifest else len(found)
    same = f"{total:,} samples have the settings of the store, which are the declared ones"
    return dg.AssetCheckEvaluation(
        asset_key=dataset.published,
        check_name=CHECK,
        passed=not sentences,
        severity=dg.AssetCheckSeverity.WARN,
        description=". ".join(sentences) or same,
        metadata={
            "samples": total,
            "stale": len(stale),
            "source_bytes_of_stale": _source_bytes(stale, listing),
        },
    )


def settings_now(dataset: MigratingDataset, manifest: StoreManifest | None) -> ConversionSettings | None:
    """The settings that samples are converted with now; None if a store of an earlier version does not record them."""
    return dataset.settings if manifest is None or not manifest.samples else current_settings(manifest)


def _settings_of_samples(known: KnownItems, manifest: StoreManifest | None) -> dict[str, set[str]]:
    """Digests of the settings of each registered and converted sample: as Dagster recorded them, and in the store.

    They differ as long as a converted sample waits for its publication.
    """
    entries = manifest.samples if manifest else {}
    found = {}
    for sample_id in known.registered:
        digests = set()
        if sample_id in known.converted:
            digests.add(known.converted[sample_id].rpartition("/")[0])
        if sample_id in entries:
            digests.add(entries[sample_id].settings)
        if digests:
            found[sample_id] = digests
    return found


def _without(settings: ConversionSettings, found: Mapping[str, Collection[str]]) -> list[str]:
    """Samples that have these settings neither in the store nor in Dagster's record."""
    return [sample_id for sample_id, digests in found.items() if settings.digest not in digests]


def _digests(manifest: StoreManifest, sample_ids: Collection[str]) -> set[str]:
    return {manifest.samples[i].settings for i in sample_ids if i in manifest.samples}


def _amount(sample_ids: Collection[str], listing: Listing) -> str:
    return f"{len(sample_ids):,} samples ({format_size(_source_bytes(sample_ids, listing))} at the source)"


def _source_bytes(sample_ids: Collection[str], listing: Listing) -> int:
    return sum(listing.details[i]["source_bytes"] for i in sample_ids if i in listing.details)
