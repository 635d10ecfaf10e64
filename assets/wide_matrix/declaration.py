"""One declared wide matrix: which warehouse it is filled from, where it lies and what is reported on it."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import dagster as dg

from zarr_core._util.redaction import redact_url


@dataclass(frozen=True)
class DeclaredMatrix:
    """What a ``defs.yaml`` says, with every path absolute.

    Attributes:
        name: prefix of the asset keys, their group and their partitions.
        warehouse: what ``zarr_core.warehouses.build.build_warehouse`` understands.
        features: Parquet file or text file that holds the axis; None takes what the warehouse has when the matrix is
            made.
        matrix: folder or URL of the matrix.
        report: local folder for the quality report.
        values: stored dtype by value table.
        batch_size: most batches that one run loads.
        look_every_seconds: pause between two looks at the warehouse.
        refresh_schedule: cron line on which transposed copy and report are made afresh.
        retry_schedule: cron line on which failed batches are tried again although they did not change.
        checked_batches: how many of the latest batches, and how many of the others, the checks hold against the
            warehouse.
    """

    name: str
    # Not printed: URLs may hold passwords, and properties of a catalogue tokens.
    warehouse: Mapping[str, Any] = field(repr=False)
    features: str | None = field(repr=False)
    matrix: str = field(repr=False)
    report: str
    values: Mapping[str, str]
    batch_size: int
    look_every_seconds: int
    refresh_schedule: str
    retry_schedule: str
    checked_batches: int

    @property
    def partitions_name(self) -> str:
        """Name under which the instance keeps the partitions."""
        return f"{self.name}__batches"

    @cached_property
    def batches(self) -> dg.DynamicPartitionsDefinition:
        """One partition per batch that the warehouse holds."""
        return dg.DynamicPartitionsDefinition(name=self.partitions_name)

    @property
    def pool(self) -> str:
        """Concurrency pool of the runs that load."""
        return f"load_{self.name}"

    def key(self, asset: str) -> dg.AssetKey:
        """Key of one of the assets ("matrix")."""
        return dg.AssetKey([self.name, asset])

    @property
    def observed(self) -> dg.AssetKey:
        """The batches as the sensor reports them."""
        return self.key("warehouse_batches")

    @property
    def shown_matrix(self) -> str:
        """The matrix's URL as it may be printed."""
        return redact_url(self.matrix)

    @cached_property
    def code_version(self) -> str:
        """Changes with whatever changes the cells that a batch becomes: columns and values."""
        said = f"{sorted(self.values.items())} {self.warehouse.get('columns')}"
        return hashlib.sha256(said.encode()).hexdigest()[:12]

    def summary(self) -> dict[str, str]:
        """What the UI shows of the declaration, without passwords: of the warehouse its kind and table or files."""
        place = self.warehouse.get("files") or self.warehouse.get("table") or ""
        shown = {
            "warehouse": f"{self.warehouse.get('kind')}: {redact_url(str(place))}",
            "matrix": self.shown_matrix,
            "values": ", ".join(f"{value} {dtype}" for value, dtype in self.values.items()),
            "report": self.report,
        }
        return shown if self.features is None else {**shown, "features": redact_url(self.features)}
