"""CSV files of points: a header with the names of the columns, and one row per point, from a stream."""

from __future__ import annotations

import csv
import io
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import chain
from typing import IO

import numpy as np

from zarr_core._util.documents import number_or_text, refuse_semicolons
from zarr_core.sources.arrays import ArrayChoice
from zarr_core.sources.formats.arrays import ArrayFile, damaged
from zarr_core.sources.formats.contents import Contents, FoundArray
from zarr_core.sources.formats.files import SourceFile
from zarr_core.sources.left_out import note, some

# Characters of a line that are read at once: a file without line breaks would fill the memory.
_MAX_LINE = 2**20


class CsvFile(ArrayFile):
    """A CSV file; the name of an array is that of its column, and its values are float64.

    The columns of all ``choices`` are read together, once, and kept for the fields that follow.
    """

    def __init__(self, file: SourceFile, choices: Collection[ArrayChoice]) -> None:
        super().__init__(file)
        self._wanted = list(dict.fromkeys(chain.from_iterable(choice.arrays for choice in choices)))
        self._columns: dict[str, np.ndarray] = {}

    def contents(self) -> Contents:
        """The columns whose first row has a number. Their rows are not counted."""
        with self._file.stream() as opened, damaged("truncated or damaged"), _text(opened) as text:
            names = _header(text)
            cells = _cells(_first(iter(_Rows(text, len(names)))), "row 1")
        arrays, others = [], []
        for name, cell in zip(names, cells, strict=True):
            if not name or names.count(name) > 1 or _is_text(cell):
                others.append(repr(name))
            else:
                arrays.append(FoundArray(name, "", 1, None))
        if others:
            note(
                "columns without a name of their own, or without a number in the first row, were left out", some(others)
            )
        return Contents(tuple(arrays))

    def _arrays(self, names: Sequence[str]) -> list[np.ndarray]:
        if not self._columns.keys() >= set(names):
            wanted = list(dict.fromkeys([*self._wanted, *names]))
            with self._file.stream() as opened, damaged("truncated or damaged"), _text(opened) as text:
                values = _read_columns(text, wanted)
            self._columns = dict(zip(wanted, values.T, strict=True))
        return [self._columns[name].copy() for name in names]


def open_file(file: SourceFile, choices: Collection[ArrayChoice]) -> CsvFile:
    """Open the file; the columns of the choices are read with the first field."""
    return CsvFile(file, choices)


class _Rows:
    """The lines below a header of ``columns`` names, without empty ones; raises ValueError for other numbers of cells.

    Attributes:
        line: that was read last.
        number: of that line, from 1.
    """

    def __init__(self, text: IO[str], columns: int) -> None:
        self._text, self._columns = text, columns
        self.line, self.number = "", 0

    def __iter__(self) -> Iterator[str]:
        for line in iter(partial(self._text.readline, _MAX_LINE), ""):
            if line.isspace():
                continue
            self.line, self.number = line, self.number + 1
            # NumPy ignores what follows the last column that it needs, and joins lines until a quote is closed.
            if '"' in line or line.count(",") != self._columns - 1:
                found = len(_cells(line, f"row {self.number}"))
                if found != self._columns:
                    raise ValueError(f"has {self._columns} columns in its header and {found} in row {self.number}")
            yield line


@contextmanager
def _text(opened: IO[bytes]) -> Iterator[IO[str]]:
    """The stream as text, without a byte order mark; raises ValueError for what is not UTF-8."""
    try:
        yield io.TextIOWrapper(opened, "utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError("is not text in UTF-8; write it in UTF-8") from error


def _cells(line: str, where: str, skip_blanks: bool = False) -> list[str]:
    """The cells of a line; raises ValueError, which says where it is."""
    try:
        return [cell.strip() for cell in next(csv.reader([line], skipinitialspace=skip_blanks, strict=True))]
    except csv.Error as error:
        raise ValueError(f"{where}: {error}") from error


def _is_text(cell: str) -> bool:
    return isinstance(number_or_text(cell), str)


def _header(text: IO[str]) -> list[str]:
    """The names of the columns, without the ``#`` that NumPy puts before them; raises ValueError."""
    lines = iter(partial(text.readline, _MAX_LINE), "")
    line = next((line for line in lines if not line.isspace()), "").removeprefix("#")
    if not line:
        raise ValueError("is empty; expected a line with the names of its columns, and a row per point")
    refuse_semicolons(line)
    if "\t" in line and "," not in line:
        raise ValueError("has tabs between its columns; write commas between them")
    names = _cells(line, "header", skip_blanks=True)  # a quote may follow the blank behind a comma
    if not any(map(_is_text, names)):
        raise ValueError(
            f"has numbers in the place of its header ({names[0]:.80}); put a line with the names of the columns before "
            "its rows"
        )
    return names


def _first(rows: Iterator[str]) -> str:
    line = next(rows, None)
    if line is None:
        raise ValueError("has no rows below its header")
    return line


def _read_columns(text: IO[str], wanted: Sequence[str]) -> np.ndarray:
    """The columns of these names as (rows, columns), float64; raises ValueError, which names the row and the column."""
    names = _header(text)
    for name in wanted:
        if name not in names:
            raise ValueError(f"has no column {name!r}; it has {', '.join(map(repr, names)):.500}")
        if names.count(name) > 1:
            raise ValueError(f"has several columns {name!r}; give each a name of its own")
    places = [names.index(name) for name in wanted]
    rows = _Rows(text, len(names))
    lines = iter(rows)
    lines = chain([_first(lines)], lines)
    try:
        values: np.ndarray = np.loadtxt(
            lines, np.float64, comments=None, delimiter=",", quotechar='"', usecols=places, ndmin=2
        )
    except ValueError as error:
        if not str(error).startswith("could not convert"):  # it is one of those above
            raise
        cells = _cells(rows.line, f"row {rows.number}")
        bad = [(wanted[i], cells[place]) for i, place in enumerate(places) if _is_text(cells[place])]
        if not bad:
            raise ValueError(f"row {rows.number}: {error}") from error
        name, cell = bad[0]
        raise ValueError(f"has {cell!r:.80} in column {name!r} of row {rows.number}, expected a number") from error
    return values
