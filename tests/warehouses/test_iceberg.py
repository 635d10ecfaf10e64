"""Warehouses in Iceberg tables."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from tests.helpers.long_tables import FEATURES, write_long
from tests.helpers.warehouse_kinds import (
    append_to_iceberg,
    assert_equals_pandas,
    iceberg_catalog,
    iceberg_of,
    iceberg_settings,
    wide,
)
from zarr_core.errors import WarehouseError
from zarr_core.matrix import WideMatrix
from zarr_core.matrix.ingest.audit import withdrawn_batches
from zarr_core.matrix.ingest.loader import MatrixLoader
from zarr_core.warehouses import IcebergWarehouse, LongColumns
from zarr_core.warehouses.batches import list_batches


def test_batches_come_from_metadata_alone(long: Path, tmp_path: Path) -> None:
    warehouse = iceberg_of(long, tmp_path)
    for file in (tmp_path / "iceberg").rglob("*.parquet"):
        file.unlink()
    assert warehouse.batch_ids() == ["001", "b-1"]


@pytest.mark.slow
def test_a_batch_whose_rows_were_all_deleted_by_position_is_withdrawn(long: Path, tmp_path: Path) -> None:
    from tests.helpers.iceberg_deletes import delete_positions

    warehouse = iceberg_of(long, tmp_path)
    matrix = WideMatrix.create(tmp_path / "matrix", FEATURES)
    MatrixLoader(warehouse, matrix).ingest(warehouse.batch_ids())
    for batch_id, left, withdrawn in (("001", 1, []), ("b-1", 0, ["b-1"])):
        table = iceberg_catalog(tmp_path).load_table("lab.long")
        [task] = table.scan(f"batch_id == '{batch_id}'").plan_files()
        delete_positions(table, task.file, range(left, task.file.record_count))
        assert withdrawn_batches(matrix, warehouse.batch_ids()) == withdrawn
        assert list(list_batches(warehouse)) == warehouse.batch_ids()


_OF_TYPES = {
    "date32": ["1970-01-01", "1970-01-02"],
    "int64": ["0", "1"],
    "bool": ["false", "true"],
    "float32": ["0.1", "2.5"],
    "timestamp[us]": ["1970-01-01 00:00:00", "1970-01-01 00:00:00.000001"],
    "binary": ["0", "1"],
}


@pytest.mark.parametrize("kind", _OF_TYPES)
def test_batches_of_other_types_are_named_and_found_by_their_text(kind: str, tmp_path: Path) -> None:
    from pyiceberg.transforms import IdentityTransform

    first, second = {"float32": (0.1, 2.5), "binary": (b"0", b"1")}.get(kind, (0, 1))
    batches = pa.array([second, second, first])
    batches = batches.cast("int32" if kind == "date32" else batches.type).cast(kind)
    rows = pa.table({"batch_id": batches, "sample_id": ["s", "s", "t"], "cpg_id": ["a", "b", "a"], "beta": [0.1] * 3})
    table = iceberg_catalog(tmp_path).create_table("lab.long", rows.schema)
    with table.update_spec() as update:
        update.add_field("batch_id", IdentityTransform(), "batch_id")
    table.append(rows)
    columns = LongColumns(values={"beta": "beta"})
    warehouse = IcebergWarehouse("lab.long", catalog="trial", properties=iceberg_settings(tmp_path), columns=columns)
    texts = _OF_TYPES[kind]
    assert warehouse.batch_ids() == texts
    assert warehouse.samples(texts) == {texts[0]: ["t"], texts[1]: ["s"]}
    assert warehouse.samples(texts[1:]) == {texts[1]: ["s"]}
    matrix = WideMatrix.create(tmp_path / "matrix", ["a", "b"], {"beta": "float64"})
    loaded = MatrixLoader(warehouse, matrix).ingest(texts).batches
    assert [(batch.batch_id, batch.rows["beta"]) for batch in loaded] == [(texts[0], 1), (texts[1], 2)]


@pytest.mark.slow
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


@pytest.mark.slow
def test_columns_are_those_that_have_the_names_now(long: Path, tmp_path: Path) -> None:
    """Renaming and adding columns makes no snapshot: the latest one still has the earlier names."""
    warehouse = iceberg_of(long, tmp_path)
    first = warehouse.pinned()
    matrix = WideMatrix.create(tmp_path / "matrix", FEATURES, {"beta": "float64", "coverage": "float64"})
    before = MatrixLoader(warehouse, matrix).load(["s1"], "beta"), matrix.read(["s1"], value="coverage")
    for old, new in (("beta", "other"), ("coverage", "beta"), ("other", "coverage")):
        with iceberg_catalog(tmp_path).load_table("lab.long").update_schema() as update:
            update.rename_column(old, new)
    swapped = WideMatrix.create(tmp_path / "swapped", FEATURES, matrix.values)
    after = MatrixLoader(warehouse, swapped).load(["s1"], "coverage"), swapped.read(["s1"], value="beta")
    np.testing.assert_array_equal(after, before)
    with pytest.raises(WarehouseError, match="the warehouse changed after the batch was loaded"):
        MatrixLoader(warehouse, matrix).ingest(["b-1"])
    source = matrix.batch_sources["b-1"]
    without_schema = {name: text for name, text in source.items() if name != "schema"}  # of an earlier version
    for recorded in (source, without_schema):
        assert first.is_unchanged("b-1", recorded)
        assert not warehouse.pinned().is_unchanged("b-1", recorded)
    assert warehouse.pinned().is_unchanged("b-1", swapped.batch_sources["b-1"])
    earlier = IcebergWarehouse(
        "lab.long", catalog="trial", properties=warehouse.properties, snapshot_id=first.snapshot_id
    )
    for opened in (earlier, earlier.pinned(), first.pinned()):
        assert opened.is_unchanged("b-1", source)
        with opened.unload({"b-1": ["s1"]}, ["beta"], FEATURES) as unloaded:
            np.testing.assert_array_equal(wide(unloaded, "b-1", ["s1"], "beta", FEATURES).values, before[0])


def test_a_column_that_was_added_after_all_rows_is_empty(long: Path, tmp_path: Path) -> None:
    from pyiceberg.types import FloatType  # half a second to import

    properties = iceberg_of(long, tmp_path).properties
    with iceberg_catalog(tmp_path).load_table("lab.long").update_schema() as update:
        update.add_column("quality", FloatType())
        update.rename_column("sample_id", "sample")
    columns = LongColumns(sample="sample", values={"beta": "beta", "quality": "quality"})
    warehouse = IcebergWarehouse("lab.long", catalog="trial", properties=properties, columns=columns)
    matrix = WideMatrix.create(tmp_path / "matrix", FEATURES, {"beta": "float32", "quality": "float32"})
    assert np.isnan(MatrixLoader(warehouse, matrix).load(["s1"], "quality")).all()
    assert not np.isnan(matrix.read(["s1"], value="beta")).all()
