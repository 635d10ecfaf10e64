"""Lists a dataset's source at intervals and reports which samples are new, changed or gone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import dagster as dg

from resources.stores import StoreAccess
from sensors.dagster_internals import DATA_VERSION, latest_check
from sensors.migration import MigratingDataset, check_settings
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
from zarr_core.sources.listing import list_samples


class WatchedSamples(MigratingDataset, Protocol):
    """What the sensor needs to know of a declared dataset."""

    kind: str
    source: str
    splits: Sequence[str] | None

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
        listing = list_samples(tree, dataset.splits)
        manifest = stores.manifest_if_any(dataset.store)
        known = known_items(context.instance, dataset)
        changes = find_changes(listing, known, PendingChanges.from_cursor(context.cursor))
        changes, held = take_over(context.instance, dataset, tree, manifest, listing, known, changes, in_a_tick=True)
        changes = prepare_partitions(context.instance, dataset, changes)
        # The daemon stores events in this order, and then registers the partitions: the automation converts none of
        # those that the store holds.
        events: list[dg.AssetObservation | dg.AssetMaterialization | dg.AssetCheckEvaluation] = [*held]
        holds_samples = len(known) + len(changes.new) > len(changes.vanished)
        # As long as there is no sample, no asset can follow a change of the listing.
        if changes.vanished or (
            holds_samples and listing.documents_digest != known_documents(context.instance, dataset.listing_key)
        ):
            tags = {DATA_VERSION: listing.version, DOCUMENTS_TAG: listing.documents_digest}
            events.append(dg.AssetObservation(dataset.listing_key, metadata=listing_metadata(listing), tags=tags))
        if manifest is not None:
            settings = check_settings(context.instance, dataset, manifest, listing)
            before = latest_check(context.instance, settings.asset_check_key)
            if before is None or before.description != settings.description:
                events.append(settings)
        return sensor_result(context, dataset, listing, changes, "samples", events)

    return arrivals
