"""The elements of VTK XML files: what a file contains, without VTK and without a copy of a remote file."""

from __future__ import annotations

from collections.abc import Callable
from xml.parsers import expat

from zarr_core.sources.formats.contents import Contents, FoundArray
from zarr_core.sources.formats.files import SourceFile
from zarr_core.sources.limits import MAX_XML_BYTES

# Elements that contain the arrays at the cells, and those at the points.
_ARRAYS_OF = {"CellData": "cells", "PointData": "points"}


class EnoughError(Exception):
    """A handler of :func:`parse` has all that it needs."""


def new_parser(
    start: Callable[[str, dict[str, str]], None], end: Callable[[str], None] | None = None
) -> expat.XMLParserType:
    """A parser that calls handlers as :func:`parse` does, and refuses a document type with ValueError."""

    def refuse(*_: object) -> None:
        raise ValueError("rejected: it declares a document type, which could contain entities; no solver writes one")

    parser = expat.ParserCreate()
    parser.StartElementHandler = start
    parser.EndElementHandler = end
    parser.StartDoctypeDeclHandler = refuse
    return parser


def parse(
    file: SourceFile,
    start: Callable[[str, dict[str, str]], None],
    end: Callable[[str], None] | None = None,
) -> bool:
    """Call ``start`` with the name and the attributes of each element, and ``end`` with its name.

    Returns:
        Whether the whole file was read, or as much as a handler needs.

    Raises:
        ValueError: the file is not XML, is cut off, or declares a document type.
    """

    parser = new_parser(start, end)
    done = 0
    try:
        for piece in file.pieces():
            parser.Parse(piece)
            done += len(piece)
            if done > MAX_XML_BYTES:
                return False
        parser.Parse(b"", True)
    except EnoughError:
        pass
    except expat.ExpatError as error:
        raise ValueError(f"truncated or damaged: {error}") from error
    return True


class Elements:
    """Collects what the elements of one or several files tell of their mesh and its arrays."""

    def __init__(self) -> None:
        self._rows = {"cells": 0, "points": 0}
        self._components: dict[tuple[str, str], int] = {}
        self._at = ""
        self._is_surface = True
        self._is_complete = True

    def read(self, file: SourceFile) -> None:
        """Add those of a file; raises ValueError as :func:`parse`."""
        self._at = ""
        self._is_surface &= file.suffix == ".vtp"
        self._is_complete &= parse(file, self._start, self._end)

    def contents(self, patches: tuple[str, ...] = ()) -> Contents:
        """Names and sizes of the arrays and of the mesh, which has these parts."""
        arrays = tuple(FoundArray(name, at, n, self._rows[at]) for (at, name), n in self._components.items())
        dimension = 2 if self._is_surface else 0
        return Contents(arrays, self._rows["points"], self._rows["cells"], patches, dimension, self._is_complete)

    def _start(self, name: str, attributes: dict[str, str]) -> None:
        if name == "AppendedData":
            raise EnoughError
        if name == "Piece":
            self._rows["points"] += int(attributes.get("NumberOfPoints", 0))
            for kind in ("Cells", "Verts", "Lines", "Strips", "Polys"):
                self._rows["cells"] += int(attributes.get(f"NumberOf{kind}", 0))
        elif name in _ARRAYS_OF:
            self._at = _ARRAYS_OF[name]
        elif name == "DataArray" and self._at:
            self._components[self._at, attributes.get("Name", "")] = int(attributes.get("NumberOfComponents", 1))

    def _end(self, name: str) -> None:
        if name in _ARRAYS_OF:
            self._at = ""


def peek(file: SourceFile) -> Contents:
    """Names and sizes of the arrays and of the mesh; raises ValueError as :func:`parse`."""
    elements = Elements()
    elements.read(file)
    return elements.contents()
