"""The overview of a dataset: the states of its samples or batches, and what to do next."""

from __future__ import annotations

import time

import dagster as dg
import pytest

from resources.stores import StoreAccess
from sensors.arrivals import arrivals_sensor
from tests.platform.test_behind import cancel_backfill
from tests.platform.trial import Trial, corrupt, write_run

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


def test_it_says_what_became_of_the_samples_and_what_to_do(trial: Trial) -> None:
    sensor = Sensor(trial)
    for run in (1, 2, 3, 4):
        write_run(trial.source, run)
    corrupt(trial.source / "run_4")
    (write_run(trial.source, 5) / "surface_pressure.pt").unlink()
    sensor.tick()
    sensor.tick()
    assert sensor.tick(), "samples were registered"
    rows = shown(trial)
    assert rows["arrived"] == "4 samples, 1 incomplete. To do: upload what is missing, or delete their folders"
    assert rows["converted"] == "0 samples. To do: nothing, the automation converts 4 more"
    assert rows["published"].startswith("nothing yet. To do: ")
    assert rows["verified"] == "never. To do: declare verify_within_days, or run trial_verify"

    assert not trial.run("convert", "run_1", "run_4").success
    assert trial.publish().success
    assert sensor.tick()
    rows = shown(trial)
    assert rows["converted"] == "3 samples"
    assert rows["refused"].startswith(
        "1: run_4. To do: mend their files at the source: docs/operating.md#a-sample-that-"
    )
    assert rows["published"].startswith("generation 1: 3 samples, ")
    assert "split_ids_present. To do: " in rows["failing checks"]

    write_run(trial.source, 1, shift=1.0)
    assert trial.run("look").success
    cancel_backfill(trial, "run_1")
    sensor.tick()
    rows = shown(trial)
    assert "source_converted" in rows["failing checks"], "of the same tick"
    assert rows["stale or cancelled"].startswith("1: run_1. To do: materialize their partitions of trial/zarr_samples")
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


def test_nothing_follows_the_overview(trial: Trial) -> None:
    graph = trial.definitions.resolve_asset_graph()
    node = graph.get(trial.dataset.key("overview"))
    assert node.automation_condition is None
    assert not node.child_keys | node.parent_keys
