"""The join with the axis, in DuckDB or, for large axes, by searching the arriving rows."""

from __future__ import annotations

import os
from pathlib import Path

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.helpers.long_tables import FEATURES, write_long
from tests.helpers.warehouse_kinds import assert_equals_pandas, wide
from zarr_core.errors import WarehouseError
from zarr_core.matrix import WideMatrix
from zarr_core.matrix.ingest.loader import MatrixLoader
from zarr_core.matrix.store.axis import FeatureAxis
from zarr_core.warehouses import DuckDBWarehouse, LongColumns, join


def test_rows_of_a_large_axis_are_searched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    warehouse = DuckDBWarehouse(write_long(tmp_path))
    monkeypatch.setattr(join, "_JOINED_FEATURES", 0)
    tables: list[int] = []
    original = join.axis_table
    monkeypatch.setattr(join, "axis_table", lambda ids: tables.append(len(ids)) or original(ids))
    axis = [*FEATURES[::-1], "a feature with a longer name", "x"]
    assert_equals_pandas(warehouse, tmp_path, axis)
    assert set(tables) == {0}
    with (
        warehouse.pinned().unload({"b-1": ["s1", "s3"]}, ["beta"], FeatureAxis(FEATURES[1:])) as unloaded,
        pytest.raises(WarehouseError, match="batch b-1, sample s[13], feature cg000 is not on the matrix's axis"),
    ):
        wide(unloaded, "b-1", ["s1", "s3"], "beta", FEATURES[1:])
    tables.clear()
    assert_equals_pandas(warehouse, tmp_path, [*axis, "null"])  # rows without a feature would be taken for it
    assert set(tables) == {len(axis) + 1}


def test_names_are_found_as_by_a_dictionary() -> None:
    mixed = ["b", None, "zürich", "longer than any", "", "a", "b"]
    in_order = ["a", "longer than any", "b"]
    for ids in (["b", "a", "zürich"], ["a", "b", "zürich"], ["zürich", "a", "b"], ["b", "a"], ["a", "b", "c"]):
        for names in (mixed, in_order, ids, ids[1:], ids[::-1], [*ids, "a"], []):
            expected = [ids.index(name) if name in ids else -1 for name in names]
            assert FeatureAxis(ids).find(pa.array(names, pa.string())).tolist() == expected


def test_numbers_are_found_by_their_text() -> None:
    ids = [7, -3, 2**63 - 1, 0, -(2**63), 10]
    others = ["07", "+7", "7.0", " 7", "-0", "-", "", None, "seven", str(2**63), str(-(2**63) - 1), "1" * 30, "8"]
    names = [*map(str, ids), *others]
    assert FeatureAxis(ids).find(pa.array(names, pa.string())).tolist() == [*range(len(ids)), *[-1] * len(others)]
    assert FeatureAxis(ids).find(pa.array([], pa.string())).tolist() == []


def test_rows_of_a_large_axis_of_numbers_are_searched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "batch_id=b").mkdir()
    rows = {"sample_id": ["s"] * 3, "cpg_id": [3, 1, 2], "beta": [0.3, 0.1, 0.2]}
    pq.write_table(pa.table(rows), tmp_path / "batch_id=b" / "rows.parquet")
    warehouse = DuckDBWarehouse(f"{tmp_path}/*/*.parquet", LongColumns(values={"beta": "beta"}))
    matrix = WideMatrix.create(tmp_path / "matrix", [2, 4, 1, 3], {"beta": "float64"})
    monkeypatch.setattr(join, "_JOINED_FEATURES", 0)
    np.testing.assert_array_equal(MatrixLoader(warehouse, matrix).load(["s"]), [[0.2, np.nan, 0.1, 0.3]])


def test_duckdb_spills_to_the_folder_of_temporary_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with join.duckdb_connection("lab") as connection:
        connection.execute("SET memory_limit = '16MB'")
        connection.execute("CREATE TABLE much AS SELECT random() AS x FROM range(4_000_000)")
        row = connection.execute("SELECT current_setting('temp_directory')").fetchone()
        assert row is not None
        assert os.listdir(row[0])
        assert connection.execute("SELECT current_setting('enable_progress_bar')").fetchall() == [(False,)]
    assert not os.path.exists(row[0])
    assert os.listdir(tmp_path) == []
    with pytest.raises(WarehouseError, match="lab: .*nothing"), join.duckdb_connection("lab") as connection:
        connection.execute("SELECT * FROM nothing")
    assert isinstance(connection, duckdb.DuckDBPyConnection)
