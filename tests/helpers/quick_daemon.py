"""Dagster's daemon, quicker than it starts by default: ``python -m tests.helpers.quick_daemon run``.

It pauses for a second or two where Dagster pauses for up to a minute, retries at each evaluation what is due every
minute, loads the code location once, not every minute, and forks the processes of runs from a server that has loaded
it, where Dagster spawns them. Its code server opens the instance once, not in each tick of a sensor.
"""

from __future__ import annotations

import multiprocessing
import sys
from datetime import datetime
from types import SimpleNamespace

from dagster import DagsterInstance
from dagster._cli import main as dagster_main
from dagster._core.asset_graph_view.asset_graph_view import AssetGraphView
from dagster._core.instance.ref import InstanceRef
from dagster._core.remote_representation.external import RemoteSensor
from dagster._core.run_coordinator import QueuedRunCoordinator
from dagster._daemon import controller, sensor
from dagster._daemon.cli import main
from dagster._grpc import server

from tests.helpers.quick_dagster import change

PAUSE_SECONDS = 1
# Of the sensors, whose ticks are most of what the daemon and its code server do. The automation keeps Dagster's five
# seconds: it may convert a sample twice that is recorded while it looks.
_TICK_SECONDS = 2
_EVERY_MINUTE = "* * * * *"
_CODE_SERVER = "code-server-of-the-daemon"
_PRELOADED = ["torch", "duckdb", "pandas", "matplotlib.figure", "zarr_core.points.convert.sample"]


def _serve_code() -> None:
    """``dagster api grpc``, whose runs are forked."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([*_PRELOADED, "tests.helpers.run_server", "tests.helpers.frozen"])
    change(server, "multiprocessing", SimpleNamespace(get_context=lambda _: context))
    change(AssetGraphView, "compute_previous_cron_tick", _previous_cron_tick)
    change(DagsterInstance, "from_ref", staticmethod(_instance))
    dagster_main()


_open = DagsterInstance.from_ref
_instances: dict[str, DagsterInstance] = {}


def _instance(ref: InstanceRef) -> DagsterInstance:
    """An instance that stays open, with what it has found out about its databases."""
    home = ref.local_artifact_storage_data.config_yaml
    if home not in _instances:
        instance = _open(ref)
        change(instance, "dispose", lambda: None)
        _instances[home] = instance
    return _instances[home]


_previous = AssetGraphView.compute_previous_cron_tick


def _previous_cron_tick(view: AssetGraphView, *, cron_schedule: str, cron_timezone: str) -> datetime:
    """The time of the evaluation itself, if the schedule ticks every minute."""
    if cron_schedule == _EVERY_MINUTE:
        return view.effective_dt
    return _previous(view, cron_schedule=cron_schedule, cron_timezone=cron_timezone)


_declared = RemoteSensor.min_interval_seconds.fget


def _min_interval_seconds(remote_sensor: RemoteSensor) -> int:
    """Sensors that tick at least every minute tick in each loop."""
    seconds = _declared(remote_sensor)
    return 0 if seconds <= 60 else seconds


if __name__ == "__main__":
    if sys.argv[1] == _CODE_SERVER:
        del sys.argv[1]
        _serve_code()
    else:
        change(sensor, "MIN_INTERVAL_LOOP_TIME", _TICK_SECONDS)
        change(RemoteSensor, "min_interval_seconds", property(_min_interval_seconds))
        change(controller, "DEFAULT_DAEMON_INTERVAL_SECONDS", PAUSE_SECONDS)  # of backfills, which start conversions
        change(controller, "RELOAD_WORKSPACE_INTERVAL", 10**6)
        change(QueuedRunCoordinator, "dequeue_interval_seconds", PAUSE_SECONDS)
        entry_point = [sys.executable, "-m", "tests.helpers.quick_daemon", _CODE_SERVER]
        change(server, "get_python_environment_entry_point", lambda _: entry_point)
        main()
