"""Errors of common mistakes end with what to do; the commands that they name run."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.helpers.small_source import write_source
from zarr_core.__main__ import main
from zarr_core.convert import convert

#: A command line, and what its error says. FOLDER stands for the folder of the samples.
MISTAKES = {
    "info nowhere": "is it the root of a store?",
    "statistics nowhere": "is it the root of a store?",
    "matrix nowhere": "is it the root of a store?",
    "info store --generation 9": "`zarr-core log {place}/store` lists them",
    "first-step store --domain wake": "store holds no samples with domain wake; its domains are surface, volume",
    "info store run_9": "the first that it holds are run_1, run_2",
    "verify store --samples run_9": "the first that it holds are run_1, run_2",
    "verify store --source nowhere": "nowhere is not a folder; name the one that holds the samples now",
    "convert new --source source --dataset-kind ahmed": "`zarr-core inspect FOLDER` says what a folder could be",
    "convert new --source source --dataset-kind new.yaml": "`zarr-core inspect FOLDER --write new.yaml` describes",
    "convert new --source source --dataset-kind drivaernet": "`zarr-core inspect {place}/source` says what it could be",
}


@pytest.mark.parametrize("line", MISTAKES)
def test_an_error_says_what_to_do(
    line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    write_source(tmp_path / "source")
    convert("ahmedml", "store", source_url="source", sample_ids=["run_1", "run_2"])
    assert main(line.split()) == 1
    (error,) = capsys.readouterr().err.splitlines()
    assert MISTAKES[line].format(place=tmp_path) in error
    for named in re.findall("`zarr-core (.*?)`", error):
        assert main(named.replace("FOLDER", "source").split()) == 0, named
