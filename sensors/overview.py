"""The overview of a dataset: how far its samples or batches have come, why some have not, and what to do next.

The sensor of the source records it as a materialization without a run, so that it is current although nothing runs. Its
numbers and reasons are those that Dagster has: a tick reads nothing of the source or the store for it, except when
something was retired from a matrix.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

import dagster as dg
from zarr_core.platform.sensors.behind import Conversions
from zarr_core.platform.sensors.dagster_internals.evaluations import latest_evaluations
from zarr_core.platform.sensors.dagster_internals.queries import failed_to_make, is_stopped
from zarr_core.platform.sensors.observations import WatchedSource
from zarr_core.platform.sensors.operating import page_of
from zarr_core.platform.sensors.pending import natural_order

from zarr_core._util.units import format_count, format_size
from zarr_core.sources.left_out import some

NAME = "overview"
# Numbers change at every tick while samples are being converted. They are then recorded this often.
_SECONDS_WHILE_CONVERTING = 600
_DAY_SECONDS = 86_400
_WAITING = "number/waiting"
# Samples or batches whose reasons are shown, as many as :func:`some` names.
_MOST_REASONS = 5

# What, its state now, and what to do; "" if there is nothing to do.
Row = tuple[str, str, str]


@dataclass(frozen=True)
class Recorded:
    """What an asset recorded last.

    Attributes:
        at: when, in seconds since 1970; None if it never did.
        numbers: of its metadata.
    """

    at: float | None
    numbers: Mapping[str, float]


def overview_events(
    context: dg.SensorEvaluationContext,
    source: WatchedSource,
    conversions: Conversions,
    incomplete: Collection[str],
    checked: Collection[dg.AssetCheckEvaluation],
    more: Sequence[Row] = (),
    committed: tuple[int, int] | None = None,
) -> list[dg.AssetMaterialization]:
    """A materialization of the overview, if it differs from the latest one.

    Args:
        context: of the tick.
        source: the dataset.
        conversions: of its samples or batches.
        incomplete: samples that still lack files at the source.
        checked: evaluations of this tick, which Dagster does not have yet.
        more: rows that only this kind of source has.
        committed: generation of the store and its number of samples, if the tick has read them.
    """
    instance, key = context.instance, dg.AssetKey([source.name, NAME])
    published = _recorded(instance, source.published)
    verified = _recorded(instance, dg.AssetKey([source.name, "deep_verification"]))
    failing = _failing_checks(context, source.name, checked)
    noun = source.partitions_name.rpartition("__")[2]
    failed = failed_to_make(instance, source.published)
    mend = f"see why run {failed} failed to publish, and run {source.name}_refresh" if failed else ""
    location = context.code_location_origin.location_name if context.code_location_origin else None
    automation = f"{source.name}_automation"
    stopped = automation if is_stopped(instance, location, automation) else ""
    rows = [
        *_conversion_rows(conversions, noun, source.converted.to_user_string(), incomplete, stopped),
        *_reason_rows(instance, source.converted, conversions.failed_at),
        *more,
        _published_row(published, verified, committed, f"{source.name}_refresh" if conversions.total else "", mend),
        _verified_row(verified, f"{source.name}_verify"),
        *_check_rows(failing),
    ]
    # An entry each: the UI cuts off what is wider than its page in a table, and hides Markdown behind a click.
    texts = {what: f"{now}. To do: {action}" if action else now for what, now, action in rows}
    latest = instance.get_latest_materialization_event(key)
    if latest is not None and _is_current(latest, texts, converting=bool(conversions.waiting)):
        return []
    numbers = {
        "arrived": conversions.total,
        "incomplete": len(incomplete),
        "converted": conversions.converted,
        "refused": len(conversions.refused),
        "stale": len(conversions.stale | conversions.cancelled),
        "published_samples": int(published.numbers.get("samples", 0)),
        "stored_bytes": _stored_bytes(published, verified),
        "failing_checks": len(failing),
    }
    plotted = {f"number/{name}": number for name, number in numbers.items()}
    return [dg.AssetMaterialization(key, metadata={**texts, **plotted, _WAITING: len(conversions.waiting)})]


def _is_current(latest: dg.EventLogEntry, texts: Mapping[str, str], *, converting: bool) -> bool:
    """Whether the latest overview says the same, or is young although samples are still being converted."""
    before = latest.asset_materialization.metadata if latest.asset_materialization else {}
    if all(what in before and before[what].value == text for what, text in texts.items()):
        return True
    was_converting = _WAITING in before and bool(before[_WAITING].value)
    return converting and was_converting and time.time() - latest.timestamp < _SECONDS_WHILE_CONVERTING


def _conversion_rows(found: Conversions, noun: str, asset: str, incomplete: Collection[str], stopped: str) -> list[Row]:
    """What arrived, and how much of it is converted, refused, stale or cancelled.

    ``stopped`` is the sensor of the automation if a person has stopped it, else "".
    """
    named = some(sorted(incomplete, key=natural_order))
    lacking = f", {len(incomplete):,} incomplete: {named}" if incomplete else ""
    upload = "upload what is missing, or delete their folders" if incomplete else ""
    do = f"start the sensor {stopped}, which is stopped: it" if stopped else "nothing, the automation"
    wait = f"{do} converts {len(found.waiting):,} more" if found.waiting else ""
    # A crash, or a network that is away, is nobody's to mend.
    page = page_of("a-sample-that-cannot-be-converted")
    mend = f"mend at the source what their reasons name; any other failure is tried again by itself: {page}"
    again = f"materialize the cancelled partitions of {asset}: {page_of('a-cancelled-run')}"
    left = found.stale | found.cancelled
    actions = [mend] if found.stale else []
    actions += [again] if found.cancelled else []
    rows = [
        ("arrived", f"{format_count(found.total, noun)}{lacking}", upload),
        ("converted", format_count(found.converted, noun), wait),
        ("refused", _names(found.refused), mend if found.refused else ""),
        ("stale or cancelled", _names(left), "; ".join(actions)),
    ]
    if found.lost:
        missing = f"materialize their partitions of {asset}: {page_of('a-store-that-was-removed')}"
        rows.append(("not in the store", _names(found.lost), missing))
    return rows


def _reason_rows(instance: dg.DagsterInstance, converted: dg.AssetKey, failed_at: Mapping[str, int]) -> list[Row]:
    """Why the first samples or batches that are named could not be converted."""
    rows = []
    for name in sorted(failed_at, key=natural_order)[:_MOST_REASONS]:
        attempt = dg.AssetRecordsFilter(converted, asset_partitions=[name], after_storage_id=failed_at[name])
        records = instance.fetch_observations(attempt, limit=1).records
        observed = records[0].asset_observation if records else None
        # A run that died observed nothing.
        reason = str(observed.metadata["reason"].value) if observed else "its run failed: its last event says why"
        rows.append((f"reason of {name}", reason, ""))
    return rows


def _published_row(
    published: Recorded, verified: Recorded, committed: tuple[int, int] | None, job: str, mend: str
) -> Row:
    """What is published; the job publishes what was converted, "" if nothing has arrived.

    ``mend`` is what to do if the last run that was to publish has failed, else "".
    """
    generation, samples = (int(published.numbers.get(name, 0)) for name in ("generation", "samples"))
    if committed is not None and committed[0] > generation:
        # By the command line, or by a run that then failed because too many samples have vanished.
        text = f"generation {committed[0]}: {format_count(committed[1], 'samples')}, which no refresh has checked yet"
        return "published", text, mend
    if published.at is None:
        refresh = f"nothing, if something is being converted; otherwise run {job}"
        wait = refresh if job else "nothing, until something arrives at the source"
        return "published", "nothing yet", mend or wait
    size = _stored_bytes(published, verified)
    shown = f", {format_size(size)}" if size else ""
    text = f"generation {generation}: {format_count(samples, 'samples')}{shown}; {when(published.at)}"
    return "published", text, mend


def _verified_row(verified: Recorded, job: str) -> Row:
    if verified.at is None:
        return "verified", "never", f"declare verify_within_days, or run {job}"
    samples = int(verified.numbers.get("samples", 0))
    return "verified", f"{format_count(samples, 'samples')}; {when(verified.at)}", ""


def _check_rows(failing: Mapping[str, str]) -> list[Row]:
    """How many checks fail or warn, and the reason of each."""
    action = f"as they say below: {page_of('a-failed-check')}" if failing else ""
    rows = [("failing checks", _names(failing), action)]
    for name in sorted(failing):
        rows.append((f"check {name}", failing[name], ""))
    return rows


def _names(names: Collection[str]) -> str:
    return f"{len(names):,}: {some(sorted(names, key=natural_order))}" if names else "none"


def when(at: float) -> str:
    """A time, and its age in days: minutes would be another text at every tick."""
    days = int(max(0.0, time.time() - at) // _DAY_SECONDS)  # the clock of the machine that wrote it may be ahead
    age = f"{format_count(days, 'days')} ago" if days else "less than a day ago"
    return f"{datetime.fromtimestamp(at, UTC):%Y-%m-%d %H:%M} UTC, {age}"


def _stored_bytes(published: Recorded, verified: Recorded) -> int:
    """Bytes of the published generation; a matrix knows them since its last verification."""
    return int(published.numbers.get("bytes_stored") or verified.numbers.get("bytes") or 0)


def _recorded(instance: dg.DagsterInstance, key: dg.AssetKey) -> Recorded:
    event = instance.get_latest_materialization_event(key)
    if event is None or event.asset_materialization is None:
        return Recorded(None, {})
    metadata = event.asset_materialization.metadata
    return Recorded(
        event.timestamp,
        {name: value.value for name, value in metadata.items() if isinstance(value.value, int | float)},
    )


def _failing_checks(
    context: dg.SensorEvaluationContext, name: str, checked: Collection[dg.AssetCheckEvaluation]
) -> dict[str, str]:
    """Checks of the dataset whose latest evaluation did not pass, warnings included, with their reasons."""
    graph = context.repository_def.asset_graph if context.repository_def else None
    keys = [key for key in graph.asset_check_keys if key.asset_key.path[0] == name] if graph else []
    latest = {key.name: found[0] for key, found in latest_evaluations(context.instance, keys).items() if found}
    latest |= {check.check_name: check for check in checked}
    return {name: check.description or "no description" for name, check in latest.items() if not check.passed}
