"""Batches of a warehouse, and the rows of the matrix that they become: one partition each, many in a run."""

from collections.abc import Iterator, Mapping
from typing import Any

import dagster as dg

from assets.conditions import convert_when_needed
from assets.source_samples import observe_now
from assets.tables import table
from resources.source_watch import latest_observations, short_digest, version_tags
from resources.warehouse_matrix import DeclaredMatrix
from resources.warehouses import WarehouseAccess
from zarr_core.errors import WarehouseError, ZarrCoreError
from zarr_core.matrix.ingest.audit import audit_batches
from zarr_core.matrix.ingest.loader import MatrixLoader

# What breaks a whole run (a network away, a worker killed for memory) may be over in a minute.
_TRY_AGAIN = dg.RetryPolicy(max_retries=2, delay=20, backoff=dg.Backoff.EXPONENTIAL)


def warehouse_batches_asset(declared: DeclaredMatrix) -> dg.SourceAsset:
    """Observing it looks at the warehouse at once, for whoever does not want to wait for the sensor."""

    @dg.observable_source_asset(
        key=declared.observed,
        group_name=declared.name,
        partitions_def=declared.batches,
        description="Batches of the long table. The sensor "
        f"`{declared.name}_batches` registers what arrives; *Observe* looks at once.",
        metadata=declared.summary(),
        tags={"dagster/kind/table": "", "dagster/kind/source": ""},
    )
    def warehouse_batches(context: dg.OpExecutionContext, warehouses: WarehouseAccess) -> dg.DataVersionsByPartition:
        return observe_now(context, declared, lambda: warehouses.look(declared), "batches")

    return warehouse_batches


def matrix_batches_asset(declared: DeclaredMatrix) -> dg.AssetsDefinition:
    """Each batch unloaded, scattered and appended.

    A generator, so that each batch is recorded the moment it is committed, and a run that ends badly keeps the others.
    """

    @dg.asset(
        key=declared.key("matrix_batches"),
        group_name=declared.name,
        partitions_def=declared.batches,
        deps=[declared.observed],
        backfill_policy=dg.BackfillPolicy.multi_run(declared.batch_size),
        automation_condition=convert_when_needed(declared.retry_schedule),
        retry_policy=_TRY_AGAIN,
        code_version=declared.code_version,
        pool=declared.pool,
        output_required=False,
        description="Rows of the matrix, batch by batch: unloaded with positions joined in the query, every cell "
        "counted, appended by one commit each. A batch whose rows contradict each other fails alone.",
        metadata=declared.summary(),
        kinds={"zarr", "arrow"},
    )
    def matrix_batches(
        context: dg.AssetExecutionContext, warehouses: WarehouseAccess
    ) -> Iterator[dg.AssetMaterialization | dg.AssetObservation]:
        sources = latest_observations(context.instance, declared, context.partition_keys)
        loader = MatrixLoader(warehouses.warehouse(declared), warehouses.matrix_to_fill(declared))
        refused: dict[str, Exception] = {}
        for batch_id in context.partition_keys:
            try:
                numbers = _load(loader, batch_id)
            except (ZarrCoreError, OSError) as error:
                refused[batch_id] = error
                context.log.error(f"{batch_id}: {error}")
                yield dg.AssetObservation(context.asset_key, partition=batch_id, metadata={"reason": str(error)})
                continue
            context.log.info(f"{batch_id} {numbers['status']}, generation {loader.matrix.generation}")
            version = short_digest([loader.matrix.matrix_id, batch_id, str(numbers["samples"])])
            yield dg.AssetMaterialization(
                context.asset_key,
                partition=batch_id,
                metadata=numbers,
                tags=version_tags(declared, declared.code_version, version, sources.get(batch_id)),
            )
        if refused:
            raise failure(refused, len(context.partition_keys))

    return matrix_batches


def failure(refused: Mapping[str, Exception], of: int) -> dg.Failure:
    """Ends the run, naming the batches that are not in the matrix; see ``zarr_samples.failure``."""
    rows = [{"batch": batch_id, "reason": str(error)} for batch_id, error in refused.items()]
    named = "; ".join(f"{row['batch']}: {row['reason']}" for row in rows[:5]) + ("; ..." if len(rows) > 5 else "")
    return dg.Failure(
        description=f"{len(refused)} of {of} batches could not be loaded: {named}",
        metadata={"refused": table(rows), "refused_batches": len(refused)},
        # What the data say they say again; the world around them may have changed by then.
        allow_retries=any(not isinstance(error, ZarrCoreError) for error in refused.values()),
    )


def _load(loader: MatrixLoader, batch_id: str) -> dict[str, Any]:
    """Bring one batch into the matrix, or make sure that it is there as the warehouse has it now.

    Raises:
        ZarrCoreError: it contradicts itself, or what the matrix holds.
    """
    ingested = loader.ingest([batch_id])
    if not ingested.batches:
        audits = audit_batches(loader.warehouse, loader.matrix, [batch_id])
        wrong = [words for audit in audits for words in (*audit.doubles, *audit.losses)]
        if wrong:
            raise WarehouseError(
                f"{'; '.join(wrong)}: the warehouse changed after the batch was loaded. A matrix never changes: undo "
                "it there, give the batch another id and samples, or make a new matrix"
            )
        return {"status": "up to date", "samples": sum(audit.samples for audit in audits)}
    (batch,) = ingested.batches
    values = {name: batch.rows[name] - batch.without_value[name] for name in batch.rows}
    rows = max(batch.rows.values())  # the same for each value: the loader refuses a batch otherwise
    cost = {"usd": round(ingested.cost.usd, 4), "bytes_scanned": ingested.cost.bytes_scanned}
    return {
        "status": "loaded",
        "samples": len(batch.sample_ids),
        "rows": rows,
        "cells": batch.cells,
        **{f"values/{name}": number for name, number in values.items()},
        **{f"missing_share/{name}": round(1 - number / batch.cells, 4) for name, number in values.items()},
        "seconds": round(batch.seconds, 3),
        "rows_per_second": round(rows / max(batch.seconds, 1e-9)),
        **(cost if ingested.cost.queries else {}),
    }
