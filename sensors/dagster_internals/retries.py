"""Retries that Dagster's daemon has missed.

A process that fails a run stores the event first, and the status of the run, with the tag that it will be retried, a
moment later. The daemon that looks at the events in between takes the run for one that has not failed, and never looks
at the event again (Dagster 1.13, EventLogConsumerDaemon).
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

import dagster as dg
from dagster._core.storage.tags import AUTO_RETRY_RUN_ID_TAG, WILL_RETRY_TAG

# Of older runs, nobody expects a retry any more.
_MOST_AGE = timedelta(hours=1)
_CURSOR = f"EVENT_LOG_CONSUMER_CURSOR-{dg.DagsterEventType.RUN_FAILURE.value}"


def unretried_runs(instance: dg.DagsterInstance, location: str | None) -> list[dg.DagsterRun]:
    """Failed runs of a code location that Dagster is to start once more, and has not started yet."""
    failed = dg.RunsFilter(
        statuses=[dg.DagsterRunStatus.FAILURE],
        tags={WILL_RETRY_TAG: "true"},
        updated_after=datetime.now(UTC) - _MOST_AGE,
    )
    runs = []
    for run in instance.get_runs(failed):
        origin = run.remote_job_origin
        if origin is not None and origin.location_name == location and AUTO_RETRY_RUN_ID_TAG not in run.tags:
            runs.append(run)
    return runs


def look_again(instance: dg.DagsterInstance, runs: Sequence[dg.DagsterRun]) -> None:
    """Let the daemon read the events again from the failure of the first of the runs on.

    Runs that failed later and were retried are not retried twice: the daemon finds their retries.
    """
    ids = {run.run_id for run in runs}
    failures = dg.RunStatusChangeRecordsFilter(
        event_type=dg.DagsterEventType.RUN_FAILURE,
        after_timestamp=(datetime.now(UTC) - _MOST_AGE).timestamp(),
    )
    records = instance.fetch_run_status_changes(failures, limit=1000).records
    numbers = [record.storage_id for record in records if record.run_id in ids]
    if numbers:
        instance.daemon_cursor_storage.set_cursor_values({_CURSOR: str(min(numbers) - 1)})
