"""Questions about the evaluations of asset checks."""

from __future__ import annotations

from collections.abc import Iterable

import dagster as dg
from dagster._core.storage.asset_check_execution_record import AssetCheckExecutionRecordStatus


def has_latest_checks(instance: dg.DagsterInstance, run_id: str) -> bool:
    """Whether a run evaluated a check that was not evaluated since."""
    events = instance.all_logs(run_id, of_type=dg.DagsterEventType.ASSET_CHECK_EVALUATION)
    checks = {
        event.dagster_event.asset_check_evaluation_data.asset_check_key for event in events if event.dagster_event
    }
    latest = instance.event_log_storage.get_latest_asset_check_execution_by_key(list(checks))
    return any(execution.run_id == run_id for execution in latest.values())


def failed_evaluations(instance: dg.DagsterInstance, run_id: str) -> list[dg.AssetCheckEvaluation]:
    """The checks of a run that did not pass and made it fail."""
    events = instance.all_logs(run_id, of_type=dg.DagsterEventType.ASSET_CHECK_EVALUATION)
    checks = [event.dagster_event.asset_check_evaluation_data for event in events if event.dagster_event]
    return [check for check in checks if not check.passed and _fails_its_run(check)]


def latest_evaluations(
    instance: dg.DagsterInstance, keys: Iterable[dg.AssetCheckKey]
) -> dict[dg.AssetCheckKey, tuple[dg.AssetCheckEvaluation, str] | None]:
    """The latest evaluation of each check, and the id of its run, which is "" if a sensor reported it.

    None for a check that is being evaluated, or whose run ended before it was. A check that never was is left out.
    """
    latest: dict[dg.AssetCheckKey, tuple[dg.AssetCheckEvaluation, str] | None] = {}
    records = instance.event_log_storage.get_latest_asset_check_execution_by_key(list(keys))
    for key, record in records.items():
        event = record.event.dagster_event if record.event else None
        evaluated = event is not None and event.event_type is dg.DagsterEventType.ASSET_CHECK_EVALUATION
        latest[key] = (event.asset_check_evaluation_data, record.run_id) if event and evaluated else None
    return latest


def failing_checks(
    instance: dg.DagsterInstance, keys: Iterable[dg.AssetCheckKey]
) -> dict[str, tuple[dg.AssetCheckEvaluation, str] | None]:
    """Checks whose latest evaluation did not pass and did not fail its run, warnings included.

    Returns:
        By the name of the check with its asset: the evaluation and the id of its run, which is "" if a sensor reported
        it. None for a check that is being evaluated, or whose run ended before it was.
    """
    failing: dict[str, tuple[dg.AssetCheckEvaluation, str] | None] = {}
    for key, found in latest_evaluations(instance, keys).items():
        if found is None or (not found[0].passed and not _fails_its_run(found[0])):
            failing[key.to_user_string()] = found
    return failing


def _fails_its_run(check: dg.AssetCheckEvaluation) -> bool:
    return bool(check.blocking) and check.severity is dg.AssetCheckSeverity.ERROR


def latest_check(instance: dg.DagsterInstance, key: dg.AssetCheckKey) -> dg.AssetCheckEvaluation | None:
    """The latest evaluation of a check; None if it never was, or is just being evaluated."""
    for record in instance.event_log_storage.get_asset_check_execution_history(key, limit=1):
        event = record.event.dagster_event if record.event else None
        if event and event.event_type is dg.DagsterEventType.ASSET_CHECK_EVALUATION:
            return event.asset_check_evaluation_data
    return None


def last_evaluation(instance: dg.DagsterInstance, key: dg.AssetCheckKey) -> dg.AssetCheckEvaluation | None:
    """The latest evaluation of a check, also if a run began another one since; None if it never was evaluated."""
    ended = {AssetCheckExecutionRecordStatus.SUCCEEDED, AssetCheckExecutionRecordStatus.FAILED}
    for record in instance.event_log_storage.get_asset_check_execution_history(key, limit=1, status=ended):
        event = record.event.dagster_event if record.event else None
        return event.asset_check_evaluation_data if event else None
    return None


def is_being_evaluated(instance: dg.DagsterInstance, key: dg.AssetCheckKey) -> bool:
    """Whether a run that has not ended is about to evaluate a check."""
    for record in instance.event_log_storage.get_asset_check_execution_history(key, limit=1):
        run = instance.get_run_by_id(record.run_id) if record.run_id else None
        planned = record.status is AssetCheckExecutionRecordStatus.PLANNED
        return planned and run is not None and not run.is_finished
    return False
