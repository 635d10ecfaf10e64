"""Tables beside the samples: scalars of many samples in one file, one row per sample."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Collection
from typing import Any

from zarr_core._util.documents import number_or_text, parse_json
from zarr_core.errors import SourceError
from zarr_core.sources.description import ReadText, SourceDescription, TableFile
from zarr_core.sources.left_out import some

_Rows = dict[str, list[dict[str, Any]]]


class Tables:
    """The tables that a description names, read at each listing, so that a sample changes with its own row only.

    Args:
        description: of the dataset.
        read_text: returns the content of a file beside the samples, or None if there is no such file.

    Raises:
        SourceError: a table cannot be parsed.
    """

    def __init__(self, description: SourceDescription, read_text: ReadText) -> None:
        self._absent: list[str] = []
        self._rows: list[tuple[str, _Rows]] = []
        self._without_number: dict[str, list[str]] = {}
        for table in description.tables:
            text = read_text(table.file)
            if text is None:
                self._absent.append(table.file)
                continue
            try:
                empty = self._without_number.setdefault(table.file, [])
                self._rows.append((table.file, _by_sample(table, text, empty)))
            except ValueError as error:
                raise SourceError(f"{table.file}: {error}") from error

    def scalars(self, sample_id: str) -> dict[str, Any]:
        """The values of a sample by name."""
        found: dict[str, Any] = {}
        for _, rows in self._rows:
            for row in rows.get(sample_id, []):
                found |= row
        return found

    def problems(self, sample_id: str) -> list[str]:
        """Why a sample cannot be used."""
        found = [
            f"one row of {file}, which has {len(rows[sample_id])} different ones for it"
            for file, rows in self._rows
            if len(rows.get(sample_id, [])) > 1
        ]
        return found or self._contradictions(sample_id)

    def _contradictions(self, sample_id: str) -> list[str]:
        """The values that two tables with one row of the sample give differently."""
        first: dict[str, tuple[str, Any]] = {}
        found = []
        for file, rows in self._rows:
            for name, value in (item for row in rows.get(sample_id, []) for item in row.items()):
                earlier, known = first.setdefault(name, (file, value))
                if value != known:
                    found.append(f"one value of {name!r}, which {earlier} and {file} give differently")
        return found

    def notes(self, sample_ids: Collection[str]) -> list[str]:
        """Sentences that name absent tables, samples without a row, and cells without a number."""
        notes = [f"there is no {file} beside the samples, so they have no scalars from it" for file in self._absent]
        for file, rows in self._rows:
            if absent := [sample_id for sample_id in sample_ids if sample_id not in rows]:
                notes.append(f"samples without a row in {file} ({len(absent)}): {some(absent)}")
            if empty := self._without_number[file]:
                notes.append(f"values of {file} that are not a number were left out ({len(empty)}): {some(empty)}")
        return notes


def rows_of(name: str, text: str) -> list[dict[str, Any]]:
    """The rows of a table by column; those of CSV as text. The keys of a JSON object are the column "".

    Raises:
        ValueError: it cannot be parsed.
    """
    if name.endswith(".json"):
        content = parse_json(text)
        if isinstance(content, dict):
            content = [{"": key, **row} if isinstance(row, dict) else row for key, row in content.items()]
        if not isinstance(content, list) or not all(isinstance(row, dict) for row in content):
            raise ValueError("expected objects in a list, or objects by key")
        rows: list[dict[str, Any]] = content
        return rows
    reader = csv.reader(io.StringIO(text.removeprefix("\ufeff"), newline=""), strict=True)
    try:
        header, *lines = [[cell.strip() for cell in line] for line in reader if line] or [[]]
    except csv.Error as error:
        raise ValueError(f"line {reader.line_num}: {error}") from error
    if len(set(header)) < len(header):
        raise ValueError("has two columns with the same name")
    for number, line in enumerate(lines, 1):
        if len(line) != len(header):
            raise ValueError(f"has {len(header)} columns in its header and {len(line)} in row {number}")
    return [dict(zip(header, line, strict=True)) for line in lines]


def _by_sample(table: TableFile, text: str, without_number: list[str]) -> _Rows:
    """The different rows of each sample, without the key and without empty cells.

    Cells that contain "nan" count as empty; which ones do is appended to ``without_number``.
    """
    found: _Rows = {}
    for row in rows_of(table.file, text):
        if table.key not in row:
            columns = ", ".join(map(repr, row))
            raise ValueError(f"has no column {table.key!r}; it has {columns:.500}")
        values = {name: value for name, value in row.items() if name not in ("", table.key) and value != ""}
        if not table.file.endswith(".json"):
            values = {name: number_or_text(value) for name, value in values.items()}
        sample_id = table.sample_id.format(row[table.key])
        empty = [name for name, value in values.items() if isinstance(value, float) and math.isnan(value)]
        without_number += [f"{name} of {sample_id}" for name in empty]
        values = {name: value for name, value in values.items() if name not in empty}
        rows = found.setdefault(sample_id, [])
        if values not in rows:
            rows.append(values)
    return found
