"""Lists a dataset's source at intervals and reports which samples are new, changed or gone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import dagster as dg

from resources.stores import StoreAccess
from sensors.dagster_internals import DATA_VERSION
from sensors.observations import (
    DOCUMENTS_TAG,
    WatchedSource,
    known_documents,
    known_items,
    listing_metadata,
    prepare_partitions,
    sensor_result,
)
from sensors.pending import PendingChanges, find_changes
from zarr_core.sources.listing import list_samples


class WatchedSamples(WatchedSource, Protocol):
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
        listing = list_samples(stores.source(dataset.kind, dataset.source), dataset.splits)
        known = known_items(context.instance, dataset)
        changes = find_changes(listing, known, PendingChanges.from_cursor(context.cursor))
        changes = prepare_partitions(context.instance, dataset, changes)
        observed = []
        holds_samples = len(known) + len(changes.new) > len(changes.vanished)
        # As long as there is no sample, no asset can follow a change of the listing.
        if changes.vanished or (
            holds_samples and listing.documents_digest != known_documents(context.instance, dataset.listing_key)
        ):
            tags = {DATA_VERSION: listing.version, DOCUMENTS_TAG: listing.documents_digest}
            observed = [dg.AssetObservation(dataset.listing_key, metadata=listing_metadata(listing), tags=tags)]
        return sensor_result(context, dataset, listing, changes, "samples", observed)

    return arrivals
