"""The skipped tests and their reasons, in pytest's cache, for ``tests/extras.sh``."""

from __future__ import annotations

import pytest


class SkippedTests:
    """A plugin that updates the list of skipped tests: a test stays in it until it passes.

    The list is ``.pytest_cache/d/skipped/tests.tsv``: in each line a node id and the reason. The id is that of the
    module if all of it was skipped, or if its tests go on from each other (``in_order``): then the skipped ones are the
    last of the file.
    """

    def __init__(self, config: pytest.Config) -> None:
        self._file = config.cache.mkdir("skipped") / "tests.tsv"  # type: ignore[union-attr]
        lines = self._file.read_text().splitlines() if self._file.exists() else []
        self._reasons = dict(line.split("\t", 1) for line in lines)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.skipped:
            self._note(report.nodeid, report)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        module = report.nodeid.partition("::")[0]
        if report.when == "setup":
            self._reasons.pop(module, None)
        if report.passed and report.when == "call":
            self._reasons.pop(report.nodeid, None)
        if report.skipped and not hasattr(report, "wasxfail"):
            self._note(module if "in_order" in report.keywords else report.nodeid, report)

    def _note(self, test: str, report: pytest.CollectReport | pytest.TestReport) -> None:
        assert isinstance(report.longrepr, tuple), report.longrepr
        self._reasons[test] = report.longrepr[2].removeprefix("Skipped: ")

    def pytest_sessionfinish(self) -> None:
        # Tests of a file stay in its order, since some share what the last of them ends.
        lines = sorted(self._reasons.items(), key=lambda line: line[0].partition("::")[0])
        self._file.write_text("".join(f"{test}\t{reason}\n" for test, reason in lines))
