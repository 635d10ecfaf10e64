"""Scalars and short lists of samples: in a file of each sample, and in tables beside the samples, one row for each."""

from __future__ import annotations

import csv
import io
import json
import math
import sys
from collections.abc import Collection
from itertools import chain
from typing import Any

import numpy as np

from zarr_core._util.documents import number_or_text, parse_json, parse_table, refuse_semicolons
from zarr_core._util.plain_arrays import plain_array
from zarr_core._util.redaction import redact
from zarr_core.errors import SourceError
from zarr_core.format.names import MAX_NAME
from zarr_core.sources.description import ReadText, SourceDescription, TableFile
from zarr_core.sources.left_out import counted, some
from zarr_core.sources.limits import MAX_PARAMETER_NUMBERS

_Rows = dict[str, list[dict[str, Any]]]


class Tables:
    """The tables that a description names, read at each listing, so that a sample changes with its own row only.

    Raises SourceError if one cannot be parsed.
    """

    def __init__(self, description: SourceDescription, read_text: ReadText) -> None:
        self._absent: list[str] = []
        self._rows: list[tuple[str, _Rows]] = []
        self._left_out: dict[str, list[str]] = {}
        for table in description.tables:
            text = read_text(table.file)
            if text is None:
                self._absent.append(table.file)
                continue
            try:
                self._rows.append((table.file, _by_sample(table, text, self._left_out)))
            except ValueError as error:
                raise SourceError(f"{table.file}: {error}") from error

    def find(self, sample_id: str) -> tuple[dict[str, Any], list[str]]:
        """The values of a sample by name, and why it cannot be used.

        It cannot if one table has several rows of it, or two tables contradict each other.
        """
        values: dict[str, Any] = {}
        several: list[str] = []
        contradictions: list[str] = []
        first: dict[str, tuple[str, Any]] = {}
        for file, by_sample in self._rows:
            rows = by_sample.get(sample_id, [])
            if len(rows) > 1:
                several.append(f"one row of {file}, which has {len(rows)} different ones for it")
            for row in rows:
                for name, value in row.items():
                    values[name] = value
                    earlier, known = first.setdefault(name, (file, value))
                    if value != known:
                        contradictions.append(f"one value of {name!r}, which {earlier} and {file} give differently")
        return values, several or contradictions

    def notes(self, sample_ids: Collection[str]) -> list[str]:
        """Sentences that name absent tables, samples without a row, and cells without a number or a name."""
        notes = [f"there is no {file} beside the samples, so they have no scalars from it" for file in self._absent]
        for file, rows in self._rows:
            without = [name for name in sample_ids if name not in rows]
            notes += counted(f"samples without a row in {file}", without)
            if rows and len(without) == len(sample_ids):
                notes.append(f"no row of {file} is of a sample, they are of {some(rows)}: see `sample_id` of the table")
            gaps = self._gaps(rows, sample_ids)
            notes += counted(f"values of {file} that are absent or text, where other samples have numbers", gaps)
        for reason, values in self._left_out.items():
            notes += counted(f"{reason} were left out", values)
        return notes

    def _gaps(self, by_sample: _Rows, sample_ids: Collection[str]) -> list[str]:
        """Names the values of samples that are absent or text although other samples have numbers of that name."""
        numbers: dict[str, None] = {}
        own: dict[str, dict[str, Any]] = {}
        for sample_id in sample_ids:
            for row in by_sample.get(sample_id, []):
                own[sample_id] = row
                numbers |= dict.fromkeys(name for name, value in row.items() if not isinstance(value, str | None))
        known = set(chain.from_iterable(self._left_out.values()))
        gaps = []
        for sample_id, row in own.items():
            for name in numbers:
                gap = f"{name} of {sample_id}"
                if gap not in known and isinstance(row.get(name), str | None):
                    gaps.append(f"{gap} is {row[name]!r}" if name in row else gap)
        return gaps


def parse_scalars(name: str, data: bytes) -> Any:
    """The content of a file with the scalars of one sample; raises ValueError if it cannot be parsed."""
    if name.endswith((".yaml", ".yml", ".toml")):  # their lines could pass for a header and a row
        raise ValueError("is neither JSON nor a table; write its values as a .json file")
    try:
        return _parse(data) if name.endswith(".json") else parse_table(data, latest=name.endswith(".dat"))
    except UnicodeDecodeError as error:
        raise ValueError("is not text in UTF-8; write its scalars as a .json file, and name that") from error


def _parse(text: bytes | str) -> Any:
    """The value of a JSON document; raises ValueError."""
    value = parse_json(text)
    json.loads(text, object_pairs_hook=_of_one_value)  # of a key that occurs twice, parse_json keeps the last value
    return value


def _of_one_value(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object; raises ValueError if a key has two values."""
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found and found[key] != value:
            raise ValueError(f"has different values of {key!r:.80} in one object")
        found[key] = value
    return found


def scalars(data: Any, where: str) -> dict[str, Any]:
    """A flat dict of plain numbers, strings and lists of numbers from a dict of values of Python, NumPy or PyTorch.

    Raises:
        ValueError: ``data`` is not a dict, or an entry is neither a scalar nor a small array of one axis, is not finite
            or has no usable name.
    """
    if not isinstance(data, dict):
        raise ValueError(f"{where} contains a {type(data).__name__}; expected a dict of scalars")
    plain = {}
    for key, value in data.items():
        name = str(key)
        # They become part of manifests, logs and databases.
        if not 0 < len(name) <= MAX_NAME or not name.isprintable():
            raise ValueError(f"{where}: the name {name!r:.80} must consist of 1 to {MAX_NAME} printable characters")
        if redact(name) != name:
            raise ValueError(f"{where}: the name of a value contains a password, key, token or signature")
        try:
            plain[name] = _plain(value)
        except ValueError as error:
            raise ValueError(f"{where}: {key!r} {error}") from error
    return plain


def _plain(value: Any) -> Any:
    """A scalar, or the list of the numbers of a small array; raises ValueError for anything else."""
    torch = sys.modules.get("torch")  # whoever has a tensor has imported it
    is_tensor = torch is not None and isinstance(value, torch.Tensor)
    is_scalar = isinstance(value, np.generic) or (isinstance(value, np.ndarray) and value.ndim == 0)
    if is_scalar or (is_tensor and value.numel() == 1):
        value = value.item()
    elif is_tensor or isinstance(value, np.ndarray | list | tuple):
        array = plain_array(value)
        if array.ndim != 1 or not 0 < len(array) <= MAX_PARAMETER_NUMBERS:
            raise ValueError(
                f"has the shape {array.shape}; expected a scalar, or a list of 1 to {MAX_PARAMETER_NUMBERS:,} numbers"
            )
        value = array.tolist()
    if not isinstance(value, int | float | str | bool | list | None):
        raise ValueError("is neither a scalar nor a list of numbers")
    for number in value if isinstance(value, list) else [value]:
        if isinstance(number, float) and not math.isfinite(number):
            raise ValueError(f"is {number}, which JSON cannot represent; leave it out, or correct it")
        if isinstance(number, int) and abs(number) > sys.float_info.max:
            raise ValueError("is too large for a floating-point number")
    return value


def contains_nan(value: Any) -> bool:
    """Whether a value of a table, or one in a list, is not a number."""
    numbers = value if isinstance(value, list) else [value]
    return any(isinstance(number, float) and math.isnan(number) for number in numbers)


def rows_of(name: str, text: str) -> list[dict[str, Any]]:
    """The rows of a table by column; those of CSV as text. The keys of a JSON object are the column "".

    Raises:
        ValueError: it cannot be parsed.
    """
    return _json_rows(text) if name.endswith(".json") else _csv_rows(text)


def _json_rows(text: str) -> list[dict[str, Any]]:
    content = _parse(text)
    rows = list(content.values()) if isinstance(content, dict) else content
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise ValueError("expected objects in a list, or objects by key")
    if isinstance(content, dict):
        return [{"": key, **row} for key, row in content.items()]
    return rows


def _csv_rows(text: str) -> list[dict[str, Any]]:
    reader = csv.reader(io.StringIO(text.removeprefix("\ufeff"), newline=""), skipinitialspace=True, strict=True)
    try:
        lines = [list(map(str.strip, line)) for line in reader if line]
    except csv.Error as error:
        raise ValueError(f"line {reader.line_num}: {error}") from error
    header = lines.pop(0) if lines else []
    refuse_semicolons(",".join(header))
    if len(set(header)) < len(header):
        raise ValueError("has two columns with the same name")
    for number, line in enumerate(lines, 1):
        if len(line) != len(header):
            raise ValueError(f"has {len(header)} columns in its header and {len(line)} in row {number}")
    return [dict(zip(header, line, strict=True)) for line in lines]


def _by_sample(table: TableFile, text: str, left_out: dict[str, list[str]]) -> _Rows:
    """The different rows of each sample, without the key and without empty cells.

    Cells that contain "nan" or have no name of a column count as empty; ``left_out`` gets them by reason.
    """
    found: _Rows = {}
    is_json = table.file.endswith(".json")
    for row in rows_of(table.file, text):
        if table.key not in row:
            columns = ", ".join(map(repr, row))
            raise ValueError(f"has no column {table.key!r}; it has {columns:.500}")
        sample_id = table.sample_id.format(row[table.key])
        values: dict[str, Any] = {}
        for name, value in row.items():
            if name == table.key or value == "" or (is_json and not name):
                continue
            if not is_json:
                value = number_or_text(value)
            if not name:
                reason = f"values of {table.file} whose column has no name"
                left_out.setdefault(reason, []).append(f"{value} of {sample_id}")
            elif contains_nan(value):
                reason = f"values of {table.file} that are not a number"
                left_out.setdefault(reason, []).append(f"{name} of {sample_id}")
            else:
                values[name] = value
        rows = found.setdefault(sample_id, [])
        if values not in rows:
            rows.append(values)
    return found
