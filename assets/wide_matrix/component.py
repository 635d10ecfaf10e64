"""The component of a wide matrix: everything that one ``defs.yaml`` defines."""

import dagster as dg
from zarr_core.platform.assets.exports import export_asset
from zarr_core.platform.assets.jobs import dataset_jobs
from zarr_core.platform.assets.overview import overview_asset
from zarr_core.platform.assets.shootout import shootout_assets
from zarr_core.platform.assets.upkeep import (
    garbage_asset,
    gc_schedules,
    matrix_verification_asset,
    verification_schedules,
)
from zarr_core.platform.assets.wide_matrix.batches import matrix_batches_asset, warehouse_batches_asset
from zarr_core.platform.assets.wide_matrix.checks import matrix_checks
from zarr_core.platform.assets.wide_matrix.declaration import MatrixDeclaration
from zarr_core.platform.assets.wide_matrix.matrix import columns_asset, matrix_asset
from zarr_core.platform.assets.wide_matrix.quality import quality_report_asset
from zarr_core.platform.sensors.automation import automation_sensor
from zarr_core.platform.sensors.schedules import refresh_schedule
from zarr_core.platform.sensors.warehouse_batches import warehouse_batches_sensor


class WarehouseMatrix(dg.Component, MatrixDeclaration):
    """A wide matrix that is filled from a long warehouse table as batches arrive there.

    Relative paths are relative to the project.
    """

    def build_defs(self, context: dg.ComponentLoadContext) -> dg.Definitions:
        """The assets, checks, jobs, sensor and schedule of the matrix."""
        return matrix_definitions(self.with_absolute_paths(context.project_root))


def matrix_definitions(declared: MatrixDeclaration) -> dg.Definitions:
    """Everything that exists for one wide matrix."""
    assets: list[dg.AssetsDefinition | dg.SourceAsset | dg.AssetSpec] = [
        overview_asset(declared),
        warehouse_batches_asset(declared),
        matrix_batches_asset(declared),
        matrix_asset(declared),
        columns_asset(declared),
        quality_report_asset(declared),
        garbage_asset(declared, declared.matrix),
        matrix_verification_asset(declared, declared.matrix),
        *shootout_assets(declared.name, declared.matrix, declared.report, declared.key("matrix"), declared.shootout),
        *(export_asset(declared.name, declared.matrix, declared.key("matrix"), each) for each in declared.exports),
    ]
    return dg.Definitions(
        assets=declared.owned(assets),
        asset_checks=matrix_checks(declared),
        jobs=dataset_jobs(declared, [declared.observed], ["matrix", "columns", "quality_report"]),
        sensors=[warehouse_batches_sensor(declared), automation_sensor(declared.name, declared.look_every_seconds)],
        schedules=[
            refresh_schedule(declared.name, declared.refresh_schedule),
            *gc_schedules(declared),
            *verification_schedules(declared, declared.verify_within_days or 1),
        ],
    )
