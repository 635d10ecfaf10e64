"""Runs: whose they are, why they failed, and how they are deleted."""

from __future__ import annotations

from pathlib import Path

import dagster as dg
from dagster._core import errors
from dagster._core.events import EngineEventData, JobFailureData
from dagster._core.scheduler.instigation import TickStatus
from dagster._core.storage.event_log import SqliteEventLogStorage
from dagster._core.storage.tags import WILL_RETRY_TAG
from dagster._utils.error import SerializableErrorInfo
from dagster._utils.tags import get_boolean_tag_value

_FAILURE = dg.DagsterEventType.RUN_FAILURE
# Dagster's message of a failed run if it does not know the reason.
_NO_REASON = "This run has been marked as failed from outside the execution context."


def delete_run(instance: dg.DagsterInstance, run_id: str) -> None:
    """Delete a run that has ended: its standard output and error, its events, and the run itself.

    On SQLite each run has a database file. ``instance.delete_run`` deletes its rows only, so the file keeps its size.
    """
    # First: an error of their storage, as without permission to delete, is raised as long as the run can be found.
    instance.compute_log_manager.delete_logs(prefix=[run_id])
    instance.delete_run(run_id)
    storage = instance.event_log_storage
    if isinstance(storage, SqliteEventLogStorage):
        for suffix in ("", "-wal", "-shm"):
            Path(storage.path_for_shard(run_id) + suffix).unlink(missing_ok=True)
        storage._initialized_dbs.discard(run_id)


def delete_ticks(instance: dg.DagsterInstance, before: float) -> None:
    """Delete the ticks that ended before a time, and what the automation conditions evaluated to.

    ``retention`` in dagster.yaml deletes ticks after fixed numbers of days, and Dagster the evaluations after 30 days.
    These take 50 kB each, some 30 per batch of a dataset.

    Args:
        instance: where.
        before: in seconds since 1970.
    """
    storage = instance.schedule_storage
    if storage is None:  # an instance in memory records no ticks
        return
    ended = [TickStatus.SKIPPED, TickStatus.SUCCESS, TickStatus.FAILURE]
    for state in instance.all_instigator_state():
        instance.purge_ticks(state.instigator_origin_id, state.selector_id, before, ended)
    if storage.supports_auto_materialize_asset_evaluations:
        storage.purge_asset_evaluations(before)


def is_run_of(run: dg.DagsterRun, location: str | None, repository: dg.RepositoryDefinition | None) -> bool:
    """Whether a run belongs to a code location.

    A run that a command line started names none; it belongs to the location that defines its assets or its job.

    Args:
        run: the run.
        location: name of the location.
        repository: what the location defines.
    """
    if run.remote_job_origin is not None:
        return run.remote_job_origin.location_name == location
    if repository is None:
        return False
    if run.asset_selection:
        return any(repository.asset_graph.has(key) for key in run.asset_selection)
    return repository.has_job(run.job_name)


def has_tag(run: dg.DagsterRun, tag: str) -> bool:
    """Whether a run has a tag, with another value than false, none or 0, as Dagster reads its own."""
    return get_boolean_tag_value(run.tags.get(tag), default_value=False)


def will_be_retried(run: dg.DagsterRun) -> bool:
    """Whether Dagster starts a failed run once more."""
    return has_tag(run, WILL_RETRY_TAG)


def reason_of_failure(instance: dg.DagsterInstance, run: dg.DagsterRun) -> str:
    """Why a run failed of which no step did: the definition of its job is gone, or its process died."""
    errors, messages = [], []
    for entry in instance.all_logs(run.run_id, of_type={_FAILURE, dg.DagsterEventType.ENGINE_EVENT}):
        event = entry.dagster_event
        details = event.event_specific_data if event else None
        if isinstance(details, JobFailureData | EngineEventData) and details.error:
            errors.append(innermost(details.error).message.strip())
        elif event and event.event_type is _FAILURE and event.message != _NO_REASON:
            messages.append((event.message or "").strip())
    # The last error is the one that the launcher or the monitoring of runs gave up with.
    return next((reason for reason in [*errors[::-1], *messages] if reason), "its process died")


def innermost(error: SerializableErrorInfo) -> SerializableErrorInfo:
    """The error within those of Dagster, which only report that a step or a tick failed.

    Its own cause lacks what it says: the sample, the field, the way out. Of an unreachable server, it is gRPC's text.
    """
    while error.cause and _is_a_report(error):
        error = error.cause
    return error


def _is_a_report(error: SerializableErrorInfo) -> bool:
    """Whether an error is Dagster's and says less than its cause."""
    of_dagster = getattr(errors, error.cls_name or "", None)
    reports = isinstance(of_dagster, type) and issubclass(of_dagster, dg.DagsterError)
    return reports and of_dagster is not errors.DagsterUserCodeUnreachableError
