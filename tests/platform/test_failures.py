"""Failed runs, failed checks and failing sensors are logged by name."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import dagster as dg
import pytest
from dagster._core.definitions.run_request import InstigatorType
from dagster._core.remote_origin import (
    InProcessCodeLocationOrigin,
    RemoteInstigatorOrigin,
    RemoteRepositoryOrigin,
)
from dagster._core.scheduler.instigation import (
    InstigatorState,
    InstigatorStatus,
    SensorInstigatorData,
    TickData,
    TickStatus,
)
from dagster._core.types.loadable_target_origin import LoadableTargetOrigin
from dagster._utils.error import SerializableErrorInfo

from sensors.failures import failed_checks, failed_runs, failing_sensors


def tick(instance: dg.DagsterInstance, name: str, status: TickStatus, message: str | None = None) -> None:
    """A running sensor and one of its ticks."""
    location = InProcessCodeLocationOrigin(LoadableTargetOrigin(module_name="definitions"))
    origin = RemoteInstigatorOrigin(RemoteRepositoryOrigin(location, "repository"), name)
    state = InstigatorState(
        origin, InstigatorType.SENSOR, InstigatorStatus.RUNNING, SensorInstigatorData(sensor_type=None)
    )
    if not instance.get_instigator_state(state.instigator_origin_id, state.selector_id):
        instance.add_instigator_state(state)
    ticks = instance.get_ticks(state.instigator_origin_id, state.selector_id)
    cause = SerializableErrorInfo(message, [], "Failure") if message else None
    error = SerializableErrorInfo("Error occurred during the evaluation", [], "Error", cause) if cause else None
    instance.create_tick(
        TickData(
            state.instigator_origin_id,
            name,
            InstigatorType.SENSOR,
            status,
            timestamp=float(len(ticks) + 1),
            error=error,
            selector_id=state.selector_id,
        )
    )


@pytest.fixture
def instance(tmp_path: Path) -> Iterator[dg.DagsterInstance]:
    """An instance on disk, because one in memory records no ticks."""
    with dg.DagsterInstance.local_temp(str(tmp_path), {"telemetry": {"enabled": False}}) as temporary:
        yield temporary


def test_failing_sensors_are_named_once_per_error(
    instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    logged: list[str] = []
    cursor = None

    def look() -> str:
        nonlocal cursor
        logged.clear()
        context = dg.build_sensor_context(instance, cursor=cursor)
        monkeypatch.setattr(type(context), "log", type("Log", (), {"error": staticmethod(logged.append)}))
        result = failing_sensors(context)
        assert isinstance(result, dg.SensorResult)
        assert result.skip_reason
        cursor = result.cursor
        return result.skip_reason.skip_message or ""

    tick(instance, "a_arrivals", TickStatus.FAILURE, "the bucket is gone\nsecond line")
    tick(instance, "b_arrivals", TickStatus.SKIPPED)
    assert look() == "failing: a_arrivals"
    assert logged == ["a_arrivals fails: the bucket is gone\nsecond line"]
    tick(instance, "a_arrivals", TickStatus.STARTED)
    assert (look(), logged) == ("failing: a_arrivals", [])
    tick(instance, "a_arrivals", TickStatus.FAILURE, "another reason")
    assert (look(), logged) == ("failing: a_arrivals", ["a_arrivals fails: another reason"])
    tick(instance, "a_arrivals", TickStatus.SKIPPED)
    assert (look(), logged) == ("no sensor or schedule fails", [])


@dg.asset
def published() -> None:
    pass


@dg.asset
def broken() -> None:
    raise dg.Failure("the disk is full")


@dg.asset_check(asset=published)
def hollow() -> dg.AssetCheckResult:
    return dg.AssetCheckResult(passed=False, description="run_2 is hollow")


@dg.asset_check(asset=published)
def half_full() -> dg.AssetCheckResult:
    return dg.AssetCheckResult(passed=False, severity=dg.AssetCheckSeverity.WARN, description="a warning")


@pytest.mark.parametrize(
    ("sensor", "asset", "logged"),
    [
        (failed_runs, broken, "failed: broken: the disk is full"),
        (failed_checks, published, "check hollow of published: run_2 is hollow"),
    ],
)
def test_runs_of_the_command_line_are_logged(
    sensor: dg.SensorDefinition,
    asset: dg.AssetsDefinition,
    logged: str,
    instance: dg.DagsterInstance,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """Such a run names no code location, as this one does."""
    definitions = dg.Definitions(assets=[published, broken], asset_checks=[hollow, half_full], sensors=[sensor])

    def errors() -> list[str]:
        return [line for line in capfd.readouterr().err.splitlines() if " - ERROR - run " in line]

    def tick(cursor: str | None) -> str | None:
        repository = definitions.get_repository_def()
        with dg.build_sensor_context(
            instance, cursor=cursor, repository_def=repository, repository_name="__repository__"
        ) as context:
            return sensor.evaluate_tick(context).cursor

    cursor = tick(None)
    job = definitions.resolve_implicit_global_asset_job_def()
    run = job.execute_in_process(instance=instance, asset_selection=[asset.key], raise_on_error=False).dagster_run
    assert run.remote_job_origin is None
    errors()
    cursor = tick(cursor)
    (error,) = errors()
    assert error.endswith(logged)
    last = instance.all_logs(run.run_id)[-1].dagster_event
    assert last
    assert (last.message or "").endswith(logged), "the page of the run shows its last events"
    tick(cursor)
    assert errors() == [], "once"
