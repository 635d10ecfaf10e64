"""Old runs are deleted; what Dagster knows of the present does not change."""

import time
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from dagster._core.remote_origin import RegisteredCodeLocationOrigin, RemoteInstigatorOrigin, RemoteRepositoryOrigin
from dagster._core.scheduler.instigation import (
    InstigatorState,
    InstigatorStatus,
    InstigatorType,
    TickData,
    TickStatus,
)
from zarr_core.platform.sensors.dagster_internals.evaluations import latest_check
from zarr_core.platform.sensors.dagster_internals.partitions import cancelled_partitions
from zarr_core.platform.sensors.dagster_internals.queries import runs_with_latest_events
from zarr_core.platform.sensors.old_runs import DELETE_AFTER, OldRuns, delete_old_runs, old_runs_schedule

from zarr_core.storage import Storage

PARTITIONS = dg.StaticPartitionsDefinition(["a", "b", "c", "d"])
PIECES, WHOLE = dg.AssetKey("pieces"), dg.AssetKey("whole")
CHECK = dg.AssetCheckKey(PIECES, "good")


class Outcome(dg.Config):
    """How a run ends."""

    fails: bool = False
    observes: bool = False


@dg.asset(partitions_def=PARTITIONS)
def pieces(context: dg.AssetExecutionContext, config: Outcome) -> None:
    """Each partition has a materialization, unless the run fails."""
    if config.fails:
        raise dg.Failure("refused")
    if config.observes:
        context.log_event(
            dg.AssetObservation(PIECES, partition=context.partition_key, tags={"seen": context.run.run_id})
        )


@dg.asset(automation_condition=dg.AutomationCondition.eager())
def whole(config: Outcome) -> None:
    """Without partitions."""
    if config.fails:
        raise dg.Failure("refused")


@dg.asset_check(asset=pieces)
def good() -> dg.AssetCheckResult:
    """Passes."""
    return dg.AssetCheckResult(passed=True)


DEFINITIONS = dg.Definitions([pieces, whole], asset_checks=[good])


def run(instance: dg.DagsterInstance, *selected: dg.AssetKey, partition: str | None = None, **outcome: bool) -> str:
    """A run that has ended; returns its id."""
    selection = dg.AssetSelection.assets(*selected).without_checks() if selected else dg.AssetSelection.checks(CHECK)
    job = dg.define_asset_job("some", selection).resolve(asset_graph=DEFINITIONS.resolve_asset_graph())
    config = {"ops": {selected[0].to_python_identifier(): {"config": dict(outcome)}}} if outcome else None
    result = job.execute_in_process(config, instance=instance, partition_key=partition, raise_on_error=False)
    return result.run_id


def delete(instance: dg.DagsterInstance, older_than: str = "0s") -> dict[str, Any]:
    """Run the job; returns what it reports."""
    config = dg.RunConfig(ops={"delete_runs": OldRuns(older_than=older_than)})
    result = delete_old_runs.execute_in_process(config, instance=instance)
    (output,) = [event.step_output_data for event in result.all_node_events if event.is_successful_output]
    return {name: value.value for name, value in output.metadata.items()}


def present(instance: dg.DagsterInstance) -> dict[str, Any]:
    """What Dagster tells of the assets now."""
    status = instance.get_status_by_partition(PIECES, PARTITIONS.get_partition_keys(), PARTITIONS)
    latest = [instance.get_latest_materialization_event(key) for key in (PIECES, WHOLE)]
    tried = instance.get_asset_records([WHOLE])[0].asset_entry.last_run_id or ""
    observation = instance.fetch_observations(dg.AssetRecordsFilter(PIECES), limit=1).records
    return {
        "status": status,
        "latest": [event.run_id if event else None for event in latest],
        "materialized": instance.get_materialized_partitions(PIECES),
        "tried": instance.get_run_by_id(tried),
        "cancelled": cancelled_partitions(instance, PIECES, []),
        "observed": [record.run_id for record in observation],
        "check": latest_check(instance, CHECK),
    }


@pytest.mark.slow
def test_the_present_stays_as_it_is(on_disk: dg.DagsterInstance) -> None:
    replaced = [
        run(on_disk, PIECES, partition="a"),
        run(on_disk, PIECES, partition="b", fails=True),
        run(on_disk, PIECES, partition="a", observes=True),
        run(on_disk, WHOLE),
        run(on_disk),
    ]
    needed = [
        run(on_disk, PIECES, partition="b"),
        run(on_disk, PIECES, partition="a", observes=True),
        run(on_disk, PIECES, partition="c", fails=True),
        run(on_disk, WHOLE),
        run(on_disk, WHOLE, fails=True),
        run(on_disk),
        run(on_disk, PIECES, partition="d"),
    ]
    before = present(on_disk)
    assert before["check"] is not None
    assert delete(on_disk, "1d") == {"deleted_runs": 0, "kept_runs": 0}
    assert delete(on_disk)["deleted_runs"] == len(replaced) + 1, "and the job's own earlier run"
    left = {each.run_id for each in on_disk.get_runs()}
    assert left.issuperset(needed)
    assert left.isdisjoint(replaced)
    assert present(on_disk) == before


@pytest.mark.slow
def test_materializations_and_observations_of_a_partition_may_be_of_different_runs(
    on_disk: dg.DagsterInstance,
) -> None:
    _, observed = [run(on_disk, PIECES, partition="a", observes=True) for _ in range(2)]
    materialized = [run(on_disk, PIECES, partition=partition) for partition in "ab"]
    assert runs_with_latest_events(on_disk) == {observed, *materialized}


def test_nothing_of_a_deleted_run_stays_on_the_disk(on_disk: dg.DagsterInstance) -> None:
    replaced, latest = run(on_disk, WHOLE), run(on_disk, WHOLE)
    home = Path(on_disk.root_directory)
    for run_id in (replaced, latest):
        output = home / "storage" / run_id / "compute_logs" / "whole.out"
        output.parent.mkdir(parents=True, exist_ok=True)
        output.write_text("something")

    def bytes_of(run_id: str) -> dict[str, int]:
        return {path.name: path.stat().st_size for path in home.rglob("*") if run_id in str(path) and path.is_file()}

    before = bytes_of(replaced)
    assert before[f"{replaced}.db"] > 10_000
    assert before["whole.out"] > 0
    assert delete(on_disk)["deleted_runs"] == 1
    assert bytes_of(replaced) == {}
    assert {f"{latest}.db", "whole.out"} < bytes_of(latest).keys()
    assert on_disk.all_logs(replaced) == []


@pytest.mark.slow
def test_the_output_of_a_deleted_run_in_a_bucket_is_deleted(
    instance: dg.DagsterInstance, s3_root: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from dagster_aws.s3.compute_log_manager import S3ComputeLogManager

    bucket = s3_root.split("/")[2]
    manager = S3ComputeLogManager(bucket=bucket, local_dir=str(tmp_path), prefix="dagster")
    monkeypatch.setattr(type(instance), "compute_log_manager", manager)
    runs = [run(instance, WHOLE) for _ in range(2)]
    for run_id in runs:
        Storage(f"s3://{bucket}").write(f"dagster/storage/{run_id}/compute_logs/whole.out", [b"something"])
    assert delete(instance)["deleted_runs"] == 1
    kept = {run_id for run_id in runs if any(run_id in path for path in Storage(f"s3://{bucket}").list("dagster"))}
    assert kept == {runs[1]}


def test_old_ticks_and_evaluations_of_conditions_are_deleted(on_disk: dg.DagsterInstance) -> None:
    """Also those that are younger than Dagster's own limits."""
    storage, now = on_disk.schedule_storage, time.time()
    assert storage is not None
    origin = RemoteInstigatorOrigin(RemoteRepositoryOrigin(RegisteredCodeLocationOrigin("here"), "repository"), "some")
    state = InstigatorState(origin, InstigatorType.SENSOR, InstigatorStatus.RUNNING)
    on_disk.add_instigator_state(state)
    for age in (10, 1):
        tick = TickData(origin.get_id(), "some", InstigatorType.SENSOR, TickStatus.SKIPPED, now - age * 86_400)
        on_disk.create_tick(tick._replace(selector_id=state.selector_id))
    evaluation = dg.evaluate_automation_conditions(DEFINITIONS, on_disk)
    storage.add_auto_materialize_asset_evaluations(
        1, [each.serializable_evaluation.with_run_ids(set()) for each in evaluation.results]
    )

    def ticks() -> list[int]:
        found = on_disk.get_ticks(origin.get_id(), state.selector_id)
        return sorted(round((now - tick.timestamp) / 86_400) for tick in found)

    def evaluations() -> int:
        return len(storage.get_auto_materialize_asset_evaluations(WHOLE, limit=9))

    assert (ticks(), evaluations()) == ([1, 10], 1)
    delete(on_disk, "2d")
    assert (ticks(), evaluations()) == ([1], 1)
    delete(on_disk)
    assert (ticks(), evaluations()) == ([], 0)


def test_a_run_in_progress_is_kept(instance: dg.DagsterInstance) -> None:
    created = instance.create_run_for_job(delete_old_runs)
    delete(instance)
    assert instance.has_run(created.run_id)


@pytest.mark.parametrize(("age", "status"), [(None, "STOPPED"), ("30d", "RUNNING")])
def test_the_environment_starts_the_schedule(monkeypatch: pytest.MonkeyPatch, age: str | None, status: str) -> None:
    monkeypatch.delenv(DELETE_AFTER, raising=False)
    if age is not None:
        monkeypatch.setenv(DELETE_AFTER, age)
    schedule = old_runs_schedule()
    assert schedule.default_status.name == status
    requests = schedule.evaluate_tick(dg.build_schedule_context()).run_requests
    assert requests
    assert requests[0].run_config["ops"]["delete_runs"]["config"]["older_than"] == (age or "90d")
