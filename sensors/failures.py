"""Says in the log what failed, with the words that the failing step used."""

import dagster as dg


@dg.run_failure_sensor(
    name="failed_runs",
    default_status=dg.DefaultSensorStatus.RUNNING,
    minimum_interval_seconds=30,
    description="Logs every failed run; the place to hook up mail or chat.",
)
def failed_runs(context: dg.RunFailureSensorContext) -> None:
    """Log a failed run: its steps, and what each said."""
    run = context.dagster_run
    context.log.error(failure_message(run.job_name, run.run_id, _steps_said(context)))


def _steps_said(context: dg.RunFailureSensorContext) -> list[tuple[str, str]]:
    """Failed steps and the first line of what each raised."""
    said = []
    for event in context.get_step_failure_events():
        error = event.step_failure_data.error
        message = error.message if error else ""
        said.append((event.step_key or "", message.strip().splitlines()[0] if message.strip() else "no message"))
    return said


def failure_message(job_name: str, run_id: str, steps: list[tuple[str, str]]) -> str:
    """One line a failed run."""
    reasons = "; ".join(f"{step}: {message}" for step, message in steps) or "the run's process died"
    return f"run {run_id[:8]} of {job_name} failed: {reasons}"
