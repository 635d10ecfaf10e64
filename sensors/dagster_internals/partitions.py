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
    attempts = instance.event_log_storage.get_latest_asset_partition_materialization_attempts_without_materializations(
        key
    )
    run_ids = {run_id for run_id, _ in attempts.values()}
    failure = [dg.DagsterRunStatus.FAILURE]
    runs = instance.get_runs(dg.RunsFilter(run_ids=list(run_ids), statuses=failure)) if run_ids else []
    failed = {run.run_id for run in runs}
    return {partition: at for partition, (run_id, at) in attempts.items() if run_id in failed}


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
    storage = instance.event_log_storage
    attempts = storage.get_latest_asset_partition_materialization_attempts_without_materializations(key)
    cancelled_runs = _cancelled_runs(instance, {run_id for run_id, _ in attempts.values()})
    cancelled = {partition: at for partition, (run_id, at) in attempts.items() if run_id in cancelled_runs}
    filters = BulkActionsFilter(statuses=[BulkActionStatus.CANCELING, BulkActionStatus.CANCELED])
    backfills = [each for each in instance.get_backfills(filters=filters) if key in (each.asset_selection or ())]
    materialization = dg.DagsterEventType.ASSET_MATERIALIZATION
    made = storage.get_latest_storage_id_by_partition(key, materialization) if backfills else {}
    for backfill in backfills:
        if backfill.asset_backfill_data is None:
            continue
        targets = backfill.asset_backfill_data.get_target_partitions_subset(key).get_partition_keys()
        ended = backfill.backfill_end_timestamp or backfill.backfill_timestamp
        at = max((_last_observation_before(instance, source, ended) for source in sources), default=0)
        began = _last_materialization_before(instance, key, backfill.backfill_timestamp)
        for partition in set(targets) - attempts.keys():
            # Unless it was made since: by a run of the backfill that had ended, or because a person requested it.
            if made.get(partition, 0) <= began:
                cancelled[partition] = max(at, cancelled.get(partition, 0))
    for source in sources:
        observed = storage.get_latest_storage_id_by_partition(source, dg.DagsterEventType.ASSET_OBSERVATION)
        cancelled = {partition: at for partition, at in cancelled.items() if observed.get(partition, 0) <= at}
    return set(cancelled)


def _cancelled_runs(instance: dg.DagsterInstance, run_ids: set[str]) -> set[str]:
    """Those of the runs that a person cancelled."""
    statuses = [dg.DagsterRunStatus.CANCELING, dg.DagsterRunStatus.CANCELED]
    runs = instance.get_runs(dg.RunsFilter(run_ids=list(run_ids), statuses=statuses)) if run_ids else []
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
