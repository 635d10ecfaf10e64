"""Logs failed runs, failed checks, failing sensors and stale assets, and sends alerts of them."""

import json
from collections.abc import Mapping

import dagster as dg

from resources.alerts import Alerts
from sensors.dagster_internals import failed_evaluations, failing_ticks, innermost, stale_assets


@dg.run_failure_sensor(
    name="failed_runs",
    default_status=dg.DefaultSensorStatus.RUNNING,
    minimum_interval_seconds=30,
    # Runs of the command line (dagster job execute, dagster asset materialize) name no code location.
    monitor_all_code_locations=True,
    description="Logs every failed run of the instance, also as the last event of the run, and sends an alert.",
)
def failed_runs(context: dg.RunFailureSensorContext, alerts: Alerts) -> None:
    """Report a failed run: its failed checks and steps, and their messages."""
    _report(context, alerts, failure_message(context))


@dg.run_status_sensor(
    run_status=dg.DagsterRunStatus.SUCCESS,
    name="failed_checks",
    default_status=dg.DefaultSensorStatus.RUNNING,
    minimum_interval_seconds=30,
    monitor_all_code_locations=True,
    description="Logs failed checks that do not fail their run, also as the last event of the run, and sends an alert.",
)
def failed_checks(context: dg.RunStatusSensorContext, alerts: Alerts) -> dg.SkipReason:
    """Report the failed checks of a run that succeeded: those that block nothing."""
    run = context.dagster_run
    reasons = check_messages(context.instance, run.run_id)
    if reasons:
        _report(context, alerts, f"run {run.run_id[:8]} of {run.job_name}: {'; '.join(reasons)}")
    return dg.SkipReason("; ".join(reasons) or f"no check of run {run.run_id[:8]} failed")


@dg.sensor(
    name="failing_sensors",
    default_status=dg.DefaultSensorStatus.RUNNING,
    minimum_interval_seconds=60,
    description="Logs sensors and schedules whose ticks fail, once per error, and sends an alert. The cursor lists"
    " those that fail now, with their errors.",
)
def failing_sensors(context: dg.SensorEvaluationContext, alerts: Alerts) -> dg.SensorResult:
    """Report sensors and schedules that began to fail, or fail with another error, since the tick before."""
    failing = failing_ticks(context.instance)
    return _report_new(context, alerts, "fails", failing, "no sensor or schedule fails")


@dg.sensor(
    name="stale_datasets",
    default_status=dg.DefaultSensorStatus.RUNNING,
    minimum_interval_seconds=300,
    description="Logs assets that are older than their freshness policy allows, once, and sends an alert. A dataset has"
    " a policy if it declares fresh_within_days.",
)
def stale_datasets(context: dg.SensorEvaluationContext, alerts: Alerts) -> dg.SensorResult:
    """Report assets that became stale since the tick before."""
    repository = context.repository_def
    keys = repository.asset_graph.get_all_asset_keys() if repository else ()
    reason = "nothing was converted for longer than fresh_within_days"
    stale = {key.to_user_string(): reason for key in stale_assets(context.instance, keys)}
    return _report_new(context, alerts, "is stale", stale, "no asset is stale")


def _report(context: dg.RunStatusSensorContext, alerts: Alerts, message: str) -> None:
    """Log a message, add it to the events of the run, and send it.

    The page of a run shows its last events. Of a failed check, Dagster's own give the name there, not the reason.
    """
    context.log.error(message)
    context.instance.report_engine_event(message, context.dagster_run)
    alerts.send(message)


def _report_new(
    context: dg.SensorEvaluationContext, alerts: Alerts, verb: str, found: Mapping[str, str], none: str
) -> dg.SensorResult:
    """Log and send what is new since the tick before, whose cursor lists names and reasons.

    If the alert cannot be sent, the tick fails, and the next one reports the same.
    """
    before = json.loads(context.cursor or "{}")
    new = [f"{name} {verb}: {reason}" for name, reason in found.items() if before.get(name) != reason]
    for message in new:
        context.log.error(message)
    if new:
        alerts.send("\n".join(new))
    return dg.SensorResult(skip_reason=f"{', '.join(found)} {verb}" if found else none, cursor=json.dumps(found))


def failure_message(context: dg.RunFailureSensorContext) -> str:
    """The run, its failed checks with their descriptions, and the steps that failed with their errors."""
    run = context.dagster_run
    reasons = check_messages(context.instance, run.run_id)
    for event in context.get_step_failure_events():
        failure = event.step_failure_data
        if failure.user_failure_data and failure.user_failure_data.description:
            reason = failure.user_failure_data.description
        else:
            reason = innermost(failure.error).message.strip() if failure.error else "no message"
        reasons.append(f"{event.step_key}: {reason}")
    return f"run {run.run_id[:8]} of {run.job_name} failed: {'; '.join(reasons) or 'its process died'}"


def check_messages(instance: dg.DagsterInstance, run_id: str) -> list[str]:
    """The failed checks of a run, warnings excepted, each with its description."""
    return [
        f"check {check.check_name} of {check.asset_key.to_user_string()}: {check.description or 'no description'}"
        for check in failed_evaluations(instance, run_id)
    ]
