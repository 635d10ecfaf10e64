"""Dagster's daemon, quicker than it starts by default: ``python -m tests.helpers.quick_daemon run``.

It pauses for 3 seconds where Dagster pauses for 5 or 30, loads the code location once, not every minute, and forks the
processes of runs from a server with their imports, where Dagster spawns them.
"""

from __future__ import annotations

import multiprocessing
import sys
from types import SimpleNamespace
from typing import Any

from dagster._cli import main as dagster_main
from dagster._core.run_coordinator import QueuedRunCoordinator
from dagster._daemon import asset_daemon, controller, sensor
from dagster._daemon.cli import main
from dagster._grpc import server

PAUSE_SECONDS = 3
_CODE_SERVER = "code-server-of-the-daemon"
_PRELOADED = ["torch", "definitions", "duckdb", "pandas", "matplotlib.figure", "zarr_core.points.convert_sample"]


def _change(owner: Any, name: str, value: Any = PAUSE_SECONDS) -> None:
    assert hasattr(owner, name), f"this Dagster has no {name}; adapt this file to it"
    setattr(owner, name, value)


def _serve_code() -> None:
    """``dagster api grpc``, whose runs are forked."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(_PRELOADED)
    _change(server, "multiprocessing", SimpleNamespace(get_context=lambda _: context))
    dagster_main()


if __name__ == "__main__":
    if sys.argv[1] == _CODE_SERVER:
        del sys.argv[1]
        _serve_code()
    else:
        _change(sensor, "MIN_INTERVAL_LOOP_TIME")
        _change(asset_daemon, "MIN_INTERVAL_LOOP_SECONDS")
        _change(controller, "DEFAULT_DAEMON_INTERVAL_SECONDS")  # of backfills, which start conversions
        _change(controller, "RELOAD_WORKSPACE_INTERVAL", 10**6)
        _change(QueuedRunCoordinator, "dequeue_interval_seconds", property(lambda _: PAUSE_SECONDS))
        entry_point = [sys.executable, "-m", "tests.helpers.quick_daemon", _CODE_SERVER]
        _change(server, "get_python_environment_entry_point", lambda _: entry_point)
        main()
