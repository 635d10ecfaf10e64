"""Everything of the platform that leans on parts of Dagster without a public interface. Written for Dagster 1.13.

Dagster sets the tags of data versions itself only on values that an op returns. The conversion assets report an event
per partition, so they have to set the same tags, and store many events at once. Reading the versions of all partitions
in one query, instead of one query per partition, needs the event log's storage. The partitions that a run was created
for, the open backfills, and what was cancelled have no public interface either.
``tests/platform/test_dagster_internals.py`` compares this module with the installed Dagster.
"""

from __future__ import annotations

import itertools
import logging
import os
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Self

import dagster as dg
from dagster._core.definitions.assets.graph.base_asset_graph import BaseAssetGraph
from dagster._core.definitions.freshness import FreshnessState
from dagster._core.events import AssetObservationData, DagsterEvent, StepMaterializationData
from dagster._core.events.log import EventLogEntry
from dagster._core.execution.backfill import BulkActionsFilter, BulkActionStatus
from dagster._core.instance.utils import RUNLESS_JOB_NAME, RUNLESS_RUN_ID
from dagster._core.scheduler.instigation import TickStatus
from dagster._core.storage.dagster_run import NOT_FINISHED_STATUSES
from dagster._core.storage.event_log import SqlEventLogStorageTable, SqliteEventLogStorage
from dagster._core.storage.tags import GRPC_INFO_TAG
from dagster._utils.error import SerializableErrorInfo

from sensors.pending import natural_order

DATA_VERSION = "dagster/data_version"
CODE_VERSION = "dagster/code_version"
INPUT_DATA_VERSION = "dagster/input_data_version"
INPUT_EVENT_POINTER = "dagster/input_event_pointer"
NO_EVENT = "NULL"  # in place of a pointer
KIND = "dagster/kind/"
RANGE_START = "dagster/asset_partition_range_start"
RANGE_END = "dagster/asset_partition_range_end"
BACKFILL = "dagster/backfill"
# The metadata key that the UI shows as the number of rows of a table.
ROW_COUNT = "dagster/row_count"
# Longest time that a materialization waits for others, to be stored with them.
_BATCH_SECONDS = 0.5
_BATCH_EVENTS = 500


def kind_tags(*kinds: str) -> dict[str, str]:
    """Tags that draw the icons of some kinds on an asset; ``observable_source_asset`` has no argument ``kinds``."""
    return {f"{KIND}{kind}": "" for kind in kinds}


def partition_range_tags(first: str, last: str) -> dict[str, str]:
    """Tags of a run over the partitions from the first to the last, as a backfill sets them."""
    return {RANGE_START: first, RANGE_END: last}


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


def version_tags(
    code_version: str, data_version: str, source: dg.AssetKey, observation: tuple[Mapping[str, str], int | None] | None
) -> dict[str, str]:
    """Tags of a materialization, by which Dagster decides whether the partition is stale.

    Args:
        code_version: of the asset.
        data_version: of the result.
        source: asset that the result was made from.
        observation: of the source, as :func:`latest_observation` returns it; without a storage id if it is reported
            together with the materialization. Dagster then shows no later change of the source as stale.
    """
    tags = {CODE_VERSION: code_version, DATA_VERSION: data_version}
    if observation is not None:
        observed, storage_id = observation
        name = source.to_user_string()
        tags |= {
            f"{INPUT_DATA_VERSION}/{name}": observed.get(DATA_VERSION, ""),
            f"{INPUT_EVENT_POINTER}/{name}": NO_EVENT if storage_id is None else str(storage_id),
        }
    return tags


class MaterializationBatch:
    """Records materializations of one step, several per transaction.

    Dagster stores a yielded event in two transactions on SQLite, and through several connections on PostgreSQL, which
    takes longer than the conversion of a small sample. Here a materialization is stored within ``_BATCH_SECONDS``,
    together with those added meanwhile. If the process dies before, the next run records it.
    """

    def __init__(self, context: dg.AssetExecutionContext) -> None:
        self._context, self._instance = context.get_step_execution_context(), context.instance
        self._waiting: list[EventLogEntry] = []
        self._lock = threading.Lock()
        self._timer: threading.Timer | None = None
        self._error: Exception | None = None

    def add(self, materialization: dg.AssetMaterialization) -> None:
        """Store a materialization soon; raises the error of an earlier one that could not be stored."""
        step = self._context.step
        event = DagsterEvent(
            event_type_value=dg.DagsterEventType.ASSET_MATERIALIZATION.value,
            job_name=self._context.job_name,
            step_handle=step.handle,
            node_handle=step.node_handle,
            step_kind_value=step.kind.value,
            logging_tags=self._context.event_tags,
            event_specific_data=StepMaterializationData(materialization),
            message=f"Materialized value {materialization.label}.",
            pid=os.getpid(),
        )
        with self._lock:
            if self._error is not None:
                raise self._error
            self._waiting.append(_entry(event, self._context.run_id, step.key))
            if self._timer is None:
                self._timer = threading.Timer(_BATCH_SECONDS, self._store_waiting)
                self._timer.daemon = True
                self._timer.start()

    def _store_waiting(self) -> None:
        with self._lock:
            entries, self._waiting, self._timer = self._waiting, [], None
            try:
                _store(self._instance, entries)
            except Exception as error:  # raised where the next one is added, or at the end
                self._error = error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Store what waits, also if the run fails or is terminated."""
        if self._timer is not None:
            self._timer.cancel()
        self._store_waiting()
        if self._error is not None and kind is None:
            raise self._error


def report_runless_events(
    instance: dg.DagsterInstance, events: Sequence[dg.AssetObservation | dg.AssetMaterialization]
) -> None:
    """What ``instance.report_runless_asset_event`` does for each of the events, in few transactions."""
    kinds = {
        dg.AssetObservation: (dg.DagsterEventType.ASSET_OBSERVATION, AssetObservationData),
        dg.AssetMaterialization: (dg.DagsterEventType.ASSET_MATERIALIZATION, StepMaterializationData),
    }
    for (kind, _), group in itertools.groupby(events, key=lambda event: (type(event), event.asset_key)):
        event_type, data = kinds[kind]
        entries = [
            _entry(DagsterEvent(event_type.value, RUNLESS_JOB_NAME, event_specific_data=data(event)), RUNLESS_RUN_ID)
            for event in group
        ]
        for first in range(0, len(entries), _BATCH_EVENTS):
            _store(instance, entries[first : first + _BATCH_EVENTS])


def _entry(event: DagsterEvent, run_id: str, step_key: str | None = None) -> EventLogEntry:
    return EventLogEntry(
        error_info=None,
        level=logging.DEBUG,
        user_message="",
        run_id=run_id,
        timestamp=time.time(),
        step_key=step_key,
        job_name=event.job_name,
        dagster_event=event,
    )


def _store(instance: dg.DagsterInstance, entries: Sequence[EventLogEntry]) -> None:
    """Store events of one type, asset and run."""
    storage = instance.event_log_storage
    if not entries:
        return
    if not isinstance(storage, SqliteEventLogStorage):
        storage.store_event_batch(entries)
        return
    # Its own store_event_batch stores one by one. As its store_event: in the database of the run, and in the index.
    insert, rows = SqlEventLogStorageTable.insert(), [storage._event_to_row(entry) for entry in entries]
    with storage.run_connection(entries[0].run_id) as connection:
        connection.execute(insert, rows)
    with storage.index_connection() as connection:
        ids = [connection.execute(insert, row).inserted_primary_key[0] for row in rows]
        storage._store_asset_event_tags(connection, entries, ids)
        storage._store_asset_event(connection, entries[-1], ids[-1])


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


def runs_of_code_server(instance: dg.DagsterInstance, location: str | None) -> list[dg.DagsterRun]:
    """Runs in progress that the code server of a location has started as processes of its machine.

    Runs of other launchers, of the command line and of other locations may have processes on other machines.
    """
    statuses = [dg.DagsterRunStatus.STARTED, dg.DagsterRunStatus.CANCELING]
    runs = instance.get_runs(dg.RunsFilter(statuses=statuses))
    origins = ((run, run.remote_job_origin) for run in runs if GRPC_INFO_TAG in run.tags)
    return [run for run, origin in origins if origin is not None and origin.location_name == location]


class Cancelled(dg.AutomationCondition[dg.AssetKey]):
    """True for partitions whose last run or backfill was cancelled and whose source did not change since.

    Dagster itself has no such condition: a partition that was cancelled is missing and not ``execution_failed()``. As a
    condition of this project, it is evaluated in the code server (``use_user_code_server``).
    """

    @property
    def name(self) -> str:
        """Name in the evaluations that the UI shows."""
        return "cancelled"

    @property
    def requires_cursor(self) -> bool:
        """Whether an evaluation depends on those before."""
        return False

    def evaluate(self, context: dg.AutomationContext) -> dg.AutomationResult:
        """Intersect the candidates with the cancelled partitions."""
        subset = context.get_empty_subset()
        if context.partitions_def is not None and not context.candidate_subset.is_empty:
            view = context.asset_graph_view
            sources = view.asset_graph.get(context.key).parent_keys
            found = cancelled_partitions(view.instance, context.key, sources)
            found &= set(context.candidate_subset.expensively_compute_partition_keys())
            subset = view.get_subset_from_partition_keys(context.key, context.partitions_def, found)
        return dg.AutomationResult(context, subset)


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
    statuses = [BulkActionStatus.CANCELING, BulkActionStatus.CANCELED]
    for backfill in instance.get_backfills(filters=BulkActionsFilter(statuses=statuses)):
        if backfill.asset_backfill_data is None or key not in (backfill.asset_selection or ()):
            continue
        targets = backfill.asset_backfill_data.get_target_partitions_subset(key).get_partition_keys()
        ended = backfill.backfill_end_timestamp or backfill.backfill_timestamp
        at = max((_last_observation_before(instance, source, ended) for source in sources), default=0)
        for partition in set(targets) - attempts.keys():
            cancelled[partition] = max(at, cancelled.get(partition, 0))
    for source in sources:
        observed = storage.get_latest_storage_id_by_partition(source, dg.DagsterEventType.ASSET_OBSERVATION)
        cancelled = {partition: at for partition, at in cancelled.items() if observed.get(partition, 0) <= at}
    return set(cancelled)


class Overtaken(dg.AutomationCondition[dg.AssetKey]):
    """True for partitions of which a dependency changed after their latest materialization had read it.

    A partition that is no longer in the newest state of its dependencies is stale in the UI, but Dagster's conditions
    do not see that: they only compare times of updates.
    """

    @property
    def name(self) -> str:
        """Name in the evaluations that the UI shows."""
        return "overtaken"

    @property
    def requires_cursor(self) -> bool:
        """Whether an evaluation depends on those before."""
        return False

    def evaluate(self, context: dg.AutomationContext) -> dg.AutomationResult:
        """Compare what the candidates have read with what there is now."""
        view, key, subset = context.asset_graph_view, context.key, context.get_empty_subset()
        sources = view.asset_graph.get(key).parent_keys
        if not context.candidate_subset.is_empty:
            if context.partitions_def is None:
                subset = context.candidate_subset if _is_overtaken(view.instance, key, sources) else subset
            else:
                candidates = context.candidate_subset.expensively_compute_partition_keys()
                found = _overtaken_partitions(view.instance, key, sources, candidates)
                subset = view.get_subset_from_partition_keys(key, context.partitions_def, found)
        return dg.AutomationResult(context, subset)


def _is_overtaken(instance: dg.DagsterInstance, key: dg.AssetKey, sources: Collection[dg.AssetKey]) -> bool:
    """Whether an asset without partitions read older events of its sources than there are now."""
    latest = instance.get_latest_materialization_event(key)
    tags = (latest.asset_materialization.tags if latest and latest.asset_materialization else None) or {}
    for record in instance.get_asset_records(list(sources)):
        entry = record.asset_entry
        # As Dagster chooses the event whose id a step records when it begins.
        event = entry.last_materialization_record or entry.last_observation_record
        pointer = tags.get(f"{INPUT_EVENT_POINTER}/{entry.asset_key.to_user_string()}", NO_EVENT)
        if event and pointer != NO_EVENT and int(pointer) < event.storage_id:
            return True
    return False


def _overtaken_partitions(
    instance: dg.DagsterInstance, key: dg.AssetKey, sources: Iterable[dg.AssetKey], partitions: Collection[str]
) -> set[str]:
    """Partitions that were made from other versions of their sources' partitions than are observed now."""
    event_type = dg.DagsterEventType.ASSET_MATERIALIZATION
    found_ids = instance.event_log_storage.get_latest_storage_id_by_partition(key, event_type, set(partitions))
    ids, made = list(found_ids.values()), []
    for first in range(0, len(ids), _BATCH_EVENTS):
        batch = dg.AssetRecordsFilter(key, storage_ids=ids[first : first + _BATCH_EVENTS])
        records = instance.fetch_materializations(batch, limit=_BATCH_EVENTS).records
        made += [record.asset_materialization for record in records if record.asset_materialization]
    found = set()
    for source in sources:
        observed = latest_observations(instance, source, partitions)
        for materialization in made:
            now, _ = observed.get(materialization.partition or "", ({}, 0))
            read = (materialization.tags or {}).get(f"{INPUT_DATA_VERSION}/{source.to_user_string()}")
            if read is not None and DATA_VERSION in now and now[DATA_VERSION] != read:
                found.add(materialization.partition)
    return {partition for partition in found if partition}


class NextBatch(dg.AutomationCondition[dg.AssetKey]):
    """True for the next few of the partitions that a function finds, as long as none of these is in progress.

    So other partitions wait for one batch at most. Partitions that failed are passed over. As long as one of those
    found is cancelled (see :class:`Cancelled`), the condition is false.

    Args:
        name: of the condition, in the evaluations that the UI shows.
        size: maximum number of partitions.
        find: returns partitions in their order.
    """

    def __init__(self, name: str, size: int, find: Callable[[dg.DagsterInstance], Sequence[str]]) -> None:
        self._name, self._size, self._find = name, size, find

    @property
    def name(self) -> str:
        """Name in the evaluations that the UI shows."""
        return self._name

    @property
    def requires_cursor(self) -> bool:
        """Whether an evaluation depends on those before."""
        return False

    async def evaluate(self, context: dg.AutomationContext) -> dg.AutomationResult:  # type: ignore[override]
        """Intersect the candidates with the next batch."""
        view, key, subset = context.asset_graph_view, context.key, context.get_empty_subset()
        found = self._find(view.instance)
        if found and context.partitions_def is not None:
            everything = view.get_full_subset(key=key)
            runs = await view.compute_run_in_progress_subset(key=key, from_subset=everything)
            backfills = await view.compute_backfill_in_progress_subset(key=key, from_subset=everything)
            failed = await view.compute_execution_failed_subset(key=key, from_subset=everything)
            held_back = runs.compute_union(backfills).expensively_compute_partition_keys()
            held_back |= cancelled_partitions(view.instance, key, view.asset_graph.get(key).parent_keys)
            if held_back.isdisjoint(found):
                passed_over = failed.expensively_compute_partition_keys()
                batch = [partition for partition in found if partition not in passed_over][: self._size]
                candidates = context.candidate_subset.expensively_compute_partition_keys()
                subset = view.get_subset_from_partition_keys(key, context.partitions_def, candidates & set(batch))
        return dg.AutomationResult(context, subset)


def _cancelled_runs(instance: dg.DagsterInstance, run_ids: set[str]) -> set[str]:
    """Those of the runs that a person cancelled."""
    statuses = [dg.DagsterRunStatus.CANCELING, dg.DagsterRunStatus.CANCELED]
    runs = instance.get_runs(dg.RunsFilter(run_ids=list(run_ids), statuses=statuses)) if run_ids else []
    return {run.run_id for run in runs if not _failed_backfill(instance, run)}


def _failed_backfill(instance: dg.DagsterInstance, run: dg.DagsterRun) -> bool:
    """Whether Dagster itself cancelled a run, because its backfill failed."""
    backfill = instance.get_backfill(run.tags[BACKFILL]) if BACKFILL in run.tags else None
    return backfill is not None and backfill.status in (BulkActionStatus.FAILING, BulkActionStatus.FAILED)


def _last_observation_before(instance: dg.DagsterInstance, key: dg.AssetKey, timestamp: float) -> int:
    records = dg.AssetRecordsFilter(key, before_timestamp=timestamp)
    return max((record.storage_id for record in instance.fetch_observations(records, limit=1).records), default=0)


def innermost(error: SerializableErrorInfo) -> SerializableErrorInfo:
    """The cause of an error; the outer ones only report that a step or a tick failed."""
    while error.cause:
        error = error.cause
    return error


def failed_evaluations(instance: dg.DagsterInstance, run_id: str) -> list[dg.AssetCheckEvaluation]:
    """The checks of a run that did not pass, less those that are only warnings."""
    events = instance.all_logs(run_id, of_type=dg.DagsterEventType.ASSET_CHECK_EVALUATION)
    checks = [event.dagster_event.asset_check_evaluation_data for event in events if event.dagster_event]
    return [check for check in checks if not check.passed and check.severity is dg.AssetCheckSeverity.ERROR]


def latest_check(instance: dg.DagsterInstance, key: dg.AssetCheckKey) -> dg.AssetCheckEvaluation | None:
    """The latest evaluation of a check; None if it never was, or is just being evaluated."""
    for record in instance.event_log_storage.get_asset_check_execution_history(key, limit=1):
        event = record.event.dagster_event if record.event else None
        if event and event.event_type is dg.DagsterEventType.ASSET_CHECK_EVALUATION:
            return event.asset_check_evaluation_data
    return None


def failing_ticks(instance: dg.DagsterInstance) -> dict[str, str]:
    """Running sensors and schedules whose last finished tick failed, with its error."""
    failing = {}
    for state in instance.all_instigator_state():
        if state.is_running:
            ticks = instance.get_ticks(
                state.instigator_origin_id,
                state.selector_id,
                limit=1,
                statuses=[TickStatus.SKIPPED, TickStatus.SUCCESS, TickStatus.FAILURE],
            )
            if ticks and ticks[0].status is TickStatus.FAILURE:
                error = ticks[0].error
                message = innermost(error).message.strip() if error else "no message"
                # Of a Failure, which code raises for people to read, the class says nothing.
                failing[state.instigator_name] = message.removeprefix(f"{dg.Failure.__module__}.Failure: ")
    return failing


def stale_assets(instance: dg.DagsterInstance, keys: Iterable[dg.AssetKey]) -> list[dg.AssetKey]:
    """Those of the assets that fail their freshness policy, which the daemon evaluates."""
    records = instance.get_freshness_state_records(list(keys))
    return sorted(key for key, record in records.items() if record.freshness_state is FreshnessState.FAIL)


def older_than_its_source(instance: dg.DagsterInstance, graph: BaseAssetGraph, key: dg.AssetKey, at: float) -> bool:
    """Whether an observable asset that this one is made from changed after its materialization, and before a time."""
    made = instance.get_latest_materialization_event(key)
    ancestors, waiting = {key}, [key]
    while waiting:
        new = graph.get(waiting.pop()).parent_keys - ancestors
        ancestors |= new
        waiting += new
    for source in ancestors:
        if graph.get(source).is_observable:
            later = dg.AssetRecordsFilter(source, after_timestamp=made.timestamp if made else 0.0, before_timestamp=at)
            if instance.fetch_observations(later, limit=1).records:
                return True
    return False
