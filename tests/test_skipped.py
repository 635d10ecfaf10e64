"""The list of skipped tests, from which ``make test-extras`` runs them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.skipped import SkippedTests


class Recorder(SkippedTests):
    """Gets the outcomes of tests instead of reports."""

    def ran(self, test: str, is_skipped: bool, *marks: str) -> None:
        """A test of a file ``test.py``."""
        phases = ["setup", "teardown"] if is_skipped else ["setup", "call", "teardown"]
        for when in phases:
            skipped = is_skipped and when == "setup"
            reason: Any = ("test.py", 1, "Skipped: slow") if skipped else None
            outcome: Any = "skipped" if skipped else "passed"
            place, keywords = ("test.py", 1, test), dict.fromkeys(marks, 1)
            self.pytest_runtest_logreport(pytest.TestReport(f"test.py::{test}", place, keywords, outcome, reason, when))  # type: ignore[arg-type]


@pytest.fixture
def listed(tmp_path: Path) -> Callable[..., str]:
    """A function that runs the first and the second test, of which the second may be skipped, and returns the list."""

    class Config:
        cache = type("Cache", (), {"mkdir": staticmethod(lambda name: tmp_path)})

    def run(is_skipped: bool, *marks: str) -> str:
        plugin = Recorder(Config())  # type: ignore[arg-type]
        plugin.ran("first", False, *marks)
        plugin.ran("second", is_skipped, *marks)
        plugin.pytest_sessionfinish()
        return (tmp_path / "tests.tsv").read_text()

    return run


def test_a_skipped_test_is_listed_until_it_passes(listed: Callable[..., str]) -> None:
    assert listed(True) == "test.py::second\tslow\n"
    assert listed(False) == ""


def test_one_that_goes_on_from_others_is_listed_as_its_file(listed: Callable[..., str]) -> None:
    assert listed(True, "in_order") == "test.py\tslow\n"
    assert listed(False, "in_order") == ""
