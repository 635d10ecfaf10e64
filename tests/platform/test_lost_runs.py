"""Runs whose process died with its code server are marked as failed, and no others."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping

import dagster as dg
import pytest
from dagster._core.events import DagsterEvent
from dagster._core.remote_origin import InProcessCodeLocationOrigin, RemoteJobOrigin, RemoteRepositoryOrigin
from dagster._core.storage.tags import GRPC_INFO_TAG
from dagster._core.test_utils import create_run_for_test
from dagster._core.types.loadable_target_origin import LoadableTargetOrigin

from sensors.lost_runs import lost_runs

LAUNCHED = {GRPC_INFO_TAG: "{}"}


@pytest.fixture(scope="module")
def ended() -> int:
    """Id of a process that has ended."""
    process = subprocess.Popen([sys.executable, "-S", "-c", ""])
    process.wait()
    return process.pid


def location(name: str) -> InProcessCodeLocationOrigin:
    return InProcessCodeLocationOrigin(LoadableTargetOrigin(module_name="definitions"), location_name=name)


def start(instance: dg.DagsterInstance, process: int, tags: Mapping[str, str] = LAUNCHED, at: str = "here") -> str:
    """A run in progress, in a process."""
    origin = RemoteJobOrigin(RemoteRepositoryOrigin(location(at), "__repository__"), "job")
    run_id = create_run_for_test(instance, "job", tags=tags, remote_job_origin=origin).run_id
    instance.report_dagster_event(DagsterEvent(dg.DagsterEventType.RUN_START.value, "job", pid=process), run_id)
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


def test_runs_that_may_have_a_process_elsewhere_go_on(instance: dg.DagsterInstance, ended: int) -> None:
    runs = [start(instance, os.getpid()), start(instance, ended, tags={}), start(instance, ended, at="elsewhere")]
    _, cursor = tick(instance, None)
    assert tick(instance, cursor) == ("no run is lost", "[]")
    found = [instance.get_run_by_id(run_id) for run_id in runs]
    assert [run.status for run in found if run] == [dg.DagsterRunStatus.STARTED] * 3
