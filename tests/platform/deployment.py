"""The platform as it runs: a daemon on an instance of its own, and one folder for all files of the datasets."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import dagster as dg
import pyarrow.parquet
import pytest
import yaml
from dagster._core.execution.backfill import BulkActionsFilter, BulkActionStatus
from dagster._core.scheduler.instigation import TickStatus
from dagster._core.storage.tags import PARTITION_NAME_TAG

from tests.helpers.holding import WAITING, WANTED
from tests.helpers.waiting import wait_for
from tests.platform.project import STALLED, WINGS, Project
from tests.platform.trial import PROJECT, write_run

BATCHES = PROJECT / "examples" / "data" / "methylation" / "long"


class Deployment:
    """An instance, the daemon that works on it, and folders for both bundled datasets: what is watched is empty.

    The daemon runs a copy of the project in which a further declaration, of a dataset ``wings``, is misspelt, and
    another code location, ``other``, whose only dataset, ``stalled``, has a source that accepts connections and never
    answers.

    Attributes:
        source: where sample folders of the points arrive.
        long: where batches of the long table arrive.
    """

    def __init__(self, folder: Path) -> None:
        self.home, self.log = folder / "home", folder / "daemon.log"
        self.source, self.store, self.report = folder / "source", folder / "store", folder / "report"
        self.long, self.matrix, self.quality = folder / "long", folder / "matrix", folder / "quality"
        for made in (self.home, self.source, self.long):
            made.mkdir()
        self.project = Project(folder / "project")
        self.project.declare("wings", *WINGS, "  chunk_pionts: 4096")
        self.project.hold_conversions()
        look = "  look_every_seconds: 30\n"
        self.project.change("assets/datasets/methylation/defs.yaml", look, f'{look}  retry_schedule: "* * * * *"\n')
        other = Project(folder / "other")
        shutil.rmtree(other.folder / "assets" / "datasets")
        other.declare("stalled", *STALLED)
        self.project.add_location("other", other.folder)
        self._silent = socket.create_server(("127.0.0.1", 0))
        shutil.copy(PROJECT / "deploy" / "local" / "dagster.yaml", self.home)

    def environment(self) -> dict[str, str]:
        return {
            **os.environ,
            "PYTHONPATH": str(PROJECT),
            "DAGSTER_HOME": str(self.home),
            "AHMED_RANS_SOURCE": str(self.source),
            "AHMED_RANS_STORE": str(self.store),
            "AHMED_RANS_REPORT": str(self.report),
            "METHYLATION_FILES": str(self.long / "*" / "*.parquet"),
            "METHYLATION_FEATURES": str(PROJECT / "examples/data/methylation/cpgs.parquet"),
            "METHYLATION_MATRIX": str(self.matrix),
            "METHYLATION_REPORT": str(self.quality),
            "AWS_ENDPOINT_URL_S3": f"http://127.0.0.1:{self._silent.getsockname()[1]}",
            "AWS_ACCESS_KEY_ID": "somebody",
            "AWS_SECRET_ACCESS_KEY": "secret",
            "AWS_DEFAULT_REGION": "us-east-1",
        }

    @contextmanager
    def daemon(self) -> Iterator[None]:
        """The daemon, which ends with the block."""
        self.start()
        try:
            yield
        finally:
            self.stop()

    def start(self) -> None:
        """Start the daemon, with all that it starts in a session of its own."""
        command = [sys.executable, "-m", "tests.helpers.quick_daemon", "run", "-w", "workspace.yaml"]
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                command, cwd=self.project.folder, env=self.environment(), stdout=log, stderr=log, start_new_session=True
            )

    def stop(self) -> None:
        """End the daemon and all that it started."""
        for sign in (signal.SIGTERM, signal.SIGKILL):
            try:
                os.killpg(self._process.pid, sign)
            except ProcessLookupError:
                break
            try:
                self._process.wait(5)  # it would wait for the listing that never ends
            except subprocess.TimeoutExpired:
                continue

    def kill(self) -> None:
        """End the daemon and all that it started as a crash of the machine does."""
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def lose_database(self) -> None:
        """Let the daemon, which is stopped, start on an empty home, with the first code location alone."""
        empty = self.home.with_name("home_after_loss")
        empty.mkdir()
        shutil.copy(self.home / "dagster.yaml", empty)
        shutil.copy(PROJECT / "workspace.yaml", self.project.folder)
        self.home = empty

    def change(self, made: Path, *numbers: int) -> None:
        """Replace a file of each of these samples, of 3,000 points, by one that is made elsewhere."""
        for number in numbers:
            changed = write_run(made, number, points=3000, shift=1.0) / "surface_pressure.pt"
            changed.replace(self.source / f"run_{number}" / changed.name)

    def deliver(self, batch_id: str, *, doubled: bool = False) -> None:
        """Write a batch to the warehouse, or over the doubled one; ``doubled`` as a job that ran twice leaves it."""
        rows = pyarrow.parquet.read_table(BATCHES / f"batch_id={batch_id}" / "part-0.parquet", partitioning=None)
        target, beside = self.long / f"batch_id={batch_id}", self.long.with_name(f"new_{batch_id}")
        beside.mkdir()
        pyarrow.parquet.write_table(rows, beside / "part-0.parquet")
        if doubled:
            shutil.copy(beside / "part-0.parquet", beside / "part-1.parquet")
        if target.exists():
            (beside / "part-0.parquet").replace(target / "part-0.parquet")
            (target / "part-1.parquet").unlink()
            beside.rmdir()
        else:
            beside.rename(target)

    def reported(self) -> set[str]:
        """Batches in the quality report."""
        try:
            return set(json.loads((self.quality / "quality.json").read_text())["batches"])
        except (FileNotFoundError, json.JSONDecodeError):  # not there yet, or just being written
            return set()

    def surface_points(self) -> int:
        """Points that the statistics of the store are of."""
        return int(yaml.safe_load((self.store / "stats.yaml").read_text())["surface_pressure_count"])

    @contextmanager
    def hold(self, *sample_ids: str) -> Iterator[None]:
        """Let conversions of samples wait until the block ends."""
        (self.home / WANTED).write_text(" ".join(sample_ids))
        try:
            yield
        finally:
            (self.home / WANTED).unlink()

    def holding(self) -> bool:
        """Whether a conversion waits."""
        return (self.home / WAITING).exists()

    def logged(self) -> str:
        """All that the daemon has logged."""
        return self.log.read_text()

    def wait(self, what: str, condition: Callable[[], object]) -> None:
        """Return when the condition holds; fail with the end of the daemon's log if it does not."""
        try:
            wait_for(condition, pause_seconds=0.2)
        except AssertionError as error:
            pytest.fail(f"{what}: {error}\n{self.logged()[-6000:]}")


def materializations(instance: dg.DagsterInstance, key: dg.AssetKey) -> int:
    return len(instance.fetch_materializations(dg.AssetRecordsFilter(key), limit=100).records)


def reported_generation(instance: dg.DagsterInstance, key: dg.AssetKey) -> object:
    """The generation that the latest report is of."""
    event = instance.get_latest_materialization_event(key)
    return event and event.asset_materialization and event.asset_materialization.metadata["generation"].value


def shown(instance: dg.DagsterInstance, dataset: str, row: str) -> str:
    """A row of the overview of a dataset; "" if it has none."""
    event = instance.get_latest_materialization_event(dg.AssetKey([dataset, "overview"]))
    metadata = event.asset_materialization.metadata if event and event.asset_materialization else {}
    return str(metadata[row].value) if row in metadata else ""


def failed_partitions(instance: dg.DagsterInstance, key: dg.AssetKey) -> set[str]:
    """Partitions that the UI shows as failed: last requested in a run that failed, and not materialized since."""
    attempts = instance.event_log_storage.get_latest_asset_partition_materialization_attempts_without_materializations(
        key
    )
    runs = {partition: instance.get_run_by_id(run_id) for partition, (run_id, _) in attempts.items()}
    return {partition for partition, run in runs.items() if run and run.status is dg.DagsterRunStatus.FAILURE}


def runs_of(instance: dg.DagsterInstance, key: dg.AssetKey) -> list[dg.DagsterRun]:
    return [run for run in instance.get_runs() if run.asset_selection and key in run.asset_selection]


def planned(instance: dg.DagsterInstance, key: dg.AssetKey, partition: str) -> list[dg.EventLogRecord]:
    """Requests of a partition that became runs."""
    event_type = dg.DagsterEventType.ASSET_MATERIALIZATION_PLANNED
    return list(instance.get_event_records(dg.EventRecordsFilter(event_type, key, asset_partitions=[partition])))


def requested(instance: dg.DagsterInstance, key: dg.AssetKey) -> set[str]:
    """Partitions of an asset that open backfills and unfinished runs are to materialize."""
    names = {
        run.tags[PARTITION_NAME_TAG]
        for run in runs_of(instance, key)
        if not run.is_finished and PARTITION_NAME_TAG in run.tags
    }
    for backfill in instance.get_backfills(filters=BulkActionsFilter(statuses=[BulkActionStatus.REQUESTED])):
        data = backfill.asset_backfill_data
        if data is not None and key in data.target_subset.asset_keys:
            names.update(data.target_subset.get_partitions_subset(key).get_partition_keys())
    return names


def open_work(instance: dg.DagsterInstance) -> bool:
    """Whether a run or backfill is queued, in progress or being cancelled."""
    states = [BulkActionStatus.REQUESTED, BulkActionStatus.CANCELING]
    backfills = instance.get_backfills(filters=BulkActionsFilter(statuses=states))
    return bool(backfills) or not all(run.is_finished for run in instance.get_runs())


def ticks_since(instance: dg.DagsterInstance, name: str, start: float) -> int:
    """Finished ticks of a sensor that began after a time."""
    (state,) = [state for state in instance.all_instigator_state() if state.instigator_name == name]
    ticks = instance.get_ticks(state.instigator_origin_id, state.selector_id, after=start)
    return sum(tick.status in (TickStatus.SKIPPED, TickStatus.SUCCESS) for tick in ticks)


def evaluated(deployment: Deployment, instance: dg.DagsterInstance, dataset: str = "ahmed_rans") -> None:
    """Wait until the automation has been evaluated twice more: what it wanted to start is requested by then."""
    begun = time.time()
    deployment.wait("the automation", lambda: ticks_since(instance, f"{dataset}_automation", begun) > 1)


def settled(deployment: Deployment, instance: dg.DagsterInstance) -> None:
    """Wait until all runs have ended and the automation wants no more."""
    before = -1
    while before != (before := len(instance.get_runs())):
        deployment.wait("the end of all runs", lambda: not open_work(instance))
        evaluated(deployment, instance)


def reported_failing(instance: dg.DagsterInstance, location: str) -> dict[str, str]:
    """Sensors and schedules that a location reports, by the cursor of its sensor."""
    for state in instance.all_instigator_state():
        of = state.origin.repository_origin.code_location_origin.location_name
        if (state.instigator_name, of) == ("failing_sensors", location):
            return json.loads(state.instigator_data.cursor or "{}")
    return {}
