"""The elements of VTK XML files: what a file contains, without VTK and without a copy of a remote file."""

from __future__ import annotations

from collections.abc import Callable
from xml.parsers import expat

from zarr_core.sources.arrays import suffix_of
from zarr_core.sources.formats.contents import Contents, FoundArray
from zarr_core.sources.formats.files import pieces
from zarr_core.sources.sample import FileInfo
from zarr_core.storage import Storage

# Bytes of a file that are read at most. Values that stand between the elements have to be read as well.
_MOST_BYTES = 2**30


class EnoughError(Exception):
    """A handler of :func:`parse` has all that it needs."""


def parse(
    storage: Storage,
    folder: str,
    info: FileInfo,
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
    parser.StartElementHandler, parser.EndElementHandler = start, end
    parser.StartDoctypeDeclHandler = refuse
    done = 0
    try:
        for piece in pieces(storage, folder, info):
            parser.Parse(piece)
            done += len(piece)
            if done > _MOST_BYTES:
                return False
        parser.Parse(b"", True)
    except EnoughError:
        pass
    except expat.ExpatError as error:
        raise ValueError(f"truncated or damaged: {error}") from error
    return True


def peek(storage: Storage, folder: str, info: FileInfo) -> Contents:
    """Names and sizes of the arrays and of the mesh; raises ValueError as :func:`parse`."""
    sizes = {"NumberOfPoints": 0, "NumberOfCells": 0}
    arrays: dict[tuple[str, str], int] = {}
    at = ""

    def start(name: str, attributes: dict[str, str]) -> None:
        nonlocal at
        if name == "AppendedData":
            raise EnoughError
        if name == "Piece":
            sizes["NumberOfPoints"] += int(attributes.get("NumberOfPoints", 0))
            sizes["NumberOfCells"] += sum(
                int(attributes.get(f"NumberOf{kind}", 0)) for kind in ("Cells", "Verts", "Lines", "Strips", "Polys")
            )
        elif name in ("CellData", "PointData"):
            at = "cells" if name == "CellData" else "points"
        elif name == "DataArray" and at:
            arrays[at, attributes.get("Name", "")] = int(attributes.get("NumberOfComponents", 1))

    def end(name: str) -> None:
        nonlocal at
        if name in ("CellData", "PointData"):
            at = ""

    complete = parse(storage, folder, info, start, end)
    rows = {"cells": sizes["NumberOfCells"], "points": sizes["NumberOfPoints"]}
    found = tuple(FoundArray(name, at, components, rows[at]) for (at, name), components in arrays.items())
    dimension = 2 if suffix_of(info.name) == ".vtp" else 0
    return Contents(found, rows["points"], rows["cells"], dimension=dimension, complete=complete)
