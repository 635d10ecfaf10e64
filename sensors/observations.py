"""Reports the changes of a watched source to Dagster.

Dagster holds what is known of a source: its items are partitions, and the fingerprint of each is the data version of
its latest observation.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import dagster as dg
from zarr_core.platform.sensors.dagster_internals.evaluations import is_being_evaluated, latest_check
from zarr_core.platform.sensors.dagster_internals.events import report_runless_events
from zarr_core.platform.sensors.dagster_internals.queries import (
    has_open_work,
    latest_observation,
    materialized_versions,
    observed_versions,
)
from zarr_core.platform.sensors.dagster_internals.tags import DATA_VERSION
from zarr_core.platform.sensors.pending import Changes, PendingChanges, describe, find_changes

from zarr_core._util.units import format_size
from zarr_core.sources.listing import Listing

DOCUMENTS_TAG, COUNTS_TAG = "zarr_core/lists", "zarr_core/counts"
# Data version of an item that vanished. If it returns with the same files, its version still differs.
ABSENT = "absent"
# Events of a tick that the sensor itself stores, if there are more.
_MANY_EVENTS = 20


class WatchedSource(Protocol):
    """What a sensor needs to know of a declared source."""

    name: str
    look_every_seconds: int

    @property
    def partitions_name(self) -> str:
        """Name of the partitions in the instance: one per item."""

    @property
    def observed(self) -> dg.AssetKey:
        """The asset whose partitions are observed."""

    @property
    def converted(self) -> dg.AssetKey:
        """The asset that is made from the observed one, with the same partitions."""

    @property
    def published(self) -> dg.AssetKey:
        """The asset that publishes what was converted, and has the checks."""

    @property
    def conversion_job(self) -> str:
        """The job that materializes the converted asset."""


class KnownItems:
    """What Dagster has recorded of the items of a source, each part read once, when it is first asked for.

    A tick of a sensor reads it before it reports anything.

    Args:
        instance: where it is recorded.
        source: of the items.
    """

    def __init__(self, instance: dg.DagsterInstance, source: WatchedSource) -> None:
        self.instance = instance
        self.source = source

    @cached_property
    def registered(self) -> Sequence[str]:
        """The items that have a partition, in the order of the partitions."""
        return self.instance.get_dynamic_partitions(self.source.partitions_name)

    @cached_property
    def observed(self) -> dict[str, str | None]:
        """The fingerprint last observed of each registered item; None if it was never observed."""
        versions = observed_versions(self.instance, self.source.observed)
        return {item_id: versions.get(item_id) for item_id in self.registered}

    @cached_property
    def converted(self) -> dict[str, str]:
        """The data version of the latest materialization of each item that was converted, registered or not."""
        return materialized_versions(self.instance, self.source.converted)


def observations(
    instance: dg.DagsterInstance, source: WatchedSource, listing: Listing, changes: Changes
) -> list[dg.AssetObservation]:
    """One event per changed item, with its new version.

    An item whose partition a person has deleted is new, but may have the version that was observed last. No condition
    would see another event of this version, and the item would wait for a conversion forever.
    """
    seen = observed_versions(instance, source.observed) if changes.new else {}
    events = []
    for item_id in changes.new + changes.changed:
        if seen.get(item_id) == listing.items[item_id].fingerprint:
            continue
        tags = {DATA_VERSION: listing.items[item_id].fingerprint}
        metadata = dict(listing.details.get(item_id, {}))
        events.append(dg.AssetObservation(source.observed, partition=item_id, metadata=metadata, tags=tags))
    for item_id in changes.vanished:
        events.append(dg.AssetObservation(source.observed, partition=item_id, tags={DATA_VERSION: ABSENT}))
    return events


def listing_metadata(listing: Listing) -> dict[str, Any]:
    """What the UI shows of a listing as a whole."""
    size = sum(details["source_bytes"] for details in listing.details.values())
    metadata: dict[str, Any] = {
        "samples": len(listing.items),
        "incomplete": len(listing.incomplete),
        "size": format_size(size),
        "source_bytes": size,
    }
    if listing.left_out:
        lines = [f"* {sentence}" for sentence in listing.left_out]
        metadata["left out"] = dg.MetadataValue.md("\n".join(lines))
    return metadata


@dataclass(frozen=True)
class SeenListing:
    """The listing as a whole, as it was last observed; None in every part if it never was.

    Attributes:
        version: its data version.
        documents: digest of the split files and blacklists.
        counts: of its samples, as :func:`listing_counts` gives them.
    """

    version: str | None = None
    documents: str | None = None
    counts: str | None = None


def latest_listing(instance: dg.DagsterInstance, listing_key: dg.AssetKey) -> SeenListing:
    """The listing as it was last observed."""
    found = latest_observation(instance, listing_key)
    if found is None:
        return SeenListing()
    tags = found[0]
    return SeenListing(tags.get(DATA_VERSION), tags.get(DOCUMENTS_TAG), tags.get(COUNTS_TAG))


def listing_counts(listing: Listing) -> str:
    """Numbers of complete and incomplete samples and of folders that are left out."""
    return f"{len(listing.items)}_{len(listing.incomplete)}_{len(listing.left_out)}"


def listing_observation(listing_key: dg.AssetKey, listing: Listing, version: str, counts: str) -> dg.AssetObservation:
    """An observation of the listing as a whole."""
    tags = {DATA_VERSION: version, DOCUMENTS_TAG: listing.documents_digest, COUNTS_TAG: counts}
    return dg.AssetObservation(listing_key, metadata=listing_metadata(listing), tags=tags)


def changed_checks(
    instance: dg.DagsterInstance, checks: Iterable[dg.AssetCheckEvaluation]
) -> list[dg.AssetCheckEvaluation]:
    """Evaluations of checks with another description than the latest one that Dagster has.

    What a run is about to evaluate is left to it: the UI shows the evaluation that was begun last, and none if that is
    older than the latest materialization.
    """
    changed = []
    for check in checks:
        latest = latest_check(instance, check.asset_check_key)
        is_new = latest is None or latest.description != check.description
        if is_new and not is_being_evaluated(instance, check.asset_check_key):
            changed.append(check)
    return changed


def prepare_partitions(instance: dg.DagsterInstance, source: WatchedSource, changes: Changes) -> Changes:
    """Move changed partitions together; leave vanished ones pending as long as a conversion is queued or in progress.

    Dagster fails a backfill, and cancels its runs, when one of its partitions is deleted. A queued run names its
    partitions as a range, which must not lose an end or change its order.
    """
    if not changes.changed and not changes.vanished:
        return changes
    if has_open_work(instance, source.converted, source.conversion_job):
        return changes.with_vanished_pending()
    make_neighbours(instance, source.partitions_name, changes.changed)
    return changes


def make_neighbours(instance: dg.DagsterInstance, partitions_name: str, item_ids: Collection[str]) -> None:
    """Move partitions to the end of the list, next to one another.

    A run takes a contiguous range of partitions. Without this, a hundred changed samples scattered over the list would
    become a hundred runs. The instance keeps the events of a partition meanwhile. Call it before the change is
    reported: an automation tick between the two would ignore the update of a partition that is missing.
    """
    place = {item_id: number for number, item_id in enumerate(instance.get_dynamic_partitions(partitions_name))}
    places = [place[item_id] for item_id in item_ids]
    if not places or max(places) - min(places) == len(places) - 1:
        return
    for item_id in item_ids:
        instance.delete_dynamic_partition(partitions_name, item_id)
    instance.add_dynamic_partitions(partitions_name, list(item_ids))


def sensor_result(
    context: dg.SensorEvaluationContext,
    source: WatchedSource,
    listing: Listing,
    changes: Changes,
    noun: str,
    more_events: Sequence[dg.AssetObservation | dg.AssetMaterialization | dg.AssetCheckEvaluation] = (),
    held: Collection[str] = (),
) -> dg.SensorResult:
    """Report prepared changes as a sensor does: partitions to add and delete, observations, and a cursor.

    No run is requested: the automation conditions decide what runs, and see a thousand arrivals as one batch.
    ``held`` are items that the store holds already, whose materializations are among ``more_events``.
    """
    requests: list[dg.AddDynamicPartitionsRequest | dg.DeleteDynamicPartitionsRequest] = []
    if changes.new:
        requests.append(dg.AddDynamicPartitionsRequest(source.partitions_name, list(changes.new)))
    if changes.vanished:
        requests.append(dg.DeleteDynamicPartitionsRequest(source.partitions_name, list(changes.vanished)))
    checks: list[dg.AssetCheckEvaluation] = []
    events: list[dg.AssetObservation | dg.AssetMaterialization] = []
    events += observations(context.instance, source, listing, changes)
    for event in more_events:
        if isinstance(event, dg.AssetCheckEvaluation):
            checks.append(event)
        else:
            events.append(event)
    if len(events) + len(checks) > _MANY_EVENTS:
        # The daemon would store them one by one, which takes 10 ms each.
        report_runless_events(context.instance, events)
        events = []
    summary = describe(listing, changes, noun, held)
    context.log.info(summary)
    return dg.SensorResult(
        dynamic_partitions_requests=requests,
        asset_events=[*events, *checks],
        cursor=changes.pending.to_cursor(),
        # A tick without run requests reads "skipped" in any case; the reason is what it did.
        skip_reason=summary,
    )


def changes_now(known: KnownItems, first: Listing, second: Listing) -> Changes:
    """All changes that two listings agree on."""
    pending = find_changes(first, known.observed, PendingChanges(), limit=None, new_limit=None).pending
    return find_changes(second, known.observed, pending, limit=None, new_limit=None)


def report_now(
    context: dg.OpExecutionContext,
    source: WatchedSource,
    listing: Listing,
    changes: Changes,
    noun: str,
    held: Sequence[dg.AssetMaterialization] = (),
) -> dg.DataVersionsByPartition:
    """Report changes from inside a run.

    The events are stored here, with their metadata, instead of returned: an item that did not change needs none.
    """
    changes = prepare_partitions(context.instance, source, changes)
    report_runless_events(context.instance, [*observations(context.instance, source, listing, changes), *held])
    context.instance.add_dynamic_partitions(source.partitions_name, list(changes.new))
    for item_id in changes.vanished:
        context.instance.delete_dynamic_partition(source.partitions_name, item_id)
    context.log.info(describe(listing, changes, noun, [event.partition for event in held if event.partition]))
    return dg.DataVersionsByPartition({})
