"""Marks runs as failed whose process died together with its code server, as after a crash of the machine.

Dagster's default launcher starts each run as a process of the code server, which reports its death. If both die, the
run stays in progress forever: it blocks its pool, and the automation waits for its partitions.
"""

import json

import dagster as dg

from sensors.dagster_internals import runs_without_process


@dg.sensor(
    minimum_interval_seconds=30,
    default_status=dg.DefaultSensorStatus.RUNNING,
    description="Marks runs as failed whose process does not exist any more, so that they are tried again.",
)
def lost_runs(context: dg.SensorEvaluationContext) -> dg.SensorResult:
    """Two ticks have to find a run without a process: one that has just ended has reported that by then."""
    origin = context.code_location_origin
    found = runs_without_process(context.instance, origin.location_name if origin else None)
    before, lost = json.loads(context.cursor or "[]"), []
    for run in found:
        if run.run_id in before:
            context.instance.report_run_failed(run, "Its process died together with the code server.")
            lost.append(run.run_id[:8])
    return dg.SensorResult(
        skip_reason=f"lost runs: {', '.join(lost)}" if lost else "no run is lost",
        cursor=json.dumps([run.run_id for run in found]),
    )
