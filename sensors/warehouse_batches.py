"""Lists a warehouse at intervals and reports which batches are new, changed or gone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import dagster as dg
from zarr_core.platform.resources.warehouses import WarehouseAccess
from zarr_core.platform.sensors.behind import check_converted, conversions, held_batches
from zarr_core.platform.sensors.dagster_internals.queries import has_open_work
from zarr_core.platform.sensors.dagster_internals.tags import DATA_VERSION
from zarr_core.platform.sensors.deadline import within_the_tick
from zarr_core.platform.sensors.observations import (
    KnownItems,
    WatchedSource,
    changed_checks,
    prepare_partitions,
    sensor_result,
)
from zarr_core.platform.sensors.operating import if_red
from zarr_core.platform.sensors.overview import overview_events
from zarr_core.platform.sensors.pending import PendingChanges, find_changes
from zarr_core.platform.sensors.withdrawn import check_again, retired_row

from zarr_core._util.digests import short_digest
from zarr_core.matrix import WideMatrix
from zarr_core.sources.listing import Listing
from zarr_core.warehouses import Warehouse
from zarr_core.warehouses.batches import list_batches


class WatchedWarehouse(WatchedSource, Protocol):
    """What the sensor needs to know of a declared matrix."""

    warehouse: Mapping[str, Any]
    matrix: str

    @property
    def shown_matrix(self) -> str:
        """The matrix's URL without secrets."""


def list_warehouse(warehouse: Warehouse) -> Listing:
    """The batches that the warehouse holds now; raises WarehouseError."""
    found = list_batches(warehouse)
    details = {name: {"fingerprint_of": batch.of, "source_bytes": batch.n_bytes} for name, batch in found.items()}
    return Listing(found, details=details)


def matrix_within_the_tick(declared: WatchedWarehouse) -> WideMatrix | None:
    """The matrix as it is now, for a sensor; raises Failure if its storage does not answer in time."""
    what = f"reading the head of {declared.shown_matrix}"
    return within_the_tick(what, lambda: WarehouseAccess().matrix_if_any(declared.matrix))


def samples_version(matrix: WideMatrix) -> str:
    """Data version of what is published of a matrix: its samples, which the column-major copy does not change."""
    return short_digest([matrix.matrix_id, *matrix.sample_ids])


def _unpublished(
    instance: dg.DagsterInstance, declared: WatchedWarehouse, matrix: WideMatrix
) -> tuple[int, int] | None:
    """Generation and number of samples of a matrix, if they are not those published last, as after ``retire``."""
    latest = instance.get_latest_materialization_event(declared.published)
    tags = (latest.asset_materialization.tags if latest and latest.asset_materialization else None) or {}
    if tags.get(DATA_VERSION) == samples_version(matrix):
        return None
    return matrix.generation, len(matrix.sample_ids)


def warehouse_batches_sensor(declared: WatchedWarehouse) -> dg.SensorDefinition:
    """The sensor that watches one warehouse."""

    @dg.sensor(
        name=f"{declared.name}_batches",
        minimum_interval_seconds=declared.look_every_seconds,
        default_status=dg.DefaultSensorStatus.RUNNING,
        description=f"Registers batches that arrive, change or vanish in the warehouse of {declared.name}."
        + if_red("a-source-that-does-not-answer", "read its error, and look whether the warehouse answers"),
    )
    def warehouse_batches(context: dg.SensorEvaluationContext, warehouses: WarehouseAccess) -> dg.SensorResult:
        instance = context.instance
        listing = within_the_tick(
            f"listing the warehouse of {declared.name}",
            lambda: list_warehouse(warehouses.warehouse(declared.warehouse)),
        )
        matrix = matrix_within_the_tick(declared)
        known = KnownItems(instance, declared)
        changes = find_changes(listing, known.observed, PendingChanges.from_cursor(context.cursor))
        changes = prepare_partitions(instance, declared, changes)
        found = conversions(known, held_batches(matrix, known.registered))
        checks = []
        if changes.is_empty and not has_open_work(instance, declared.converted, declared.conversion_job):
            if matrix is not None or found.lost:
                checks.append(check_converted(declared, found))
            # A warehouse without a single batch is one that cannot be listed.
            if matrix is not None and listing.items:
                checks.append(
                    check_again(instance, declared.published, declared.shown_matrix, matrix, list(listing.items))
                )
        checks = changed_checks(instance, checks)
        rows = [retired_row(declared.matrix, declared.shown_matrix, matrix)] if matrix is not None else []
        committed = _unpublished(instance, declared, matrix) if matrix is not None else None
        events = [*checks, *overview_events(context, declared, found, (), checks, rows, committed)]
        return sensor_result(context, declared, listing, changes, "batches", events)

    return warehouse_batches
