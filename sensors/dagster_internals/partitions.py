"""Partitions that were cancelled, failed, or are older than what they are made from."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass

import dagster as dg
from dagster._core.execution.backfill import BulkActionsFilter, BulkActionStatus
from zarr_core.platform.sensors.dagster_internals.tags import BACKFILL, INPUT_EVENT_POINTER, NO_EVENT


@dataclass(frozen=True)
class Unconverted:
    """A partition whose source was observed after its last materialization.

    Attributes:
        observed_at: storage id of the latest observation of its source.
        converted_before: whether it was ever materialized.
        failed_at: storage id of the attempt to convert what was observed, if that failed; None otherwise.
    """

    observed_at: int
    converted_before: bool
    failed_at: int | None

    @property
    def is_refused(self) -> bool:
        """Whether it arrived and its conversion failed, which its red partition and an alert have told."""
        return self.failed_at is not None and not self.converted_before


def unconverted_partitions(
    instance: dg.DagsterInstance, source: dg.AssetKey, converted: dg.AssetKey, partitions: Iterable[str]
) -> dict[str, Unconverted]:
    """Partitions that changed at their source, or arrived there, and were not materialized since.

    Args:
        instance: where.
        source: the observable asset.
        converted: the asset that is made from it, with the same partitions.
        partitions: those that are registered.
    """
    storage = instance.event_log_storage
    made = storage.get_latest_storage_id_by_partition(converted, dg.DagsterEventType.ASSET_MATERIALIZATION)
    observed = storage.get_latest_storage_id_by_partition(source, dg.DagsterEventType.ASSET_OBSERVATION)
    failed = _failed_partitions(instance, converted)
    found = {}
    for partition in partitions:
        at = observed.get(partition, 0)
        if at > made.get(partition, 0):
            failed_at = failed.get(partition)
            if failed_at is not None and failed_at < at:
                failed_at = None  # another version failed
            found[partition] = Unconverted(at, partition in made, failed_at)
    return found


def _failed_partitions(instance: dg.DagsterInstance, key: dg.AssetKey) -> dict[str, int]:
    """Partitions whose last run failed, and which were not materialized since, with the storage id of the attempt."""
    attempts = _attempts(instance, key)
    run_ids = {run_id for run_id, _ in attempts.values()}
    runs = _runs_with_status(instance, run_ids, [dg.DagsterRunStatus.FAILURE])
    return _made_by(attempts, {run.run_id for run in runs})


def _attempts(instance: dg.DagsterInstance, key: dg.AssetKey) -> dict[str, tuple[str, int]]:
    """Run and storage id of the last attempt at each partition that was not materialized since."""
    storage = instance.event_log_storage
    return storage.get_latest_asset_partition_materialization_attempts_without_materializations(key)


def _made_by(attempts: dict[str, tuple[str, int]], run_ids: Collection[str]) -> dict[str, int]:
    """Partitions whose last attempt was made by one of the runs, with the storage id of the attempt."""
    found = {}
    for partition, (run_id, at) in attempts.items():
        if run_id in run_ids:
            found[partition] = at
    return found


def _runs_with_status(
    instance: dg.DagsterInstance, run_ids: Collection[str], statuses: list[dg.DagsterRunStatus]
) -> list[dg.DagsterRun]:
    # Without ids, the filter would take every run.
    if not run_ids:
        return []
    return list(instance.get_runs(dg.RunsFilter(run_ids=list(run_ids), statuses=statuses)))


def partitions_seen_by(
    instance: dg.DagsterInstance, asset: dg.AssetKey, source: dg.AssetKey, partitions: Collection[str]
) -> set[str]:
    """Those of some partitions of a source that were not materialized since an asset was made from the source last.

    Args:
        instance: where.
        asset: made from all partitions of the source.
        source: the asset with partitions.
        partitions: to look at.
    """
    latest = instance.get_latest_materialization_event(asset) if partitions else None
    tags = (latest.asset_materialization.tags if latest and latest.asset_materialization else None) or {}
    seen = tags.get(f"{INPUT_EVENT_POINTER}/{source.to_user_string()}", NO_EVENT)
    if seen == NO_EVENT:
        return set()
    made = instance.event_log_storage.get_latest_storage_id_by_partition(
        source, dg.DagsterEventType.ASSET_MATERIALIZATION, set(partitions)
    )
    return {partition for partition, number in made.items() if number <= int(seen)}


def cancelled_partitions(instance: dg.DagsterInstance, key: dg.AssetKey, sources: Iterable[dg.AssetKey]) -> set[str]:
    """Partitions whose last run, or last backfill if it had not yet made a run of them, was cancelled.

    A partition is no longer cancelled when its source is observed again, which happens when it changed.

    Args:
        instance: where.
        key: the asset.
        sources: assets with the same partitions that it is made from.
    """
    sources = list(sources)
    attempts = _attempts(instance, key)
    cancelled = _made_by(attempts, _cancelled_runs(instance, {run_id for run_id, _ in attempts.values()}))
    for partition, at in _cancelled_before_a_run(instance, key, sources).items():
        if partition not in attempts:
            cancelled[partition] = at
    for source in sources:
        observed = instance.event_log_storage.get_latest_storage_id_by_partition(
            source, dg.DagsterEventType.ASSET_OBSERVATION
        )
        for partition, at in list(cancelled.items()):
            if observed.get(partition, 0) > at:
                del cancelled[partition]
    return set(cancelled)


def _cancelled_before_a_run(
    instance: dg.DagsterInstance, key: dg.AssetKey, sources: Iterable[dg.AssetKey]
) -> dict[str, int]:
    """Partitions of cancelled backfills, with the storage id of the last observation before the backfill ended.

    Without those that were made since: by a run of the backfill that had ended, or because a person requested it.
    """
    filters = BulkActionsFilter(statuses=[BulkActionStatus.CANCELING, BulkActionStatus.CANCELED])
    backfills = [each for each in instance.get_backfills(filters=filters) if key in (each.asset_selection or ())]
    if not backfills:
        return {}
    made = instance.event_log_storage.get_latest_storage_id_by_partition(key, dg.DagsterEventType.ASSET_MATERIALIZATION)
    cancelled: dict[str, int] = {}
    for backfill in backfills:
        if backfill.asset_backfill_data is None:
            continue
        targets = backfill.asset_backfill_data.get_target_partitions_subset(key).get_partition_keys()
        ended = backfill.backfill_end_timestamp or backfill.backfill_timestamp
        at = max((_last_observation_before(instance, source, ended) for source in sources), default=0)
        began = _last_materialization_before(instance, key, backfill.backfill_timestamp)
        for partition in targets:
            if made.get(partition, 0) <= began:
                cancelled[partition] = max(at, cancelled.get(partition, 0))
    return cancelled


def _cancelled_runs(instance: dg.DagsterInstance, run_ids: set[str]) -> set[str]:
    """Those of the runs that a person cancelled."""
    runs = _runs_with_status(instance, run_ids, [dg.DagsterRunStatus.CANCELING, dg.DagsterRunStatus.CANCELED])
    return {run.run_id for run in runs if not _failed_backfill(instance, run)}


def _failed_backfill(instance: dg.DagsterInstance, run: dg.DagsterRun) -> bool:
    """Whether Dagster itself cancelled a run, because its backfill failed."""
    backfill = instance.get_backfill(run.tags[BACKFILL]) if BACKFILL in run.tags else None
    return backfill is not None and backfill.status in (BulkActionStatus.FAILING, BulkActionStatus.FAILED)


def _last_materialization_before(instance: dg.DagsterInstance, key: dg.AssetKey, timestamp: float) -> int:
    records = dg.AssetRecordsFilter(key, before_timestamp=timestamp)
    return max((record.storage_id for record in instance.fetch_materializations(records, limit=1).records), default=0)


def _last_observation_before(instance: dg.DagsterInstance, key: dg.AssetKey, timestamp: float) -> int:
    records = dg.AssetRecordsFilter(key, before_timestamp=timestamp)
    return max((record.storage_id for record in instance.fetch_observations(records, limit=1).records), default=0)
