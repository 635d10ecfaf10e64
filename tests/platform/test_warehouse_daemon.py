"""A daemon, and batches of real measurements that arrive in a warehouse while it runs."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import dagster as dg
import numpy as np
import pandas as pd
import pyarrow.parquet
import pytest

from tests.platform.deployment import Deployment, failed_partitions, runs_of
from tests.platform.trial import PROJECT
from zarr_core.matrix import WideMatrix

BATCHES = PROJECT / "examples" / "data" / "methylation" / "long"
LOADED = dg.AssetKey(["methylation", "matrix_batches"])
CHECKED = dg.AssetKey(["methylation", "matrix"])


@pytest.fixture
def deployment(tmp_path: Path) -> Deployment:
    return Deployment(tmp_path)


def deliver(batch_id: str, warehouse: Path, *, doubled: bool = False) -> None:
    """A batch written to the warehouse, over the one that is there; ``doubled`` as a job that ran twice leaves it."""
    rows = pyarrow.parquet.read_table(BATCHES / f"batch_id={batch_id}" / "part-0.parquet", partitioning=None)
    folder = warehouse / f"batch_id={batch_id}"
    folder.mkdir(exist_ok=True)
    pyarrow.parquet.write_table(rows, folder / "part-0.parquet")
    if doubled:
        shutil.copy(folder / "part-0.parquet", folder / "part-1.parquet")
    else:
        (folder / "part-1.parquet").unlink(missing_ok=True)


def reported(deployment: Deployment) -> set[str]:
    """Batches that the quality report tells of."""
    file = deployment.quality / "quality.json"
    try:
        return set(json.loads(file.read_text())["batches"])
    except (FileNotFoundError, json.JSONDecodeError):  # not there yet, or just being written
        return set()


def assert_equal_to_a_pivot(matrix: WideMatrix, warehouse: Path) -> None:
    """Cell for cell, NaN for NaN."""
    rows = pd.concat(pd.read_parquet(file, partitioning=None) for file in warehouse.glob("*/*.parquet"))
    for value in ("beta", "coverage"):
        wide = rows.pivot(index="sample_id", columns="cpg_id", values=value)
        wide = wide.reindex(matrix.sample_ids, columns=np.asarray(matrix.feature_ids))
        np.testing.assert_array_equal(matrix.read(matrix.sample_ids, value=value), wide.to_numpy("f4", na_value=np.nan))


def test_batches_that_arrive_while_the_daemon_runs(deployment: Deployment) -> None:
    with dg.DagsterInstance.from_config(str(deployment.home)) as instance, deployment.daemon():
        deployment.wait("the first look", lambda: "Sensor methylation_batches" in deployment.log.read_text())
        deliver("GSE38608", deployment.long)
        deliver("lister_h1", deployment.long, doubled=True)
        deployment.wait("the report", lambda: reported(deployment))
        deployment.wait("the failure", lambda: failed_partitions(instance, LOADED))
        assert reported(deployment) == {"GSE38608"}
        assert failed_partitions(instance, LOADED) == {"lister_h1"}
        assert list(WideMatrix.open(deployment.matrix).batches) == ["GSE38608"]

        deliver("lister_h1", deployment.long)
        deliver("GSE55763_b0", deployment.long)
        everything = {"GSE38608", "lister_h1", "GSE55763_b0"}
        deployment.wait("the other batches in the report", lambda: reported(deployment) == everything)
        assert not failed_partitions(instance, LOADED)
        assert set(instance.get_materialized_partitions(LOADED)) == everything
        assert_equal_to_a_pivot(WideMatrix.open(deployment.matrix), deployment.long)
        page = (deployment.quality / "quality.html").read_text()
        assert all(f"<td>{batch_id}</td>" in page for batch_id in everything)

        loads = runs_of(instance, LOADED)
        assert {run.tags.get("dagster/from_automation_condition") for run in loads} == {"true"}, "nobody clicked"
        summaries = instance.event_log_storage.get_asset_check_summary_records(
            [dg.AssetCheckKey(CHECKED, name) for name in ("axis_hash", "cells_loaded", "no_doubles")]
        )
        found = {key.name: record.last_check_execution_record for key, record in summaries.items()}
        assert {name: record and record.status.value for name, record in found.items()} == dict.fromkeys(
            ("axis_hash", "cells_loaded", "no_doubles"), "SUCCEEDED"
        )
