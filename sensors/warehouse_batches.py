"""Lists a warehouse at intervals and reports which batches are new, changed or gone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import dagster as dg

from resources.warehouses import WarehouseAccess
from sensors.observations import WatchedSource, known_items, prepare_partitions, sensor_result
from sensors.pending import PendingChanges, find_changes
from zarr_core.sources.listing import Listing
from zarr_core.warehouses import Warehouse
from zarr_core.warehouses.batches import list_batches


class WatchedWarehouse(WatchedSource, Protocol):
    """What the sensor needs to know of a declared matrix."""

    warehouse: Mapping[str, Any]


def list_warehouse(warehouse: Warehouse) -> Listing:
    """The batches that the warehouse holds now; raises WarehouseError."""
    found = list_batches(warehouse)
    details = {name: {"fingerprint_of": batch.of, "source_bytes": batch.n_bytes} for name, batch in found.items()}
    return Listing(found, details=details)


def warehouse_batches_sensor(declared: WatchedWarehouse) -> dg.SensorDefinition:
    """The sensor that watches one warehouse."""

    @dg.sensor(
        name=f"{declared.name}_batches",
        minimum_interval_seconds=declared.look_every_seconds,
        default_status=dg.DefaultSensorStatus.RUNNING,
        description=f"Registers batches that arrive, change or vanish in the warehouse of {declared.name}.",
    )
    def warehouse_batches(context: dg.SensorEvaluationContext, warehouses: WarehouseAccess) -> dg.SensorResult:
        listing = list_warehouse(warehouses.warehouse(declared.warehouse))
        known = known_items(context.instance, declared)
        changes = find_changes(listing, known, PendingChanges.from_cursor(context.cursor))
        changes = prepare_partitions(context.instance, declared, changes)
        return sensor_result(context, declared, listing, changes, "batches")

    return warehouse_batches
