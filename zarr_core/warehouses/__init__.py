"""Warehouses: long tables of measurements in Parquet files, Iceberg and Athena."""

from zarr_core.warehouses.athena import AthenaWarehouse
from zarr_core.warehouses.duckdb import DuckDBWarehouse
from zarr_core.warehouses.iceberg import IcebergWarehouse
from zarr_core.warehouses.protocol import Cost, LongColumns, Unloaded, Warehouse

__all__ = ["AthenaWarehouse", "Cost", "DuckDBWarehouse", "IcebergWarehouse", "LongColumns", "Unloaded", "Warehouse"]
