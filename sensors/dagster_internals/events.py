"""Stores many events at once."""

from __future__ import annotations

import itertools
import logging
import os
import threading
import time
from collections.abc import Sequence
from typing import Self

import dagster as dg
from dagster._core.events import AssetObservationData, DagsterEvent, StepMaterializationData
from dagster._core.events.log import EventLogEntry
from dagster._core.instance.utils import RUNLESS_JOB_NAME, RUNLESS_RUN_ID
from dagster._core.storage.event_log import SqlEventLogStorageTable, SqliteEventLogStorage

# Longest time that a materialization waits for others, to be stored with them.
_BATCH_SECONDS = 0.5
_BATCH_EVENTS = 500


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
