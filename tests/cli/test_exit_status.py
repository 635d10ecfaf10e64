"""Exit status of the verbs: 0 everything is there, 1 something was refused or failed, 2 wrong use."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from tests.helpers.small_source import KIND, write_source
from zarr_core import __main__ as command


@pytest.fixture
def line(tmp_path: Path) -> list[str]:
    source = write_source(tmp_path / "source", ("run_1", "run_2"))
    return ["convert", str(tmp_path / "store"), "--source", str(source), "--dataset-kind", KIND]


def test_a_refused_sample_fails_every_time(tmp_path: Path, line: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """Until it is repaired: the first conversion, which converts others, and those after it."""
    path = tmp_path / "source" / "run_2" / "surface_pressure.pt"
    values = torch.load(path, weights_only=True)
    torch.save(values * torch.nan, path)
    for _ in range(2):
        assert command.main(line) == 1
        assert "quarantined: run_2: surface_pressure: " in capsys.readouterr().out
    torch.save(values, path)
    assert command.main(line) == 0
    assert command.main(line) == 0


def test_no_store_is_created_without_a_sample(
    tmp_path: Path, line: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    for number in (1, 2):
        torch.save(torch.zeros(3), tmp_path / "source" / f"run_{number}" / "surface_pressure.pt")
    for _ in range(2):
        assert command.main(line) == 1
        assert "nothing was committed, because no sample was converted" in capsys.readouterr().out
        assert not list((tmp_path / "store").rglob("*"))


def test_what_is_left_out_is_printed_once(tmp_path: Path, line: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "source" / "run_2").rename(tmp_path / "source" / "run 2")
    for options, on_stderr in (([], False), (["--quiet"], True)):
        assert command.main([*line, *options]) == 0
        printed = capsys.readouterr()
        assert (printed.out.count("'run 2'"), printed.err.count("'run 2'")) == (not on_stderr, on_stderr)
    assert command.main([*line, "--json"]) == 0
    assert "'run 2'" in json.loads(capsys.readouterr().out)["notes"][0]


def test_quiet_names_what_was_refused(tmp_path: Path, line: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    torch.save(torch.zeros(3), tmp_path / "source" / "run_2" / "surface_pressure.pt")
    assert command.main([*line, "--quiet"]) == 1
    printed = capsys.readouterr()
    assert printed.out == ""
    assert "quarantined: run_2: surface_pressure: " in printed.err


def test_a_limit_leaves_the_rest_for_later(line: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main([*line, "--limit", "1"]) == 0
    assert "still to be converted, because of --limit: 1" in capsys.readouterr().out
    assert command.main([*line, "--limit", "1", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["converted"], document["remaining"]) == (["run_2"], 0)


@pytest.mark.parametrize(
    "wrong",
    [
        "convert S --source P --dataset-kind ahmedml --limit 0",
        "convert S --source P --dataset-kind ahmedml --limit -1",
        "convert S --source P --dataset-kind ahmedml --workers 0",
        "convert S --source P --dataset-kind ahmedml --chunk-points 0",
        "convert S --source P --dataset-kind ahmedml --field-dtype volume_vorticity",
        "convert S --source P --dataset-kind ahmedml --codec moon",
        "convert S --source P --dataset-kind ahmedml --fingerprint moon",
        "convert S --dataset-kind ahmedml",
        "log S --limit -1",
        "statistics S --read-concurrency 0",
        "verify S --workers 0",
        "stage S --source P --workers -1",
        "stage S",
        "benchmark S --source P --repeats 0",
        "tag S --delete",
    ],
)
def test_wrong_use(wrong: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(wrong.split()) == 2
    assert "(--help shows the usage)" in capsys.readouterr().err


@pytest.mark.parametrize("verb", ["statistics", "verify", "info", "log", "gc", "tag", "matrix"])
def test_a_store_that_is_not_there(verb: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main([verb, str(tmp_path / "nothing")]) == 1
    assert capsys.readouterr().err.startswith("error: ")
