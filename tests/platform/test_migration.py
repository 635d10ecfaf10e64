"""Declared settings that are not those of the store: pending, under way, dropped, after a lost database."""

from __future__ import annotations

import datetime as dt
import os
from collections.abc import Iterator
from pathlib import Path

import dagster as dg
import pytest
from zarr_core.platform.assets.migration import migration_job
from zarr_core.platform.resources.stores import StoreAccess
from zarr_core.platform.sensors.migration import CHECK

from tests.platform.automation import Automation
from tests.platform.test_behind import cancel_backfill
from tests.platform.test_chain import check_results
from tests.platform.test_conditions import HOUR, cancel
from tests.platform.test_source_watch import Watcher
from tests.platform.trial import Trial, corrupt, write_run
from zarr_core.points.convert.conversion import convert
from zarr_core.points.convert.publish import publish
from zarr_core.points.store.head import load_manifest

pytestmark = pytest.mark.usefixtures("nothing_measured")

CHANGE = "values_dtype: 'float16' -> 'float32'"


@pytest.fixture
def stored(trial: Trial) -> Trial:
    """Three samples of float16 that the command line converted, and the sensor registered; batches of two."""
    trial = declared(trial, batch_size=2)
    for number in (1, 2, 3):
        write_run(trial.source, number)
    convert_all(trial, dataset_name=trial.dataset.name)
    Watcher(trial).settle()
    return trial


def convert_all(trial: Trial, **arguments: object) -> None:
    """What the command line does."""
    convert(trial.dataset.kind, trial.dataset.store, source_url=trial.dataset.source, **arguments)  # type: ignore[arg-type]


def published(trial: Trial) -> dict[str, str]:
    """Stored dtype of a field, by sample, as readers see it after a publication."""
    publish(trial.dataset.kind, trial.dataset.store, source_url=trial.dataset.source)
    return dtypes(trial)


def declared(trial: Trial, instance: dg.DagsterInstance | None = None, **changed: object) -> Trial:
    """The same dataset with an edited declaration; with a new instance, after its database was lost."""
    return Trial(trial.dataset.model_copy(update=changed), instance or trial.instance)


def migrate(trial: Trial) -> None:
    resources = {"stores": StoreAccess()}
    assert migration_job(trial.dataset).execute_in_process(instance=trial.instance, resources=resources).success


def dtypes(trial: Trial) -> dict[str, str]:
    """Stored dtype of a field, by sample, as readers see it."""
    manifest = load_manifest(trial.dataset.store)
    return {i: manifest.fields_of(i)["surface_pressure"].dtype for i in manifest.samples}


def reported(trial: Trial) -> str:
    """What the sensor reports of the settings: the latest evaluation of the check."""
    Watcher(trial).tick()
    (record,) = trial.instance.event_log_storage.get_asset_check_execution_history(
        dg.AssetCheckKey(trial.dataset.published, CHECK), limit=1
    )
    assert record.event
    assert record.event.dagster_event
    return record.event.dagster_event.asset_check_evaluation_data.description or ""


@pytest.mark.slow
def test_a_changed_declaration_converts_nothing_with_other_settings(stored: Trial) -> None:
    changed = declared(stored, values_dtype="float32")
    automation = Automation(changed)
    automation.evaluate()
    write_run(changed.source, 4)
    write_run(changed.source, 2, shift=1.0)
    assert changed.run("look").success
    assert automation.evaluate() == {"zarr_samples": {"run_4", "run_2"}}
    assert changed.run("convert", "run_1", "run_4").success
    refreshed = changed.run("refresh")
    assert refreshed.success
    assert dtypes(changed) == dict.fromkeys(("run_1", "run_2", "run_3", "run_4"), "float16")
    automation.evaluate()
    assert automation.evaluate() == {}

    said = reported(changed)
    size = sum(path.stat().st_size for path in changed.source.rglob("*.pt"))
    assert f"declared, but not applied: {CHANGE}; 4 samples ({size / 1000:.3g} kB at the source) of 4 are stale" in said
    assert "run the job trial_migrate; to drop the change" in said
    check = check_results(refreshed)[CHECK]
    assert (check.passed, check.severity, check.description) == (False, dg.AssetCheckSeverity.WARN, said)
    assert check.metadata["stale"].value == 4
    assert "are the declared ones" in reported(stored), "the change is dropped"

    for number in (1, 3):
        (stored.source / f"run_{number}").rename(stored.source / f".run_{number}")
    watcher = Watcher(stored)
    watcher.settle()
    assert len(stored.samples()) == 2
    assert reported(stored).startswith("4 samples have"), "those of the store, of which two are not at the source"


@pytest.mark.slow
def test_a_migration_runs_in_batches_between_arrivals(stored: Trial) -> None:
    changed = declared(stored, values_dtype="float32")
    automation = Automation(changed)
    automation.evaluate()
    migrate(changed)
    assert f"migration under way ({CHANGE}): 0 of 3 samples converted, 3 samples" in reported(changed)
    assert set(dtypes(changed).values()) == {"float16"}, "nothing is converted yet"
    write_run(changed.source, 4)
    assert changed.run("look").success
    assert automation.evaluate() == {"zarr_samples": {"run_1", "run_2", "run_4"}}, "one batch, and what arrived"

    assert changed.run("convert", "run_1", "run_2").success
    assert changed.run("convert", "run_4").success
    assert "3 of 4 samples converted, 1 samples" in reported(changed), "before they are published"
    requested = automation.evaluate()
    assert requested.pop("zarr_samples") == {"run_3"}
    assert set(requested) == {"manifest", "statistics", "benchmark_report"}
    assert published(changed) == {"run_1": "float32", "run_2": "float32", "run_3": "float16", "run_4": "float32"}

    assert changed.run("convert", "run_3").success
    assert changed.run("refresh").success, "with its checks"
    assert set(dtypes(changed).values()) == {"float32"}
    assert "are the declared ones" in reported(changed)
    automation.evaluate()
    assert automation.evaluate() == {}


@pytest.mark.slow
def test_a_sample_that_was_refused_with_other_settings_is_retried(trial: Trial) -> None:
    before = declared(trial, fingerprint="content")
    write_run(before.source, 1)
    corrupt(write_run(before.source, 2))
    assert not before.convert_all().success
    assert before.publish().success
    automation = Automation(before)
    automation.evaluate()
    automation.evaluate()
    assert "zarr_samples" not in automation.evaluate(after=HOUR)
    changed = declared(before, values_dtype="float32")
    migrate(changed)
    assert automation.evaluate()["zarr_samples"] == {"run_1"}
    assert automation.evaluate(after=HOUR)["zarr_samples"] == {"run_1", "run_2"}


@pytest.mark.slow
def test_a_cancelled_batch_pauses_the_migration(stored: Trial) -> None:
    changed = declared(stored, values_dtype="float32")
    automation = Automation(changed)
    automation.evaluate()
    migrate(changed)
    assert automation.evaluate() == {"zarr_samples": {"run_1", "run_2"}}
    cancel(changed, "run_1", "run_2")
    assert automation.evaluate() == {}
    assert "Paused, because conversions were cancelled; to go on, materialize run_1, run_2" in reported(changed)
    assert changed.run("convert", "run_1", "run_2").success
    assert automation.evaluate()["zarr_samples"] == {"run_3"}


@pytest.mark.slow
def test_samples_of_a_backfill_that_was_cancelled_before_do_not_pause_a_migration(stored: Trial) -> None:
    write_run(stored.source, 4)
    write_run(stored.source, 1, shift=1.0)
    assert stored.run("look").success
    cancel_backfill(stored, "run_1", "run_4")
    assert stored.run("convert", "run_4", "run_4").success, "a person requested it"
    changed = declared(stored, values_dtype="float32", batch_size=10)
    automation = Automation(changed)
    automation.evaluate()
    migrate(changed)
    assert automation.evaluate() == {}
    assert "to go on, materialize run_1" in reported(changed)
    assert stored.run("convert", "run_1", "run_1").success
    assert automation.evaluate()["zarr_samples"] == {"run_2", "run_3", "run_4"}
    cancel_backfill(changed, "run_2", name="another")
    assert automation.evaluate() == {}, "one of the migration pauses it"


@pytest.mark.slow
def test_a_migration_is_dropped_by_a_migration_back(stored: Trial) -> None:
    before = load_manifest(stored.dataset.store).samples
    changed = declared(stored, field_dtypes={"surface_pressure": "float32"})
    migrate(changed)
    assert changed.run("convert", "run_1").success
    assert set(published(changed).values()) == {"float16", "float32"}
    migrate(stored)
    assert load_manifest(stored.dataset.store).samples == before, "with the groups that it had"
    assert "are the declared ones" in reported(stored)
    automation = Automation(stored)
    automation.evaluate()
    assert "zarr_samples" not in automation.evaluate()


@pytest.mark.slow
def test_what_was_converted_before_a_migration_and_not_published_is_part_of_it(stored: Trial) -> None:
    write_run(stored.source, 4)
    assert stored.run("look").success
    assert stored.run("convert", "run_4").success
    changed = declared(stored, values_dtype="float32", batch_size=10)
    migrate(changed)
    assert "0 of 4 samples converted" in reported(changed)
    assert Automation(changed).evaluate()["zarr_samples"] == {"run_1", "run_2", "run_3", "run_4"}


@pytest.fixture
def new_instance(tmp_path: Path) -> Iterator[dg.DagsterInstance]:
    (tmp_path / "new").mkdir()
    with dg.DagsterInstance.local_temp(str(tmp_path / "new"), {"telemetry": {"enabled": False}}) as temporary:
        yield temporary


@pytest.mark.slow
def test_a_new_instance_takes_what_the_store_holds(stored: Trial, new_instance: dg.DagsterInstance) -> None:
    changed = declared(stored, new_instance, values_dtype="float32")
    write_run(changed.source, 3, shift=1.0)
    automation, watcher = Automation(changed), Watcher(changed)
    automation.evaluate()
    said = str(watcher.settle().skip_reason)
    assert "1 new (run_3), 2 taken over from the store" in said
    assert changed.samples() == ["run_1", "run_2", "run_3"]
    assert changed.converted() == {"run_1", "run_2"}, "the store has an earlier version of run_3"
    assert changed.materialization("zarr_samples", "run_1").metadata["points"].value == 900
    assert automation.evaluate() == {"zarr_samples": {"run_3"}}
    assert changed.run("convert", "run_3").success
    assert set(automation.evaluate()) == {"manifest", "statistics", "benchmark_report"}
    assert set(published(changed).values()) == {"float16"}, "what was pending stays pending"
    write_run(changed.source, 1, shift=1.0)
    watcher.settle()
    assert automation.evaluate()["zarr_samples"] == {"run_1"}


@pytest.mark.slow
def test_a_new_instance_takes_a_store_with_fingerprints_of_content(
    trial: Trial, new_instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A tick reads one sample here. A larger one is compared in a run."""
    for number, points in ((1, 300), (2, 600), (3, 300), (4, 300)):
        write_run(trial.source, number, points)
    convert_all(trial, dataset_name=trial.dataset.name, fingerprint="content")
    write_run(trial.source, 4, shift=1.0)
    for file in (trial.source / "run_1").iterdir():
        os.utime(file, ns=(0, 0))
    size = sum(file.stat().st_size for file in (trial.source / "run_1").iterdir())
    monkeypatch.setattr("zarr_core.platform.sensors.takeover._MAX_READ_BYTES", size)

    new = declared(trial, new_instance)
    automation, watcher = Automation(new), Watcher(new)
    automation.evaluate()
    watcher.settle()
    assert (new.samples(), new.converted()) == (["run_1", "run_2"], {"run_1"})
    assert automation.evaluate()["zarr_samples"] == {"run_2"}
    assert new.run("convert", "run_2").success
    assert new.materialization("zarr_samples", "run_2").metadata["status"].value == "up to date"
    watcher.tick()
    assert new.converted() == {"run_1", "run_2", "run_3"}
    watcher.tick()
    assert new.samples() == ["run_1", "run_2", "run_3", "run_4"]
    assert automation.evaluate()["zarr_samples"] == {"run_4"}, "which changed, without another size"

    with dg.DagsterInstance.ephemeral() as third:
        looked = declared(trial, third)
        assert looked.run("look").success
        assert looked.samples() == ["run_1", "run_2", "run_3", "run_4"], "a run has time for all"
        assert looked.converted() == {"run_1", "run_2", "run_3"}


@pytest.mark.slow
def test_a_look_by_hand_takes_what_the_store_holds(stored: Trial, new_instance: dg.DagsterInstance) -> None:
    """As the first action after the database was lost, before a tick of the sensor."""
    new = declared(stored, new_instance)
    write_run(new.source, 4)
    automation = Automation(new)
    automation.evaluate()
    assert new.run("look").success
    assert new.samples() == ["run_1", "run_2", "run_3", "run_4"]
    assert new.converted() == {"run_1", "run_2", "run_3"}
    assert automation.evaluate() == {"zarr_samples": {"run_4"}}


@pytest.mark.slow
def test_a_new_instance_continues_a_migration(stored: Trial, new_instance: dg.DagsterInstance) -> None:
    changed = declared(stored, values_dtype="float32")
    migrate(changed)
    assert changed.run("convert", "run_2").success
    assert set(published(changed).values()) == {"float16", "float32"}
    new = declared(changed, new_instance)
    automation = Automation(new)
    Watcher(new).settle()
    assert "1 of 3 samples converted" in reported(new)
    assert automation.evaluate()["zarr_samples"] == {"run_1", "run_3"}


@pytest.mark.slow
def test_what_the_command_line_converted_is_taken_as_well(stored: Trial) -> None:
    automation = Automation(stored)
    automation.evaluate()
    write_run(stored.source, 4)
    convert_all(stored, reconvert=True, values_dtype="float32")
    Watcher(stored).settle()
    assert stored.converted() == {"run_1", "run_2", "run_3", "run_4"}
    assert "zarr_samples" not in automation.evaluate(after=dt.timedelta(minutes=1))
    assert "declared, but not applied: values_dtype: 'float32' -> 'float16'; 4 samples" in reported(stored)
