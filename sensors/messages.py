"""The messages of alerts: what failed, what happens next, and the page of the UI that shows it."""

import os

import dagster as dg
from zarr_core.platform.sensors.dagster_internals.evaluations import failed_evaluations
from zarr_core.platform.sensors.dagster_internals.runs import innermost, reason_of_failure, will_be_retried

# The address of the webserver, as a person's browser reaches it; alerts link its pages if it is set.
WEBSERVER = "DAGSTER_WEBSERVER_URL"
_MOST_NAMES = 3
# Class of the error of a step that fails because a blocking check did, which is named by its own description.
_CHECK_FAILED = "DagsterAssetCheckFailedError"


def page(path: str) -> str:
    """The address of a page of the UI, as the end of a message; "" if the webserver's address is not set."""
    address = os.environ.get(WEBSERVER, "").rstrip("/")
    return f" ({address}/{path})" if address else ""


def asset_page(key: dg.AssetKey, view: str = "overview") -> str:
    """The page of an asset, as the end of a message."""
    return page(f"assets/{'/'.join(key.path)}?view={view}")


def subject_of(run: dg.DagsterRun) -> str:
    """What a run makes: the name of its job, or its assets if Dagster made the job for them."""
    if not run.asset_selection or not run.job_name.startswith("__"):
        return run.job_name
    names = sorted(key.to_user_string() for key in run.asset_selection)
    more = f" and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
    return ", ".join(names[:_MOST_NAMES]) + more


def failure_message(instance: dg.DagsterInstance, run: dg.DagsterRun) -> str:
    """The run, its failed blocking checks with their descriptions, and the steps that failed with their errors."""
    reasons = []
    for check in failed_evaluations(instance, run.run_id):
        reasons.append(f"check {_check_name(check)}: {check.description or 'no description'}")
    for event in instance.all_logs(run.run_id, of_type=dg.DagsterEventType.STEP_FAILURE):
        if event.dagster_event is None:
            continue
        failure = event.dagster_event.step_failure_data
        if failure.error and failure.error.cls_name == _CHECK_FAILED:
            continue
        if failure.user_failure_data and failure.user_failure_data.description:
            reason = failure.user_failure_data.description
        else:
            reason = innermost(failure.error).message.strip() if failure.error else "no message"
        reasons.append(f"{event.step_key}: {reason}")
    why = "; ".join(reasons) or reason_of_failure(instance, run)
    again = ". The run is started once more" if will_be_retried(run) else ""
    is_cancelled = instance.all_logs(run.run_id, of_type=dg.DagsterEventType.RUN_CANCELING)
    failed = "was cancelled, and failed before it ended" if is_cancelled else "failed"
    return f"run {run.run_id[:8]} of {subject_of(run)} {failed}: {why}{again}{page(f'runs/{run.run_id}')}"


def cancellation_message(run: dg.DagsterRun) -> str:
    """The run, what its last errors mean, and what became of its work."""
    return (
        f"run {run.run_id[:8]} of {subject_of(run)} was cancelled; its errors follow from that. What it had recorded "
        f"stays. The rest waits until its source changes or a person materializes it{page(f'runs/{run.run_id}')}"
    )


def check_message(check: dg.AssetCheckEvaluation) -> str:
    """A check that failed, or warns, and its description."""
    verb = "fails" if check.severity is dg.AssetCheckSeverity.ERROR else "warns"
    end = asset_page(check.asset_key, "checks")
    return f"check {_check_name(check)} {verb}: {check.description or 'no description'}{end}"


def _check_name(check: dg.AssetCheckEvaluation) -> str:
    return f"{check.check_name} of {check.asset_key.to_user_string()}"
