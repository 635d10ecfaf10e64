"""The overview of a dataset: the states of its samples or batches, and what to do next."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import time
from pathlib import Path

import dagster as dg
import pytest
from dagster._core.definitions.run_request import InstigatorType
from dagster._core.remote_origin import RemoteInstigatorOrigin, RemoteRepositoryOrigin
from dagster._core.scheduler.instigation import InstigatorState, InstigatorStatus
from zarr_core.platform.assets.dataset import DatasetDeclaration
from zarr_core.platform.resources.stores import StoreAccess
from zarr_core.platform.resources.warehouses import WarehouseAccess
from zarr_core.platform.sensors.arrivals import arrivals_sensor
from zarr_core.platform.sensors.overview import when
from zarr_core.platform.sensors.warehouse_batches import warehouse_batches_sensor

from tests.platform.matrix_trial import MatrixTrial, declare
from tests.platform.test_behind import cancel_backfill
from tests.platform.test_failures import LOCATION
from tests.platform.trial import Trial, corrupt, write_run
from zarr_core.errors import ManifestError
from zarr_core.matrix import WideMatrix
from zarr_core.matrix.__main__ import main as matrix_command

pytestmark = pytest.mark.usefixtures("nothing_measured")


class Sensor:
    """The sensor of the trial's source, with the definitions around it as the daemon gives them."""

    def __init__(self, trial: Trial) -> None:
        self.trial, self.cursor = trial, None

    def tick(self) -> list[dg.AssetMaterialization]:
        """Tick, store what is reported, and return the overviews."""
        context = dg.build_sensor_context(
            self.trial.instance,
            cursor=self.cursor,
            resources={"stores": StoreAccess()},
            definitions=self.trial.definitions,
        )
        context._code_location_origin = LOCATION  # build_sensor_context has no argument for it
        result = arrivals_sensor(self.trial.dataset)(context)
        assert isinstance(result, dg.SensorResult)
        self.cursor = result.cursor
        for event in result.asset_events:
            self.trial.instance.report_runless_asset_event(event)
        for request in result.dynamic_partitions_requests or ():
            if isinstance(request, dg.AddDynamicPartitionsRequest):
                self.trial.instance.add_dynamic_partitions(request.partitions_def_name, request.partition_keys)
        return [event for event in result.asset_events if event.asset_key == self.trial.dataset.key("overview")]


def shown(trial: Trial) -> dict[str, str]:
    """State and next step by row of the overview that Dagster has."""
    event = trial.instance.get_latest_materialization_event(trial.dataset.key("overview"))
    assert event is not None
    assert event.asset_materialization is not None
    metadata = event.asset_materialization.metadata
    return {name: value.value for name, value in metadata.items() if isinstance(value, dg.TextMetadataValue)}


def number(trial: Trial, name: str) -> object:
    event = trial.instance.get_latest_materialization_event(trial.dataset.key("overview"))
    assert event is not None
    assert event.asset_materialization is not None
    return event.asset_materialization.metadata[f"number/{name}"].value


@pytest.mark.slow
def test_it_says_what_became_of_the_samples_and_what_to_do(trial: Trial) -> None:
    sensor = Sensor(trial)
    assert sensor.tick()
    assert shown(trial)["published"] == "nothing yet. To do: nothing, until something arrives at the source"
    for run in (1, 2, 3, 4):
        write_run(trial.source, run)
    corrupt(trial.source / "run_4")
    (write_run(trial.source, 5) / "surface_pressure.pt").unlink()
    sensor.tick()
    sensor.tick()
    assert sensor.tick(), "samples were registered"
    rows = shown(trial)
    assert rows["arrived"] == "4 samples, 1 incomplete: run_5. To do: upload what is missing, or delete their folders"
    assert rows["converted"] == "0 samples. To do: nothing, the automation converts 4 more"
    assert rows["published"].endswith(" being converted; otherwise run trial_refresh")
    assert rows["verified"] == "never. To do: declare verify_within_days, or run trial_verify"

    assert not trial.run("convert", "run_1", "run_4").success
    assert trial.publish().success
    assert sensor.tick()
    rows = shown(trial)
    assert rows["converted"] == "3 samples"
    assert rows["refused"].startswith("1: run_4. To do: mend at the source what their reasons name; any other failure ")
    assert rows["published"].startswith("generation 1: 3 samples, ")
    assert rows["reason of run_4"].startswith("surface_pressure: ")
    assert "split_ids_present. To do: " in rows["failing checks"]
    assert rows["check split_ids_present"].startswith("no sample of split val is in the store")

    write_run(trial.source, 1, shift=1.0)
    assert trial.run("look").success
    cancel_backfill(trial, "run_1")
    sensor.tick()
    rows = shown(trial)
    assert "source_converted" in rows["failing checks"], "of the same tick"
    assert "conversion was cancelled: run_1. " in rows["check source_converted"]
    assert rows["stale or cancelled"].startswith(
        "1: run_1. To do: materialize the cancelled partitions of trial/zarr_s"
    )
    assert (number(trial, "arrived"), number(trial, "converted"), number(trial, "stale")) == (4, 2, 1)


def test_it_is_recorded_only_when_it_changes_and_seldom_during_conversions(
    trial: Trial, monkeypatch: pytest.MonkeyPatch
) -> None:
    sensor = Sensor(trial)
    write_run(trial.source, 1)
    sensor.tick()
    sensor.tick()
    assert sensor.tick()
    assert not sensor.tick(), "nothing changed"
    write_run(trial.source, 2)
    assert not [*sensor.tick(), *sensor.tick(), *sensor.tick()], "samples wait for their conversion"
    later = time.time() + 700
    monkeypatch.setattr(time, "time", lambda: later)
    assert sensor.tick()
    assert shown(trial)["arrived"] == "2 samples"


@pytest.mark.slow
def test_a_reason_is_that_of_the_latest_attempt(trial: Trial, monkeypatch: pytest.MonkeyPatch) -> None:
    sensor = Sensor(trial)
    corrupt(write_run(trial.source, 1))
    assert trial.run("look").success
    assert not trial.run("convert", "run_1", "run_1").success
    assert sensor.tick()
    assert shown(trial)["reason of run_1"].startswith("surface_pressure: ")
    monkeypatch.setattr(
        "zarr_core.platform.assets.zarr_samples.convert_each", None
    )  # the run fails before it looks at a sample
    assert not trial.run("convert", "run_1", "run_1").success
    assert sensor.tick()
    assert shown(trial)["reason of run_1"] == "its run failed: its last event says why"

    monkeypatch.undo()
    assert trial.run("look").success
    write_run(trial.source, 1)
    assert trial.run("look").success
    assert trial.run("convert", "run_1", "run_1").success
    assert sensor.tick()
    assert "reason of run_1" not in shown(trial)


def test_a_changed_sample_that_fails_is_to_be_mended_not_materialized_again(trial: Trial) -> None:
    sensor = Sensor(trial)
    write_run(trial.source, 1)
    assert trial.convert_all().success
    write_run(trial.source, 1, shift=1.0)
    corrupt(trial.source / "run_1")
    assert trial.run("look").success
    assert not trial.run("convert", "run_1", "run_1").success
    assert sensor.tick()
    assert shown(trial)["stale or cancelled"].startswith(
        "1: run_1. To do: mend at the source what their reasons name; "
    )
    assert shown(trial)["reason of run_1"].startswith("surface_pressure: ")


def test_an_automation_that_a_person_stopped_is_not_said_to_convert(
    dataset: DatasetDeclaration, on_disk: dg.DagsterInstance
) -> None:
    trial = Trial(dataset, on_disk)
    sensor = Sensor(trial)
    write_run(trial.source, 1)
    sensor.tick()
    sensor.tick()
    sensor.tick()
    assert shown(trial)["converted"].endswith("To do: nothing, the automation converts 1 more")
    origin = RemoteInstigatorOrigin(RemoteRepositoryOrigin(LOCATION, "repository"), "trial_automation")
    on_disk.add_instigator_state(InstigatorState(origin, InstigatorType.SENSOR, InstigatorStatus.STOPPED))
    later = time.time() + 700
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(time, "time", lambda: later)
        sensor.tick()
    assert shown(trial)["converted"].endswith(
        "To do: start the sensor trial_automation, which is stopped: it converts 1 more"
    )


def test_a_run_that_failed_to_publish_is_named_until_one_has_published(
    trial: Trial, monkeypatch: pytest.MonkeyPatch
) -> None:
    sensor = Sensor(trial)
    write_run(trial.source, 1)
    assert trial.convert_all().success
    monkeypatch.setattr("zarr_core.platform.assets.manifest.publish_finished", None)  # as if the store were away
    failed = trial.publish()
    assert not failed.success
    sensor.tick()
    mend = f"To do: see why run {failed.run_id[:8]} failed to publish, and run trial_refresh"
    assert shown(trial)["published"] == f"nothing yet. {mend}"
    monkeypatch.undo()
    assert trial.publish().success
    sensor.tick()
    assert shown(trial)["published"].endswith(" ago")
    monkeypatch.setattr("zarr_core.platform.assets.manifest.publish_finished", None)
    failed = trial.publish()
    sensor.tick()
    assert shown(trial)["published"].startswith("generation 1: 1 sample, ")
    assert shown(trial)["published"].endswith(
        f"see why run {failed.run_id[:8]} failed to publish, and run trial_refresh"
    )


def test_a_generation_that_a_failed_refresh_has_committed_is_shown(trial: Trial) -> None:
    sensor = Sensor(trial)
    for number in (1, 2, 3):
        write_run(trial.source, number)
    assert trial.convert_all().success
    assert trial.publish().success
    for number in (1, 2):
        shutil.rmtree(trial.source / f"run_{number}")
    write_run(trial.source, 4)
    assert trial.run("look").success
    assert trial.run("convert", "run_4", "run_4").success
    assert not trial.publish().success, "more vanished than max_retired_share allows"
    sensor.tick()
    assert shown(trial)["published"].startswith(
        "generation 2: 4 samples, which no refresh has checked yet. To do: see why run "
    )


class MatrixSensor:
    """The sensor of a matrix of three batches."""

    def __init__(self, trial: MatrixTrial) -> None:
        self.trial = trial
        for batch_id in ("b0", "b1", "b2"):
            trial.write(batch_id)
        trial.load_directly()

    def retired(self) -> str:
        """What the overview says after a tick."""
        context = dg.build_sensor_context(
            self.trial.instance, resources={"warehouses": WarehouseAccess()}, definitions=self.trial.definitions
        )
        result = warehouse_batches_sensor(self.trial.dataset)(context)
        assert isinstance(result, dg.SensorResult)
        for event in result.asset_events:
            self.trial.instance.report_runless_asset_event(event)
        return str(self.trial.materialization("overview").metadata["retired"].value)

    def published(self) -> str:
        """What the latest overview says is published."""
        return str(self.trial.materialization("overview").metadata["published"].value)


@pytest.fixture
def matrix_sensor(tmp_path: Path, instance: dg.DagsterInstance) -> MatrixSensor:
    return MatrixSensor(MatrixTrial(declare(tmp_path), instance))


@pytest.mark.slow
def test_it_names_what_was_retired_from_a_matrix(matrix_sensor: MatrixSensor) -> None:
    url = matrix_sensor.trial.dataset.matrix
    assert matrix_sensor.retired() == "none"
    assert matrix_sensor.trial.run("refresh").success
    matrix_sensor.retired()
    assert matrix_sensor.published().startswith("generation 4: 15 samples; "), "the column-major copy changes no sample"
    matrix = WideMatrix.open(url)
    matrix.retire([], ["b0"])
    matrix_sensor.retired()
    assert matrix_sensor.published() == f"generation {matrix.generation}: 10 samples, which no refresh has checked yet"
    archive = Path(url) / "generations" / f"{matrix.generation:08d}.json"
    os.utime(archive, (1_700_000_000, 1_700_000_000))
    matrix.retire(["b2s1"], ["b1"])
    said = matrix_sensor.retired()
    assert re.match(r"2 batches: b1 \(5 samples; [-\d]+ [:\d]+ UTC, less than a day ago\), b0 \(5 samples; ", said)
    assert "b0 (5 samples; 2023-11-14 22:13 UTC, " in said
    assert " days ago); 1 sample of other batches: b2s1; the matrix holds 4 samples now. To do: " in said

    command = re.search("To do: nothing; `zarr-core (.+)` allows them again", said)
    assert command is not None
    assert command[1] == f"matrix retire {url} --batches b1 b0 --samples b2s1 --undo"
    assert matrix_command(shlex.split(command[1])[1:]) == 0
    assert matrix_sensor.retired() == "none"
    matrix_sensor.trial.load_directly()
    WideMatrix.open(url).retire([], ["b0"])
    assert "less than a day ago" in matrix_sensor.retired(), "the time of the latest retirement"


def test_the_history_of_a_matrix_is_read_once_and_not_needed(
    matrix_sensor: MatrixSensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    def damaged(*_: object) -> None:
        raise ManifestError("generations/00000001.json is damaged")

    matrix = WideMatrix.open(matrix_sensor.trial.dataset.matrix)
    matrix.retire([], ["b0"])
    assert matrix_sensor.retired().startswith("1 batch: b0 (5 samples; 2")
    monkeypatch.setattr("zarr_core.platform.sensors.withdrawn.commits", damaged)
    assert matrix_sensor.retired().startswith("1 batch: b0 (5 samples; 2"), "nothing has been retired since"
    matrix.retire([], ["b1"])
    assert matrix_sensor.retired().startswith("2 batches: b1 (5 samples), b0 (5 samples); ")


def test_a_time_of_a_machine_whose_clock_is_ahead() -> None:
    assert when(time.time() + 3600).endswith(" UTC, less than a day ago")


def test_it_says_who_has_the_reason_if_the_source_does_not_answer(trial: Trial) -> None:
    """The tick of the sensor then ends before it records anything."""
    spec = trial.definitions.resolve_asset_graph().get(trial.dataset.key("overview"))
    assert "While that sensor fails, this stays as it was: `failing_sensors` has the reason" in str(spec.description)


def test_nothing_follows_the_overview(trial: Trial) -> None:
    graph = trial.definitions.resolve_asset_graph()
    node = graph.get(trial.dataset.key("overview"))
    assert node.automation_condition is None
    assert not node.child_keys | node.parent_keys
