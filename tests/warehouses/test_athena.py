"""Warehouses in Athena: prefixes, limits, costs, axes."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import boto3
import numpy as np
import pandas as pd
import pytest

import zarr_core.warehouses.athena as athena_module
from tests.helpers.athena_in_duckdb import AthenaInDuckDB
from tests.helpers.long_tables import BATCHES, FEATURES, pivoted, write_long
from tests.helpers.warehouse_kinds import athena_over, wide
from zarr_core.errors import WarehouseError
from zarr_core.warehouses import AthenaWarehouse, Cost

pytestmark = pytest.mark.usefixtures("s3_server")


@pytest.fixture
def athena(long: Path) -> Iterator[tuple[AthenaInDuckDB, AthenaWarehouse]]:
    with athena_over(long) as (runner, where):
        yield runner, AthenaWarehouse("long", **where)


def staged(warehouse: AthenaWarehouse, folder: str) -> list[str]:
    bucket, _, prefix = warehouse.staging.removeprefix("s3://").partition("/")
    found = boto3.client("s3").list_objects_v2(Bucket=bucket, Prefix=f"{prefix}/{folder}/").get("Contents", [])
    return [item["Key"] for item in found]


def test_unloaded_files_are_deleted(athena: tuple[AthenaInDuckDB, AthenaWarehouse]) -> None:
    _, warehouse = athena
    warehouse.batch_ids()
    with warehouse.unload(BATCHES, ["beta"], FEATURES) as unloaded:
        assert staged(warehouse, "unloads")
        next(unloaded.rows("001", "beta"))
    assert staged(warehouse, "unloads") == []
    with pytest.raises(KeyError), warehouse.unload(BATCHES, ["beta"], FEATURES):
        raise KeyError
    assert staged(warehouse, "unloads") == []


def test_files_of_a_failed_query_are_deleted(athena: tuple[AthenaInDuckDB, AthenaWarehouse]) -> None:
    runner, warehouse = athena
    runner.fail = "EXCEEDED_MEMORY_LIMIT: Query exceeded per-node memory limit"
    with pytest.raises(WarehouseError, match="'long', database=.*EXCEEDED_MEMORY_LIMIT"):
        warehouse.batch_ids()
    with (
        pytest.raises(WarehouseError, match="EXCEEDED_MEMORY_LIMIT"),
        warehouse.unload(BATCHES, ["beta"], FEATURES),
    ):
        pass
    assert staged(warehouse, "unloads") == []


def test_orphans_are_removed_a_day_later(
    athena: tuple[AthenaInDuckDB, AthenaWarehouse], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, warehouse = athena
    bucket, _, prefix = warehouse.staging.removeprefix("s3://").partition("/")
    orphan = f"{prefix}/unloads/of-a-killed-process/beta/0/batch=0/rows"
    boto3.client("s3").put_object(Bucket=bucket, Key=orphan, Body=b"rows")
    boto3.client("s3").put_object(Bucket=bucket, Key="theirs", Body=b"rows")
    with warehouse.unload(BATCHES, ["beta"], FEATURES):
        pass
    assert staged(warehouse, "unloads") == [orphan]
    monkeypatch.setattr(athena_module, "_ORPHAN_AGE", timedelta(seconds=-5))
    with warehouse.unload(BATCHES, ["beta"], FEATURES):
        assert orphan not in staged(warehouse, "unloads")
    assert boto3.client("s3").get_object(Bucket=bucket, Key="theirs")["Body"].read() == b"rows"


def test_one_query_per_value_for_any_number_of_batches(athena: tuple[AthenaInDuckDB, AthenaWarehouse]) -> None:
    runner, warehouse = athena
    with warehouse.unload(BATCHES, ["beta", "coverage"], FEATURES):
        assert len(runner.queries) == 2


@pytest.mark.slow
@pytest.mark.parametrize("limit", ["partitions", "characters"])
def test_limits_of_a_query(tmp_path: Path, limit: str, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_costs_are_counted(athena: tuple[AthenaInDuckDB, AthenaWarehouse]) -> None:
    runner, warehouse = athena
    runner.scanned_bytes = 2 * 10**12
    with warehouse.unload(BATCHES, ["beta", "coverage"], FEATURES):
        assert warehouse.cost == Cost(queries=2, bytes_scanned=4 * 10**12, usd=20.0)
    runner.scanned_bytes = 1  # the least that is charged is 10 MB
    pinned = warehouse.pinned()
    pinned.batch_ids()
    assert pinned.cost == Cost(queries=1, bytes_scanned=1, usd=5e-5)


def test_an_axis_is_uploaded_once(athena: tuple[AthenaInDuckDB, AthenaWarehouse]) -> None:
    _, warehouse = athena
    for _ in range(2):
        with warehouse.unload(BATCHES, ["beta"], FEATURES):
            pass
    assert len(staged(warehouse, "axes")) == 1
    with warehouse.unload(BATCHES, ["beta"], FEATURES[::-1]) as unloaded:
        assert wide(unloaded, "b-1", BATCHES["b-1"], "beta", FEATURES[::-1]).rows
    assert len(staged(warehouse, "axes")) == 2


def test_samples_are_looked_up_in_their_own_table(long: Path, tmp_path: Path) -> None:
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
def test_staging_is_an_s3_prefix(staging: str) -> None:
    with pytest.raises(WarehouseError, match="is not an S3 prefix"):
        AthenaWarehouse("long", database="lab", staging=staging)
