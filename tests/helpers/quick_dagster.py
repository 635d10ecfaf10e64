"""Makes Dagster quicker in the processes that import it: each database is opened once per process.

Dagster opens an SQLite database anew for every query. If it is a file, each query also makes an SQLAlchemy engine,
which compiles the statement again, and waits for the disk when the file is closed. Many queries look first whether the
database has a table or column that older versions of Dagster did not make. Whenever Dagster makes an instance, in each
tick of a sensor for example, it imports forty migration scripts.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import sqlalchemy
from alembic.script import ScriptDirectory
from dagster._core.storage.event_log import in_memory as in_memory_event_log
from dagster._core.storage.event_log.in_memory import InMemoryEventLogStorage
from dagster._core.storage.event_log.schema import SqlEventLogStorageMetadata
from dagster._core.storage.event_log.sql_event_log import SqlEventLogStorage
from dagster._core.storage.event_log.sqlite import sqlite_event_log
from dagster._core.storage.event_log.sqlite.sqlite_event_log import SqliteEventLogStorage
from dagster._core.storage.runs import in_memory as in_memory_runs
from dagster._core.storage.runs.in_memory import InMemoryRunStorage
from dagster._core.storage.runs.sqlite import sqlite_run_storage
from dagster._core.storage.schedules.sql_schedule_storage import SqlScheduleStorage
from dagster._core.storage.schedules.sqlite import sqlite_schedule_storage

_engines: dict[str, sqlalchemy.Engine] = {}


def change(owner: Any, name: str, value: Any) -> None:
    """Set an attribute that this version of Dagster has."""
    assert hasattr(owner, name), f"{owner} has no {name}; adapt the module that changes it"
    setattr(owner, name, value)


def _engine(url: str, connect_args: dict[str, Any] | None = None, **_: Any) -> sqlalchemy.Engine:
    """The engine of a database file: it keeps its connections, which Dagster's would close."""
    if url not in _engines:
        _engines[url] = engine = sqlalchemy.create_engine(url, connect_args=connect_args or {})
        change(engine, "dispose", lambda: None)
        # As in tests/conftest.py: no test simulates a power cut.
        sqlalchemy.event.listen(engine, "connect", lambda opened, _: opened.execute("PRAGMA synchronous=OFF"))
    return _engines[url]


def _engine_in_memory(url: str, **_: Any) -> sqlalchemy.Engine:
    """The engine of a database in memory, whose name no other has: it keeps its connections as well."""
    engine = sqlalchemy.create_engine(url, poolclass=sqlalchemy.QueuePool, connect_args={"check_same_thread": False})
    sqlalchemy.event.listen(engine, "connect", lambda opened, _: opened.execute("PRAGMA foreign_keys=ON"))
    return engine


@contextmanager
def _transaction(storage: InMemoryRunStorage) -> Iterator[sqlalchemy.Connection]:
    """A connection to a database in memory; Dagster's executes two statements first, which set it up."""
    with storage._engine.connect() as connection, connection.begin():
        yield connection


@contextmanager
def _locked_transaction(storage: InMemoryEventLogStorage) -> Iterator[sqlalchemy.Connection]:
    with storage._db_lock, storage._engine.connect() as connection, connection.begin():
        yield connection


def _has_table(_: SqlEventLogStorage, name: str) -> bool:
    """Whether the event log has a table: it has those of this version of Dagster, which made it."""
    return name in SqlEventLogStorageMetadata.tables


_built: set[tuple[str, str]] = set()


def _has_secondary_index(storage: SqliteEventLogStorage, name: str) -> bool:
    """Whether an index was built; what was built is not looked up again."""
    index = storage._base_dir, name
    if index not in _built and SqlEventLogStorage.has_secondary_index(storage, name):
        _built.add(index)
    return index in _built


for storage in (sqlite_event_log, sqlite_run_storage, sqlite_schedule_storage):
    change(storage, "create_engine", _engine)
for storage in (in_memory_event_log, in_memory_runs):
    change(storage, "create_engine", _engine_in_memory)
change(InMemoryRunStorage, "connect", _transaction)
change(InMemoryEventLogStorage, "_connect", _locked_transaction)
for event_log in (InMemoryEventLogStorage, SqliteEventLogStorage):
    change(event_log, "has_table", _has_table)
change(SqliteEventLogStorage, "has_secondary_index", _has_secondary_index)
change(SqlEventLogStorage, "_has_asset_key_col_on_connection", lambda *_: True)
change(SqlScheduleStorage, "_has_instigators_table", lambda *_: True)
change(SqlScheduleStorage, "has_secondary_index_table", lambda _: True)
change(SqlScheduleStorage, "_has_asset_daemon_asset_evaluations_table", lambda *_: True)
change(ScriptDirectory, "from_config", cache(ScriptDirectory.from_config))
