"""What `make demo` runs, into folders of the test's own."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import dagster as dg

from tests.platform.trial import PROJECT
from zarr_core.points.store.head import load_manifest


def run_demo(folder: Path, **more: str) -> subprocess.CompletedProcess[str]:
    environment = {
        **os.environ,
        "DAGSTER_HOME": str(folder / "home"),
        "AHMED_RANS_STORE": str(folder / "store"),
        "AHMED_RANS_REPORT": str(folder / "report"),
        **more,
    }
    return subprocess.run(
        [sys.executable, "examples/demo.py"], cwd=PROJECT, env=environment, capture_output=True, text=True
    )


def test_the_demo(tmp_path: Path) -> None:
    (tmp_path / "home").mkdir()
    shutil.copy(PROJECT / "deploy" / "local" / "dagster.yaml", tmp_path / "home")
    result = run_demo(tmp_path)
    assert result.returncode == 0, result.stderr
    manifest = load_manifest(str(tmp_path / "store"))
    assert sorted(manifest.samples) == ["run_1", "run_10", "run_12", "run_13", "run_4", "run_6"]
    assert manifest.split_ids("train")
    assert manifest.split_ids("test")
    for path in (tmp_path / "store" / "stats.yaml", tmp_path / "report" / "report.html"):
        assert path.is_file()
        assert str(path) in result.stdout
    # Three lines that read a batch, and what they gave.
    assert "surface_pressure (4, 2048)" in result.stdout
    assert "http://127.0.0.1:3000" in result.stdout

    with dg.DagsterInstance.from_config(str(tmp_path / "home")) as instance:
        runs = instance.get_runs()
        assert sorted(run.job_name for run in runs) == ["ahmed_rans_convert", "ahmed_rans_look", "ahmed_rans_refresh"]
        assert {run.status for run in runs} == {dg.DagsterRunStatus.SUCCESS}


def test_a_demo_without_samples_says_so(tmp_path: Path) -> None:
    (tmp_path / "home").mkdir()
    (tmp_path / "empty").mkdir()
    result = run_demo(tmp_path, AHMED_RANS_SOURCE=str(tmp_path / "empty"))
    assert result.returncode == 1
    assert "holds no samples" in result.stderr
    assert "Traceback" not in result.stderr
