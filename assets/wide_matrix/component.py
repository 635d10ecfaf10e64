"""A wide matrix as one ``defs.yaml`` declares it."""

import re
from pathlib import Path
from typing import Any

import dagster as dg
import pydantic
from pydantic import Field

from assets.locations import absolute
from assets.wide_matrix.batches import matrix_batches_asset, warehouse_batches_asset
from assets.wide_matrix.checks import matrix_checks
from assets.wide_matrix.matrix import columns_asset, matrix_asset
from assets.wide_matrix.quality import quality_report_asset
from resources.warehouse_matrix import DeclaredMatrix
from sensors.refresh import refresh_schedule
from sensors.warehouse_batches import warehouse_batches_sensor
from zarr_core.errors import ZarrCoreError
from zarr_core.matrix.state import check_values
from zarr_core.warehouses.build import build_warehouse


class WarehouseMatrix(dg.Component, dg.Model, dg.Resolvable):
    """A wide matrix that is filled from a long warehouse table as batches arrive there.

    Relative paths are relative to the project.
    """

    name: str = Field(description="Prefix of the asset keys, and the asset group.")
    warehouse: dict[str, Any] = Field(
        description="kind: duckdb (files), iceberg (table, catalog, properties) or athena (table, database, staging); "
        "and columns, where they are named otherwise."
    )
    matrix: str = Field(description="Folder or URL of the matrix.")
    report: str = Field(description="Local folder for the quality report.")
    features: str | None = Field(
        default=None,
        description="Parquet file whose first column is the axis, or a text file; what the warehouse has when the "
        "matrix is made if left out.",
    )
    values: dict[str, str] = Field(
        default={"beta": "float32", "coverage": "float32"}, description="Stored dtype by value table."
    )
    batch_size: int = Field(default=50, description="Most warehouse batches that one run loads.")
    look_every_seconds: int = Field(default=60, description="Pause between two looks at the warehouse.")
    refresh_schedule: str = Field(default="0 4 * * *", description="When the report is refreshed whatever arrived.")
    retry_schedule: str = Field(default="0 * * * *", description="When failed batches are tried again.")
    checked_batches: int = Field(
        default=2, description="Of the latest batches, and of the others in turn, held against the warehouse."
    )

    @pydantic.model_validator(mode="after")
    def _makes_sense(self) -> "WarehouseMatrix":
        if not re.fullmatch(r"[a-z][a-z0-9_]*", self.name):
            raise ValueError(f"name {self.name!r} must be lower case letters, digits and underscores")
        for name in ("batch_size", "look_every_seconds", "checked_batches"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, not {getattr(self, name)}")
        check_values(self.values)
        try:
            build_warehouse(self.warehouse)
        except ZarrCoreError as error:
            raise ValueError(str(error)) from error
        return self

    def build_defs(self, context: dg.ComponentLoadContext) -> dg.Definitions:
        """The assets, checks, jobs, sensor and schedule of the matrix."""
        return matrix_definitions(self.declare(context.project_root))

    def declare(self, project: Path) -> DeclaredMatrix:
        """The declaration with absolute paths.

        Args:
            project: folder of ``definitions.py``.
        """
        warehouse = dict(self.warehouse)
        if "files" in warehouse:
            warehouse["files"] = absolute(project, warehouse["files"])
        return DeclaredMatrix(
            name=self.name,
            warehouse=warehouse,
            features=None if self.features is None else absolute(project, self.features),
            matrix=absolute(project, self.matrix),
            report=absolute(project, self.report),
            values=dict(self.values),
            batch_size=self.batch_size,
            look_every_seconds=self.look_every_seconds,
            refresh_schedule=self.refresh_schedule,
            retry_schedule=self.retry_schedule,
            checked_batches=self.checked_batches,
        )


def matrix_definitions(declared: DeclaredMatrix) -> dg.Definitions:
    """Everything that exists for one wide matrix.

    The three jobs are what the automation does, for a person to start: look at the warehouse, load what it holds, and
    check and describe the result.
    """
    refresh = f"{declared.name}_refresh"
    derived = [declared.key(name) for name in ("matrix", "columns", "quality_report")]
    return dg.Definitions(
        assets=[
            warehouse_batches_asset(declared),
            matrix_batches_asset(declared),
            matrix_asset(declared),
            columns_asset(declared),
            quality_report_asset(declared),
        ],
        asset_checks=matrix_checks(declared),
        jobs=[
            dg.define_asset_job(f"{declared.name}_look", selection=dg.AssetSelection.assets(declared.observed)),
            dg.define_asset_job(
                f"{declared.name}_load", selection=dg.AssetSelection.assets(declared.key("matrix_batches"))
            ),
            dg.define_asset_job(refresh, selection=dg.AssetSelection.assets(*derived)),
        ],
        sensors=[warehouse_batches_sensor(declared)],
        schedules=[refresh_schedule(declared, refresh)],
    )
