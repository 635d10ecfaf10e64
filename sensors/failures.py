"""Logs failed runs, with the message of the failing step."""

import dagster as dg


@dg.run_failure_sensor(
    name="failed_runs",
    default_status=dg.DefaultSensorStatus.RUNNING,
    minimum_interval_seconds=30,
    description="Logs every failed run; the place to hook up mail or chat.",
)
def failed_runs(context: dg.RunFailureSensorContext) -> None:
    """Log a failed run: its failed steps and their messages."""
    context.log.error(failure_message(context))


def failure_message(context: dg.RunFailureSensorContext) -> str:
    """One line with the run, the steps that failed and their errors."""
    reasons = []
    for event in context.get_step_failure_events():
        failure = event.step_failure_data
        if failure.user_failure_data and failure.user_failure_data.description:
            reason = failure.user_failure_data.description
        else:
            # The innermost error; the outer ones only report that a step failed.
            error = failure.error
            while error and error.cause:
                error = error.cause
            reason = (error.message.strip().splitlines() or [""])[0] if error else "no message"
        reasons.append(f"{event.step_key}: {reason}")
    run = context.dagster_run
    return f"run {run.run_id[:8]} of {run.job_name} failed: {'; '.join(reasons) or 'its process died'}"
