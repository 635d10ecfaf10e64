"""The same long Parquet files as a warehouse of each kind."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import boto3
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tests.helpers.athena_in_duckdb import AthenaInDuckDB
from tests.helpers.long_tables import pivoted
from zarr_core.matrix.ingest.scatter import Scattered, WideBlock, scatter
from zarr_core.matrix.store.axis import FeatureAxis
from zarr_core.warehouses import AthenaWarehouse, DuckDBWarehouse, IcebergWarehouse, LongColumns, Unloaded, Warehouse

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog

KINDS = ["duckdb", "iceberg", "athena"]


@contextmanager
def opened(kind: str, root: Path, scratch: Path, columns: LongColumns | None = None) -> Iterator[Warehouse]:
    """A warehouse over ``root/<batch column>=<batch>/*.parquet``; "athena" wants moto to be running."""
    match kind:
        case "duckdb":
            yield DuckDBWarehouse(f"{root}/*/*.parquet", columns)
        case "iceberg":
            yield iceberg_of(root, scratch, columns)
        case "athena":
            with athena_over(root) as (_, warehouse_settings):
                yield AthenaWarehouse("long", columns=columns, **warehouse_settings)


@contextmanager
def athena_over(root: Path) -> Iterator[tuple[AthenaInDuckDB, dict[str, str]]]:
    """The query runner, and the location of the warehouse: database and staging prefix."""
    boto3.setup_default_session()  # not a cached one of another server
    name = f"lab{os.urandom(4).hex()}"
    with one_client_per_service():
        boto3.client("s3").create_bucket(Bucket=name)
        boto3.client("glue").create_database(DatabaseInput={"Name": name})
        with AthenaInDuckDB(name, {"long": f"{root}/*/*.parquet"}).serving() as athena:
            yield athena, {"database": name, "staging": f"s3://{name}/staging"}


@contextmanager
def one_client_per_service() -> Iterator[None]:
    """boto3 makes each client once. awswrangler makes one per call, which takes as long as ten requests."""
    make, made = boto3.Session.client, {}

    def client(session: boto3.Session, service_name: str, *options: Any, **more: Any) -> Any:
        if service_name not in made:
            made[service_name] = make(session, service_name, *options, **more)
        return made[service_name]

    with patch.object(boto3.Session, "client", client):
        yield


def iceberg_settings(scratch: Path) -> dict[str, str]:
    """Properties of a SQLite catalogue."""
    return {"type": "sql", "uri": f"sqlite:///{scratch}/catalogue.db", "warehouse": f"file://{scratch}/iceberg"}


def iceberg_of(root: Path, scratch: Path, columns: LongColumns | None = None) -> IcebergWarehouse:
    """An Iceberg table of the files, partitioned by batch."""
    catalog = iceberg_catalog(scratch)
    batch = (columns or LongColumns()).batch
    for file in sorted(root.glob("*/*.parquet")):
        append_to_iceberg(catalog, file, batch)
    return IcebergWarehouse("lab.long", catalog="trial", properties=iceberg_settings(scratch), columns=columns)


def iceberg_catalog(scratch: Path) -> Catalog:
    """Open the catalogue; create it if it is missing."""
    from pyiceberg.catalog import load_catalog  # half a second to import

    scratch.mkdir(parents=True, exist_ok=True)
    catalog = load_catalog("trial", **iceberg_settings(scratch))
    catalog.create_namespace_if_not_exists("lab")
    return catalog


def append_to_iceberg(catalog: Catalog, file: Path, batch: str = "batch_id") -> None:
    """Load one file into the table, as a nightly job would."""
    from pyiceberg.transforms import IdentityTransform

    rows = pq.ParquetFile(file).read()
    batch_id = file.parent.name.partition("=")[2]
    rows = rows.append_column(batch, pa.array([batch_id] * len(rows), pa.string()))
    if not catalog.table_exists("lab.long"):
        table = catalog.create_table("lab.long", rows.schema)
        with table.update_spec() as update:
            update.add_field(batch, IdentityTransform(), batch)
    catalog.load_table("lab.long").append(rows)


def wide(unloaded: Unloaded, batch_id: str, sample_ids: list[str], value: str, axis: list[str]) -> Scattered:
    """The rows of one batch and value as a wide block."""
    return scatter(lambda: unloaded.rows(batch_id, value), WideBlock(batch_id, value, sample_ids, axis))


def assert_equals_pandas(warehouse: Warehouse, root: Path, axis: list[str]) -> None:
    """Compare the wide block of each batch and value with the pivot that pandas makes of the files."""
    warehouse = warehouse.pinned()
    batches = warehouse.samples(warehouse.batch_ids())
    assert batches
    with warehouse.unload(batches, ["beta", "coverage"], FeatureAxis(axis)) as unloaded:
        for batch_id, sample_ids in batches.items():
            for value in ("beta", "coverage"):
                done = wide(unloaded, batch_id, sample_ids, value, axis)
                assert np.array_equal(done.values, pivoted(root, sample_ids, axis, value), equal_nan=True)
