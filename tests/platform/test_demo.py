"""What `make demo` runs, into folders of the test's own."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import dagster as dg
import pytest

from definitions import defs
from examples import demo
from tests.platform.trial import PROJECT
from zarr_core.points.store.head import load_manifest


def environment_of(folder: Path, **more: str) -> dict[str, str]:
    """The variables that the demo reads."""
    return {
        "DAGSTER_HOME": str(folder / "home"),
        "AHMED_RANS_STORE": str(folder / "store"),
        "AHMED_RANS_REPORT": str(folder / "report"),
        **more,
    }


def not_passed(instance: dg.DagsterInstance) -> dict[str, str | None]:
    """The checks of the dataset that do not show as passed, and what they say."""
    graph = defs().resolve_asset_graph()
    keys = {key for key in graph.asset_check_keys if key.asset_key.path[0] == demo.DATASET}
    assert keys
    records = instance.event_log_storage.get_latest_asset_check_execution_by_key(sorted(keys, key=str))
    evaluations = {key.name: records[key].evaluation if key in records else None for key in keys}
    return {name: found and found.description for name, found in evaluations.items() if not (found and found.passed)}


@pytest.mark.slow
def test_the_demo(tmp_path: Path) -> None:
    (tmp_path / "home").mkdir()
    shutil.copy(PROJECT / "deploy" / "local" / "dagster.yaml", tmp_path / "home")
    environment = os.environ | environment_of(tmp_path)
    command = [sys.executable, "examples/demo.py"]
    result = subprocess.run(command, cwd=PROJECT, env=environment, capture_output=True, text=True)
    # No warning, and no note of a sample that is missing or left out.
    assert (result.returncode, result.stderr) == (0, "")
    manifest = load_manifest(str(tmp_path / "store"))
    assert sorted(manifest.samples) == ["run_1", "run_10", "run_12", "run_13", "run_4", "run_6"]
    splits = {split: len(manifest.split_ids(split)) for split in manifest.splits}
    assert splits == {"train": 4, "val": 1, "test": 1}
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
        assert not_passed(instance) == {}


def test_a_demo_without_samples_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "home").mkdir()
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(PROJECT)
    monkeypatch.setattr(sys, "path", list(sys.path))
    for name, value in environment_of(tmp_path, AHMED_RANS_SOURCE=str(tmp_path / "empty")).items():
        monkeypatch.setenv(name, value)
    with pytest.raises(SystemExit) as end:
        demo.main()
    # Python prints a text without a traceback, and the exit status is 1.
    assert isinstance(end.value.code, str)
    assert "holds no samples" in end.value.code
