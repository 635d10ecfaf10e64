"""The matrix as a whole, and its column-major copy."""

from collections.abc import Iterator

import dagster as dg
from zarr_core.platform.assets.conditions import publish_after_a_batch
from zarr_core.platform.assets.derived import derived_asset
from zarr_core.platform.assets.tables import table
from zarr_core.platform.assets.wide_matrix.declaration import MatrixDeclaration
from zarr_core.platform.resources.warehouses import WarehouseAccess
from zarr_core.platform.sensors.dagster_internals.tags import ROW_COUNT
from zarr_core.platform.sensors.operating import if_red
from zarr_core.platform.sensors.warehouse_batches import samples_version
from zarr_core.platform.sensors.withdrawn import withdrawal

from zarr_core.errors import WarehouseError
from zarr_core.matrix.ingest.audit import withdrawn_batches


def matrix_asset(declared: MatrixDeclaration) -> dg.AssetsDefinition:
    """The state in ``HEAD.json`` after a run of loads. Its checks precede everything that is derived."""

    @dg.asset(
        key=declared.key("matrix"),
        group_name=declared.name,
        deps=[dg.AssetDep(declared.key("matrix_batches"), partition_mapping=dg.AllPartitionMapping())],
        automation_condition=publish_after_a_batch(),
        code_version=declared.code_version,
        description="Which samples the matrix holds. Each commit replaces `HEAD.json`; earlier generations stay "
        "readable until garbage collection deletes them, and a training run can pin one."
        + if_red("a-failed-check", "read the last event of the run"),
        metadata={**declared.summary(), **declared.published_metadata},
        output_required=False,
        kinds={"json", "zarr"},
    )
    def matrix(context: dg.AssetExecutionContext, warehouses: WarehouseAccess) -> Iterator[dg.MaterializeResult]:
        opened = warehouses.matrix_if_any(declared.matrix)
        if opened is None:
            context.log.info(f"{declared.shown_matrix} holds no matrix yet: no batch was loaded")
            return  # what follows is skipped
        try:
            withdrawn = withdrawn_batches(opened, set(warehouses.warehouse(declared.warehouse).batch_ids()))
        except WarehouseError as error:
            withdrawn = []
            context.log.warning(f"batches that were withdrawn from the warehouse are not known: {error}")
        if withdrawn:
            context.log.warning(withdrawal(declared.shown_matrix, withdrawn))
        samples, features = opened.shape
        latest = list(opened.batches.items())[::-1]
        yield dg.MaterializeResult(
            metadata={
                "matrix": dg.MetadataValue.path(declared.shown_matrix),
                "generation": opened.generation,
                "samples": samples,
                "features": features,
                "batches": len(latest),
                "latest_batches": table([{"batch": name, "samples": len(ids)} for name, ids in latest]),
                "retired_samples": len(opened.retired.sample_ids),
                "withdrawn_batches": len(withdrawn),
                **({"withdrawn": table([{"batch": name} for name in withdrawn])} if withdrawn else {}),
                ROW_COUNT: samples,
            },
            data_version=dg.DataVersion(samples_version(opened)),
        )

    return matrix


def columns_asset(declared: MatrixDeclaration) -> dg.AssetsDefinition:
    """The copy for reads of few features of many samples, brought up to the latest batch."""

    way_out = if_red("a-damaged-chunk", "read the last event of the run; run the refresh again when its reason is gone")

    @derived_asset(declared, "matrix", {"matrix": declared.shown_matrix}, {"zarr"}, way_out)
    def columns(context: dg.AssetExecutionContext, warehouses: WarehouseAccess) -> dg.MaterializeResult:
        """The column-major copy: reads of few features of many samples use it automatically. Only batches that it
        lacks are read and written.
        """
        opened = warehouses.matrix(declared.matrix)
        added = opened.derive_columns()
        context.log.info(f"{len(added)} batches added to the column-major copy")
        return dg.MaterializeResult(
            metadata={
                "added": len(added),
                "batches": len(opened.batches),
                "generation": opened.generation,
                **({"added_batches": table([{"batch": name} for name in added])} if added else {}),
            },
            data_version=dg.DataVersion(samples_version(opened)),
        )

    return columns
