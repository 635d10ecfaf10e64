"""Logs failed runs, failed checks, failing sensors and stale assets, and sends alerts of them.

Each code location reports its own: several locations of one instance send one alert each.
"""

import json
import re
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

import dagster as dg
from zarr_core.platform.resources.alerts import Alerts
from zarr_core.platform.sensors.dagster_internals.evaluations import failing_checks
from zarr_core.platform.sensors.dagster_internals.freshness import older_than_its_source, stale_assets
from zarr_core.platform.sensors.dagster_internals.queries import failing_ticks
from zarr_core.platform.sensors.dagster_internals.runs import is_run_of
from zarr_core.platform.sensors.messages import asset_page, cancellation_message, check_message, failure_message, page
from zarr_core.platform.sensors.operating import if_red

from zarr_core._util.units import format_count

# Metadata of an asset: it must be materialized within this many hours of a change of its source.
PUBLISHED_WITHIN_HOURS = "zarr_core/published_within_hours"
# Runs that one tick looks at, and the time for which an alert that cannot be sent is sent again.
_MAX_RUNS, _SENT_FOR_SECONDS = 20, 86_400
# Key of the messages in the cursor of ``failed_runs``, and their number.
_LATEST, _MOST_LATEST = "latest", 10
# What differs between two messages of the same error: ids, addresses in memory, times, and durations.
_CHANGING = re.compile(
    r"""(?ix) \b[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\b | \b0x[0-9a-f]+\b
    | \b(?:x-[a-z-]*)?(?:request|host)[-_ ]?id\b \W+ [\w+/=:.-]+
    | \b\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d[\d.]*(?:Z\b|[+-]\d\d:?\d\d)?
    | \b\d+(?:\.\d+)?\s?(?:ns|us|\u00b5s|\u03bcs|ms|s|secs?|seconds?)\b"""
)


# Numbers that stand alone. A warning whose counts alone have changed is the same warning.
_COUNTS = re.compile(r"(?<![\w.-])\d[\d,.]*(?![\w-])")
_IF_RED = if_red("where-is-the-reason", "read its error: the alert could not be sent, and is sent again for a day")


@dg.sensor(
    name="failed_runs",
    default_status=dg.DefaultSensorStatus.RUNNING,
    minimum_interval_seconds=30,
    description="Logs every failed run of this code location, also as the last event of the run, and sends an alert."
    " A cancelled run gets a last event as well, and no alert. The cursor lists the latest ten, with their reasons."
    + _IF_RED,
)
def failed_runs(context: dg.SensorEvaluationContext, alerts: Alerts) -> dg.SensorResult:
    """Log and send a message about each run that failed since the last tick, also one of the command line.

    Dagster's own sensors of runs go on to the next run if an alert cannot be sent. Here the tick then fails, and the
    next ticks send the same alerts again, for a day. The message is logged and added to the events of the run once.

    The interrupt of a cancelled run may come anywhere, as in the middle of an import, and Dagster ends the run with the
    traceback of that place. A sentence after it says that this is not an error.
    """
    instance, cursor = context.instance, json.loads(context.cursor or "{}")
    latest = cursor.pop(_LATEST, [])
    messages, unsent = [], []
    for record, run in _ended_since(context, cursor, "record_id", dg.DagsterEventType.RUN_FAILURE):
        message = failure_message(instance, run)
        messages.append(f"{_time(record)}: {message}")
        if _add_to_run(instance, run.run_id, message):
            context.log.error(message)
        if record.timestamp > time.time() - _SENT_FOR_SECONDS:
            unsent.append(message)
    for record, run in _ended_since(context, cursor, "cancelled_id", dg.DagsterEventType.RUN_CANCELED):
        message = cancellation_message(run)
        messages.append(f"{_time(record)}: {message}")
        _add_to_run(instance, run.run_id, message)
    _send(context, alerts, unsent)
    cursor = {_LATEST: [*reversed(messages), *latest][:_MOST_LATEST], **cursor}
    return dg.SensorResult(skip_reason="; ".join(messages) or "no run failed", cursor=json.dumps(cursor))


def _time(record: dg.EventLogRecord) -> str:
    """When a run ended."""
    return f"{datetime.fromtimestamp(record.timestamp, UTC):%Y-%m-%d %H:%M:%S} UTC"


def _ended_since(
    context: dg.SensorEvaluationContext, cursor: dict[str, int], name: str, event_type: dg.DagsterEventType
) -> list[tuple[dg.EventLogRecord, dg.DagsterRun]]:
    """Runs of this location whose status became another one since the tick before.

    Args:
        context: of the tick.
        cursor: storage ids of the last records that were seen; the one of ``name`` is brought up to date.
        name: of the entry of the cursor.
        event_type: of the records, such as RUN_FAILURE.
    """
    instance, before = context.instance, cursor.get(name)
    if before is None:  # the first tick: runs that end from now on
        latest = instance.fetch_run_status_changes(event_type, limit=1).records
        cursor[name] = max((record.storage_id for record in latest), default=-1)
        return []
    later = dg.RunStatusChangeRecordsFilter(event_type, after_storage_id=before)
    records = instance.fetch_run_status_changes(later, limit=_MAX_RUNS, ascending=True).records
    cursor[name] = max((record.storage_id for record in records), default=before)
    found = []
    for record in records:
        run = instance.get_run_by_id(record.run_id)
        if run is not None and is_run_of(run, _location(context), context.repository_def):
            found.append((record, run))
    return found


@dg.sensor(
    name="failed_checks",
    default_status=dg.DefaultSensorStatus.RUNNING,
    minimum_interval_seconds=30,
    description="Logs checks that fail or warn and do not fail their run, also as the last event of the run, and sends"
    " an alert. The cursor lists those that fail now, with their reasons." + _IF_RED,
)
def failed_checks(context: dg.SensorEvaluationContext, alerts: Alerts) -> dg.SensorResult:
    """Report checks that began to fail or to warn, or have another reason, since the tick before."""
    before = json.loads(context.cursor or "{}")
    keys = context.repository_def.asset_graph.asset_check_keys if context.repository_def else ()
    found, runs = {}, {}
    for name, failing in failing_checks(context.instance, keys).items():
        if failing is not None:
            check, runs[name] = failing
            found[name] = check_message(check)
        elif name in before:  # it is being evaluated
            found[name] = before[name]
    new = _new(before, found, _COUNTS)
    for name in new:
        context.log.error(found[name])
        _add_to_run(context.instance, runs[name], found[name])
    return _report(context, alerts, "fails or warns", found, new, "no check failed")


@dg.sensor(
    name="failing_sensors",
    default_status=dg.DefaultSensorStatus.RUNNING,
    minimum_interval_seconds=60,
    description="Logs sensors and schedules whose ticks fail, once per error, and sends an alert. The cursor lists"
    " those that fail now, with their errors." + _IF_RED,
)
def failing_sensors(context: dg.SensorEvaluationContext, alerts: Alerts) -> dg.SensorResult:
    """Report sensors and schedules that began to fail, or fail with another error, since the tick before."""
    failing = failing_ticks(context.instance, _location(context), context.repository_def)
    messages = {name: f"{name} fails: {reason}{page('automation')}" for name, reason in failing.items()}
    return _report_new(context, alerts, "fails", messages, "no sensor or schedule fails")


@dg.sensor(
    name="stale_datasets",
    default_status=dg.DefaultSensorStatus.RUNNING,
    minimum_interval_seconds=300,
    description="Logs assets that are older than their freshness policy allows, and those that are older than their"
    " source, once, and sends an alert. A dataset declares fresh_within_days and published_within_hours." + _IF_RED,
)
def stale_datasets(context: dg.SensorEvaluationContext, alerts: Alerts) -> dg.SensorResult:
    """Report assets that became stale since the tick before."""
    stale, now = {}, time.time()
    if context.repository_def:
        graph = context.repository_def.asset_graph
        for key in stale_assets(context.instance, graph, now):
            stale[key] = "nothing was converted for longer than fresh_within_days"
        for key in graph.get_all_asset_keys():
            hours = int(str(graph.get(key).metadata.get(PUBLISHED_WITHIN_HOURS, 0)))
            if hours and older_than_its_source(context.instance, graph, key, now - 3600 * hours):
                stale[key] = f"its source has changed since, more than {format_count(hours, 'hours')} ago"
    messages = {}
    for key, reason in stale.items():
        name = key.to_user_string()
        messages[name] = f"{name} is stale: {reason}{asset_page(key)}"
    return _report_new(context, alerts, "is stale", messages, "no asset is stale")


def _add_to_run(instance: dg.DagsterInstance, run_id: str, message: str) -> bool:
    """Add a message to the events of a run, unless it is there; the page of a run shows its last events."""
    run = instance.get_run_by_id(run_id)
    events = instance.all_logs(run_id, of_type=dg.DagsterEventType.ENGINE_EVENT) if run else []
    if any(event.dagster_event and event.dagster_event.message == message for event in events):
        return False
    if run is not None:
        instance.report_engine_event(message, run)
    return True


def _report_new(
    context: dg.SensorEvaluationContext, alerts: Alerts, verb: str, found: Mapping[str, str], none: str
) -> dg.SensorResult:
    """Log and send what is new since the tick before."""
    new = _new(json.loads(context.cursor or "{}"), found, _CHANGING)
    for name in new:
        context.log.error(found[name])
    return _report(context, alerts, verb, found, new, none)


def _new(before: Mapping[str, str], found: Mapping[str, str], varying: re.Pattern[str]) -> list[str]:
    """Names whose message is new, apart from the parts that differ each time."""
    new = []
    for name, message in found.items():
        if name not in before or varying.sub("...", before[name]) != varying.sub("...", message):
            new.append(name)
    return new


def _report(
    context: dg.SensorEvaluationContext,
    alerts: Alerts,
    verb: str,
    found: Mapping[str, str],
    new: Sequence[str],
    none: str,
) -> dg.SensorResult:
    """Send the new messages. The tick says what was found, with a verb; its cursor lists the messages as well.

    If the alert cannot be sent, the tick fails, and the next one reports the same.
    """
    _send(context, alerts, [found[name] for name in new])
    return dg.SensorResult(skip_reason=f"{', '.join(found)} {verb}" if found else none, cursor=json.dumps(found))


def _location(context: dg.SensorEvaluationContext) -> str | None:
    origin = context.code_location_origin
    return origin.location_name if origin else None


def _send(context: dg.SensorEvaluationContext, alerts: Alerts, messages: Sequence[str]) -> None:
    """Send messages as one alert, each with the code location, whose names another location may use as well."""
    if messages:
        location = _location(context)
        alerts.send("\n".join(f"{location}: {message}" if location else message for message in messages))
