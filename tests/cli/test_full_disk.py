"""Verbs on a full disk: one line names the file, nothing is lost, and a later run completes the work."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from tests.helpers.faults import full_disk
from tests.helpers.small_source import KIND, write_source
from tests.helpers.stores import objects
from zarr_core import __main__ as command
from zarr_core.points.store.head import load_manifest


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A source of two samples, and a store of the first."""
    root = tmp_path_factory.mktemp("full")
    write_source(root / "source", ("run_1", "run_2"))
    line = f"convert {root}/store --source {root}/source --dataset-kind {KIND} --samples run_1 --quiet"
    assert command.main(line.split()) == 0
    return root


@pytest.mark.parametrize(
    ("line", "full"),
    [
        ("convert {root}/store --source {root}/source --dataset-kind ahmedml", "/.manifest.json"),
        ("statistics {root}/store", "/.all.yaml"),
        ("tag {root}/store paper", "/.manifest.json"),
        ("stage {root}/store {root}/copy", "/.manifest.json"),
        ("stage {root}/store {root}/copy", "/c/0/"),
    ],
)
def test_nothing_is_lost(made: Path, tmp_path: Path, line: str, full: str, capsys: pytest.CaptureFixture[str]) -> None:
    root = shutil.copytree(made, tmp_path / "root")
    before = objects(root / "store")
    with full_disk(full):
        assert command.main([*line.format(root=root).split(), "--quiet"]) == 1
    printed = capsys.readouterr()
    assert re.search(rf"{root}.*No space left|No space left.*{root}", printed.err + printed.out), printed
    assert "Traceback" not in printed.err
    assert objects(root / "store").items() >= before.items()
    assert sorted(load_manifest(root / "store").samples) == ["run_1"]
    assert not list(root.rglob("*.tmp"))
    assert command.main([*line.format(root=root).split(), "--quiet"]) == 0
