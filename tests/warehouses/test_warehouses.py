"""Each kind of warehouse against pandas: the same questions, the same cells, the same refusals."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import quote

import boto3
import numpy as np
import pandas as pd
import pytest

import zarr_core.warehouses.athena as athena_module
from tests.helpers.athena_in_duckdb import AthenaInDuckDB
from tests.helpers.long_tables import BATCHES, FEATURES, pivoted, write_long
from tests.helpers.warehouse_kinds import KINDS, append_to_iceberg, athena_over, iceberg_catalog, iceberg_of, opened
from zarr_core.errors import WarehouseError
from zarr_core.matrix.axis import FeatureAxis
from zarr_core.matrix.ingest.scatter import Scattered, WideBlock, scatter
from zarr_core.warehouses import (
    AthenaWarehouse,
    Cost,
    DuckDBWarehouse,
    IcebergWarehouse,
    LongColumns,
    Unloaded,
    Warehouse,
)

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


@pytest.fixture
def long(tmp_path: Path) -> Path:
    write_long(tmp_path / "long")
    return tmp_path / "long"


def wide(unloaded: Unloaded, batch_id: str, sample_ids: list[str], value: str, axis: list[str]) -> Scattered:
    return scatter(lambda: unloaded.rows(batch_id, value), WideBlock(batch_id, value, sample_ids, axis))


def assert_equals_pandas(warehouse: Warehouse, root: Path, axis: list[str]) -> None:
    warehouse = warehouse.pinned()
    batches = warehouse.samples(warehouse.batch_ids())
    assert batches
    with warehouse.unload(batches, ["beta", "coverage"], FeatureAxis(axis)) as unloaded:
        for batch_id, sample_ids in batches.items():
            for value in ("beta", "coverage"):
                done = wide(unloaded, batch_id, sample_ids, value, axis)
                assert np.array_equal(done.values, pivoted(root, sample_ids, axis, value), equal_nan=True)


def test_what_is_there(open_warehouse: Open, long: Path) -> None:
    warehouse = open_warehouse(long)
    assert warehouse.batch_ids() == sorted(BATCHES)
    assert warehouse.samples(["001", "absent"]) == {"001": sorted(BATCHES["001"])}
    assert warehouse.samples([]) == {}
    assert warehouse.batches_of(["s:5", "absent", "s'4", "s1"]) == {"s:5": ["001"], "s'4": ["001"], "s1": ["b-1"]}
    assert warehouse.feature_ids() == FEATURES
    assert warehouse.value_names == ("beta", "coverage")


def test_equals_pandas(open_warehouse: Open, long: Path) -> None:
    assert_equals_pandas(open_warehouse(long), long, FEATURES[::-1])  # an axis in an order of its own


def test_only_samples_asked_for_come(open_warehouse: Open, long: Path) -> None:
    with open_warehouse(long).unload({"001": ["s:5", "s2"]}, ["beta"], FEATURES) as unloaded:
        done = wide(unloaded, "001", ["s:5", "s2"], "beta", FEATURES)
    assert np.array_equal(done.values, pivoted(long, ["s:5", "s2"], FEATURES, "beta"), equal_nan=True)


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


def test_ids_are_only_ever_compared(open_warehouse: Open, long: Path) -> None:
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
        pytest.raises(WarehouseError, match="no column for the value 'm_value'; it knows beta, coverage"),
        warehouse.unload({"b-1": ["s1"]}, ["m_value"], FEATURES),
    ):
        pass


def test_a_column_that_is_not_there_is_named(open_warehouse: Open, long: Path) -> None:
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


def test_a_pinned_warehouse_does_not_see_what_comes_later(long: Path, tmp_path: Path) -> None:
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


class TestDuckDB:
    def test_files_in_a_bucket(self, long: Path, s3_root: str) -> None:
        import s3fs

        s3fs.S3FileSystem().put(f"{long}/", f"{s3_root}/long/", recursive=True)
        assert_equals_pandas(DuckDBWarehouse(f"{s3_root}/long/*/*.parquet"), long, FEATURES)

    def test_files_may_store_a_column_as_different_types(self, tmp_path: Path) -> None:
        """Whole numbers or nothing in one file are no reason to round, or to take for a number, what others hold."""
        stored: list[tuple[str, list[Any], list[Any]]] = [
            ("a", [1, 2], [1, 0]),
            ("b", ["007", "8"], [0.25, 0.75]),
            ("b", [9, 10], [None, None]),
        ]
        for number, (batch_id, samples, betas) in enumerate(stored):
            folder = tmp_path / f"batch_id={batch_id}"
            folder.mkdir(exist_ok=True)
            rows = pd.DataFrame({"sample_id": samples, "cpg_id": ["cg1", "cg1"], "beta": betas, "coverage": [3, 4]})
            rows.to_parquet(folder / f"{number}.parquet")
        warehouse = DuckDBWarehouse(f"{tmp_path}/*/*.parquet")
        samples = {"a": ["1", "2"], "b": ["007", "10", "8", "9"]}
        assert warehouse.samples(["a", "b"]) == samples
        assert warehouse.batches_of(["007", "7", "9"]) == {"007": ["b"], "9": ["b"]}
        with warehouse.unload(samples, ["beta"], ["cg1"]) as unloaded:
            for batch_id, betas in (("a", [1, 0]), ("b", [0.25, np.nan, 0.75, np.nan])):
                got = wide(unloaded, batch_id, samples[batch_id], "beta", ["cg1"]).values[:, 0]
                np.testing.assert_array_equal(got, betas)

    def test_batches_of_any_name_and_files_of_none(self, tmp_path: Path) -> None:
        names = ["a b", "x/y", "a+b", "p\u00fc", "50%"]
        for number, name in enumerate(names):
            folder = tmp_path / "long" / f"batch_id={quote(name, safe='+')}"
            folder.mkdir(parents=True)
            rows = {"sample_id": [f"s{number}"], "cpg_id": ["cg1"], "beta": [0.5], "coverage": [number]}
            pd.DataFrame(rows).to_parquet(folder / "rows.parquet")
        pd.DataFrame(
            {"batch_id": ["told"], "sample_id": ["t"], "cpg_id": ["cg1"], "beta": [1.0], "coverage": [9]}
        ).to_parquet(tmp_path / "told.parquet")
        folders = DuckDBWarehouse(f"{tmp_path}/long/*/*.parquet")
        assert folders.samples(names) == {name: [f"s{number}"] for number, name in enumerate(names)}
        assert folders.samples(["nobody"]) == {}
        with folders.unload(folders.samples(names), ["coverage"], ["cg1"]) as unloaded:
            assert [wide(unloaded, n, [f"s{i}"], "coverage", ["cg1"]).values[0, 0] for i, n in enumerate(names)] == [
                *range(5)
            ]
        column = DuckDBWarehouse(f"{tmp_path}/told.parquet")
        assert column.samples(["told", "nobody"]) == {"told": ["t"]}
        with column.unload({"told": ["t"]}, ["coverage"], ["cg1"]) as unloaded:
            assert wide(unloaded, "told", ["t"], "coverage", ["cg1"]).values.tolist() == [[9]]

    def test_no_files(self, tmp_path: Path) -> None:
        with pytest.raises(WarehouseError, match="no file is there"):
            DuckDBWarehouse(f"{tmp_path}/*.parquet").batch_ids()

    def test_a_damaged_file_is_named(self, long: Path) -> None:
        file = next((long / "batch_id=b-1").glob("*.parquet"))
        file.write_bytes(file.read_bytes()[:200])
        with pytest.raises(WarehouseError, match=r"b-1/part-0.parquet"):
            DuckDBWarehouse(f"{long}/*/*.parquet").samples(["b-1"])

    def test_only_the_files_of_the_batch_are_read(self, long: Path) -> None:
        damaged = long / "batch_id=b-1" / "part-0.parquet"  # not the first, which the columns are taken from
        damaged.write_bytes(b"no Parquet" * 10)
        with DuckDBWarehouse(f"{long}/*/*.parquet").unload({"001": ["s2"]}, ["beta"], FEATURES) as unloaded:
            assert wide(unloaded, "001", ["s2"], "beta", FEATURES).rows


class TestIceberg:
    def test_batches_come_from_metadata_alone(self, long: Path, tmp_path: Path) -> None:
        warehouse = iceberg_of(long, tmp_path)
        for file in (tmp_path / "iceberg").rglob("*.parquet"):
            file.unlink()
        assert warehouse.batch_ids() == ["001", "b-1"]

    def test_an_unpartitioned_table(self, long: Path, tmp_path: Path) -> None:
        warehouse = iceberg_of(long, tmp_path)
        with iceberg_catalog(tmp_path).load_table("lab.long").update_spec() as update:
            update.remove_field("batch_id")
        write_long(long, {"b-2": ["s8"]})
        append_to_iceberg(iceberg_catalog(tmp_path), long / "batch_id=b-2" / "part-0.parquet")
        assert warehouse.batch_ids() == ["001", "b-1", "b-2"]
        assert_equals_pandas(warehouse, long, FEATURES)

    def test_an_empty_table_and_none(self, long: Path, tmp_path: Path) -> None:
        warehouse = iceberg_of(long, tmp_path)
        absent = IcebergWarehouse("lab.absent", catalog="trial", properties=warehouse.properties)
        with pytest.raises(WarehouseError, match=r"lab.absent"):
            absent.batch_ids()
        schema = iceberg_catalog(tmp_path).load_table("lab.long").schema()
        iceberg_catalog(tmp_path).create_table("lab.absent", schema)
        with pytest.raises(WarehouseError, match="has no snapshot yet"):
            absent.pinned()

    def test_the_catalogue_may_come_from_the_environment(
        self, long: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        properties = iceberg_of(long, tmp_path).properties
        for name, value in properties.items():
            monkeypatch.setenv(f"PYICEBERG_CATALOG__TRIAL__{name.upper()}", value)
        # pyiceberg reads the environment once, when it is imported.
        monkeypatch.setattr("pyiceberg.catalog._ENV_CONFIG", __import__("pyiceberg.utils.config").utils.config.Config())
        assert IcebergWarehouse("lab.long", catalog="trial").batch_ids() == ["001", "b-1"]


@pytest.mark.usefixtures("s3_server")
class TestAthena:
    @pytest.fixture
    def athena(self, long: Path) -> Iterator[tuple[AthenaInDuckDB, AthenaWarehouse]]:
        with athena_over(long) as (runner, where):
            yield runner, AthenaWarehouse("long", **where)

    @staticmethod
    def staged(warehouse: AthenaWarehouse, folder: str) -> list[str]:
        bucket, _, prefix = warehouse.staging.removeprefix("s3://").partition("/")
        found = boto3.client("s3").list_objects_v2(Bucket=bucket, Prefix=f"{prefix}/{folder}/").get("Contents", [])
        return [item["Key"] for item in found]

    def test_nothing_unloaded_stays(self, athena: tuple[AthenaInDuckDB, AthenaWarehouse]) -> None:
        _, warehouse = athena
        warehouse.batch_ids()
        with warehouse.unload(BATCHES, ["beta"], FEATURES) as unloaded:
            assert self.staged(warehouse, "unloads")
            next(unloaded.rows("001", "beta"))
        assert self.staged(warehouse, "unloads") == []
        with pytest.raises(KeyError), warehouse.unload(BATCHES, ["beta"], FEATURES):
            raise KeyError
        assert self.staged(warehouse, "unloads") == []

    def test_nothing_stays_of_a_query_that_failed(self, athena: tuple[AthenaInDuckDB, AthenaWarehouse]) -> None:
        runner, warehouse = athena
        runner.fail = "EXCEEDED_MEMORY_LIMIT: Query exceeded per-node memory limit"
        with pytest.raises(WarehouseError, match="'long', database=.*EXCEEDED_MEMORY_LIMIT"):
            warehouse.batch_ids()
        with (
            pytest.raises(WarehouseError, match="EXCEEDED_MEMORY_LIMIT"),
            warehouse.unload(BATCHES, ["beta"], FEATURES),
        ):
            pass
        assert self.staged(warehouse, "unloads") == []

    def test_orphans_are_removed_a_day_later(
        self, athena: tuple[AthenaInDuckDB, AthenaWarehouse], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        _, warehouse = athena
        bucket, _, prefix = warehouse.staging.removeprefix("s3://").partition("/")
        orphan = f"{prefix}/unloads/of-a-killed-process/beta/0/batch=0/rows"
        boto3.client("s3").put_object(Bucket=bucket, Key=orphan, Body=b"rows")
        boto3.client("s3").put_object(Bucket=bucket, Key="theirs", Body=b"rows")
        with warehouse.unload(BATCHES, ["beta"], FEATURES):
            pass
        assert self.staged(warehouse, "unloads") == [orphan]
        monkeypatch.setattr(athena_module, "_ORPHAN_AGE", timedelta(seconds=-5))
        with warehouse.unload(BATCHES, ["beta"], FEATURES):
            assert orphan not in self.staged(warehouse, "unloads")
        assert boto3.client("s3").get_object(Bucket=bucket, Key="theirs")["Body"].read() == b"rows"

    def test_one_query_a_value_whatever_the_number_of_batches(
        self, athena: tuple[AthenaInDuckDB, AthenaWarehouse]
    ) -> None:
        runner, warehouse = athena
        with warehouse.unload(BATCHES, ["beta", "coverage"], FEATURES):
            assert len(runner.queries) == 2

    @pytest.mark.parametrize("limit", ["partitions", "characters"])
    def test_limits_of_a_query(self, tmp_path: Path, limit: str, monkeypatch: pytest.MonkeyPatch) -> None:
        if limit == "partitions":
            batches = {f"b{number:03d}": [f"s{number:03d}"] for number in range(103)}
        else:
            monkeypatch.setattr(athena_module, "_MOST_CHARACTERS", 400)
            batches = {"b0": [f"s{number:03d}" for number in range(12)], "b1": ["t1"]}
        write_long(tmp_path / "many", batches)
        with athena_over(tmp_path / "many") as (runner, where):
            warehouse = AthenaWarehouse("long", **where)
            assert warehouse.samples(list(batches)) == batches
            samples = [sample for of in batches.values() for sample in of]
            assert set(warehouse.batches_of(samples)) == set(samples)
            runner.queries.clear()
            with warehouse.unload(batches, ["beta"], FEATURES) as unloaded:
                assert len(runner.queries) >= 2
                for batch_id in list(batches)[::51]:
                    done = wide(unloaded, batch_id, batches[batch_id], "beta", FEATURES)
                    expected = pivoted(tmp_path / "many", batches[batch_id], FEATURES, "beta")
                    assert np.array_equal(done.values, expected, equal_nan=True)

    def test_costs_are_counted(self, athena: tuple[AthenaInDuckDB, AthenaWarehouse]) -> None:
        runner, warehouse = athena
        runner.scanned_bytes = 2 * 10**12
        with warehouse.unload(BATCHES, ["beta", "coverage"], FEATURES):
            assert warehouse.cost == Cost(queries=2, bytes_scanned=4 * 10**12, usd=20.0)
        runner.scanned_bytes = 1  # the least that is charged is 10 MB
        pinned = warehouse.pinned()
        pinned.batch_ids()
        assert pinned.cost == Cost(queries=1, bytes_scanned=1, usd=5e-5)

    def test_an_axis_is_uploaded_once(self, athena: tuple[AthenaInDuckDB, AthenaWarehouse]) -> None:
        _, warehouse = athena
        for _ in range(2):
            with warehouse.unload(BATCHES, ["beta"], FEATURES):
                pass
        assert len(self.staged(warehouse, "axes")) == 1
        with warehouse.unload(BATCHES, ["beta"], FEATURES[::-1]) as unloaded:
            assert wide(unloaded, "b-1", BATCHES["b-1"], "beta", FEATURES[::-1]).rows
        assert len(self.staged(warehouse, "axes")) == 2

    def test_samples_are_looked_up_in_their_own_table(self, long: Path, tmp_path: Path) -> None:
        rows = [(sample, batch) for batch, samples in BATCHES.items() for sample in samples]
        pd.DataFrame(rows, columns=["sample_id", "batch_id"]).to_parquet(tmp_path / "map.parquet")
        with athena_over(long) as (runner, where):
            runner.tables = {**runner.tables, "sample_batch_map": f"{tmp_path}/map.parquet"}
            warehouse = AthenaWarehouse("long", sample_batches="sample_batch_map", **where)
            assert warehouse.batches_of(["s:5"]) == {"s:5": ["001"]}
            assert warehouse.samples(["b-1"]) == {"b-1": ["s1", "s3"]}
            assert all('"sample_batch_map"' in query for query in runner.queries)
            assert warehouse.feature_ids() == FEATURES

    @pytest.mark.parametrize("staging", ["/tmp/staging", "s3://bucket/it's"])
    def test_staging_is_an_s3_prefix(self, staging: str) -> None:
        with pytest.raises(WarehouseError, match="no S3 prefix"):
            AthenaWarehouse("long", database="lab", staging=staging)
