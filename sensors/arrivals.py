"""The path of an arrival, from the first listing that shows it until it is published and checked.

The sensor of a dataset lists its source once per tick:

1. The source is listed. With notifications, only the samples that messages name are (:mod:`sensors.notifications`).
2. Changes are found. A change counts when two ticks agree on it (:mod:`sensors.pending`).
3. Samples that the store holds already are found, so that no run converts them again (:mod:`sensors.takeover`).
4. The rest becomes partitions, and observations of their versions (:mod:`sensors.observations`). So that it shows what
   no run reports, the tick also evaluates checks (:mod:`sensors.behind`, :mod:`sensors.migration`) and the overview.

Then the automation (``assets/conditions.py``) requests two runs. The first converts the samples; if these are few, it
lists their folders alone (``assets/zarr_samples.py``). The second lists the source once and publishes what agrees with
it (``assets/manifest.py``); the checks that follow take the same listing (``assets/checks.py``).
"""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import dagster as dg
from zarr_core.platform.resources.stores import StoreAccess
from zarr_core.platform.sensors.behind import check_complete, check_converted, conversions, held_samples
from zarr_core.platform.sensors.dagster_internals.queries import has_open_work
from zarr_core.platform.sensors.deadline import within_the_tick
from zarr_core.platform.sensors.migration import MigratingDataset, check_settings, manifest_within_the_tick
from zarr_core.platform.sensors.notifications import Message, Notified, delete_recorded, notified
from zarr_core.platform.sensors.observations import (
    KnownItems,
    SeenListing,
    changed_checks,
    latest_listing,
    listing_counts,
    listing_observation,
    prepare_partitions,
    sensor_result,
)
from zarr_core.platform.sensors.operating import if_red
from zarr_core.platform.sensors.overview import overview_events
from zarr_core.platform.sensors.pending import Changes, PendingChanges, find_changes
from zarr_core.platform.sensors.takeover import take_over

from zarr_core._util.digests import short_digest
from zarr_core.points.store.manifest import StoreManifest
from zarr_core.sources import SampleTree
from zarr_core.sources.listing import Listing, list_samples

Event = dg.AssetObservation | dg.AssetMaterialization | dg.AssetCheckEvaluation


class WatchedSamples(MigratingDataset, Protocol):
    """What the sensor needs to know of a declared dataset."""

    kind: str
    source: str
    splits: Sequence[str] | None
    notifications: str | None
    complete_within_hours: int

    @property
    def listing_key(self) -> dg.AssetKey:
        """The asset of the listing as a whole."""

    @property
    def shown_source(self) -> str:
        """The source's URL without secrets."""


def arrivals_sensor(dataset: WatchedSamples) -> dg.SensorDefinition:
    """The sensor that watches one dataset's source."""

    @dg.sensor(
        name=f"{dataset.name}_arrivals",
        minimum_interval_seconds=dataset.look_every_seconds,
        default_status=dg.DefaultSensorStatus.RUNNING,
        description=f"Registers samples that arrive, change or vanish at {dataset.shown_source}."
        + if_red("a-source-that-does-not-answer", "read its error, and look whether source and store are there"),
    )
    def arrivals(context: dg.SensorEvaluationContext, stores: StoreAccess) -> dg.SensorResult:
        before = PendingChanges.from_cursor(context.cursor)
        known = KnownItems(context.instance, dataset)
        last = latest_listing(context.instance, dataset.listing_key)
        look = _look(context, dataset, stores, before, last, is_new=not known.registered)
        manifest = manifest_within_the_tick(dataset)

        changes = _find_changes(dataset, look, known, before)
        changes, held = _take_over(dataset, look, manifest, known, changes)
        changes = prepare_partitions(context.instance, dataset, changes)

        # The daemon stores events in this order, and then registers the partitions: the automation converts none of
        # those that the store holds.
        unlisted = before.unlisted or bool(changes.vanished)
        listed = _listing_events(dataset, look, known, changes, last, unlisted=unlisted)
        changes = changes.with_unlisted(unlisted and not listed)
        events: list[Event] = [*held, *listed]
        if look.whole:
            is_at_rest = changes.is_empty and not held
            events += _state_events(context, dataset, look.listing, manifest, known, is_at_rest=is_at_rest)
        noun = "samples" if look.whole else "notified samples"
        held_ids = [event.partition for event in held if event.partition]
        result = sensor_result(context, dataset, look.listing, changes, noun, events, held_ids)
        if dataset.notifications and not look.whole:
            delete_recorded(dataset.notifications, look.messages, look.tree, look.listing, known.observed, before)
        return result

    return arrivals


@dataclass(frozen=True)
class _Look:
    """What one tick has read of the source.

    Attributes:
        tree: the source.
        listing: its samples now.
        whole: whether the whole source was listed, not only the folders that messages name.
        messages: from the queue of the bucket's notifications.
        at: when, in seconds since 1970.
    """

    tree: SampleTree
    listing: Listing
    whole: bool
    messages: Sequence[Message]
    at: float


def _look(
    context: dg.SensorEvaluationContext,
    dataset: WatchedSamples,
    stores: StoreAccess,
    before: PendingChanges,
    last: SeenListing,
    *,
    is_new: bool,
) -> _Look:
    """List the source, or the samples that its notifications name.

    The whole source is listed, too, if its split files or blacklists have changed, unless it never had a sample.
    """

    def look() -> _Look:
        tree = stores.source(dataset.kind, dataset.source)
        now = time.time()
        named = Notified((), None)
        if dataset.notifications:
            named = notified(dataset.notifications, tree, before, now)
        listing = list_samples(tree, dataset.splits, tree.find(folders=named.folders))
        whole = named.folders is None
        is_empty = is_new and not listing.items
        if not whole and not is_empty and listing.documents_digest != last.documents:
            listing = list_samples(tree, dataset.splits)
            whole = True
        return _Look(tree, listing, whole, named.messages, now)

    found = within_the_tick(f"listing {dataset.shown_source}", look)
    unknown = sum(not message.is_known for message in found.messages)
    if unknown:
        context.log.warning(
            f"{unknown} messages of {dataset.notifications} are not notifications of S3, SNS or EventBridge: this "
            "tick lists the whole source"
        )
    return found


def _find_changes(dataset: WatchedSamples, look: _Look, known: KnownItems, before: PendingChanges) -> Changes:
    """What has changed since Dagster observed the samples."""
    observed: Mapping[str, str | None] = known.observed
    if not look.whole:
        shown = {*look.listing.items, *look.listing.incomplete}
        observed = {sample_id: version for sample_id, version in observed.items() if sample_id in shown}
    changes = find_changes(look.listing, observed, before)
    if dataset.notifications:
        return changes.with_listed_at(look.at if look.whole else before.listed_at)
    return changes


def _take_over(
    dataset: WatchedSamples, look: _Look, manifest: StoreManifest | None, known: KnownItems, changes: Changes
) -> tuple[Changes, Sequence[dg.AssetMaterialization]]:
    """The changes for which the tick has time, and materializations of the samples that the store holds already."""
    return within_the_tick(
        f"reading samples of {dataset.shown_source}",
        lambda: take_over(dataset, look.tree, manifest, look.listing, known, changes, in_a_tick=True),
    )


def _listing_events(
    dataset: WatchedSamples,
    look: _Look,
    known: KnownItems,
    changes: Changes,
    last: SeenListing,
    *,
    unlisted: bool,
) -> list[dg.AssetObservation]:
    """An observation of the listing as a whole, if what it shows has changed.

    Its data version, which the manifest follows, changes with the lists and with samples that vanish. New samples lead
    to a new manifest when they are converted.

    Args:
        dataset, look, known, changes: of the tick.
        last: the listing as it was observed last.
        unlisted: whether samples have vanished since then.
    """
    listing = look.listing
    # As long as there is no sample, no asset can follow a change of the listing.
    if not unlisted and not known.registered and not changes.new:
        return []
    version = last.version
    documents_changed = listing.documents_digest != last.documents
    if version is not None and changes.pending.gone_once and (documents_changed or unlisted):
        # A next listing tells whether these samples have vanished as well. If this one had the new version already, a
        # manifest that is made in between would be up to date then, and nothing would retire them.
        return []
    if version is None or documents_changed:
        version = listing.version
    if unlisted:
        # Another version, also if the samples are those of the last one: what arrived and vanished since is published.
        version = short_digest([listing.version, last.version or ""])
    counts = listing_counts(listing) if look.whole else last.counts or ""
    if version == last.version and counts == last.counts:
        return []
    return [listing_observation(dataset.listing_key, listing, version, counts)]


def _state_events(
    context: dg.SensorEvaluationContext,
    dataset: WatchedSamples,
    listing: Listing,
    manifest: StoreManifest | None,
    known: KnownItems,
    *,
    is_at_rest: bool,
) -> Collection[Event]:
    """Checks of the manifest with another result than Dagster knows, although nothing was published; the overview."""
    instance = context.instance
    found = conversions(known, held_samples(known, manifest, listing))
    checks = []
    if manifest is not None:
        checks.append(check_settings(known, dataset, manifest, listing))
        checks.append(check_complete(listing, dataset.complete_within_hours, dataset.published))
    had_store = manifest is not None or bool(found.lost)
    if had_store and is_at_rest and not has_open_work(instance, dataset.converted, dataset.conversion_job):
        checks.append(check_converted(dataset, found))
    checks = changed_checks(instance, checks)
    committed = (manifest.generation, len(manifest.samples)) if manifest is not None else None
    return [*checks, *overview_events(context, dataset, found, listing.incomplete, checks, committed=committed)]
