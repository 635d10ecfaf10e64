"""VTK files that name the files of their pieces: ``.pvtu``, ``.pvtp`` and ``.vtm``.

The pieces lie in the sample's folder. They are read one by one, like any other file, so the same checks apply to them.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from zarr_core.sources.arrays import PIECES, ArrayChoice, suffix_of
from zarr_core.sources.formats import vtk_xml
from zarr_core.sources.formats.contents import Contents, FoundArray
from zarr_core.sources.formats.files import local_path
from zarr_core.sources.formats.vtk import VtkMesh, no_patch, read_blocks
from zarr_core.sources.formats.vtk_cells import numpy_of
from zarr_core.sources.formats.vtk_geometry import output_of
from zarr_core.sources.sample import FileInfo
from zarr_core.storage import Storage

_ROOT_TYPES = ("PUnstructuredGrid", "PPolyData", "vtkMultiBlockDataSet")
# Cell array that marks copies of cells of another piece.
_GHOSTS = "vtkGhostType"
# Its bits for cells that do not count: copies of another piece's, refined ones and hidden ones.
_LEFT_OUT = 1 | 8 | 32
_ABSOLUTE = re.compile(r"[/\\]|\w+:")


def open_file(storage: Storage, folder: str, info: FileInfo, choices: Collection[ArrayChoice]) -> VtkMesh:
    """Read the pieces that a choice needs, with its arrays; all pieces, names and sizes only, without choices.

    Cells that a piece has as copies of another piece's (ghost cells) are left out.
    """
    named = _pieces(storage, folder, info)
    names = dict.fromkeys(name for name, _ in named if name)
    for choice in choices:
        if missing := [patch for patch in choice.patches if patch not in names]:
            raise ValueError(no_patch(missing[0], names))
    blocks: list[tuple[str, Any]] = []
    for name, piece in named:
        own = [choice for choice in choices if not choice.patches or name in choice.patches]
        if choices and not own:
            continue
        with _errors_of(piece), local_path(storage, folder, piece) as path:
            for _, block in read_blocks(path, suffix_of(piece.name), own, also=[_GHOSTS]):
                blocks.append((name, _without_ghosts(block)))
    return VtkMesh(blocks, choices)


def peek(storage: Storage, folder: str, info: FileInfo) -> Contents:
    """Names and sizes of the arrays and of the mesh, and the names of its parts; raises ValueError."""
    named = _pieces(storage, folder, info)
    found = []
    for _, piece in named:
        with _errors_of(piece):
            found.append(vtk_xml.peek(storage, folder, piece))
    rows = {"points": sum(each.points for each in found), "cells": sum(each.cells for each in found)}
    arrays = {(array.name, array.at): array.components for each in found for array in each.arrays}
    return Contents(
        tuple(FoundArray(name, at, components, rows[at]) for (name, at), components in arrays.items()),
        rows["points"],
        rows["cells"],
        tuple(dict.fromkeys(name for name, _ in named if name)),
        2 if all(each.dimension == 2 for each in found) else 0,
        all(each.complete for each in found),
    )


def _without_ghosts(block: Any) -> Any:
    """The mesh without copies of cells of another piece.

    ``RemoveGhostCells`` of VTK 9.7 damages the faces of polyhedra, so grids with polyhedra go through a filter. It has
    another order of points, so all other meshes keep the order that stores were written with.
    """
    from vtkmodules.vtkFiltersCore import vtkExtractCells

    flags = block.GetCellData().GetArray(_GHOSTS)
    if flags is None:
        return block
    if block.IsA("vtkUnstructuredGrid") and block.GetPolyhedronFaces() is not None:
        kept = np.flatnonzero(numpy_of(flags) & _LEFT_OUT == 0)
        extract = vtkExtractCells()
        extract.SetCellIds(kept, len(kept))
        block = output_of(extract, block)
    else:
        block.RemoveGhostCells()
    block.GetCellData().RemoveArray(_GHOSTS)
    return block


@contextmanager
def _errors_of(piece: FileInfo) -> Iterator[None]:
    try:
        yield
    except ValueError as error:
        raise ValueError(f"{piece.name}: {error}") from error


def _pieces(storage: Storage, folder: str, info: FileInfo) -> list[tuple[str, FileInfo]]:
    """Names and files of the pieces; raises ValueError.

    A piece of a ``.vtm`` file has its own name, or that of the block that contains it; others have none.
    """
    root, *others = sorted(info.parts, key=lambda part: part.name != info.name)
    known = {part.name: part for part in others}
    found: dict[str, str] = {}
    blocks: list[str] = []

    def start(element: str, attributes: dict[str, str]) -> None:
        if element == "VTKFile" and attributes.get("type") not in _ROOT_TYPES:
            raise ValueError(f"has the type {attributes.get('type')!r:.100}; expected {', '.join(_ROOT_TYPES)}")
        if element == "Block":
            blocks.append(attributes.get("name", ""))
        source = attributes.get({"Piece": "Source", "DataSet": "file"}.get(element, ""))
        if source:
            path = _path(info.name, source, known)
            if path in found:
                raise ValueError(f"rejected: names its piece {path!r:.200} twice")
            found[path] = attributes.get("name", "") or (blocks[-1] if blocks else "")

    def end(element: str) -> None:
        if element == "Block":
            blocks.pop()

    vtk_xml.parse(storage, folder, root, start, end)
    if not found:
        raise ValueError("names no piece")
    return [(name, known[path]) for path, name in found.items()]


def _path(root: str, source: str, known: Collection[str]) -> str:
    """Path of a piece below the sample's folder; raises ValueError."""
    path = posixpath.normpath(posixpath.join(posixpath.dirname(root), source))
    if _ABSOLUTE.match(source) or "\\" in source or path.startswith(".."):
        raise ValueError(f"rejected: names the piece {source!r:.200}; pieces must lie in the sample's folder")
    if suffix_of(path) not in PIECES:
        raise ValueError(f"has the piece {path!r:.200}, whose format is none of {', '.join(PIECES)}")
    if path not in known:
        raise ValueError(f"its piece {path!r:.200} is missing")
    return path
