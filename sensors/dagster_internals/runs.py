"""Deletes runs."""

from __future__ import annotations

from pathlib import Path

import dagster as dg
from dagster._core.storage.event_log import SqliteEventLogStorage


def delete_run(instance: dg.DagsterInstance, run_id: str) -> None:
    """Delete a run that has ended: its standard output and error, its events, and the run itself.

    On SQLite each run has a database file. ``instance.delete_run`` deletes its rows only, so the file keeps its size.
    """
    # First: an error of their storage, as without permission to delete, is raised as long as the run can be found.
    instance.compute_log_manager.delete_logs(prefix=[run_id])
    instance.delete_run(run_id)
    storage = instance.event_log_storage
    if isinstance(storage, SqliteEventLogStorage):
        for suffix in ("", "-wal", "-shm"):
            Path(storage.path_for_shard(run_id) + suffix).unlink(missing_ok=True)
        storage._initialized_dbs.discard(run_id)
