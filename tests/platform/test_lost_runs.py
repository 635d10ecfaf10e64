"""Runs whose process died with its code server are marked as failed, and no others."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from datetime import UTC, datetime

import dagster as dg
import pytest
from dagster._core.events import DagsterEvent
from dagster._core.events.log import EventLogEntry
from dagster._core.remote_origin import InProcessCodeLocationOrigin, RemoteJobOrigin, RemoteRepositoryOrigin
from dagster._core.storage.tags import AUTO_RETRY_RUN_ID_TAG, GRPC_INFO_TAG, WILL_RETRY_TAG
from dagster._core.test_utils import create_run_for_test
from dagster._core.types.loadable_target_origin import LoadableTargetOrigin
from dagster._daemon.auto_run_reexecution import auto_run_reexecution, event_log_consumer
from zarr_core.platform.sensors.lost_runs import lost_runs

LAUNCHED = {GRPC_INFO_TAG: "{}"}


@pytest.fixture(scope="module")
def ended() -> int:
    """Id of a process that has ended."""
    process = subprocess.Popen([sys.executable, "-S", "-c", ""])
    process.wait()
    return process.pid


def location(name: str) -> InProcessCodeLocationOrigin:
    return InProcessCodeLocationOrigin(LoadableTargetOrigin(module_name="definitions"), location_name=name)


def start(
    instance: dg.DagsterInstance,
    process: int,
    tags: Mapping[str, str] = LAUNCHED,
    at: str = "here",
    time: float | None = None,
) -> str:
    """A run in progress, in a process."""
    origin = RemoteJobOrigin(RemoteRepositoryOrigin(location(at), "__repository__"), "job")
    run_id = create_run_for_test(instance, "job", tags=tags, remote_job_origin=origin).run_id
    event = DagsterEvent(dg.DagsterEventType.RUN_START.value, "job", pid=process)
    instance.report_dagster_event(event, run_id, timestamp=time)
    return run_id


def tick(instance: dg.DagsterInstance, cursor: str | None) -> tuple[str, str | None]:
    """What the sensor reports, and its cursor."""
    context = dg.build_sensor_context(instance, cursor=cursor)
    context._code_location_origin = location("here")
    result = lost_runs(context)
    assert isinstance(result, dg.SensorResult)
    assert result.skip_reason
    return str(result.skip_reason.skip_message), result.cursor


def test_a_run_without_a_process_fails_at_the_second_tick(instance: dg.DagsterInstance, ended: int) -> None:
    run_id = start(instance, ended)
    reported, cursor = tick(instance, None)
    assert reported == "no run is lost", "a run that has just ended may not have reported that yet"
    assert tick(instance, cursor)[0] == f"lost runs: {run_id[:8]}"
    run = instance.get_run_by_id(run_id)
    assert run is not None
    assert run.status is dg.DagsterRunStatus.FAILURE
    assert tick(instance, cursor) == ("no run is lost", "[]")


@pytest.mark.skipif(not os.path.exists("/proc/stat"), reason="needs /proc")
def test_a_process_that_began_after_the_run_is_another_one(instance: dg.DagsterInstance) -> None:
    run_id = start(instance, os.getpid(), time=1.0)
    _, cursor = tick(instance, None)
    assert tick(instance, cursor)[0] == f"lost runs: {run_id[:8]}"


def test_runs_that_may_have_a_process_elsewhere_go_on(instance: dg.DagsterInstance, ended: int) -> None:
    runs = [start(instance, os.getpid()), start(instance, ended, tags={}), start(instance, ended, at="elsewhere")]
    _, cursor = tick(instance, None)
    assert tick(instance, cursor) == ("no run is lost", "[]")
    found = [instance.get_run_by_id(run_id) for run_id in runs]
    assert [run.status for run in found if run] == [dg.DagsterRunStatus.STARTED] * 3


def test_a_failed_run_that_the_daemon_forgot_is_retried(
    instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The daemon looks at the events between the failure's event and the status of the run."""
    retried: list[str] = []
    monkeypatch.setattr(auto_run_reexecution, "retry_run", lambda run, _: retried.append(run.run_id))
    daemon = event_log_consumer.EventLogConsumerDaemon()

    class Context:
        def __init__(self) -> None:
            self.instance = instance

        def create_request_context(self) -> None:
            return None

    def look() -> None:
        list(daemon.run_iteration(Context()))  # type: ignore[arg-type]

    look()
    other = start(instance, os.getpid())
    run_id = start(instance, os.getpid())
    storage = instance.event_log_storage
    for failed in (other, run_id):
        event = DagsterEvent(dg.DagsterEventType.RUN_FAILURE.value, "job")
        storage.store_event(entry_of(event, failed))
    look()
    for failed in (other, run_id):
        event = DagsterEvent(dg.DagsterEventType.RUN_FAILURE.value, "job")
        instance.run_storage.handle_run_event(failed, event, datetime.now(UTC))
    instance.add_run_tags(other, {WILL_RETRY_TAG: "false"})
    instance.add_run_tags(run_id, {WILL_RETRY_TAG: "true"})
    look()
    assert retried == [], "the daemon finds it by itself: sensors/dagster_internals/retries.py is not needed any more"
    reported, cursor = tick(instance, None)
    assert reported == "no run is lost", "the daemon looks every few seconds"
    assert tick(instance, cursor)[0] == f"runs that were not started once more yet: {run_id[:8]}"
    look()
    assert retried == [run_id]
    instance.add_run_tags(run_id, {AUTO_RETRY_RUN_ID_TAG: "another"})
    assert tick(instance, cursor) == ("no run is lost", "[]")


def entry_of(event: DagsterEvent, run_id: str) -> EventLogEntry:
    return EventLogEntry(
        error_info=None,
        level="error",
        user_message="",
        run_id=run_id,
        timestamp=datetime.now(UTC).timestamp(),
        dagster_event=event,
    )
