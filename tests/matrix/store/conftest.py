"""Fixtures of the tests of what a matrix stores."""

from __future__ import annotations

from typing import Any

import pyarrow.csv
import pyarrow.parquet
import pytest


@pytest.fixture
def given_to_pyarrow(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The files that functions of pyarrow have read, which must be in its own memory.

    A thread of pyarrow that still reads an object of Python when the process ends aborts it.
    """
    given: list[Any] = []

    def recorded(read: Any) -> Any:
        def reading(file: Any, *arguments: Any, **options: Any) -> Any:
            given.append(file)
            return read(file, *arguments, **options)

        return reading

    monkeypatch.setattr(pyarrow.csv, "read_csv", recorded(pyarrow.csv.read_csv))
    monkeypatch.setattr(pyarrow.parquet, "read_table", recorded(pyarrow.parquet.read_table))
    return given
