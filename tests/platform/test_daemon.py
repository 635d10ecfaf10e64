"""The platform as it runs: a daemon on an instance of its own, and a folder that runs are copied into."""

from __future__ import annotations

import datetime as dt
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import dagster as dg
import pytest
import yaml
from trial import PROJECT, corrupt, write_run

from zarr_core.manifest import load_manifest
from zarr_core.sources import resolve_kind

SHARED = PROJECT.parent / "shared" / "data" / "ahmed_rans"
NUMBERS = range(1, 11)
CORRUPT = "run_3"
SAMPLES = dg.AssetKey(["ahmed_rans", "zarr_samples"])


class Deployment:
    """An instance, the daemon that works on it, and the folders of the dataset."""

    def __init__(self, folder: Path) -> None:
        self.home, self.source, self.store = folder / "home", folder / "source", folder / "store"
        self.report, self.log = folder / "report", folder / "daemon.log"
        self.home.mkdir()
        self.source.mkdir()
        shutil.copy(PROJECT / "deploy" / "local" / "dagster.yaml", self.home)

    def environment(self) -> dict[str, str]:
        return {
            **os.environ,
            "DAGSTER_HOME": str(self.home),
            "AHMED_RANS_SOURCE": str(self.source),
            "AHMED_RANS_STORE": str(self.store),
            "AHMED_RANS_REPORT": str(self.report),
            "AHMED_RANS_LOOK_EVERY_SECONDS": "2",
            "ZARR_CORE_EVALUATE_EVERY_SECONDS": "3",
        }

    @contextmanager
    def daemon(self) -> Iterator[None]:
        """The daemon, with all that it starts in a session of its own, which ends with the block."""
        command = [sys.executable, "-m", "dagster._daemon", "run", "-w", "workspace.yaml"]
        with self.log.open("wb") as log:
            process = subprocess.Popen(
                command, cwd=PROJECT, env=self.environment(), stdout=log, stderr=log, start_new_session=True
            )
        try:
            yield
        finally:
            for sign in (signal.SIGTERM, signal.SIGKILL):
                try:
                    os.killpg(process.pid, sign)
                except ProcessLookupError:
                    break
                try:
                    process.wait(20)
                except subprocess.TimeoutExpired:
                    continue

    def wait(self, what: str, condition: Callable[[], object], seconds: float = 240) -> None:
        """Return when something has come true; fail with the daemon's last words when it does not."""
        deadline = time.monotonic() + seconds
        while not condition():
            if time.monotonic() > deadline:
                pytest.fail(f"waited {seconds:.0f} s for {what}\n{self.log.read_text()[-6000:]}")
            time.sleep(0.5)


@pytest.fixture
def deployment(tmp_path: Path) -> Deployment:
    return Deployment(tmp_path)


def copy_run(number: int, elsewhere: Path, target: Path) -> None:
    """One of the simulated runs where they are at hand, else one made up."""
    original = SHARED / f"run_{number}"
    if not original.is_dir():
        original = write_run(elsewhere, number, points=3000)
    shutil.copytree(original, target / original.name, copy_function=shutil.copyfile)


def materializations(instance: dg.DagsterInstance, asset: str) -> int:
    key = dg.AssetKey(["ahmed_rans", asset])
    return len(instance.fetch_materializations(dg.AssetRecordsFilter(key), limit=100).records)


def failed_samples(instance: dg.DagsterInstance) -> set[str]:
    """Partitions that the UI shows as failed: last asked for in a run that failed, and never made since."""
    attempts = instance.event_log_storage.get_latest_asset_partition_materialization_attempts_without_materializations(
        SAMPLES
    )
    runs = {sample_id: instance.get_run_by_id(run_id) for sample_id, (run_id, _) in attempts.items()}
    return {sample_id for sample_id, run in runs.items() if run and run.status is dg.DagsterRunStatus.FAILURE}


def conversion_runs(instance: dg.DagsterInstance) -> list[dg.DagsterRun]:
    runs = instance.get_runs()
    return [run for run in runs if run.asset_selection and SAMPLES in run.asset_selection]


def test_ten_runs_copied_into_a_watched_folder(deployment: Deployment, tmp_path: Path) -> None:
    waiting = tmp_path / "waiting"
    for number in NUMBERS:
        copy_run(number, tmp_path / "made", waiting)
    corrupt(waiting / CORRUPT)
    config = dg.DagsterInstance.from_config(str(deployment.home))
    with config as instance, deployment.daemon():
        deployment.wait("the first look", lambda: "Sensor ahmed_rans_arrivals" in deployment.log.read_text())
        begun = dt.datetime.now()
        for folder in waiting.iterdir():
            shutil.copytree(folder, deployment.source / folder.name)
        deployment.wait("the report", lambda: materializations(instance, "benchmark_report"))

        expected = {f"run_{number}" for number in NUMBERS}
        assert set(instance.get_dynamic_partitions("ahmed_rans__samples")) == expected
        assert set(instance.get_materialized_partitions(SAMPLES)) == expected - {CORRUPT}
        assert failed_samples(instance) == {CORRUPT}
        # On the hour, what failed is tried again.
        on_the_hour = dt.datetime.now().hour != begun.hour
        assert len(conversion_runs(instance)) <= 2 + on_the_hour
        manifest = load_manifest(str(deployment.store))
        assert (manifest.generation, set(manifest.samples)) == (1, expected - {CORRUPT})
        assert list(manifest.quarantine) == [CORRUPT]
        assert materializations(instance, "statistics") == 1
        before = (deployment.store / "stats.yaml").read_text()
        training = set(manifest.split_ids("train"))
        points = sum(manifest.samples[i].domains["surface"].n_points for i in training)
        assert yaml.safe_load(before)["surface_pressure_count"] == points

        good = resolve_kind("ahmedml").fields["surface_pressure"].filename
        original = SHARED if SHARED.is_dir() else tmp_path / "made"
        shutil.copyfile(original / CORRUPT / good, deployment.source / CORRUPT / good)
        deployment.wait("the repaired run", lambda: materializations(instance, "benchmark_report") > 1)
        assert set(instance.get_materialized_partitions(SAMPLES)) == expected
        assert not failed_samples(instance)
        manifest = load_manifest(str(deployment.store))
        assert (manifest.generation, set(manifest.samples)) == (2, expected)
        assert not manifest.quarantine
        assert (deployment.store / "stats.yaml").read_text() != before
        deployment.wait("the alert", lambda: f"{CORRUPT}: surface_pressure" in deployment.log.read_text())
