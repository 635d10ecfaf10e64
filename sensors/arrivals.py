"""Lists a dataset's source at intervals and reports which samples are new, changed or gone."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Protocol

import dagster as dg

from resources.stores import StoreAccess
from sensors.dagster_internals.queries import latest_check
from sensors.dagster_internals.tags import DATA_VERSION
from sensors.migration import MigratingDataset, check_settings
from sensors.notifications import MAX_FOLDERS, Message, delete, folders_of, needs_listing, receive, recorded
from sensors.observations import (
    DOCUMENTS_TAG,
    known_documents,
    known_items,
    listing_metadata,
    prepare_partitions,
    sensor_result,
)
from sensors.pending import PendingChanges, find_changes
from sensors.takeover import take_over
from zarr_core.sources import SampleTree
from zarr_core.sources.listing import list_samples

# With notifications, the whole source is listed this often: the listing decides.
LIST_SECONDS = 3600


class WatchedSamples(MigratingDataset, Protocol):
    """What the sensor needs to know of a declared dataset."""

    kind: str
    source: str
    splits: Sequence[str] | None
    notifications: str | None

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
        description=f"Registers samples that arrive, change or vanish at {dataset.shown_source}.",
    )
    def arrivals(context: dg.SensorEvaluationContext, stores: StoreAccess) -> dg.SensorResult:
        tree = stores.source(dataset.kind, dataset.source)
        before, now = PendingChanges.from_cursor(context.cursor), time.time()
        known = known_items(context.instance, dataset)
        documents = known_documents(context.instance, dataset.listing_key)
        messages, folders = _notified(dataset.notifications, tree, before, now) if dataset.notifications else ([], None)
        if unknown := sum(not message.is_known for message in messages):
            context.log.warning(
                f"{unknown} messages of {dataset.notifications} are no notifications of S3, SNS or EventBridge: this "
                "tick lists the whole source"
            )
        listing = list_samples(tree, dataset.splits, folders)
        if folders is not None and (known or listing.items) and listing.documents_digest != documents:
            folders, listing = None, list_samples(tree, dataset.splits)
        whole = folders is None
        seen = {i: known[i] for i in {*listing.items, *listing.incomplete} & known.keys()}
        changes = find_changes(listing, known if whole else seen, before)
        if dataset.notifications:
            changes = changes.with_listed_at(now if whole else before.listed_at)
        manifest = stores.manifest_if_any(dataset.store)
        changes, held = take_over(context.instance, dataset, tree, manifest, listing, known, changes, in_a_tick=True)
        changes = prepare_partitions(context.instance, dataset, changes)
        # The daemon stores events in this order, and then registers the partitions: the automation converts none of
        # those that the store holds.
        events: list[dg.AssetObservation | dg.AssetMaterialization | dg.AssetCheckEvaluation] = [*held]
        holds_samples = len(known) + len(changes.new) > len(changes.vanished)
        # As long as there is no sample, no asset can follow a change of the listing.
        if changes.vanished or (holds_samples and listing.documents_digest != documents):
            tags = {DATA_VERSION: listing.version, DOCUMENTS_TAG: listing.documents_digest}
            events.append(dg.AssetObservation(dataset.listing_key, metadata=listing_metadata(listing), tags=tags))
        if whole and manifest is not None:
            settings = check_settings(context.instance, dataset, manifest, listing)
            latest = latest_check(context.instance, settings.asset_check_key)
            if latest is None or latest.description != settings.description:
                events.append(settings)
        result = sensor_result(context, dataset, listing, changes, "samples" if whole else "notified samples", events)
        if dataset.notifications and not whole:
            items = listing.items.items()
            differing = {listing.details[i]["folder"] for i, item in items if known.get(i) != item.fingerprint}
            watched = {folder for i in before.seen_once for folder in tree.folders_of(i)}
            delete(dataset.notifications, recorded(messages, (differing - watched).__contains__))
        return result

    return arrivals


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
