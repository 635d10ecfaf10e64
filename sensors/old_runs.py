"""Deletes old runs, except those whose results are still the latest, and old ticks.

Deleting a run deletes its events. The state of a partition is its latest materialization, so a run is kept as long as
an asset, a partition or a check has nothing newer.
"""

import os
from datetime import UTC, datetime, timedelta

import dagster as dg
from zarr_core.platform.sensors.dagster_internals.evaluations import has_latest_checks
from zarr_core.platform.sensors.dagster_internals.queries import runs_with_latest_events
from zarr_core.platform.sensors.dagster_internals.runs import delete_run, delete_ticks
from zarr_core.platform.sensors.operating import if_red

from zarr_core._util.units import parse_duration

# How old a run is when it is deleted, such as 90d.
DELETE_AFTER = "DELETE_RUNS_AFTER"
_ENDED = [dg.DagsterRunStatus.SUCCESS, dg.DagsterRunStatus.FAILURE, dg.DagsterRunStatus.CANCELED]


class OldRuns(dg.Config):
    """Which runs and ticks are deleted.

    Attributes:
        older_than: those that ended longer ago than this.
    """

    older_than: str = "90d"


@dg.op
def delete_runs(context: dg.OpExecutionContext, config: OldRuns) -> None:
    """Delete the runs that ended long ago and recorded nothing that is still the latest."""
    instance = context.instance
    before = datetime.now(UTC) - timedelta(seconds=parse_duration(config.older_than))
    old = instance.get_run_ids(dg.RunsFilter(statuses=_ENDED, updated_before=before))
    latest = runs_with_latest_events(instance) if old else set()
    deleted = [run_id for run_id in old if run_id not in latest and not has_latest_checks(instance, run_id)]
    for run_id in deleted:
        delete_run(instance, run_id)
    delete_ticks(instance, before.timestamp())
    context.log.info(f"{len(deleted)} runs deleted")
    context.add_output_metadata({"deleted_runs": len(deleted), "kept_runs": len(old) - len(deleted)})


_WHAT = "Deletes old runs whose results newer runs have replaced, and old ticks"
_IF_RED = if_red("size", "read the last event of the run; the next run deletes what this one left")


@dg.job(description=f"{_WHAT}. Scheduled if ${DELETE_AFTER} is set.{_IF_RED}")
def delete_old_runs() -> None:
    """One step."""
    delete_runs()


def old_runs_schedule() -> dg.ScheduleDefinition:
    """Deletes old runs every night, if the environment says how old they are then."""
    older_than = os.environ.get(DELETE_AFTER)
    config = OldRuns(older_than=older_than) if older_than else OldRuns()
    return dg.ScheduleDefinition(
        job=delete_old_runs,
        cron_schedule="0 3 * * *",
        description=f"{_WHAT}, every night if ${DELETE_AFTER} is set.{_IF_RED}",
        run_config=dg.RunConfig(ops={"delete_runs": config}),
        default_status=dg.DefaultScheduleStatus.RUNNING if older_than else dg.DefaultScheduleStatus.STOPPED,
    )
