"""Every command that may take long shows a bar with the time left on stderr, and none with ``--quiet``."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from tests.helpers.small_source import write_source
from zarr_core.__main__ import main
from zarr_core.convert import convert
from zarr_core.matrix import WideMatrix

#: A bar at its end: done, total, time taken and time left, as in "3/3 [00:01<00:00".
BAR = re.compile(r"(\d+)/\1 \[\d\d:\d\d<00:00")
LINES = [
    "convert new --source source --dataset-kind ahmedml",
    "statistics store",
    "verify store",
    "verify store --source source",
    "verify matrix",
    "stage store copy",
    "stage matrix copied_matrix",
    "gc store --grace 0m",
    "export webdataset store tars",
    "export npy matrix npy",
    "matrix matrix --derive-columns",
    "matrix reindex matrix other",
]


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a store that has garbage, its source, and a matrix whose column-major copy lacks a batch."""
    monkeypatch.chdir(tmp_path)
    write_source(Path("source"))
    for chunk_points in (32, 64):
        convert("ahmedml", "store", source_url="source", chunk_points=chunk_points, reconvert=chunk_points == 64)
    matrix = WideMatrix.create("matrix", ["a", "b"], {"beta": "float32", "coverage": "float32"})
    for number in range(2):
        values = np.full((2, 2), 0.5, np.float32)
        names = [f"s{number}_1", f"s{number}_2"]
        matrix.append(f"batch_{number}", names, {"beta": values, "coverage": values})
        if number == 0:
            matrix.derive_columns()
    return tmp_path


@pytest.mark.slow
@pytest.mark.usefixtures("place")
@pytest.mark.parametrize("line", LINES)
def test_a_long_command_shows_a_bar_with_the_time_left(line: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(line.split()) == 0
    assert BAR.search(capsys.readouterr().err)


@pytest.mark.slow
@pytest.mark.usefixtures("place")
@pytest.mark.parametrize("line", LINES)
def test_no_bar_is_shown_with_quiet(line: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*line.split(), "--quiet"]) == 0
    assert "%|" not in capsys.readouterr().err


@pytest.mark.usefixtures("place")
def test_a_quality_report_shows_a_bar(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib", reason="the extra report is not installed")
    assert main(["quality", "matrix", "--output", "report"]) == 0
    assert BAR.search(capsys.readouterr().err)
