"""The declaration of a wide matrix: the warehouse that fills it, where it lies and what is reported on it."""

import hashlib
from pathlib import Path
from typing import Any, Self

import dagster as dg
import pydantic
from pydantic import Field
from zarr_core.platform.assets.declaration import Declaration, absolute
from zarr_core.platform.assets.exports import MATRIX_FORMATS, check_exports

from zarr_core._util.redaction import redact
from zarr_core.errors import ZarrCoreError
from zarr_core.matrix.store.state import check_values
from zarr_core.warehouses.build import build_warehouse


class MatrixDeclaration(Declaration):
    """The settings of ``assets.wide_matrix.WarehouseMatrix``."""

    # URLs may hold passwords, and the properties of a catalogue tokens.
    warehouse: dict[str, Any] = Field(
        repr=False,
        description="kind: duckdb (files), iceberg (table, catalog, properties) or athena (table, database, staging); "
        "and columns, where they are not named batch_id, sample_id, cpg_id, beta and coverage: {feature: probe_id}.",
    )
    matrix: str = Field(repr=False, description="Folder or URL of the matrix.")
    features: str | None = Field(
        default=None,
        repr=False,
        description="Parquet file whose first column is the axis, or a text file; by default the features that the "
        "warehouse has when the matrix is created, with a warning.",
    )
    values: dict[str, str] = Field(
        default={"beta": "float32", "coverage": "float32"}, description="Stored dtype by value table."
    )
    batch_size: int = Field(default=50, description="Maximum number of warehouse batches per run.")
    look_every_seconds: int = Field(
        default=60,
        description="Pause between two listings of the warehouse; the automation is evaluated as often, at least twice "
        "a minute.",
    )
    refresh_schedule: str = Field(
        default="0 4 * * *", description="When checks, column-major copy and report run, also without new batches."
    )
    checked_batches: int = Field(
        default=2,
        description="The checks compare the latest N batches with the warehouse, and N of the others in turn.",
    )

    @pydantic.model_validator(mode="after")
    def _check(self) -> Self:
        self._check_range(1, "batch_size", "checked_batches")
        check_values(self.values)
        check_exports(self.exports, MATRIX_FORMATS)
        try:
            build_warehouse(self.warehouse)
        except ZarrCoreError as error:
            raise ValueError(str(error)) from error
        return self

    def with_absolute_paths(self, project: Path) -> Self:
        """Resolve relative paths against the folder of ``definitions.py``."""
        paths: dict[str, Any] = {name: absolute(project, getattr(self, name)) for name in ("matrix", "report")}
        if self.features is not None:
            paths["features"] = absolute(project, self.features)
        if "files" in self.warehouse:
            paths["warehouse"] = {**self.warehouse, "files": absolute(project, self.warehouse["files"])}
        return self.model_copy(update={**paths, **self._absolute_copies(project)})

    @property
    def partitions_name(self) -> str:
        """Name of the partitions in the instance: one per batch that the warehouse holds."""
        return f"{self.name}__batches"

    @property
    def partitions(self) -> dg.DynamicPartitionsDefinition:
        """One partition per batch that the warehouse holds."""
        return dg.DynamicPartitionsDefinition(name=self.partitions_name)

    @property
    def concurrency_pool(self) -> str:
        """Dagster's concurrency pool of the runs that load."""
        return f"load_{self.name}"

    @property
    def observed(self) -> dg.AssetKey:
        """The asset whose partitions the sensor observes."""
        return self.key("warehouse_batches")

    @property
    def converted(self) -> dg.AssetKey:
        """The asset of the loaded batches."""
        return self.key("matrix_batches")

    @property
    def published(self) -> dg.AssetKey:
        """The asset of the matrix as a whole."""
        return self.key("matrix")

    @property
    def conversion_job(self) -> str:
        """The job that loads batches."""
        return f"{self.name}_load"

    @property
    def shown_matrix(self) -> str:
        """The matrix's URL without secrets."""
        return redact(self.matrix)

    @property
    def code_version(self) -> str:
        """Changes with everything that changes the cells of a batch: columns and values."""
        columns = self.warehouse.get("columns")
        return hashlib.sha256(f"{sorted(self.values.items())} {columns}".encode()).hexdigest()[:12]

    def summary(self) -> dict[str, str]:
        """The declaration without secrets, as the UI shows it; of the warehouse its kind and its table or files."""
        place = self.warehouse.get("files") or self.warehouse.get("table") or ""
        shown = {
            "warehouse": f"{self.warehouse.get('kind')}: {redact(str(place))}",
            "matrix": self.shown_matrix,
            "values": ", ".join(f"{value} {dtype}" for value, dtype in self.values.items()),
            "report": self.report,
        }
        return shown if self.features is None else {**shown, "features": redact(self.features)}
