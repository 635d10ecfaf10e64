"""A warehouse that becomes a wide matrix: jobs, checks on planted damage, and the requests of the automation."""

from __future__ import annotations

import datetime as dt
import json
import re
import shutil
import traceback
from collections.abc import Callable
from pathlib import Path

import dagster as dg
import numpy as np
import pandas as pd
import pytest
import yaml
from dagster._core.definitions.data_version import CachingStaleStatusResolver, StaleStatus
from dagster._core.loader import LoadingContextForTest
from zarr_core.platform.assets.wide_matrix.checks import choose
from zarr_core.platform.assets.wide_matrix.component import WarehouseMatrix
from zarr_core.platform.resources.warehouses import WarehouseAccess
from zarr_core.platform.sensors.observations import KnownItems
from zarr_core.platform.sensors.warehouse_batches import list_warehouse, warehouse_batches_sensor

from tests.platform.automation import Automation
from tests.platform.matrix_trial import FEATURES, MatrixTrial, declare, long_rows
from tests.platform.trial import PROJECT
from zarr_core.errors import WarehouseError
from zarr_core.matrix import WideMatrix

DERIVED = ("matrix", "columns", "quality_report")
CHECKS = {"axis_hash", "cells_loaded", "no_doubles", "nothing_withdrawn", "source_converted"}


@pytest.fixture
def trial(tmp_path: Path, instance: dg.DagsterInstance) -> MatrixTrial:
    return MatrixTrial(declare(tmp_path), instance)


@pytest.fixture
def nothing_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leaves out the report's page, which takes most of the time of a refresh."""
    monkeypatch.setattr("zarr_core.matrix.quality.page.render_page", lambda report: "")


def checked(result: dg.ExecuteInProcessResult) -> dict[str, dg.AssetCheckEvaluation]:
    return {evaluation.check_name: evaluation for evaluation in result.get_asset_check_evaluations()}


def passed(result: dg.ExecuteInProcessResult) -> dict[str, bool]:
    return {name: evaluation.passed for name, evaluation in checked(result).items()}


def test_the_whole_chain(trial: MatrixTrial) -> None:
    for batch_id in ("b0", "b1"):
        trial.write(batch_id)
    assert trial.load_all().success
    assert trial.loaded() == {"b0", "b1"}
    refreshed = trial.run("refresh")
    assert refreshed.success
    assert passed(refreshed) == dict.fromkeys(CHECKS, True)

    matrix = WideMatrix.open(trial.dataset.matrix)
    rows = pd.concat([long_rows("b0"), long_rows("b1")])
    for value in ("beta", "coverage"):
        wide = rows.pivot(index="sample_id", columns="cpg_id", values=value).reindex(
            matrix.sample_ids, columns=FEATURES
        )
        np.testing.assert_array_equal(matrix.read(matrix.sample_ids, value=value), wide.to_numpy("f4", na_value=np.nan))
    numbers = {name: value.value for name, value in trial.materialization("matrix_batches", "b0").metadata.items()}
    expected = long_rows("b0")
    assert (numbers["rows"], numbers["cells"]) == (len(expected), 5 * len(FEATURES))
    assert numbers["values/beta"] == expected["beta"].notna().sum()
    assert trial.materialization("matrix").metadata["samples"].value == 10
    assert trial.materialization("columns").metadata["added"].value == 2
    report = Path(trial.dataset.report)
    assert (report / "quality.html").stat().st_size > 10_000
    document = json.loads((report / "quality.json").read_text())
    assert document["measured_batches"] == ["b0", "b1"]
    missing = 10 * len(FEATURES) - rows["beta"].notna().sum()
    assert trial.materialization("quality_report").metadata["missing_share"].value == round(missing / 300, 4)


def test_a_run_without_partitions_says_so_and_creates_no_matrix(trial: MatrixTrial) -> None:
    trial.write("b0")
    (failed,) = trial.run("load").get_step_failure_events()  # nothing is registered yet, or Dagster itself refuses it
    assert failed.step_failure_data.user_failure_data is not None
    assert "without partitions" in (failed.step_failure_data.user_failure_data.description or "")
    assert not Path(trial.dataset.matrix).exists()


@pytest.mark.slow
@pytest.mark.usefixtures("nothing_drawn")
def test_a_bad_batch_fails_alone_and_is_loaded_when_it_is_repaired(trial: MatrixTrial) -> None:
    for batch_id in ("b0", "b2"):
        trial.write(batch_id)
    doubled = pd.concat([long_rows("b1"), long_rows("b1").iloc[[3]]])
    trial.write("b1", doubled)
    result = trial.load_all()
    assert not result.success
    (failure,) = [event for event in result.all_events if event.is_step_failure]
    description = failure.step_failure_data.user_failure_data.description
    assert "1 of 3 batches could not be loaded: b1" in description
    assert doubled.iloc[-1]["cpg_id"] in description
    assert not [event for event in result.all_events if event.is_step_up_for_retry]
    assert trial.loaded() == {"b0", "b2"}
    assert list(WideMatrix.open(trial.dataset.matrix).batches) == ["b0", "b2"]
    assert trial.run("refresh").success

    trial.write("b1")
    assert trial.run("look").success
    assert trial.run("load", "b1").success
    assert trial.loaded() == {"b0", "b1", "b2"}


@pytest.mark.slow
@pytest.mark.usefixtures("nothing_drawn")
def test_loading_again_commits_nothing_and_reads_no_batch_again(trial: MatrixTrial) -> None:
    trial.write("b0")
    assert trial.load_all().success
    assert trial.run("refresh").success
    head = (Path(trial.dataset.matrix) / "HEAD.json").read_bytes()
    assert trial.load_all().success
    assert trial.materialization("matrix_batches", "b0").metadata["status"].value == "up to date"
    assert trial.run("refresh").success
    assert (Path(trial.dataset.matrix) / "HEAD.json").read_bytes() == head
    assert trial.materialization("quality_report").metadata["batches_read"].value == 0
    trial.write("b1")
    assert trial.load_all().success
    assert trial.run("refresh").success
    assert trial.materialization("quality_report").metadata["batches_read"].value == 1
    assert trial.materialization("columns").metadata["added"].value == 1


def test_a_batch_that_changed_behind_the_matrix_is_refused(trial: MatrixTrial) -> None:
    trial.write("b0")
    assert trial.load_all().success
    trial.write("b0", long_rows("b0", shift=0.1))
    result = trial.load_all()
    assert not result.success
    (failure,) = [event for event in result.all_events if event.is_step_failure]
    assert "the warehouse changed after the batch was loaded" in failure.step_failure_data.user_failure_data.description


@pytest.mark.slow
@pytest.mark.usefixtures("nothing_drawn")
def test_samples_that_come_later_are_appended_and_checked(trial: MatrixTrial) -> None:
    trial.write("b0", long_rows("b0", samples=3))
    assert trial.load_all().success
    more = long_rows("b0", samples=5)
    more = pd.concat([long_rows("b0", samples=3), more[more["sample_id"].isin(["b0s3", "b0s4"])]])
    trial.write("b0", more)
    assert trial.load_all().success
    matrix = WideMatrix.open(trial.dataset.matrix)
    assert len(matrix.sample_ids) == 5
    assert choose(matrix, ["b0"], 4) == ["b0"]
    assert passed(trial.run("refresh")) == dict.fromkeys(CHECKS, True)


def spoil_axis(trial: MatrixTrial) -> None:
    (file,) = (Path(trial.dataset.matrix) / "cpg_ids").glob("*.npy")
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)


def declare_another_axis(trial: MatrixTrial) -> None:
    pd.DataFrame({"cpg_id": FEATURES[::-1]}).to_parquet(trial.folder / "features.parquet")


def lose_a_row(trial: MatrixTrial) -> None:
    trial.write("b0", long_rows("b0").iloc[1:])


def change_a_value(trial: MatrixTrial) -> None:
    rows = long_rows("b0")
    rows.loc[rows["beta"].notna().idxmax(), "beta"] += 0.01
    trial.write("b0", rows)


def move_a_value(trial: MatrixTrial) -> None:
    """Move one row to another feature: a count of rows does not notice it."""
    rows = long_rows("b0")
    first = rows["sample_id"] == "b0s0"
    unused = next(name for name in FEATURES if name not in set(rows.loc[first, "cpg_id"]))
    rows.loc[rows["beta"].notna().idxmax(), "cpg_id"] = unused
    trial.write("b0", rows)


def leave_the_axis(trial: MatrixTrial) -> None:
    rows = long_rows("b0")
    rows.loc[len(rows)] = ["b0s0", "cg999", 0.5, 3]
    trial.write("b0", rows)


def gain_a_sample(trial: MatrixTrial) -> None:
    trial.write("b0", long_rows("b0", samples=6))


def double_a_row(trial: MatrixTrial) -> None:
    trial.write("b0", pd.concat([long_rows("b0"), long_rows("b0").iloc[[0]]]))


def double_a_file(trial: MatrixTrial) -> None:
    file = trial.write("b0")
    shutil.copy(file, file.with_name("part-1.parquet"))


def double_a_sample(trial: MatrixTrial) -> None:
    trial.write("b9", long_rows("b0", samples=1))


@pytest.mark.slow
@pytest.mark.usefixtures("nothing_drawn")
@pytest.mark.parametrize(
    ("damage", "failing", "words"),
    [
        (spoil_axis, "axis_hash", "features are not those"),
        (declare_another_axis, "axis_hash", "declared features"),
        (lose_a_row, "cells_loaded", "rows with a value"),
        (change_a_value, "cells_loaded", "cells differ"),
        (move_a_value, "cells_loaded", "cells differ"),
        (leave_the_axis, "cells_loaded", "outside the axis"),
        (gain_a_sample, "cells_loaded", "not in the matrix, such as b0s5"),
        (double_a_row, "no_doubles", "duplicate beta rows"),
        (double_a_file, "no_doubles", "duplicate beta rows"),
        (double_a_sample, "no_doubles", "b0s0 is also in another batch"),
    ],
)
def test_a_failed_check_blocks_downstream_assets(
    trial: MatrixTrial, damage: Callable[[MatrixTrial], None], failing: str, words: str
) -> None:
    trial.write("b0")
    trial.load_directly()
    damage(trial)
    result = trial.run("refresh")
    assert not result.success
    assert not checked(result)[failing].passed
    assert words in checked(result)[failing].description
    assert not Path(trial.dataset.report).exists(), "no report of a matrix that cannot be trusted"


def reported_by_the_sensor(trial: MatrixTrial) -> dict[str, dg.AssetCheckEvaluation]:
    """Checks that a tick reports, because their result has changed; Dagster records them."""
    cursor = None
    found = {}
    for _ in range(2):  # what one listing shows is pending
        context = dg.build_sensor_context(trial.instance, cursor=cursor, resources={"warehouses": WarehouseAccess()})
        result = warehouse_batches_sensor(trial.dataset)(context)
        cursor = result.cursor
        for request in result.dynamic_partitions_requests:
            if isinstance(request, dg.DeleteDynamicPartitionsRequest):
                for key in request.partition_keys:
                    trial.instance.delete_dynamic_partition(request.partitions_def_name, key)
            else:
                trial.instance.add_dynamic_partitions(request.partitions_def_name, request.partition_keys)
        for event in result.asset_events:
            trial.instance.report_runless_asset_event(event)
            if isinstance(event, dg.AssetCheckEvaluation):
                found[event.check_name] = event
    return found


@pytest.mark.slow
@pytest.mark.usefixtures("nothing_drawn")
def test_what_was_withdrawn_from_the_warehouse_is_named_until_it_is_retired(trial: MatrixTrial) -> None:
    for batch_id in ("b0", "b1"):
        trial.write(batch_id)
    trial.load_directly()
    shutil.rmtree(trial.folder / "long" / "batch_id=b0")
    rows = long_rows("b1")
    trial.write("b1", rows[rows["sample_id"] != "b1s4"])
    result = trial.run("refresh")
    assert result.success, "a warning holds nothing back"
    check = checked(result)["nothing_withdrawn"]
    assert (check.passed, check.severity) == (False, dg.AssetCheckSeverity.WARN)
    command = f"zarr-core matrix retire {trial.dataset.matrix} --batches b0"
    assert f"{command} --samples b1s4" in check.description
    assert command in "".join(event.message for event in trial.instance.all_logs(result.run_id))
    assert trial.materialization("matrix").metadata["withdrawn_batches"].value == 1

    assert reported_by_the_sensor(trial) == {}
    WideMatrix.open(trial.dataset.matrix).retire(["b1s4"])
    (check,) = reported_by_the_sensor(trial).values()
    assert command in check.description
    assert "b1s4" not in check.description
    WideMatrix.open(trial.dataset.matrix).retire([], ["b0"])
    (check,) = reported_by_the_sensor(trial).values()
    assert (check.check_name, check.passed) == ("nothing_withdrawn", True)
    trial.write("b0")  # the batch is back, but its consent is not
    assert trial.load_all().success
    metadata = trial.materialization("matrix_batches", "b0").metadata
    assert (metadata["status"].value, metadata["retired_samples"].value) == ("retired", 5)
    result = trial.run("refresh")
    assert passed(result) == dict.fromkeys(CHECKS, True)
    assert WideMatrix.open(trial.dataset.matrix).sample_ids == ["b1s0", "b1s1", "b1s2", "b1s3"]
    report = json.loads((Path(trial.dataset.report) / "quality.json").read_text())
    assert list(report["batches"]["b1"]["samples"]) == ["b1s0", "b1s1", "b1s2", "b1s3"]


def test_the_latest_batches_are_checked_first_and_the_others_in_turn(tmp_path: Path) -> None:
    matrix = WideMatrix.create(tmp_path / "m", FEATURES, {"beta": "float32"}, shard_rows=1)
    for number in range(9):
        matrix.append(f"b{number}", [f"s{number}"], {"beta": np.zeros((1, 30), "f4")})
    known = [f"b{number}" for number in range(9) if number != 7]  # that one has left the warehouse
    chosen = choose(matrix, known, 2)
    assert chosen[:2] == ["b8", "b6"]
    assert len(set(chosen)) == 4
    assert set(chosen) <= set(known)
    assert not choose(matrix, ["b"], 2)
    matrix.append("b@home", ["other"], {"beta": np.zeros((1, 30), "f4")})  # has left it, and does not belong to "b"
    assert not choose(matrix, ["b"], 2)
    later = WideMatrix.open(tmp_path / "m", generation=6)
    assert choose(later, known, 2)[2:] != chosen[2:]


def tick(trial: MatrixTrial, cursor: str | None) -> dg.SensorResult:
    """A tick of the sensor, and the daemon's handling of its result."""
    context = dg.build_sensor_context(trial.instance, cursor=cursor, resources={"warehouses": WarehouseAccess()})
    result = warehouse_batches_sensor(trial.dataset)(context)
    assert isinstance(result, dg.SensorResult)
    assert not result.run_requests
    for event in result.asset_events:
        trial.instance.report_runless_asset_event(event)
    for request in result.dynamic_partitions_requests or ():
        if isinstance(request, dg.AddDynamicPartitionsRequest):
            trial.instance.add_dynamic_partitions(request.partitions_def_name, request.partition_keys)
        else:
            for key in request.partition_keys:
                trial.instance.delete_dynamic_partition(request.partitions_def_name, key)
    return result


def test_the_sensor_registers_settled_batches_and_starts_nothing(trial: MatrixTrial) -> None:
    assert tick(trial, None).skip_reason
    trial.write("b0")
    first = tick(trial, None)
    assert trial.registered() == []
    file = trial.write("b1")
    file.write_bytes(file.read_bytes()[:100])  # still being copied
    second = tick(trial, first.cursor)
    assert trial.registered() == ["b0"]
    trial.write("b1")
    third = tick(trial, second.cursor)
    fourth = tick(trial, third.cursor)
    assert trial.registered() == ["b0", "b1"]
    before = KnownItems(trial.instance, trial.dataset).observed
    trial.write("b1", long_rows("b1", shift=0.1))
    fifth = tick(trial, tick(trial, fourth.cursor).cursor)
    after = KnownItems(trial.instance, trial.dataset).observed
    assert before["b0"] == after["b0"]
    assert before["b1"] != after["b1"]
    shutil.rmtree(trial.folder / "long" / "batch_id=b0")
    tick(trial, tick(trial, fifth.cursor).cursor)
    assert trial.registered() == ["b1"]


@pytest.mark.slow
@pytest.mark.usefixtures("nothing_drawn")
def test_conditions_decide_what_runs(trial: MatrixTrial) -> None:
    automation = Automation(trial)
    assert automation.evaluate() == {}
    for batch_id in ("b0", "b1", "b2"):
        trial.write(batch_id)
    trial.write("b1", pd.concat([long_rows("b1"), long_rows("b1")]))
    assert trial.run("look").success
    assert automation.evaluate() == {"matrix_batches": {"b0", "b1", "b2"}}
    assert not trial.run("load", "b0", "b2").success
    assert set(automation.evaluate()) == set(DERIVED), "a bad batch holds nothing back"
    assert trial.run("refresh").success
    assert automation.evaluate() == {}
    hour = dt.timedelta(hours=1)
    assert automation.evaluate(after=hour) == {}, "it would be refused again"
    WideMatrix.open(trial.dataset.matrix).retire(["b2s4"])
    assert automation.evaluate(after=hour)["matrix_batches"] == {"b1"}, "the matrix is another one now"
    assert not trial.run("load", "b1").success
    assert "matrix_batches" not in automation.evaluate(after=hour)

    trial.write("b1")
    trial.write("b3")
    assert trial.run("look").success
    assert automation.evaluate() == {"matrix_batches": {"b1", "b3"}}
    assert trial.run("load", "b1").success
    assert trial.run("load", "b3").success
    assert set(automation.evaluate()) == set(DERIVED)
    assert trial.run("refresh").success
    assert automation.evaluate() == {}


def test_staleness_follows_the_warehouse(trial: MatrixTrial) -> None:
    for batch_id in ("b0", "b1"):
        trial.write(batch_id)
    assert trial.load_all().success
    trial.write("b1", long_rows("b1", samples=6))
    assert trial.run("look").success
    resolver = CachingStaleStatusResolver(
        trial.instance, trial.definitions.resolve_asset_graph(), LoadingContextForTest(trial.instance)
    )
    key = trial.dataset.key("matrix_batches")
    assert [resolver.get_status(key, name) for name in ("b0", "b1")] == [StaleStatus.FRESH, StaleStatus.STALE]


def test_no_password_is_shown(trial: MatrixTrial) -> None:
    secret = trial.dataset.model_copy(
        update={
            "matrix": "s3://user:secret@bucket/matrix",
            "features": "s3://user:secret@bucket/f.parquet",
            "warehouse": {"kind": "duckdb", "files": "s3://user:secret@bucket/long/*/*.parquet"},
        }
    )
    graph = MatrixTrial(secret, trial.instance).definitions.resolve_asset_graph()
    nodes = [graph.get(key) for key in graph.get_all_asset_keys()]
    assert "secret" not in repr([(node.metadata, node.description) for node in nodes]) + repr(secret)


def test_no_token_of_a_catalogue_is_recorded(trial: MatrixTrial, caplog: pytest.LogCaptureFixture) -> None:
    """Not by a run that the catalogue refuses, nor by the sensor, although it was declared in ``defs.yaml``."""
    token = "eyJhbGciOiJIUzI1NiJ9"
    properties = {"type": "rest", "uri": f"http://me:{token}@127.0.0.1:9", "token": token, "credential": f"i:{token}"}
    warehouse = {"kind": "iceberg", "table": "lab.long", "properties": properties}
    failing = MatrixTrial(trial.dataset.model_copy(update={"warehouse": warehouse}), trial.instance)
    result = failing.run("look")
    assert not result.success
    (run,) = trial.instance.get_runs()
    events = trial.instance.all_logs(run.run_id)
    assert any("lab.long" in repr(event) for event in events)
    assert token not in repr(events) + repr(run) + repr(failing.definitions.resolve_job_def("trial_look")) + caplog.text
    with pytest.raises(WarehouseError) as caught:
        list_warehouse(WarehouseAccess().warehouse(warehouse))
    assert token not in "".join(traceback.format_exception(caught.value))


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"warehouse": {"kind": "oracle"}}, "no kind of warehouse 'oracle'"),
        ({"warehouse": {"kind": "duckdb", "flies": "x"}}, "flies"),
        ({"warehouse": {"kind": "athena", "table": "t", "database": "d", "staging": "/tmp"}}, "not an S3 prefix"),
        ({"warehouse": {"kind": "duckdb", "files": "x", "columns": {"cpg": "c"}}}, "cpg"),
        ({"values": {"Beta": "float32"}}, "value table 'Beta'"),
        ({"batch_size": 0}, "batch_size must be at least 1"),
        ({"name": "a b"}, "lower case"),
    ],
)
def test_a_setting_without_sense_is_refused(settings: dict[str, object], reason: str) -> None:
    sensible = {"name": "m", "warehouse": {"kind": "duckdb", "files": "x"}, "matrix": "m", "report": "r"}
    with pytest.raises(ValueError, match=reason):
        WarehouseMatrix(**{**sensible, **settings})


def test_the_documented_declaration_loads(tmp_path: Path, instance: dg.DagsterInstance) -> None:
    (block,) = re.findall(r"```yaml\n(.*?)```", (PROJECT / "docs" / "warehouses.md").read_text(), re.DOTALL)
    documented = yaml.safe_load(block)
    assert documented["type"] == "zarr_core.platform.WarehouseMatrix"
    component = WarehouseMatrix(**documented["attributes"])
    graph = MatrixTrial(component.with_absolute_paths(tmp_path), instance).definitions.resolve_asset_graph()
    assert dg.AssetKey(["blood", "quality_report"]) in graph.get_all_asset_keys()


def test_a_matrix_that_is_not_there_yet_is_no_failure(trial: MatrixTrial) -> None:
    for job in ("refresh", "gc", "verify"):
        assert trial.run(job).success, job
    assert not trial.instance.get_latest_materialization_event(trial.dataset.key("matrix"))
    assert not trial.instance.get_latest_materialization_event(trial.dataset.key("garbage"))
