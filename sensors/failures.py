"""Logs failed runs, failed checks and failing sensors, with their errors."""

import json

import dagster as dg

from sensors.dagster_internals import failed_evaluations, failing_ticks, innermost


@dg.run_failure_sensor(
    name="failed_runs",
    default_status=dg.DefaultSensorStatus.RUNNING,
    minimum_interval_seconds=30,
    # Runs of the command line (dagster job execute, dagster asset materialize) name no code location.
    monitor_all_code_locations=True,
    description="Logs every failed run of the instance, also as the last event of the run; the place to hook up mail or"
    " chat.",
)
def failed_runs(context: dg.RunFailureSensorContext) -> None:
    """Log a failed run: its failed checks and steps, and their messages."""
    _report(context, failure_message(context))


@dg.run_status_sensor(
    run_status=dg.DagsterRunStatus.SUCCESS,
    name="failed_checks",
    default_status=dg.DefaultSensorStatus.RUNNING,
    minimum_interval_seconds=30,
    monitor_all_code_locations=True,
    description="Logs failed checks that do not fail their run, also as the last event of the run; another place to"
    " hook up mail or chat.",
)
def failed_checks(context: dg.RunStatusSensorContext) -> dg.SkipReason:
    """Log the failed checks of a run that succeeded: those that block nothing."""
    run = context.dagster_run
    reasons = check_messages(context.instance, run.run_id)
    if reasons:
        _report(context, f"run {run.run_id[:8]} of {run.job_name}: {'; '.join(reasons)}")
    return dg.SkipReason("; ".join(reasons) or f"no check of run {run.run_id[:8]} failed")


@dg.sensor(
    name="failing_sensors",
    default_status=dg.DefaultSensorStatus.RUNNING,
    minimum_interval_seconds=60,
    description="Logs sensors and schedules whose ticks fail, once per error; another place to hook up mail or chat."
    " The cursor lists those that fail now, with their errors.",
)
def failing_sensors(context: dg.SensorEvaluationContext) -> dg.SensorResult:
    """Log sensors and schedules that began to fail, or fail with another error, since the tick before."""
    failing = failing_ticks(context.instance)
    before = json.loads(context.cursor or "{}")
    for name, reason in failing.items():
        if before.get(name) != reason:
            context.log.error(f"{name} fails: {reason}")
    summary = f"failing: {', '.join(failing)}" if failing else "no sensor or schedule fails"
    return dg.SensorResult(skip_reason=summary, cursor=json.dumps(failing))


def _report(context: dg.RunStatusSensorContext, message: str) -> None:
    """Log a message, and add it to the events of the run.

    The page of a run shows its last events. Of a failed check, Dagster's own give the name there, not the reason.
    """
    context.log.error(message)
    context.instance.report_engine_event(message, context.dagster_run)


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
