"""Commands whose options come from the function that they call."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from zarr_core._util import command_line as cli


@dataclass(frozen=True)
class Report:
    """What the library returns."""

    names: tuple[str, ...]
    error: float


def measure(
    store: str,
    *,
    names: Sequence[str] | None = None,
    sample_ids: Sequence[str] | None = None,
    repeats: int = 3,
    exact: bool = False,
    hidden: int = 1,
    progress: bool = False,
) -> Report:
    """Measure.

    Args:
        store: the store.
        names: only these names, or those of
            ``sample_ids``.
        sample_ids: only these samples.
        repeats: how often.
        exact: compare bytes.
        hidden: not an option.
        progress: show a progress bar.
    """
    called.append({"sample_ids": sample_ids, "repeats": repeats, "exact": exact, "progress": progress})
    return Report(tuple(names or ()), math.nan)


called: list[dict[str, Any]] = []
app = cli.application("measure", "Measure.", "")


@app.default
@cli.command(measure, without=["hidden"])
def _command(store: cli.Store, **arguments: Any) -> cli.Result:
    report = measure(store, **arguments)
    return cli.Result(f"{len(report.names)} names", report, ["a problem"], ok=not report.names)


def test_options_have_the_names_defaults_and_descriptions_of_arguments(capsys: pytest.CaptureFixture[str]) -> None:
    found = {argument.name: argument for argument in app.assemble_argument_collection()}
    assert [*found] == ["--store", "--names", "--samples", "--repeats", "--exact", "--quiet", "--json"]
    assert found["--names"].parameter.help == "Only these names, or those of --samples."
    assert found["--repeats"].field_info.default == 3


def test_the_function_gets_what_was_given(capsys: pytest.CaptureFixture[str]) -> None:
    called.clear()
    assert cli.run(app, ["S", "--samples", "a", "b", "--exact"]) == cli.DONE
    assert cli.run(app, ["S", "--names", "x", "--repeats", "2", "--quiet"]) == cli.FAILED
    assert called == [
        {"sample_ids": ["a", "b"], "repeats": 3, "exact": True, "progress": True},
        {"sample_ids": None, "repeats": 2, "exact": False, "progress": False},
    ]
    printed = capsys.readouterr()
    assert (printed.out, printed.err) == ("0 names\n", "a problem\n")
    assert cli.run(app, ["S", "--repeats", "0"]) == cli.WRONG_USE


def test_a_report_is_printed_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(app, ["S", "--names", "x", "--json"]) == cli.FAILED
    assert json.loads(capsys.readouterr().out) == {"names": ["x"], "error": None}
