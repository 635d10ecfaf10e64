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

    def refuse(*_: object) -> None:
        raise ValueError("rejected: it declares a document type, which could contain entities; no solver writes one")

    parser = expat.ParserCreate()
    parser.StartElementHandler = start
    parser.EndElementHandler = end
    parser.StartDoctypeDeclHandler = refuse
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


class _Elements:
    """Collects what the elements of a file tell of its mesh and its arrays."""

    def __init__(self) -> None:
        self.rows = {"cells": 0, "points": 0}
        self.components: dict[tuple[str, str], int] = {}
        self._at = ""

    def start(self, name: str, attributes: dict[str, str]) -> None:
        if name == "AppendedData":
            raise EnoughError
        if name == "Piece":
            self.rows["points"] += int(attributes.get("NumberOfPoints", 0))
            for kind in ("Cells", "Verts", "Lines", "Strips", "Polys"):
                self.rows["cells"] += int(attributes.get(f"NumberOf{kind}", 0))
        elif name in _ARRAYS_OF:
            self._at = _ARRAYS_OF[name]
        elif name == "DataArray" and self._at:
            self.components[self._at, attributes.get("Name", "")] = int(attributes.get("NumberOfComponents", 1))

    def end(self, name: str) -> None:
        if name in _ARRAYS_OF:
            self._at = ""


def peek(file: SourceFile) -> Contents:
    """Names and sizes of the arrays and of the mesh; raises ValueError as :func:`parse`."""
    elements = _Elements()
    complete = parse(file, elements.start, elements.end)
    rows = elements.rows
    found = tuple(FoundArray(name, at, count, rows[at]) for (at, name), count in elements.components.items())
    dimension = 2 if file.suffix == ".vtp" else 0
    return Contents(found, rows["points"], rows["cells"], dimension=dimension, complete=complete)
