"""Marks runs as failed whose process died together with its code server, as after a crash of the machine.

Dagster's default launcher starts each run as a process of the code server, which reports its death. If both die, the
run stays in progress forever: it blocks its pool, and the automation waits for its partitions. A failed run that
Dagster has forgotten to start once more is looked at again.
"""

import json
import os
import re
from collections.abc import Iterable
from pathlib import Path

import dagster as dg
from zarr_core.platform.sensors.dagster_internals.queries import runs_of_code_server
from zarr_core.platform.sensors.dagster_internals.retries import look_again, unretried_runs
from zarr_core.platform.sensors.operating import if_red

from zarr_core._util.processes import start_ticks

# Tolerated change of the clock since a process began.
_CLOCK_SECONDS = 60


@dg.sensor(
    minimum_interval_seconds=30,
    default_status=dg.DefaultSensorStatus.RUNNING,
    description="Marks runs as failed whose process does not exist any more, so that they are tried again."
    + if_red("a-crash", "read its error, and terminate runs without a process by hand"),
)
def lost_runs(context: dg.SensorEvaluationContext) -> dg.SensorResult:
    """Two ticks have to find a run: one that has just ended has reported that, or was retried, by then."""
    instance = context.instance
    location = context.code_location_origin.location_name if context.code_location_origin else None
    without_process = [run for run in runs_of_code_server(instance, location) if not _has_process(instance, run.run_id)]
    unretried = unretried_runs(instance, location)
    before = json.loads(context.cursor or "[]")
    found: list[str] = []
    lost = [run for run in without_process if run.run_id in before]
    for run in lost:
        instance.report_run_failed(run, "Its process died together with the code server.")
    if lost:
        found.append(f"lost runs: {_short_ids(lost)}")
    forgotten = [run for run in unretried if run.run_id in before]
    if forgotten:
        look_again(instance, forgotten)
        found.append(f"runs that were not started once more yet: {_short_ids(forgotten)}")
    return dg.SensorResult(
        skip_reason="; ".join(found) or "no run is lost",
        cursor=json.dumps([run.run_id for run in [*without_process, *unretried]]),
    )


def _short_ids(runs: Iterable[dg.DagsterRun]) -> str:
    return ", ".join(run.run_id[:8] for run in runs)


def _has_process(instance: dg.DagsterInstance, run_id: str) -> bool:
    for event in instance.all_logs(run_id, of_type=dg.DagsterEventType.RUN_START):
        process = event.dagster_event.pid if event.dagster_event else None
        if process is not None and not _existed_at(process, event.timestamp):
            return False
    return True


def _existed_at(process: int, timestamp: float) -> bool:
    """Whether a process exists and, if the system tells, began before a time: its number may be another one's by now.

    After the restart of a container, which counts its processes from 1, that is likely.
    """
    try:
        since_boot = start_ticks(process)
    except ProcessLookupError:
        return False
    if since_boot is None:  # not Linux
        return True
    (boot,) = re.findall(r"^btime (\d+)$", Path("/proc/stat").read_text(), re.MULTILINE)
    return int(boot) + int(since_boot) / os.sysconf("SC_CLK_TCK") < timestamp + _CLOCK_SECONDS
