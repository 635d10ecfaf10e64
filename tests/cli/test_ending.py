"""Commands that are told to end, that lose their standard error, and in environments that they refuse."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.helpers.small_source import write_source
from zarr_core import ZarrChunkReader
from zarr_core.__main__ import main
from zarr_core._util import ending
from zarr_core.points.convert import conversion
from zarr_core.points.convert.sample import ConversionResult

CONVERT = ["convert", "store", "--source", "source", "--dataset-kind", "ahmedml", "--chunk-points", "32"]
PROGRAM = [sys.executable, "-m", "zarr_core"]


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    write_source(tmp_path / "source")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM", "SIGHUP"])
def test_a_conversion_that_is_told_to_end_keeps_what_is_finished(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    number_of = getattr(signal, name)
    # Those of a new process; a worker of pytest-xdist has others.
    handler = signal.default_int_handler if name == "SIGINT" else signal.SIG_DFL
    before = signal.signal(number_of, handler)
    convert = conversion._with_progress

    def told(results: Iterator[ConversionResult], total: int) -> Iterator[ConversionResult]:
        for number, result in enumerate(convert(results, total)):
            if number == 1:
                os.kill(os.getpid(), number_of)
            yield result

    monkeypatch.setattr(conversion, "_with_progress", told)
    try:
        assert main(CONVERT) == 130
        assert signal.getsignal(number_of) == handler
    finally:
        signal.signal(number_of, before)
    assert capsys.readouterr().err.endswith("interrupted; what was finished is kept\n")
    assert len(ZarrChunkReader("store").sample_ids) == 1


def test_a_signal_that_the_parent_ignores_is_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    handler = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with ending.interrupted_by_signals():
            os.kill(os.getpid(), signal.SIGHUP)
    finally:
        signal.signal(signal.SIGHUP, handler)


@pytest.mark.slow
@pytest.mark.parametrize("stderr", ["2>&-", "2>/dev/full", "2> >(:)"])
def test_a_conversion_goes_on_without_standard_error(stderr: str, place: Path) -> None:
    if "/dev/full" in stderr and not os.path.exists("/dev/full"):
        pytest.skip("the system has no /dev/full")
    run = subprocess.run(
        ["bash", "-c", f'"$@" {stderr}', "bash", *PROGRAM, *CONVERT], stdout=subprocess.PIPE, text=True
    )
    assert run.returncode == 0
    assert "store: store, generation 1" in run.stdout


@pytest.mark.slow
def test_commands_run_without_docstrings() -> None:
    for arguments in (CONVERT, ["verify", "store", "--quiet"], ["convert", "--help"]):
        subprocess.run([sys.executable, "-OO", "-m", "zarr_core", *arguments], check=True, capture_output=True)


def test_names_of_files_must_be_utf8() -> None:
    environment = os.environ | {"LC_ALL": "POSIX", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    run = subprocess.run([*PROGRAM, *CONVERT], env=environment, capture_output=True, text=True)
    assert run.returncode == 2
    assert "names of files are UTF-8, and this process reads them as ascii: set PYTHONUTF8=1" in run.stderr
    assert not Path("store").exists()
