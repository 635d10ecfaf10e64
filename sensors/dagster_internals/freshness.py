"""Assets that are older than their freshness policy or their source allows."""

from __future__ import annotations

from collections.abc import Collection

import dagster as dg
from dagster._core.definitions.assets.graph.base_asset_graph import BaseAssetGraph
from dagster._core.definitions.freshness import FreshnessState, TimeWindowFreshnessPolicy
from zarr_core.platform.sensors.dagster_internals.partitions import unconverted_partitions
from zarr_core.platform.sensors.dagster_internals.tags import DATA_VERSION

# Number of records that one query fetches.
_BATCH_RECORDS = 500


def stale_assets(instance: dg.DagsterInstance, graph: BaseAssetGraph, at: float) -> list[dg.AssetKey]:
    """Assets that fail their freshness policy, which the daemon evaluates.

    To the daemon, the state of an asset that was never materialized is UNKNOWN. Here it fails, too, when it has been in
    that state for longer than its policy's window.
    """

    def is_stale(key: dg.AssetKey, state: FreshnessState, since: float) -> bool:
        policy = graph.get(key).freshness_policy
        if state is FreshnessState.UNKNOWN and isinstance(policy, TimeWindowFreshnessPolicy):
            return at - since > policy.fail_window.to_timedelta().total_seconds()
        return state is FreshnessState.FAIL

    records = instance.get_freshness_state_records(list(graph.get_all_asset_keys())).items()
    return sorted(key for key, each in records if is_stale(key, each.freshness_state, each.updated_at.timestamp()))


def older_than_its_source(instance: dg.DagsterInstance, graph: BaseAssetGraph, key: dg.AssetKey, at: float) -> bool:
    """Whether an observable asset that this one is made from changed before a time and this one lacks the change.

    That is so if it was not materialized since, or if a partition of an asset in between was not. A partition that
    arrived and whose conversion failed does not count: its source is not what this asset waits for.
    """
    latest = instance.get_latest_materialization_event(key)
    made = latest.timestamp if latest else 0.0
    ancestors, waiting = {key}, [key]
    while waiting:
        new = graph.get(waiting.pop()).parent_keys - ancestors
        ancestors |= new
        waiting += new
    for source in ancestors:
        if not graph.get(source).is_observable:
            continue
        refused: set[str] = set()
        observed_at = []
        partitions = graph.get(source).partitions_def
        if isinstance(partitions, dg.DynamicPartitionsDefinition) and partitions.name is not None:
            registered = instance.get_dynamic_partitions(partitions.name)
            for made_of_it in graph.get(source).child_keys & ancestors:
                if graph.get(made_of_it).partitions_def == partitions:
                    left = unconverted_partitions(instance, source, made_of_it, registered)
                    refused |= {partition for partition, each in left.items() if each.is_refused}
                    observed_at += [each.observed_at for each in left.values() if not each.is_refused]
        oldest = sorted(observed_at)[:1]
        records = dg.AssetRecordsFilter(source, storage_ids=oldest, before_timestamp=at)
        if oldest and instance.fetch_observations(records, limit=1).records:
            return True
        if _has_changed(instance, source, made, at, refused):
            return True
    return False


def _has_changed(
    instance: dg.DagsterInstance, source: dg.AssetKey, after: float, before: float, refused: Collection[str]
) -> bool:
    """Whether a source was observed to change in a time, apart from partitions that were refused.

    An observation of a source without partitions may repeat the version before it, with other counts.
    """
    earlier = dg.AssetRecordsFilter(source, before_timestamp=after)
    versions = [_version_of(record) for record in instance.fetch_observations(earlier, limit=1).records]
    window = dg.AssetRecordsFilter(source, after_timestamp=after, before_timestamp=before)
    cursor = None
    while True:
        page = instance.fetch_observations(window, limit=_BATCH_RECORDS, cursor=cursor)
        for record in page.records:
            if record.partition_key is not None:
                is_known = record.partition_key in refused
            else:
                version = _version_of(record)
                is_known = version is not None and version in versions
            if not is_known:
                return True
        if not page.has_more:
            return False
        cursor = page.cursor


def _version_of(record: dg.EventLogRecord) -> str | None:
    observation = record.asset_observation
    return observation.tags.get(DATA_VERSION) if observation else None
