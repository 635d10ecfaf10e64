"""Results of a benchmark: printed as they arrive, and written as JSON for ``benchmarks.report``."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from benchmarks import environment

RESULTS = Path(__file__).parent / "results"
# A cell or a measured value; None where there is nothing to measure.
Value = str | float | int | None


class Result:
    """Tables and targets of one benchmark.

    Args:
        name: of the module that measures, and of the JSON file, with the variant after it.
        title: for the page; the variant follows.
        arguments: with ``output``, ``date`` and ``variant``, as :func:`parse` defines them.
    """

    def __init__(self, name: str, title: str, arguments: argparse.Namespace) -> None:
        stem, command = name, f"python -m benchmarks.{name}"
        if arguments.variant:
            stem, title = f"{name}-{arguments.variant}", f"{title} ({arguments.variant})"
            command += f" --variant {arguments.variant}"
        self._path = Path(arguments.output) / f"{stem}.json"
        self._content: dict[str, Any] = {
            "name": stem,
            "title": title,
            "command": command,
            "conditions": "",
            "environment": environment.describe(),
            "date": arguments.date,
            "tables": [],
            "targets": [],
            "notes": [],
        }
        print(f"{title}\n\n{self._content['environment']}", flush=True)

    def describe(self, conditions: str) -> None:
        """Say what was measured, in a sentence or two."""
        self._content["conditions"] = conditions
        print(conditions, flush=True)

    def add_table(
        self, title: str, columns: Sequence[str], rows: Iterable[Sequence[Value]], chart: str | None = None
    ) -> None:
        """A table whose first column names the rows.

        Args:
            title: above it.
            columns: their headings.
            rows: numbers are rounded where they are shown, not here.
            chart: the column to plot, if any.
        """
        table = {"title": title, "columns": list(columns), "rows": [list(row) for row in rows], "chart": chart}
        self._content["tables"].append(table)
        print(f"\n{title}\n\n{table_markdown(table)}", flush=True)

    def add_target(self, what: str, measured: float | None, relation: str, target: float, unit: str = "") -> None:
        """Add a target.

        Args:
            what: was measured.
            measured: None where it could not be.
            relation: "at most", "at least" or "exactly".
            target: the number to reach.
            unit: of both.
        """
        entry = {"what": what, "measured": measured, "relation": relation, "target": target, "unit": unit}
        self._content["targets"].append(entry)
        print(f"\n{target_text(entry)}" if len(self._content["targets"]) == 1 else target_text(entry), flush=True)

    def add_note(self, text: str) -> None:
        """Add a note on the figures."""
        self._content["notes"].append(text)
        print(f"\n{text}", flush=True)

    def save(self) -> None:
        """Write the JSON."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._path.write_text(json.dumps(self._content, indent=1) + "\n")


def parse(parser: argparse.ArgumentParser, rounds: int | None = None) -> argparse.Namespace:
    """The arguments of the command line: those of ``parser``, and those that every benchmark has.

    Args:
        parser: of the benchmark.
        rounds: default of an option ``--rounds``; no such option if None.
    """
    if rounds is not None:
        parser.add_argument("--rounds", type=int, default=rounds)
    parser.add_argument("--output", default=RESULTS, help="folder of the JSON (default: benchmarks/results)")
    parser.add_argument("--date", help="to be written into the JSON")
    parser.add_argument("--variant", default="", help="what differs from other results, such as zarr-3.4")
    return parser.parse_args()


def is_met(target: dict[str, Any]) -> bool | None:
    """Whether a target was reached; None if it was not measured."""
    if target["measured"] is None:
        return None
    if target["relation"] == "at most":
        return bool(target["measured"] <= target["target"])
    if target["relation"] == "at least":
        return bool(target["measured"] >= target["target"])
    return bool(target["measured"] == target["target"])


def target_text(target: dict[str, Any]) -> str:
    """One line: name, value, and whether the target was reached."""
    verdict = {True: "reached", False: "MISSED", None: "not measured"}[is_met(target)]
    unit = target["unit"]
    measured = "" if target["measured"] is None else f"{shown(target['measured'])}{unit}, "
    return f"{target['what']}: {measured}target {target['relation']} {shown(target['target'])}{unit}: {verdict}"


def table_markdown(table: dict[str, Any]) -> str:
    """A table in Markdown."""
    lines = [table["columns"], ["---"] * len(table["columns"])]
    lines += [[shown(value) for value in row] for row in table["rows"]]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def shown(value: Value) -> str:
    """A value with three digits."""
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    if abs(value) >= 100 or value == int(value):
        return f"{value:,.0f}"
    return f"{value:.3g}"
