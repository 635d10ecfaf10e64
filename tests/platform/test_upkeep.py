"""Garbage collection and deep verification by Dagster's jobs."""

from __future__ import annotations

import shutil
from pathlib import Path

import dagster as dg
import pytest
from zarr_core.platform.assets.component import dataset_definitions
from zarr_core.platform.assets.upkeep import due_samples

from tests.helpers.stores import flip
from tests.platform.matrix_trial import MatrixTrial, declare
from tests.platform.trial import Trial, write_run
from zarr_core.matrix import WideMatrix
from zarr_core.points.convert.conversion import convert
from zarr_core.points.store.head import load_manifest


@pytest.fixture
def stored(trial: Trial) -> Trial:
    """Two samples, one of which was replaced."""
    for number, shift in ((1, 0.0), (2, 0.0), (2, 1.0)):
        write_run(trial.source, number, shift=shift)
        convert(trial.dataset.kind, trial.dataset.store, root=trial.source)
    return trial


def test_every_sample_is_verified_within_the_declared_time() -> None:
    samples = [f"run_{number}" for number in range(200)]
    parts = [due_samples(samples, day - 1, day, 7) for day in range(100, 107)]
    assert sorted(sample for part in parts for sample in part) == sorted(samples), "each of them once"
    assert max(map(len, parts)) < 60
    assert due_samples(samples, 106, 106, 7) == parts[-1], "a second run on a day reads the same"
    assert set(due_samples(samples, 103, 106, 7)) == {sample for part in parts[4:] for sample in part}, "days missed"
    assert due_samples(samples, 0, 106, 7) == samples
    assert due_samples(samples, 106, 107, 1) == samples


def test_damage_fails_the_verification_until_it_is_repaired(stored: Trial) -> None:
    samples = load_manifest(stored.dataset.store).samples
    shard = Path(stored.dataset.store) / samples["run_1"].relpath / "surface/pressure/c/0/0"
    whole = shard.read_bytes()
    shard.write_bytes(whole[:10] + bytes([whole[10] ^ 1]) + whole[11:])
    result = stored.run("verify")
    assert not result.success
    (failed,) = result.get_step_failure_events()
    description = failed.step_failure_data.user_failure_data.description
    assert description.startswith("1 of 2 samples are damaged: run_1, surface_pressure")
    assert description.endswith("in a run with the tag zarr_core/force = true")
    shard.write_bytes(whole)
    assert stored.run("verify").success
    metadata = stored.materialization("deep_verification").metadata
    assert (metadata["samples"].value, metadata["of"].value) == (2, 2)


def test_samples_of_earlier_generations_are_verified_too(stored: Trial) -> None:
    store = stored.dataset.store
    old = Path(store) / load_manifest(store).samples["run_2"].relpath
    shutil.rmtree(stored.source / "run_2")
    convert(stored.dataset.kind, store, root=stored.source, retire_vanished=True, max_retired_share=1)
    assert stored.run("verify").success
    metadata = stored.materialization("deep_verification").metadata
    assert (metadata["samples"].value, metadata["of"].value) == (2, 2)
    flip(old / "surface/pressure/c/0/0")
    (failed,) = stored.run("verify").get_step_failure_events()
    description = failed.step_failure_data.user_failure_data.description
    assert "only earlier generations hold run_2: copy the objects back" in description


def test_garbage_is_collected_and_counted(stored: Trial) -> None:
    current = Path(stored.dataset.store) / load_manifest(stored.dataset.store).samples["run_2"].relpath
    (replaced,) = {*current.parent.iterdir()} - {current}
    size = sum(path.stat().st_size for path in replaced.rglob("*") if path.is_file())
    assert stored.run("gc").success
    assert replaced.exists(), "it was replaced less than a day ago"
    collecting = Trial(stored.dataset.model_copy(update={"gc_grace": "0s"}), stored.instance)
    assert collecting.run("gc").success
    assert [*current.parent.iterdir()] == [current]
    metadata = {name: value.value for name, value in stored.materialization("garbage").metadata.items()}
    assert (metadata["freed_bytes"], metadata["deleted_groups"]) == (size, 1)
    assert metadata["deleted_generations"] > 0


def test_garbage_of_a_matrix_is_collected(tmp_path: Path, instance: dg.DagsterInstance) -> None:
    trial = MatrixTrial(declare(tmp_path, gc_grace="0s"), instance)
    trial.write("b0")
    trial.load_directly()
    WideMatrix.open(trial.dataset.matrix).retire(["b0s1"])
    assert trial.run("gc").success
    assert trial.materialization("garbage").metadata["deleted_groups"].value > 0


def test_damage_of_a_matrix_fails_its_verification(tmp_path: Path, instance: dg.DagsterInstance) -> None:
    trial = MatrixTrial(declare(tmp_path, verify_within_days=45), instance)
    trial.write("b0")
    trial.load_directly()
    assert trial.run("verify").success
    metadata = trial.materialization("deep_verification").metadata
    assert metadata["samples"].value == 5
    assert metadata["chunks"].value > 0
    shard = next(path for path in sorted(Path(trial.dataset.matrix).rglob("c/*/*")) if path.is_file())
    data = shard.read_bytes()
    shard.write_bytes(bytes([data[0] ^ 1]) + data[1:])
    (failed,) = trial.run("verify").get_step_failure_events()
    description = failed.step_failure_data.user_failure_data.description
    assert str(shard.relative_to(trial.dataset.matrix)) in description
    schedules = [schedule for schedule in trial.definitions.schedules or () if schedule.name == "trial_verify_schedule"]
    assert [str(schedule.cron_schedule) for schedule in schedules] == ["0 1 */31 * *"]


def test_schedules_run_only_if_they_are_declared(trial: Trial) -> None:
    def schedules(**declared: object) -> dict[str, str]:
        definitions = dataset_definitions(trial.dataset.model_copy(update=declared))
        found = [schedule for schedule in definitions.schedules or () if isinstance(schedule, dg.ScheduleDefinition)]
        return {schedule.name: str(schedule.cron_schedule) for schedule in found}

    assert schedules() == {"trial_refresh_schedule": "0 3 * * *"}
    everything = schedules(gc_schedule="0 2 * * 0", verify_within_days=30)
    assert everything["trial_gc_schedule"] == "0 2 * * 0"
    assert everything["trial_verify_schedule"] == "0 1 * * *"


def test_a_store_that_is_not_there_yet_is_no_failure(trial: Trial) -> None:
    for job in ("refresh", "gc", "verify"):
        assert trial.run(job).success, job
    assert not trial.instance.get_latest_materialization_event(trial.dataset.published)
    assert not trial.instance.get_latest_materialization_event(trial.dataset.key("deep_verification"))
    write_run(trial.source, 1)
    assert trial.convert_all().success
    assert trial.publish().success
    assert trial.run("verify").success
    assert trial.materialization("deep_verification").metadata["samples"].value == 1
