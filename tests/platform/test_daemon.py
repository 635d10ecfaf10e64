"""The platform as it runs: a daemon on an instance of its own, and a folder that runs are copied into."""

from __future__ import annotations

import datetime as dt
import shutil
from pathlib import Path

import dagster as dg
import pytest
import yaml

from tests.platform.deployment import Deployment, failed_partitions, materializations, runs_of
from tests.platform.trial import PROJECT, corrupt, write_run
from zarr_core.points.manifest import load_manifest
from zarr_core.sources import resolve_kind

SHARED = PROJECT.parent / "shared" / "data" / "ahmed_rans"
NUMBERS = range(1, 11)
CORRUPT = "run_3"
SAMPLES = dg.AssetKey(["ahmed_rans", "zarr_samples"])
STATISTICS = dg.AssetKey(["ahmed_rans", "statistics"])
REPORT = dg.AssetKey(["ahmed_rans", "benchmark_report"])


@pytest.fixture
def deployment(tmp_path: Path) -> Deployment:
    return Deployment(tmp_path)


def copy_run(number: int, elsewhere: Path, target: Path) -> None:
    """One of the simulated runs where they are at hand, else one made up."""
    original = SHARED / f"run_{number}"
    if not original.is_dir():
        original = write_run(elsewhere, number, points=3000)
    shutil.copytree(original, target / original.name, copy_function=shutil.copyfile)


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
        deployment.wait("the report", lambda: materializations(instance, REPORT))

        expected = {f"run_{number}" for number in NUMBERS}
        assert set(instance.get_dynamic_partitions("ahmed_rans__samples")) == expected
        assert set(instance.get_materialized_partitions(SAMPLES)) == expected - {CORRUPT}
        assert failed_partitions(instance, SAMPLES) == {CORRUPT}
        # On the hour, what failed is tried again.
        on_the_hour = dt.datetime.now().hour != begun.hour
        assert len(runs_of(instance, SAMPLES)) <= 2 + on_the_hour
        manifest = load_manifest(str(deployment.store))
        assert (manifest.generation, set(manifest.samples)) == (1, expected - {CORRUPT})
        assert list(manifest.quarantine) == [CORRUPT]
        assert materializations(instance, STATISTICS) == 1
        before = (deployment.store / "stats.yaml").read_text()
        training = set(manifest.split_ids("train"))
        points = sum(manifest.samples[i].domains["surface"].n_points for i in training)
        assert yaml.safe_load(before)["surface_pressure_count"] == points

        good = resolve_kind("ahmedml").fields["surface_pressure"].filename
        original = SHARED if SHARED.is_dir() else tmp_path / "made"
        shutil.copyfile(original / CORRUPT / good, deployment.source / CORRUPT / good)
        deployment.wait("the repaired run", lambda: materializations(instance, REPORT) > 1)
        assert set(instance.get_materialized_partitions(SAMPLES)) == expected
        assert not failed_partitions(instance, SAMPLES)
        manifest = load_manifest(str(deployment.store))
        assert (manifest.generation, set(manifest.samples)) == (2, expected)
        assert not manifest.quarantine
        assert (deployment.store / "stats.yaml").read_text() != before
        deployment.wait("the alert", lambda: f"{CORRUPT}: surface_pressure" in deployment.log.read_text())
