"""The list of skipped tests, from which ``make test-extras`` runs them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.helpers.skipped import SkippedTests


class Run(SkippedTests):
    """A run of a file ``test.py`` whose second test may be skipped."""

    def __init__(self, folder: Path) -> None:
        class Config:
            cache = type("Cache", (), {"mkdir": staticmethod(lambda name: folder)})

        super().__init__(Config())  # type: ignore[arg-type]

    def listed(self, is_skipped: bool, *marks: str) -> str:
        """What is in the list after the run."""
        self._report("first", False, marks)
        self._report("second", is_skipped, marks)
        self.pytest_sessionfinish()
        return self._file.read_text()

    def _report(self, test: str, is_skipped: bool, marks: tuple[str, ...]) -> None:
        for when in ["setup", "teardown"] if is_skipped else ["setup", "call", "teardown"]:
            outcome: Any = ("passed", None)
            if is_skipped and when == "setup":
                outcome = ("skipped", ("test.py", 1, "Skipped: slow"))
            place, keywords, phase = ("test.py", 1, test), dict.fromkeys(marks, 1), when
            self.pytest_runtest_logreport(pytest.TestReport(f"test.py::{test}", place, keywords, *outcome, phase))  # type: ignore[arg-type]


def test_a_skipped_test_is_listed_until_it_passes(tmp_path: Path) -> None:
    assert Run(tmp_path).listed(True) == "test.py::second\tslow\n"
    assert Run(tmp_path).listed(False) == ""


def test_one_that_goes_on_from_others_is_listed_as_its_file(tmp_path: Path) -> None:
    assert Run(tmp_path).listed(True, "in_order") == "test.py\tslow\n"
    assert Run(tmp_path).listed(False, "in_order") == ""


def test_a_file_is_listed_until_its_tests_can_be_collected(tmp_path: Path) -> None:
    run = Run(tmp_path)
    run.pytest_collectreport(pytest.CollectReport("test.py", "skipped", ("test.py", 1, "Skipped: no library"), []))  # type: ignore[arg-type]
    run.pytest_sessionfinish()
    assert run._file.read_text() == "test.py\tno library\n"
    assert Run(tmp_path).listed(False) == ""


def test_tests_are_listed_in_the_order_of_their_file(tmp_path: Path) -> None:
    """Tests that share a module's fixture may need it: some end what it started."""
    run = Run(tmp_path)
    for test in ("uses", "ends"):
        run._report(test, True, ())
    run.pytest_sessionfinish()
    assert run._file.read_text() == "test.py::uses\tslow\ntest.py::ends\tslow\n"
    again = Run(tmp_path)
    again._report("uses", True, ())
    again.pytest_sessionfinish()
    assert again._file.read_text() == "test.py::uses\tslow\ntest.py::ends\tslow\n"
