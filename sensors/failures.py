"""Logs failed runs, failed checks, failing sensors and stale assets, and sends alerts of them."""

import json
import re
import time
from collections.abc import Callable, Mapping

import dagster as dg

from resources.alerts import Alerts
from sensors.dagster_internals.queries import (
    failed_evaluations,
    failing_ticks,
    innermost,
    older_than_its_source,
    stale_assets,
)

# Metadata of an asset: it must be materialized so soon after a change of its source.
PUBLISHED_WITHIN_HOURS = "zarr_core/published_within_hours"
# Runs that one tick looks at, and the time for which an alert that cannot be sent is sent again.
_MAX_RUNS, _SENT_FOR_SECONDS = 20, 86_400
# What differs between two messages of the same error: ids, addresses in memory, times, and durations.
_CHANGING = re.compile(
    r"""(?ix) \b[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\b | \b0x[0-9a-f]+\b
    | \b(?:x-[a-z-]*)?(?:request|host)[-_ ]?id\b \W+ [\w+/=:.-]+
    | \b\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d[\d.]*(?:Z\b|[+-]\d\d:?\d\d)?
    | \b\d+(?:\.\d+)?\s?(?:ns|us|\u00b5s|\u03bcs|ms|s|secs?|seconds?)\b"""
)


@dg.sensor(
    name="failed_runs",
    default_status=dg.DefaultSensorStatus.RUNNING,
    minimum_interval_seconds=30,
    description="Logs every failed run of the instance, also as the last event of the run, and sends an alert.",
)
def failed_runs(context: dg.SensorEvaluationContext, alerts: Alerts) -> dg.SensorResult:
    """Report failed runs: their failed checks and steps, and their messages."""
    return _report_runs(context, alerts, dg.DagsterEventType.RUN_FAILURE, failure_message, "no run failed")


@dg.sensor(
    name="failed_checks",
    default_status=dg.DefaultSensorStatus.RUNNING,
    minimum_interval_seconds=30,
    description="Logs failed checks that do not fail their run, also as the last event of the run, and sends an alert.",
)
def failed_checks(context: dg.SensorEvaluationContext, alerts: Alerts) -> dg.SensorResult:
    """Report the failed checks of runs that succeeded: those that block nothing."""
    return _report_runs(context, alerts, dg.DagsterEventType.RUN_SUCCESS, checks_message, "no check failed")


@dg.sensor(
    name="failing_sensors",
    default_status=dg.DefaultSensorStatus.RUNNING,
    minimum_interval_seconds=60,
    description="Logs sensors and schedules whose ticks fail, once per error, and sends an alert. The cursor lists"
    " those that fail now, with their errors.",
)
def failing_sensors(context: dg.SensorEvaluationContext, alerts: Alerts) -> dg.SensorResult:
    """Report sensors and schedules that began to fail, or fail with another error, since the tick before."""
    origin = context.code_location_origin
    failing = failing_ticks(context.instance, origin.location_name if origin else None, context.repository_def)
    return _report_new(context, alerts, "fails", failing, "no sensor or schedule fails")


@dg.sensor(
    name="stale_datasets",
    default_status=dg.DefaultSensorStatus.RUNNING,
    minimum_interval_seconds=300,
    description="Logs assets that are older than their freshness policy allows, and those that are older than their"
    " source, once, and sends an alert. A dataset declares fresh_within_days and published_within_hours.",
)
def stale_datasets(context: dg.SensorEvaluationContext, alerts: Alerts) -> dg.SensorResult:
    """Report assets that became stale since the tick before."""
    stale, now = {}, time.time()
    if context.repository_def:
        graph = context.repository_def.asset_graph
        reason = "nothing was converted for longer than fresh_within_days"
        stale = {key.to_user_string(): reason for key in stale_assets(context.instance, graph, now)}
        limits = {key: graph.get(key).metadata.get(PUBLISHED_WITHIN_HOURS) for key in graph.get_all_asset_keys()}
        stale |= {
            key.to_user_string(): f"its source has changed since, more than {hours} hours ago"
            for key, hours in limits.items()
            if hours and older_than_its_source(context.instance, graph, key, now - 3600 * int(str(hours)))
        }
    return _report_new(context, alerts, "is stale", stale, "no asset is stale")


def _report_runs(
    context: dg.SensorEvaluationContext,
    alerts: Alerts,
    event_type: dg.DagsterEventType,
    message_of: Callable[[dg.DagsterInstance, dg.DagsterRun], str | None],
    none: str,
) -> dg.SensorResult:
    """Log and send a message about each run that ended since the last tick, also one of the command line.

    Dagster's own sensors of runs go on to the next run if an alert cannot be sent. Here the tick then fails, and the
    next ticks send the same alerts again, for a day. The message is logged and added to the events of the run once.
    """
    instance = context.instance
    before = json.loads(context.cursor or "{}").get("record_id")
    if before is None:  # the first tick: runs that end from now on
        ended = instance.fetch_run_status_changes(event_type, limit=1).records
        cursor = json.dumps({"record_id": max((record.storage_id for record in ended), default=-1)})
        return dg.SensorResult(skip_reason=none, cursor=cursor)
    later = dg.RunStatusChangeRecordsFilter(event_type, after_storage_id=before)
    records = instance.fetch_run_status_changes(later, limit=_MAX_RUNS, ascending=True).records
    messages, unsent = [], []
    for record in records:
        run = instance.get_run_by_id(record.run_id)
        message = run and message_of(instance, run)
        if run is None or message is None:
            continue
        messages.append(message)
        if message not in _engine_messages(instance, run.run_id):
            context.log.error(message)
            # The page of a run shows its last events. Of a failed check, Dagster's own give the name, not the reason.
            instance.report_engine_event(message, run)
        if record.timestamp > time.time() - _SENT_FOR_SECONDS:
            unsent.append(message)
    if unsent:
        alerts.send("\n".join(unsent))
    cursor = json.dumps({"record_id": max((record.storage_id for record in records), default=before)})
    return dg.SensorResult(skip_reason="; ".join(messages) or none, cursor=cursor)


def _engine_messages(instance: dg.DagsterInstance, run_id: str) -> list[str | None]:
    events = instance.all_logs(run_id, of_type=dg.DagsterEventType.ENGINE_EVENT)
    return [event.dagster_event.message for event in events if event.dagster_event]


def _report_new(
    context: dg.SensorEvaluationContext, alerts: Alerts, verb: str, found: Mapping[str, str], none: str
) -> dg.SensorResult:
    """Log and send what is new since the tick before, whose cursor lists names and reasons.

    If the alert cannot be sent, the tick fails, and the next one reports the same.
    """
    before = json.loads(context.cursor or "{}")
    new = [
        f"{name} {verb}: {reason}"
        for name, reason in found.items()
        if name not in before or _constant_part(before[name]) != _constant_part(reason)
    ]
    for message in new:
        context.log.error(message)
    if new:
        alerts.send("\n".join(new))
    return dg.SensorResult(skip_reason=f"{', '.join(found)} {verb}" if found else none, cursor=json.dumps(found))


def _constant_part(reason: str) -> str:
    """A message without the parts that differ each time, such as the elapsed time in the errors of object stores."""
    return _CHANGING.sub("...", reason)


def failure_message(instance: dg.DagsterInstance, run: dg.DagsterRun) -> str:
    """The run, its failed checks with their descriptions, and the steps that failed with their errors."""
    reasons = _check_reasons(instance, run)
    for event in instance.all_logs(run.run_id, of_type=dg.DagsterEventType.STEP_FAILURE):
        if event.dagster_event is None:
            continue
        failure = event.dagster_event.step_failure_data
        if failure.user_failure_data and failure.user_failure_data.description:
            reason = failure.user_failure_data.description
        else:
            reason = innermost(failure.error).message.strip() if failure.error else "no message"
        reasons.append(f"{event.step_key}: {reason}")
    return f"run {run.run_id[:8]} of {run.job_name} failed: {'; '.join(reasons) or 'its process died'}"


def checks_message(instance: dg.DagsterInstance, run: dg.DagsterRun) -> str | None:
    """The run and its failed checks; None if no check failed."""
    reasons = _check_reasons(instance, run)
    return f"run {run.run_id[:8]} of {run.job_name}: {'; '.join(reasons)}" if reasons else None


def _check_reasons(instance: dg.DagsterInstance, run: dg.DagsterRun) -> list[str]:
    """The failed checks of a run, warnings excepted, each with its description."""
    return [
        f"check {check.check_name} of {check.asset_key.to_user_string()}: {check.description or 'no description'}"
        for check in failed_evaluations(instance, run.run_id)
    ]
