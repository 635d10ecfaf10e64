"""Questions to an instance of Dagster.

The versions of all partitions take one query here; the public interface takes one per partition. It does not know the
partitions that a run was created for, or the open backfills.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress

import dagster as dg
from dagster._core.definitions.automation_condition_sensor_definition import DEFAULT_AUTOMATION_CONDITION_SENSOR_NAME
from dagster._core.errors import DagsterInvalidInvocationError
from dagster._core.execution.backfill import BulkActionsFilter, BulkActionStatus
from dagster._core.scheduler.instigation import InstigatorStatus, TickStatus
from dagster._core.storage.dagster_run import NOT_FINISHED_STATUSES
from dagster._core.storage.event_log import SqlEventLogStorage, SqlEventLogStorageTable
from dagster._core.storage.sqlalchemy_compat import db_select
from dagster._core.storage.tags import GRPC_INFO_TAG
from zarr_core.platform.sensors.dagster_internals.runs import innermost
from zarr_core.platform.sensors.dagster_internals.tags import DATA_VERSION
from zarr_core.platform.sensors.pending import natural_order

# Number of records that one query fetches.
_BATCH_RECORDS = 500


def observed_versions(instance: dg.DagsterInstance, key: dg.AssetKey) -> dict[str, str]:
    """Data version of the latest observation of each partition, in one query."""
    return _data_versions(instance, key, dg.DagsterEventType.ASSET_OBSERVATION)


def materialized_versions(instance: dg.DagsterInstance, key: dg.AssetKey) -> dict[str, str]:
    """Data version of the latest materialization of each partition, in one query."""
    return _data_versions(instance, key, dg.DagsterEventType.ASSET_MATERIALIZATION)


def _data_versions(instance: dg.DagsterInstance, key: dg.AssetKey, event_type: dg.DagsterEventType) -> dict[str, str]:
    # Dagster has an index of the data versions, but of no other of our tags.
    tags = instance.event_log_storage.get_latest_tags_by_partition(key, event_type, [DATA_VERSION])
    return {partition: found[DATA_VERSION] for partition, found in tags.items() if DATA_VERSION in found}


def latest_observation(instance: dg.DagsterInstance, key: dg.AssetKey) -> tuple[Mapping[str, str], int] | None:
    """Tags and storage id of the latest observation of an asset; None if there is none."""
    for record in instance.fetch_observations(key, limit=1).records:
        observation = record.asset_observation
        return (observation.tags if observation else {}), record.storage_id
    return None


def latest_observations(
    instance: dg.DagsterInstance, key: dg.AssetKey, partitions: Collection[str]
) -> dict[str, tuple[Mapping[str, str], int]]:
    """Data version tag and storage id of the latest observation of each partition that has one, in two queries."""
    if not partitions:
        return {}
    storage, event_type = instance.event_log_storage, dg.DagsterEventType.ASSET_OBSERVATION
    # The ids first: an observation in between gives a later version, which is not mistaken for a stale one.
    ids = storage.get_latest_storage_id_by_partition(key, event_type, set(partitions))
    tags = storage.get_latest_tags_by_partition(key, event_type, [DATA_VERSION], list(partitions))
    return {partition: (tags.get(partition, {}), number) for partition, number in ids.items()}


def planned_partitions(context: dg.AssetExecutionContext) -> list[str]:
    """Partitions of the asset that the run was created for, in natural order.

    Those that were recorded when it was created, and those in its range now. Sensors add, delete and move partitions
    while a run is queued; the range then names others, which it does no harm to convert, or none. A daemon that is
    killed while it creates a run may have recorded none; Dagster starts the run nevertheless, and never makes another.
    Raises Failure if the run was created for none.
    """
    events = context.instance.all_logs(context.run.run_id, of_type=dg.DagsterEventType.ASSET_MATERIALIZATION_PLANNED)
    found: set[str] = set()
    for record in events:
        event = record.dagster_event
        if event and event.partition and event.asset_key == context.asset_key:
            found.add(event.partition)
    if context.has_partition_key or context.has_partition_key_range:
        with suppress(DagsterInvalidInvocationError):  # an end of the range was deleted
            found.update(context.partition_keys)
    if not found:
        raise dg.Failure("the run was started without partitions: choose which to materialize", allow_retries=False)
    return sorted(found, key=natural_order)


def has_open_work(instance: dg.DagsterInstance, key: dg.AssetKey, job_name: str) -> bool:
    """Whether a run or backfill of an asset is queued or in progress.

    Args:
        instance: where.
        key: the asset.
        job_name: a job that materializes it; a run of a whole job does not list its assets.
    """
    statuses = [BulkActionStatus.REQUESTED, BulkActionStatus.CANCELING, BulkActionStatus.FAILING]
    for backfill in instance.get_backfills(filters=BulkActionsFilter(statuses=statuses)):
        if not backfill.asset_selection or key in backfill.asset_selection:
            return True
    for run in instance.get_runs(dg.RunsFilter(statuses=NOT_FINISHED_STATUSES)):
        is_of_asset = key in run.asset_selection if run.asset_selection else run.job_name == job_name
        if is_of_asset:
            return True
    return False


def latest_materializations(
    instance: dg.DagsterInstance, key: dg.AssetKey, partitions: Collection[str]
) -> Iterator[dg.AssetMaterialization]:
    """The latest materialization of each partition that has one."""
    if not partitions:
        return
    event_type = dg.DagsterEventType.ASSET_MATERIALIZATION
    found = instance.event_log_storage.get_latest_storage_id_by_partition(key, event_type, set(partitions))
    ids = list(found.values())
    for first in range(0, len(ids), _BATCH_RECORDS):
        batch = dg.AssetRecordsFilter(key, storage_ids=ids[first : first + _BATCH_RECORDS])
        records = instance.fetch_materializations(batch, limit=_BATCH_RECORDS).records
        yield from (record.asset_materialization for record in records if record.asset_materialization)


def runs_with_latest_events(instance: dg.DagsterInstance) -> set[str]:
    """Runs that recorded the latest materialization, observation or attempt of an asset or of one of its partitions.

    Without one of them, Dagster would take what it has recorded for missing, or for never tried.
    """
    storage = instance.event_log_storage
    found: set[str | None] = set()
    for asset in instance.get_asset_records():
        entry, key = asset.asset_entry, asset.asset_entry.asset_key
        found |= {entry.last_run_id, entry.last_planned_materialization_run_id}
        for record in (entry.last_materialization_record, entry.last_observation_record):
            if record:
                found.add(record.run_id)
        attempts = storage.get_latest_asset_partition_materialization_attempts_without_materializations(key)
        found |= {run_id for run_id, _ in attempts.values()}
        found |= _runs_of_latest_records(instance, key)
    return {run_id for run_id in found if run_id}


def _runs_of_latest_records(instance: dg.DagsterInstance, key: dg.AssetKey) -> set[str]:
    """Runs that recorded the latest materialization or observation of a partition."""
    storage = instance.event_log_storage
    assert isinstance(storage, SqlEventLogStorage)  # as are SQLite's and PostgreSQL's
    event_types = [dg.DagsterEventType.ASSET_MATERIALIZATION, dg.DagsterEventType.ASSET_OBSERVATION]
    # Without the records themselves: a materialization may hold a picture.
    latest = storage._latest_event_ids_by_partition_subquery(key, event_types)
    runs = db_select([SqlEventLogStorageTable.c.run_id]).distinct()
    with storage.index_connection() as connection:
        rows = connection.execute(runs.where(SqlEventLogStorageTable.c.id.in_(db_select([latest.c.id]))))
        return {run_id for (run_id,) in rows}


def runs_of_code_server(instance: dg.DagsterInstance, location: str | None) -> list[dg.DagsterRun]:
    """Runs in progress that the code server of a location has started as processes of its machine.

    Runs of other launchers, of the command line and of other locations may have processes on other machines.
    """
    statuses = [dg.DagsterRunStatus.STARTED, dg.DagsterRunStatus.CANCELING]
    runs = instance.get_runs(dg.RunsFilter(statuses=statuses))
    found = []
    for run in runs:
        origin = run.remote_job_origin
        if GRPC_INFO_TAG in run.tags and origin is not None and origin.location_name == location:
            found.append(run)
    return found


def failed_to_make(instance: dg.DagsterInstance, key: dg.AssetKey) -> str:
    """First digits of the run that was last to make an asset, if it failed before it did; "" otherwise."""
    for record in instance.get_asset_records([key]):
        made, run_id = record.asset_entry.last_materialization_record, record.asset_entry.last_run_id
        run = instance.get_run_by_id(run_id) if run_id else None
        if run and run.is_failure and (made is None or made.run_id != run_id):
            return run.run_id[:8]
    return ""


def is_stopped(instance: dg.DagsterInstance, location: str | None, name: str) -> bool:
    """Whether a person has stopped a sensor of a code location."""
    if instance.schedule_storage is None:  # in memory
        return False
    for state in instance.all_instigator_state(instigator_statuses={InstigatorStatus.STOPPED}):
        origin = state.origin.repository_origin.code_location_origin
        if (origin.location_name, state.instigator_name) == (location, name):
            return True
    return False


def failing_ticks(
    instance: dg.DagsterInstance, location: str | None, repository: dg.RepositoryDefinition | None
) -> dict[str, str]:
    """Running sensors and schedules of a code location whose last finished tick failed, with its error.

    Dagster keeps the state of a sensor that is no longer defined, such as that of a declaration that was repaired.

    Args:
        instance: where their ticks are recorded.
        location: name of the code location.
        repository: what it defines now; its other sensors and schedules are left out. All of its own if None.
    """
    finished = [TickStatus.SKIPPED, TickStatus.SUCCESS, TickStatus.FAILURE]
    failing = {}
    for state in instance.all_instigator_state():
        its_location = state.origin.repository_origin.code_location_origin.location_name
        if not state.is_running or its_location != location or not _is_defined(state.instigator_name, repository):
            continue
        for tick in instance.get_ticks(state.instigator_origin_id, state.selector_id, limit=1, statuses=finished):
            if tick.status is TickStatus.FAILURE:
                message = innermost(tick.error).message.strip() if tick.error else "no message"
                # Of a Failure, which code raises for people to read, the class says nothing.
                failing[state.instigator_name] = message.removeprefix(f"{dg.Failure.__module__}.Failure: ")
    return failing


def _is_defined(name: str, repository: dg.RepositoryDefinition | None) -> bool:
    """Whether a repository has a sensor or schedule of this name; True for any name without a repository."""
    if repository is None or name == DEFAULT_AUTOMATION_CONDITION_SENSOR_NAME:  # Dagster adds it
        return True
    return repository.has_sensor_def(name) or any(schedule.name == name for schedule in repository.schedule_defs)
