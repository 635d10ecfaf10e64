"""Warehouses in Iceberg tables."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.helpers.long_tables import FEATURES, write_long
from tests.helpers.warehouse_kinds import append_to_iceberg, assert_equals_pandas, iceberg_catalog, iceberg_of
from zarr_core.errors import WarehouseError
from zarr_core.warehouses import IcebergWarehouse


def test_batches_come_from_metadata_alone(long: Path, tmp_path: Path) -> None:
    warehouse = iceberg_of(long, tmp_path)
    for file in (tmp_path / "iceberg").rglob("*.parquet"):
        file.unlink()
    assert warehouse.batch_ids() == ["001", "b-1"]


def test_an_unpartitioned_table(long: Path, tmp_path: Path) -> None:
    warehouse = iceberg_of(long, tmp_path)
    with iceberg_catalog(tmp_path).load_table("lab.long").update_spec() as update:
        update.remove_field("batch_id")
    write_long(long, {"b-2": ["s8"]})
    append_to_iceberg(iceberg_catalog(tmp_path), long / "batch_id=b-2" / "part-0.parquet")
    assert warehouse.batch_ids() == ["001", "b-1", "b-2"]
    assert_equals_pandas(warehouse, long, FEATURES)


def test_an_empty_table_and_none(long: Path, tmp_path: Path) -> None:
    warehouse = iceberg_of(long, tmp_path)
    absent = IcebergWarehouse("lab.absent", catalog="trial", properties=warehouse.properties)
    with pytest.raises(WarehouseError, match=r"lab.absent"):
        absent.batch_ids()
    schema = iceberg_catalog(tmp_path).load_table("lab.long").schema()
    iceberg_catalog(tmp_path).create_table("lab.absent", schema)
    with pytest.raises(WarehouseError, match="has no snapshot yet"):
        absent.pinned()


def test_the_catalogue_may_come_from_the_environment(
    long: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    properties = iceberg_of(long, tmp_path).properties
    for name, value in properties.items():
        monkeypatch.setenv(f"PYICEBERG_CATALOG__TRIAL__{name.upper()}", value)
    # pyiceberg reads the environment once, when it is imported.
    monkeypatch.setattr("pyiceberg.catalog._ENV_CONFIG", __import__("pyiceberg.utils.config").utils.config.Config())
    assert IcebergWarehouse("lab.long", catalog="trial").batch_ids() == ["001", "b-1"]


def test_a_table_that_was_dropped_and_created_again_is_another(long: Path, tmp_path: Path) -> None:
    warehouse = iceberg_of(long, tmp_path)
    pinned = warehouse.pinned()
    catalog = iceberg_catalog(tmp_path)
    schema = catalog.load_table("lab.long").schema()
    catalog.drop_table("lab.long")
    catalog.create_table("lab.long", schema)
    append_to_iceberg(catalog, long / "batch_id=b-1" / "part-0.parquet")
    for opened in (warehouse, pinned):
        for use in (opened.batch_ids, opened.pinned):
            with pytest.raises(WarehouseError, match="its table was dropped, and another one was created"):
                use()
    assert iceberg_catalog(tmp_path).load_table("lab.long").current_snapshot() is not None
