"""A small long table, and a declared wide matrix over it with its jobs on a Dagster instance of the test's own."""

from __future__ import annotations

from pathlib import Path

import dagster as dg
import numpy as np
import pandas as pd
from zarr_core.platform.assets.wide_matrix.component import matrix_definitions
from zarr_core.platform.assets.wide_matrix.declaration import MatrixDeclaration
from zarr_core.platform.resources.warehouses import WarehouseAccess
from zarr_core.platform.sensors.dagster_internals.tags import partition_range_tags

from tests.platform.trial import Recorded
from zarr_core.matrix import WideMatrix
from zarr_core.matrix.ingest.loader import MatrixLoader

FEATURES = [f"cg{number:03d}" for number in range(30)]


def declare(folder: Path, **settings: object) -> MatrixDeclaration:
    """A matrix whose warehouse is the folder ``long`` and whose axis is declared."""
    pd.DataFrame({"cpg_id": FEATURES}).to_parquet(folder / "features.parquet")
    (folder / "long").mkdir(exist_ok=True)
    declared = MatrixDeclaration(
        name="trial",
        warehouse={"kind": "duckdb", "files": "long/*/*.parquet"},
        features="features.parquet",
        matrix="matrix",
        report="report",
        settle_seconds=0.02,
        retry_seconds=0,
        **settings,
    )
    return declared.with_absolute_paths(folder)


def long_rows(batch_id: str, samples: int = 5, shift: float = 0.0) -> pd.DataFrame:
    """Rows of a batch, some cells of it left out and some without a value."""
    random = np.random.default_rng(sum(batch_id.encode()))
    rows = pd.DataFrame(
        [(f"{batch_id}s{number}", feature) for number in range(samples) for feature in FEATURES],
        columns=["sample_id", "cpg_id"],
    )
    rows["beta"] = (random.uniform(0.1, 0.8, len(rows)) + shift).astype("float32")
    rows["coverage"] = pd.array(random.integers(1, 90, len(rows)), dtype="Int32")
    rows.loc[random.random(len(rows)) < 0.1, "beta"] = np.nan
    return rows[random.random(len(rows)) < 0.9].reset_index(drop=True)


def assert_equal_to_a_pivot(matrix: WideMatrix, warehouse: Path) -> None:
    """Cell for cell, NaN for NaN."""
    rows = pd.concat(pd.read_parquet(file, partitioning=None) for file in warehouse.glob("*/*.parquet"))
    for value in ("beta", "coverage"):
        wide = rows.pivot(index="sample_id", columns="cpg_id", values=value)
        wide = wide.reindex(matrix.sample_ids, columns=np.asarray(matrix.feature_ids))
        np.testing.assert_array_equal(matrix.read(matrix.sample_ids, value=value), wide.to_numpy("f4", na_value=np.nan))


class MatrixTrial(Recorded):
    """A declared matrix, and its jobs run in this process."""

    def __init__(self, declared: MatrixDeclaration, instance: dg.DagsterInstance) -> None:
        self.dataset, self.instance = declared, instance
        self.folder = Path(declared.matrix).parent
        self.definitions = dg.Definitions.merge(
            matrix_definitions(declared),
            dg.Definitions(resources={"warehouses": WarehouseAccess()}, executor=dg.in_process_executor),
        )

    def write(self, batch_id: str, rows: pd.DataFrame | None = None) -> Path:
        """A batch in the warehouse."""
        file = self.folder / "long" / f"batch_id={batch_id}" / "part-0.parquet"
        file.parent.mkdir(exist_ok=True)
        (long_rows(batch_id) if rows is None else rows).to_parquet(file, index=False)
        return file

    def run(self, job: str, *batch_ids: str) -> dg.ExecuteInProcessResult:
        """Run ``look``, ``load`` (the batches from the first to the last named) or ``refresh``."""
        tags = partition_range_tags(batch_ids[0], batch_ids[-1]) if batch_ids else {}
        found = self.definitions.resolve_job_def(f"trial_{job}")
        return found.execute_in_process(instance=self.instance, tags=tags, raise_on_error=False)

    def load_all(self) -> dg.ExecuteInProcessResult:
        """Look, and load every registered batch."""
        assert self.run("look").success
        batch_ids = self.registered()
        return self.run("load", batch_ids[0], batch_ids[-1])

    def load_directly(self) -> None:
        """What the warehouse holds, without Dagster: for tests that are about what comes after."""
        warehouses = WarehouseAccess()
        declared = self.dataset
        warehouse = warehouses.warehouse(declared.warehouse)
        matrix = warehouses.open_or_create(declared.matrix, declared.values, declared.features, declared.warehouse)
        MatrixLoader(warehouse, matrix).ingest(warehouse.batch_ids())

    def registered(self) -> list[str]:
        return list(self.instance.get_dynamic_partitions(self.dataset.partitions_name))

    def loaded(self) -> set[str]:
        return set(self.instance.get_materialized_partitions(self.dataset.key("matrix_batches")))
