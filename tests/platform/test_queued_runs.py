"""A run converts the samples that it was queued for, whatever the sensor does meanwhile."""

from __future__ import annotations

import dagster as dg
import pytest
from dagster._core.definitions.job_base import InMemoryJob
from dagster._core.execution.api import execute_run
from dagster._core.instance.runs.run_domain import RunDomain
from dagster._core.storage.tags import PARTITION_NAME_TAG
from zarr_core.platform.sensors.dagster_internals.queries import has_open_work
from zarr_core.platform.sensors.dagster_internals.tags import partition_range_tags

from tests.platform.test_source_watch import Watcher
from tests.platform.trial import Trial, write_run


def queue(trial: Trial, first: str, last: str, **tags: str) -> tuple[dg.JobDefinition, dg.DagsterRun]:
    """A conversion run over a range of samples, created and not started."""
    job = trial.definitions.resolve_job_def("trial_convert")
    return job, trial.instance.create_run_for_job(job, tags=partition_range_tags(first, last) | tags)


def execute(trial: Trial, job: dg.JobDefinition, run: dg.DagsterRun) -> None:
    execute_run(InMemoryJob(job), run, trial.instance)


def test_partitions_that_moved_while_the_run_was_queued(trial: Trial) -> None:
    for number in (1, 2, 3):
        write_run(trial.source, number)
    assert trial.run("look").success
    job, run = queue(trial, "run_1", "run_3")
    trial.instance.delete_dynamic_partition(trial.dataset.partitions_name, "run_1")
    trial.instance.add_dynamic_partitions(trial.dataset.partitions_name, ["run_9", "run_1"])
    assert trial.samples() == ["run_2", "run_3", "run_9", "run_1"]
    write_run(trial.source, 9)
    execute(trial, job, run)
    assert trial.converted() == {"run_1", "run_2", "run_3"}


def test_a_run_whose_daemon_was_killed_before_it_had_recorded_the_partitions(
    trial: Trial, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in (1, 2, 3):
        write_run(trial.source, number)
    assert trial.run("look").success
    with monkeypatch.context() as killed:
        killed.setattr(RunDomain, "_log_asset_planned_events", lambda *_: None)
        job, run = queue(trial, "run_1", "run_2")
        of_one = trial.instance.create_run_for_job(job, tags={PARTITION_NAME_TAG: "run_3"})
    execute(trial, job, run)
    assert trial.converted() == {"run_1", "run_2"}
    execute(trial, job, of_one)
    assert trial.converted() == {"run_1", "run_2", "run_3"}


@pytest.mark.slow
def test_the_sensor_moves_and_deletes_partitions_only_when_no_run_is_open(trial: Trial) -> None:
    watcher = Watcher(trial)
    for number in (1, 2, 3, 4):
        write_run(trial.source, number)
    watcher.settle()
    job, run = queue(trial, "run_1", "run_4")
    assert has_open_work(trial.instance, trial.dataset.converted, "trial_convert")
    for number in (1, 3):
        write_run(trial.source, number, shift=1.0)
    (trial.source / "run_2").rename(trial.source / ".run_2")
    watcher.settle()
    assert "1 not found, waiting for the end of a conversion" in str(watcher.tick().skip_reason)
    assert trial.samples() == ["run_1", "run_2", "run_3", "run_4"]
    execute(trial, job, run)
    assert not has_open_work(trial.instance, trial.dataset.converted, "trial_convert")
    watcher.tick()
    assert trial.samples() == ["run_1", "run_3", "run_4"]
