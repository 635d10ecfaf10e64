"""Dagster's daemon, with pauses of 2 seconds instead of 5 and 30: ``python -m tests.helpers.quick_daemon run``."""

from __future__ import annotations

from typing import Any

from dagster._core.run_coordinator import QueuedRunCoordinator
from dagster._daemon import asset_daemon, controller, sensor
from dagster._daemon.cli import main

PAUSE_SECONDS = 2


def _shorten(owner: Any, name: str, value: Any = PAUSE_SECONDS) -> None:
    assert hasattr(owner, name), f"this Dagster has no {name}; adapt this file to its daemon's intervals"
    setattr(owner, name, value)


if __name__ == "__main__":
    _shorten(sensor, "MIN_INTERVAL_LOOP_TIME")
    _shorten(asset_daemon, "MIN_INTERVAL_LOOP_SECONDS")
    _shorten(controller, "DEFAULT_DAEMON_INTERVAL_SECONDS")  # of backfills, which start conversions
    _shorten(QueuedRunCoordinator, "dequeue_interval_seconds", property(lambda _: PAUSE_SECONDS))
    main()
