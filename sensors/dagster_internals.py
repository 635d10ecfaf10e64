"""Everything of the platform that leans on parts of Dagster without a public interface. Written for Dagster 1.13.

Dagster sets the tags of data versions itself only on values that an op returns. The conversion assets yield an event
per partition, so they have to set the same tags. Reading the versions of all partitions in one query, instead of one
query per partition, needs the event log's storage. The partitions that a run was created for, and the open backfills,
have no public interface either. ``tests/platform/test_dagster_internals.py`` compares this module
with the installed Dagster.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import dagster as dg
from dagster._core.execution.backfill import BulkActionsFilter, BulkActionStatus
from dagster._core.storage.dagster_run import NOT_FINISHED_STATUSES

from sensors.pending import natural_order

DATA_VERSION = "dagster/data_version"
CODE_VERSION = "dagster/code_version"
INPUT_DATA_VERSION = "dagster/input_data_version"
INPUT_EVENT_POINTER = "dagster/input_event_pointer"
KIND = "dagster/kind/"
RANGE_START = "dagster/asset_partition_range_start"
RANGE_END = "dagster/asset_partition_range_end"
# The metadata key that the UI shows as the number of rows of a table.
ROW_COUNT = "dagster/row_count"


def kind_tags(*kinds: str) -> dict[str, str]:
    """Tags that draw the icons of some kinds on an asset; ``observable_source_asset`` has no argument ``kinds``."""
    return {f"{KIND}{kind}": "" for kind in kinds}


def partition_range_tags(first: str, last: str) -> dict[str, str]:
    """Tags of a run over the partitions from the first to the last, as a backfill sets them."""
    return {RANGE_START: first, RANGE_END: last}


def observed_versions(instance: dg.DagsterInstance, key: dg.AssetKey) -> dict[str, str]:
    """Data version of the latest observation of each partition, in one query."""
    tags = instance.event_log_storage.get_latest_tags_by_partition(
        key, dg.DagsterEventType.ASSET_OBSERVATION, [DATA_VERSION]
    )
    return {partition: found[DATA_VERSION] for partition, found in tags.items() if DATA_VERSION in found}


def latest_observation(
    instance: dg.DagsterInstance, key: dg.AssetKey, partition: str | None = None
) -> tuple[Mapping[str, str], int] | None:
    """Tags and storage id of the latest observation of an asset or of one of its partitions; None if there is none."""
    records = dg.AssetRecordsFilter(key, asset_partitions=None if partition is None else [partition])
    for record in instance.fetch_observations(records, limit=1).records:
        observation = record.asset_observation
        return (observation.tags if observation else {}), record.storage_id
    return None


def latest_observations(
    instance: dg.DagsterInstance, key: dg.AssetKey, partitions: Iterable[str]
) -> dict[str, tuple[Mapping[str, str], int]]:
    """Tags and storage id of the latest observation of each partition that has one."""
    found = {partition: latest_observation(instance, key, partition) for partition in partitions}
    return {partition: observation for partition, observation in found.items() if observation}


def version_tags(
    code_version: str, data_version: str, source: dg.AssetKey, observation: tuple[Mapping[str, str], int] | None
) -> dict[str, str]:
    """Tags of a materialization, by which Dagster decides whether the partition is stale.

    Args:
        code_version: of the asset.
        data_version: of the result.
        source: asset that the result was made from.
        observation: of the source, as :func:`latest_observation` returns it.
    """
    tags = {CODE_VERSION: code_version, DATA_VERSION: data_version}
    if observation is not None:
        observed, storage_id = observation
        name = source.to_user_string()
        tags |= {
            f"{INPUT_DATA_VERSION}/{name}": observed.get(DATA_VERSION, ""),
            f"{INPUT_EVENT_POINTER}/{name}": str(storage_id),
        }
    return tags


def planned_partitions(context: dg.AssetExecutionContext) -> list[str]:
    """Partitions of the asset that the run was created for, in natural order.

    ``context.partition_keys`` are those in the run's range now. Sensors add, delete and move partitions while a run is
    queued; the range then names other partitions, or none.
    """
    events = context.instance.all_logs(context.run.run_id, of_type=dg.DagsterEventType.ASSET_MATERIALIZATION_PLANNED)
    planned = [event.dagster_event for event in events if event.dagster_event]
    found = {event.partition for event in planned if event.asset_key == context.asset_key and event.partition}
    return sorted(found, key=natural_order)


def has_open_work(instance: dg.DagsterInstance, key: dg.AssetKey, job_name: str) -> bool:
    """Whether a run or backfill of an asset is queued or in progress.

    Args:
        instance: where.
        key: the asset.
        job_name: a job that materializes it; a run of a whole job does not list its assets.
    """
    statuses = [BulkActionStatus.REQUESTED, BulkActionStatus.CANCELING, BulkActionStatus.FAILING]
    backfills = instance.get_backfills(filters=BulkActionsFilter(statuses=statuses))
    runs = instance.get_runs(dg.RunsFilter(statuses=NOT_FINISHED_STATUSES))
    return any(not backfill.asset_selection or key in backfill.asset_selection for backfill in backfills) or any(
        key in run.asset_selection if run.asset_selection else run.job_name == job_name for run in runs
    )
