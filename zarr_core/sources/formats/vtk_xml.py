"""The elements of VTK XML files: what a file contains, without VTK and without a copy of a remote file."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
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
    """A parser that calls ``start`` with the name and the attributes of each element, and ``end`` with its name."""

    def refuse(*_: object) -> None:
        raise ValueError("rejected: it declares a document type, which could contain entities; no solver writes one")

    parser = expat.ParserCreate()
    parser.StartElementHandler = start
    parser.EndElementHandler = end
    parser.StartDoctypeDeclHandler = refuse
    return parser


def parse(parser: expat.XMLParserType, pieces: Iterable[bytes], most: float = MAX_XML_BYTES) -> bool:
    """Whether the whole file was read, or as much as a handler needs, within so many bytes.

    Raises:
        ValueError: the file is not XML, is cut off, or declares a document type.
    """
    done = 0
    try:
        for piece in pieces:
            parser.Parse(piece)
            done += len(piece)
            if done > most:
                return False
        parser.Parse(b"", True)
    except EnoughError:
        pass
    except expat.ExpatError as error:
        raise ValueError(f"truncated or damaged: {error}") from error
    return True


class Elements:
    """Collects what the elements of one or several files tell of their mesh and its arrays.

    Attributes:
        root: attributes of the root element of the last file.
        n_pieces: number of pieces.
        rows: number of cells and of points.
        names: places and names of all arrays.
        sections: positions of the tags of the last elements that contain arrays, and of the ends of these, by place.
        end_of_piece: position of the last piece's end.
    """

    def __init__(self) -> None:
        self.root: dict[str, str] = {}
        self.n_pieces = 0
        self.rows = {"cells": 0, "points": 0}
        self.names: set[tuple[str, str]] = set()
        self.sections: dict[str, tuple[int, int]] = {}
        self.end_of_piece = 0
        self._components: dict[tuple[str, str], int] = {}
        self._is_surface = True
        self._is_complete = True

    def add(self, file: SourceFile) -> None:
        """Add those of a file; raises ValueError as :func:`parse`."""
        self._is_surface &= file.suffix == ".vtp"
        self._is_complete &= self._read(file.pieces(), MAX_XML_BYTES)

    def add_all(self, pieces: Iterable[bytes]) -> None:
        """Add those of a file of any size; raises ValueError as :func:`parse`."""
        self._read(pieces, math.inf)

    def contents(self, patches: tuple[str, ...] = ()) -> Contents:
        """Names and sizes of the arrays and of the mesh, which has these parts."""
        arrays = tuple(FoundArray(name, at, n, self.rows[at]) for (at, name), n in self._components.items())
        dimension = 2 if self._is_surface else 0
        return Contents(arrays, self.rows["points"], self.rows["cells"], patches, dimension, self._is_complete)

    def _read(self, pieces: Iterable[bytes], most: float) -> bool:
        self._at = ""
        self._parser = new_parser(self._start, self._end)
        return parse(self._parser, pieces, most)

    def _start(self, name: str, attributes: dict[str, str]) -> None:
        if name == "AppendedData":
            raise EnoughError
        if name == "VTKFile":
            self.root = attributes
        elif name == "Piece":
            self.n_pieces += 1
            self.rows["points"] += int(attributes.get("NumberOfPoints", 0))
            for kind in ("Cells", "Verts", "Lines", "Strips", "Polys"):
                self.rows["cells"] += int(attributes.get(f"NumberOf{kind}", 0))
        elif name in _ARRAYS_OF:
            self._at, self._begin = _ARRAYS_OF[name], self._parser.CurrentByteIndex
        elif name in ("DataArray", "Array") and self._at:
            place = self._at, attributes.get("Name", "")
            self.names.add(place)
            if name == "DataArray":
                self._components[place] = int(attributes.get("NumberOfComponents", 1))

    def _end(self, name: str) -> None:
        if name in _ARRAYS_OF:
            self.sections[self._at] = self._begin, self._parser.CurrentByteIndex
            self._at = ""
        elif name == "Piece":
            self.end_of_piece = self._parser.CurrentByteIndex


def peek(file: SourceFile) -> Contents:
    """Names and sizes of the arrays and of the mesh; raises ValueError as :func:`parse`."""
    elements = Elements()
    elements.add(file)
    return elements.contents()
