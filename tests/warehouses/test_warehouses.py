"""Every kind of warehouse gives the results of pandas and refuses the same errors."""

from __future__ import annotations

import re
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.helpers.long_tables import BATCHES, FEATURES, pivoted, write_long
from tests.helpers.warehouse_kinds import (
    KINDS,
    append_to_iceberg,
    assert_equals_pandas,
    iceberg_catalog,
    iceberg_of,
    iceberg_settings,
    opened,
    wide,
)
from zarr_core.errors import WarehouseError
from zarr_core.warehouses import DuckDBWarehouse, IcebergWarehouse, LongColumns, Warehouse
from zarr_core.warehouses.build import build_warehouse

Open = Callable[..., Warehouse]


@pytest.fixture(params=KINDS)
def open_warehouse(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Open]:
    """Opens files as a warehouse of the kind."""
    if request.param == "athena":
        request.getfixturevalue("s3_server")
    with ExitStack() as stack:
        yield lambda root, columns=None: stack.enter_context(
            opened(request.param, root, tmp_path / "warehouse", columns)
        )


@pytest.mark.parametrize(
    ("kind", "package"), [("duckdb", "duckdb"), ("iceberg", "pyiceberg"), ("athena", "awswrangler")]
)
def test_without_its_package_an_error_names_the_extra(monkeypatch: pytest.MonkeyPatch, kind: str, package: str) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    named = f"a warehouse of kind {kind} needs {package}: pip install 'zarr-core[warehouse]'"
    with pytest.raises(WarehouseError, match=re.escape(named)):
        build_warehouse({"kind": kind})


@pytest.mark.slow
def test_batches_samples_and_features(open_warehouse: Open, long: Path) -> None:
    warehouse = open_warehouse(long)
    assert warehouse.batch_ids() == sorted(BATCHES)
    assert warehouse.samples(["001", "absent"]) == {"001": sorted(BATCHES["001"])}
    assert warehouse.samples([]) == {}
    assert warehouse.samples(pd.Series(["001", "b-1"])).keys() == BATCHES.keys()  # type: ignore[arg-type]
    assert warehouse.batches_of(["s:5", "absent", "s'4", "s1"]) == {"s:5": ["001"], "s'4": ["001"], "s1": ["b-1"]}
    assert warehouse.feature_ids() == FEATURES
    assert warehouse.value_names == ("beta", "coverage")


@pytest.mark.slow
def test_equals_pandas(open_warehouse: Open, long: Path) -> None:
    assert_equals_pandas(open_warehouse(long), long, FEATURES[::-1])  # an axis in an order of its own


def test_only_requested_samples_are_unloaded(open_warehouse: Open, long: Path) -> None:
    with open_warehouse(long).unload({"001": ["s:5", "s2"]}, ["beta"], FEATURES) as unloaded:
        done = wide(unloaded, "001", ["s:5", "s2"], "beta", FEATURES)
    assert np.array_equal(done.values, pivoted(long, ["s:5", "s2"], FEATURES, "beta"), equal_nan=True)


@pytest.mark.slow
def test_columns_of_other_names(open_warehouse: Open, tmp_path: Path) -> None:
    """Names with quotes and reserved words stay names; numbers stay ids."""
    names = {"batch_id": "select", "sample_id": 'sample "id"', "cpg_id": "from", "beta": "M; DROP TABLE x"}
    root = tmp_path / "renamed"
    write_long(root, {"7": ["1", "2"]}, **names)
    for file in root.glob("*/*.parquet"):
        rows = pd.read_parquet(file)
        pd.DataFrame({**rows, names["sample_id"]: rows[names["sample_id"]].astype("int64")}).to_parquet(file)
    columns = LongColumns("select", 'sample "id"', "from", {"m_value": "M; DROP TABLE x"})
    warehouse = open_warehouse(root, columns)
    assert warehouse.samples(["7"]) == {"7": ["1", "2"]}
    assert warehouse.batches_of(["1", "3"]) == {"1": ["7"]}
    with warehouse.unload({"7": ["1", "2"]}, ["m_value"], FEATURES) as unloaded:
        done = wide(unloaded, "7", ["1", "2"], "m_value", FEATURES)
    usual = tmp_path / "usual"
    write_long(usual, {"7": ["1", "2"]})
    assert np.array_equal(done.values, pivoted(usual, ["1", "2"], FEATURES, "beta"), equal_nan=True)


def test_ids_are_never_executed_as_sql(open_warehouse: Open, long: Path) -> None:
    hostile = ["x' OR 'a' = 'a", "x') UNION SELECT 1; --", '"; DROP VIEW long; --', "%", "\\", ":s1", "{s1}", "$1", "?"]
    warehouse = open_warehouse(long)
    assert warehouse.samples(hostile) == {}
    assert warehouse.batches_of([*hostile, "s1"]) == {"s1": ["b-1"]}
    with warehouse.unload({name: [name] for name in hostile}, ["beta"], FEATURES) as unloaded:
        for name in hostile:
            assert sum(len(rows) for rows in unloaded.rows(name, "beta")) == 0


def test_a_zero_character_is_refused(long: Path) -> None:
    with pytest.raises(WarehouseError, match="zero character"):
        DuckDBWarehouse(f"{long}/*/*.parquet").samples(["s\0"])


def test_a_batch_loaded_twice_is_named(open_warehouse: Open, long: Path) -> None:
    file = next((long / "batch_id=b-1").glob("*.parquet"))
    shutil.copy(file, file.with_name("again.parquet"))
    warehouse = open_warehouse(long)
    with (
        warehouse.unload({"b-1": BATCHES["b-1"]}, ["beta"], FEATURES) as unloaded,
        pytest.raises(WarehouseError, match=r"batch b-1, sample s\d, feature cg\d+ has more than one beta row"),
    ):
        wide(unloaded, "b-1", BATCHES["b-1"], "beta", FEATURES)


def test_a_feature_outside_the_axis_is_named(open_warehouse: Open, long: Path) -> None:
    warehouse = open_warehouse(long)
    axis = [feature for feature in FEATURES if feature != "cg007"]
    with (
        warehouse.unload({"b-1": BATCHES["b-1"]}, ["beta"], axis) as unloaded,
        pytest.raises(WarehouseError, match="batch b-1, sample s., feature cg007 is not on the matrix's axis of 39"),
    ):
        wide(unloaded, "b-1", BATCHES["b-1"], "beta", axis)


def test_a_value_without_column_is_refused(open_warehouse: Open, long: Path) -> None:
    warehouse = open_warehouse(long)
    with (
        pytest.raises(WarehouseError, match="no column for the value 'm_value'; configured values: beta, coverage"),
        warehouse.unload({"b-1": ["s1"]}, ["m_value"], FEATURES),
    ):
        pass


def test_a_missing_column_is_named(open_warehouse: Open, long: Path) -> None:
    warehouse = open_warehouse(long, LongColumns(sample="patient"))
    with pytest.raises(WarehouseError, match="patient"):
        warehouse.samples(["b-1"])


def test_a_row_without_sample_is_refused(open_warehouse: Open, long: Path) -> None:
    file = next((long / "batch_id=b-1").glob("*.parquet"))
    rows = pd.read_parquet(file)
    rows.loc[3, "sample_id"] = None
    rows.to_parquet(file, index=False)
    with pytest.raises(WarehouseError, match="rows without a sample_id"):
        open_warehouse(long).samples(["b-1"])


@pytest.mark.parametrize("kind", ["duckdb", "iceberg"])
def test_a_row_without_batch_is_refused_by_a_load_of_one_batch(kind: str, tmp_path: Path) -> None:
    """It may belong to that batch."""
    rows = pa.table({"batch_id": ["a", None], "sample_id": ["s", "s"], "cpg_id": ["cg1", "cg2"], "beta": [0.1, 0.2]})
    columns = LongColumns(values={"beta": "beta"})
    if kind == "duckdb":
        pq.write_table(rows, tmp_path / "long.parquet")
        warehouse: Warehouse = DuckDBWarehouse(f"{tmp_path}/long.parquet", columns)
    else:
        iceberg_catalog(tmp_path).create_table("lab.long", rows.schema).append(rows)
        warehouse = IcebergWarehouse(
            "lab.long", catalog="trial", properties=iceberg_settings(tmp_path), columns=columns
        )
    with pytest.raises(WarehouseError, match="rows without a batch_id"):
        warehouse.samples(["a"])


def test_a_pinned_warehouse_does_not_see_later_rows(long: Path, tmp_path: Path) -> None:
    kinds: list[Warehouse] = [DuckDBWarehouse(f"{long}/*/*.parquet"), iceberg_of(long, tmp_path / "iceberg")]
    pinned = [warehouse.pinned() for warehouse in kinds]
    write_long(long, {"b-1": ["s9"], "b-2": ["s8"]}, seed=1)
    for name in ("b-1/part-1", "b-2/part-0"):
        append_to_iceberg(iceberg_catalog(tmp_path / "iceberg"), long / f"batch_id={name}.parquet")
    for before, now in zip(pinned, kinds, strict=True):
        assert before.batch_ids() == ["001", "b-1"]
        assert before.samples(["b-1", "b-2"]) == {"b-1": ["s1", "s3"]}
        assert now.batch_ids() == ["001", "b-1", "b-2"]
        assert now.samples(["b-1", "b-2"]) == {"b-1": ["s1", "s3", "s9"], "b-2": ["s8"]}
