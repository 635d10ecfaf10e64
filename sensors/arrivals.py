"""Lists a dataset's source at intervals and reports which samples are new, changed or gone."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import dagster as dg

from resources.stores import StoreAccess
from sensors.behind import Conversions, check_complete, check_converted, conversions
from sensors.dagster_internals.queries import has_open_work
from sensors.deadline import within_the_tick
from sensors.migration import MigratingDataset, check_settings, manifest_within_the_tick
from sensors.notifications import MAX_FOLDERS, Message, delete, folders_of, needs_listing, receive, recorded
from sensors.observations import (
    SeenListing,
    changed_checks,
    known_items,
    latest_listing,
    listing_counts,
    listing_observation,
    prepare_partitions,
    sensor_result,
)
from sensors.operating import if_red
from sensors.overview import overview_events
from sensors.pending import Changes, PendingChanges, find_changes
from sensors.takeover import take_over
from zarr_core.points.store.manifest import StoreManifest
from zarr_core.sources import SampleTree
from zarr_core.sources.listing import Listing, list_samples

Event = dg.AssetObservation | dg.AssetMaterialization | dg.AssetCheckEvaluation

# With notifications, the whole source is listed this often: the listing decides.
LIST_SECONDS = 3600


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
        instance = context.instance
        before = PendingChanges.from_cursor(context.cursor)
        known = known_items(instance, dataset)
        last = latest_listing(instance, dataset.listing_key)
        look = within_the_tick(
            f"listing {dataset.shown_source}", lambda: _look(context, dataset, stores, before, known, last)
        )
        manifest = manifest_within_the_tick(dataset)
        changes = find_changes(look.listing, look.known(known), before)
        if dataset.notifications:
            changes = changes.with_listed_at(look.at if look.whole else before.listed_at)
        changes, held = within_the_tick(
            f"reading samples of {dataset.shown_source}",
            lambda: take_over(instance, dataset, look.tree, manifest, look.listing, known, changes, in_a_tick=True),
        )
        changes = prepare_partitions(instance, dataset, changes)
        # The daemon stores events in this order, and then registers the partitions: the automation converts none of
        # those that the store holds.
        events: list[Event] = [*held, *_listing_events(dataset, look, known, changes, last)]
        if look.whole:
            found = conversions(instance, dataset)
            checks: list[dg.AssetCheckEvaluation] = []
            if manifest is not None:
                at_rest = changes.is_empty and not held
                checks = _check_events(instance, dataset, manifest, look.listing, found, at_rest=at_rest)
            events += [*checks, *overview_events(context, dataset, found, len(look.listing.incomplete), checks)]
        noun = "samples" if look.whole else "notified samples"
        held_ids = [event.partition for event in held if event.partition]
        result = sensor_result(context, dataset, look.listing, changes, noun, events, held_ids)
        if dataset.notifications and not look.whole:
            _delete_messages(dataset.notifications, look, known, before)
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

    def known(self, known: Mapping[str, str | None]) -> Mapping[str, str | None]:
        """Known samples that the listing would show if they were there."""
        if self.whole:
            return known
        return {i: known[i] for i in {*self.listing.items, *self.listing.incomplete} & known.keys()}


def _look(
    context: dg.SensorEvaluationContext,
    dataset: WatchedSamples,
    stores: StoreAccess,
    before: PendingChanges,
    known: Mapping[str, str | None],
    last: SeenListing,
) -> _Look:
    """List the source, or the folders that its notifications name."""
    tree, now = stores.source(dataset.kind, dataset.source), time.time()
    messages: Sequence[Message] = []
    folders: set[str] | None = None
    if dataset.notifications:
        messages, folders = _notified(dataset.notifications, tree, before, now)
    unknown = sum(not message.is_known for message in messages)
    if unknown:
        context.log.warning(
            f"{unknown} messages of {dataset.notifications} are not notifications of S3, SNS or EventBridge: this "
            "tick lists the whole source"
        )
    listing = list_samples(tree, dataset.splits, folders)
    if folders is not None and (known or listing.items) and listing.documents_digest != last.documents:
        folders, listing = None, list_samples(tree, dataset.splits)
    return _Look(tree, listing, folders is None, messages, now)


def _listing_events(
    dataset: WatchedSamples, look: _Look, known: Mapping[str, str | None], changes: Changes, last: SeenListing
) -> list[dg.AssetObservation]:
    """An observation of the listing as a whole, if what it shows has changed.

    Its data version, which the manifest follows, changes with the lists and with samples that vanish. New samples lead
    to a new manifest when they are converted.
    """
    listing = look.listing
    # As long as there is no sample, no asset can follow a change of the listing.
    if not changes.vanished and not known and not changes.new:
        return []
    version = last.version
    if version is None or changes.vanished or listing.documents_digest != last.documents:
        version = listing.version
    counts = listing_counts(listing) if look.whole else last.counts or ""
    if version == last.version and counts == last.counts:
        return []
    return [listing_observation(dataset.listing_key, listing, version, counts)]


def _check_events(
    instance: dg.DagsterInstance,
    dataset: WatchedSamples,
    manifest: StoreManifest,
    listing: Listing,
    converted: Conversions,
    *,
    at_rest: bool,
) -> list[dg.AssetCheckEvaluation]:
    """Checks of the manifest whose result is another one than Dagster knows, although nothing was published."""
    checks = [
        check_settings(instance, dataset, manifest, listing),
        check_complete(listing, dataset.complete_within_hours, dataset.published),
    ]
    if at_rest and not has_open_work(instance, dataset.converted, dataset.conversion_job):
        checks.append(check_converted(dataset, converted))
    return changed_checks(instance, checks)


def _delete_messages(queue: str, look: _Look, known: Mapping[str, str | None], before: PendingChanges) -> None:
    """Delete the messages about samples that Dagster knows as they are now."""
    listing = look.listing
    differing = set()
    for sample_id, item in listing.items.items():
        if known.get(sample_id) != item.fingerprint:
            differing.add(listing.details[sample_id]["folder"])
    watched = {folder for sample_id in before.seen_once for folder in look.tree.folders_of(sample_id)}
    delete(queue, recorded(look.messages, (differing - watched).__contains__))


def _notified(
    queue: str, tree: SampleTree, before: PendingChanges, now: float
) -> tuple[Sequence[Message], set[str] | None]:
    """Messages of the queue, and the folders of the samples to look at; None if the whole source is to be listed.

    That is the case once per hour, when known samples are missing, and when it is faster.
    """
    messages = receive(queue, tree, before.listed_at)
    pending = {folder for sample_id in before.seen_once for folder in tree.folders_of(sample_id)}
    folders = folders_of(messages) | pending
    if now - before.listed_at > LIST_SECONDS or before.gone_once or needs_listing(messages):
        return messages, None
    return messages, folders if len(folders) <= MAX_FOLDERS else None
