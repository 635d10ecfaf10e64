"""Dagster's daemon, quicker than it starts by default: ``python -m tests.helpers.quick_daemon run``.

It pauses for a second or two where Dagster pauses for up to a minute, retries at each evaluation what is due every
minute, loads the code location once, not every minute, and forks the processes of runs from a server that has loaded
it, where Dagster spawns them. Its code servers are forked as well, from a process that has imported all libraries, and
open the instance once, not in each tick of a sensor.
"""

from __future__ import annotations

import importlib
import multiprocessing
import subprocess
import sys
from collections.abc import Sequence
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

from tests.helpers.fork_server import start_as_fork
from tests.helpers.quick_dagster import change

PAUSE_SECONDS = 1
# Of the sensors, whose ticks are most of what the daemon and its code server do.
_TICK_SECONDS = 2
# Of the sensors that only report, and of all sensors of other code locations than the project's own.
_RARE_TICK_SECONDS = 6
_LOCATION = "zarr_core"
_EVERY_MINUTE = "* * * * *"
_LIBRARIES = ("torch", "duckdb", "pandas", "matplotlib.figure", "zarr_core.points.convert.sample")

_context = multiprocessing.get_context("forkserver")


def _start_fork_server(*preloaded: str) -> None:
    _context.set_forkserver_preload([*preloaded, "tests.helpers.frozen"])
    start_as_fork()


class _CodeServer:
    """A code server with the methods of :class:`subprocess.Popen` that Dagster calls."""

    def __init__(self, command: Sequence[str], **_: object) -> None:
        self._process = _context.Process(target=_serve_code, args=(list(command),))
        self._process.start()
        self.pid, self.terminate = self._process.pid, self._process.terminate

    @property
    def returncode(self) -> int | None:
        return self._process.exitcode

    def poll(self) -> int | None:
        return self._process.exitcode

    def wait(self, timeout: float | None = None) -> int | None:
        self._process.join(timeout)
        if self._process.exitcode is None:
            raise subprocess.TimeoutExpired("code server", timeout or 0)
        return self._process.exitcode


def _serve_code(command: list[str]) -> None:
    """``dagster api grpc``, whose runs are forked."""
    _start_fork_server("tests.helpers.run_server")
    sys.argv = command
    change(server, "multiprocessing", SimpleNamespace(get_context=lambda _: _context))
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
    """Sensors that tick at least every minute tick in each loop if they begin work, and more rarely otherwise."""
    seconds = _declared(remote_sensor)
    if seconds > 60:
        return seconds
    begins_work = remote_sensor.name.endswith(("_arrivals", "_batches", "_automation"))
    is_watched = remote_sensor.handle.location_name == _LOCATION
    return 0 if begins_work and is_watched else _RARE_TICK_SECONDS


if __name__ == "__main__":
    for library in _LIBRARIES:
        importlib.import_module(library)
    _start_fork_server()
    change(sensor, "MIN_INTERVAL_LOOP_TIME", _TICK_SECONDS)
    change(RemoteSensor, "min_interval_seconds", property(_min_interval_seconds))
    change(controller, "DEFAULT_DAEMON_INTERVAL_SECONDS", PAUSE_SECONDS)  # of backfills, which start conversions
    change(controller, "RELOAD_WORKSPACE_INTERVAL", 10**6)
    change(QueuedRunCoordinator, "dequeue_interval_seconds", PAUSE_SECONDS)
    change(server, "get_python_environment_entry_point", lambda _: ["dagster"])
    change(server, "open_ipc_subprocess", _CodeServer)
    main()
