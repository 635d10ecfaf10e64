"""The batches of a warehouse, and the rows of the matrix that they become: one partition each, many per run."""

import time
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

import dagster as dg
from zarr_core.platform.assets.conditions import convert_when_needed
from zarr_core.platform.assets.retries import retried
from zarr_core.platform.assets.tables import table
from zarr_core.platform.assets.wide_matrix.declaration import MatrixDeclaration
from zarr_core.platform.resources.warehouses import WarehouseAccess
from zarr_core.platform.sensors.dagster_internals.queries import latest_observations, planned_partitions
from zarr_core.platform.sensors.dagster_internals.tags import kind_tags, version_tags
from zarr_core.platform.sensors.observations import KnownItems, changes_now, report_now
from zarr_core.platform.sensors.operating import if_red
from zarr_core.platform.sensors.refusals import refusal_tags, refused_batches, state_of
from zarr_core.platform.sensors.warehouse_batches import list_warehouse

from zarr_core._util.digests import short_digest
from zarr_core._util.units import format_duration
from zarr_core.errors import BatchError, ZarrCoreError
from zarr_core.matrix.ingest.audit import check_unchanged
from zarr_core.matrix.ingest.loader import MatrixLoader


def warehouse_batches_asset(declared: MatrixDeclaration) -> dg.SourceAsset:
    """The batches of the warehouse. To observe them by hand lists them at once, without waiting for the sensor."""

    @dg.observable_source_asset(
        key=declared.observed,
        group_name=declared.name,
        partitions_def=declared.partitions,
        description="Batches of the long table. A sensor registers what arrives: "
        f"`{declared.name}_batches`; *Observe* looks at once."
        + if_red("a-source-that-does-not-answer", "look whether the warehouse answers"),
        metadata=declared.summary(),
        tags=kind_tags("table", "source"),
    )
    def warehouse_batches(context: dg.OpExecutionContext, warehouses: WarehouseAccess) -> dg.DataVersionsByPartition:
        first = list_warehouse(warehouses.warehouse(declared.warehouse))
        time.sleep(declared.settle_seconds)
        second = list_warehouse(warehouses.warehouse(declared.warehouse))
        changes = changes_now(KnownItems(context.instance, declared), first, second)
        return report_now(context, declared, second, changes, "batches")

    return warehouse_batches


def matrix_batches_asset(declared: MatrixDeclaration) -> dg.AssetsDefinition:
    """Each batch unloaded, scattered and appended.

    A generator: each batch is recorded as soon as it is committed, and a run that fails keeps the batches before.
    """

    @dg.asset(
        key=declared.converted,
        group_name=declared.name,
        partitions_def=declared.partitions,
        deps=[declared.observed],
        backfill_policy=dg.BackfillPolicy.multi_run(declared.batch_size),
        automation_condition=convert_when_needed(
            declared.retry_schedule, refused=partial(refused_batches, declared=declared)
        ),
        code_version=declared.code_version,
        pool=declared.concurrency_pool,
        freshness_policy=declared.freshness_policy,
        output_required=False,
        description="Rows of the matrix, batch by batch: unloaded with positions joined in the query, every cell "
        "counted, appended by one commit each. A batch whose rows contradict each other fails alone."
        + if_red("a-sample-that-cannot-be-converted", "correct the rows of the named batches in the warehouse"),
        metadata=declared.summary(),
        kinds={"zarr", "arrow"},
    )
    def matrix_batches(
        context: dg.AssetExecutionContext, warehouses: WarehouseAccess
    ) -> Iterator[dg.AssetMaterialization | dg.AssetObservation]:
        with retried(context, declared.retry_seconds):
            yield from _load_batches(context, declared, warehouses)

    return matrix_batches


def _load_batches(
    context: dg.AssetExecutionContext, declared: MatrixDeclaration, warehouses: WarehouseAccess
) -> Iterator[dg.AssetMaterialization | dg.AssetObservation]:
    """Load the partitions of a run; raises Failure at the end if some could not be loaded."""
    batch_ids = planned_partitions(context)
    sources = latest_observations(context.instance, declared.observed, batch_ids)
    matrix = warehouses.open_or_create(declared.matrix, declared.values, declared.features, declared.warehouse)
    loader = MatrixLoader(warehouses.warehouse(declared.warehouse), matrix)
    failed: dict[str, Exception] = {}
    for batch_id in batch_ids:
        try:
            numbers = _load(loader, batch_id)
        except (ZarrCoreError, OSError) as error:
            failed[batch_id] = error
            context.log.error(f"{batch_id}: {error}")
            continue
        context.log.info(f"{batch_id} {numbers['status']}, generation {loader.matrix.generation}")
        version = short_digest([loader.matrix.matrix_id, batch_id, str(numbers["samples"])])
        yield dg.AssetMaterialization(
            context.asset_key,
            partition=batch_id,
            metadata=numbers,
            tags=version_tags(declared.code_version, version, declared.observed, sources.get(batch_id)),
        )
    for batch_id, error in failed.items():
        # With the state of the matrix after the run, whose other batches do not make this one loadable.
        refused = isinstance(error, BatchError)
        tags = refusal_tags(state_of(loader.matrix), sources.get(batch_id)) if refused else {}
        yield dg.AssetObservation(context.asset_key, partition=batch_id, metadata={"reason": str(error)}, tags=tags)
    if failed:
        raise failure(failed, len(batch_ids))


def failure(failed: Mapping[str, Exception], total: int) -> dg.Failure:
    """The error that ends the run and names the batches that are not in the matrix; see ``zarr_samples.failure``."""
    rows = [{"batch": batch_id, "reason": str(error)} for batch_id, error in failed.items()]
    named = "; ".join(f"{row['batch']}: {row['reason']}" for row in rows[:5]) + ("; ..." if len(rows) > 5 else "")
    return dg.Failure(
        description=f"{len(failed)} of {total} batches could not be loaded: {named}",
        metadata={"refused": table(rows), "refused_batches": len(failed)},
        # An error in the data stays; an error of the environment may be over by the next attempt.
        allow_retries=any(not isinstance(error, ZarrCoreError) for error in failed.values()),
    )


def _load(loader: MatrixLoader, batch_id: str) -> dict[str, Any]:
    """Load one batch into the matrix, or check that the matrix holds the batch as the warehouse has it now.

    Raises:
        ZarrCoreError: the batch contradicts itself or the matrix.
    """
    ingested = loader.ingest([batch_id])
    if not ingested.batches:
        audits = check_unchanged(loader.warehouse, loader.matrix, [batch_id])
        samples = sum(audit.samples for audit in audits)
        status = "retired" if ingested.retired and not samples else "up to date"
        return {"status": status, "samples": samples, "retired_samples": len(ingested.retired)}
    (batch,) = ingested.batches
    rows = max(batch.rows.values())  # the same for each value: the loader refuses a batch otherwise
    rate = rows / max(batch.seconds, 1e-9)
    numbers: dict[str, Any] = {
        "status": "loaded",
        "samples": len(batch.sample_ids),
        "retired_samples": len(ingested.retired),
        "rows": rows,
        "cells": batch.cells,
        "took": f"{format_duration(batch.seconds)}, {rate:,.0f} rows per second",
        "seconds": round(batch.seconds, 3),
        "rows_per_second": round(rate),
    }
    for name in batch.rows:
        values = batch.rows[name] - batch.without_value[name]
        numbers[f"values/{name}"] = values
        numbers[f"missing_share/{name}"] = round(1 - values / batch.cells, 4)
    if ingested.cost.queries:
        numbers["usd"] = round(ingested.cost.usd, 4)
        numbers["bytes_scanned"] = ingested.cost.bytes_scanned
    return numbers
