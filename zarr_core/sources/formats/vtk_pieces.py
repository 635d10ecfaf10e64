"""VTK files that name the files of their pieces: ``.pvtu``, ``.pvtp`` and ``.vtm``.

The pieces lie in the sample's folder. They are read one by one, like any other file, so the same checks apply to them.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np

from zarr_core.sources.arrays import PIECES, ArrayChoice, suffix_of
from zarr_core.sources.formats import vtk_xml
from zarr_core.sources.formats.contents import Contents, MissingArrayError
from zarr_core.sources.formats.files import SourceFile
from zarr_core.sources.formats.vtk import GHOSTS, LEFT_OUT, VtkMesh, check_patches, read_blocks
from zarr_core.sources.formats.vtk_geometry import numpy_of, output_of

_ROOT_TYPES = ("PUnstructuredGrid", "PPolyData", "vtkMultiBlockDataSet")
# Attribute with the path of a piece, by element.
_SOURCES = {"Piece": "Source", "DataSet": "file"}
_ABSOLUTE = re.compile(r"[/\\]|\w+:")


def open_file(file: SourceFile, choices: Collection[ArrayChoice]) -> VtkMesh:
    """Read the pieces that a choice needs, with its arrays; all pieces, names and sizes only, without choices.

    Cells that a piece has as copies of another piece's (ghost cells) are left out.
    """
    pieces = _pieces(file)
    known = _names(pieces)
    for choice in choices:
        check_patches(choice, known)
    blocks: list[tuple[str, Any]] = []
    for name, piece in pieces:
        own = [choice for choice in choices if not choice.patches or name in choice.patches]
        if choices and not own:
            continue
        with _errors_of(piece), piece.local_path() as path:
            try:
                read = read_blocks(path, piece.suffix, own)
            except MissingArrayError:
                if vtk_xml.peek(piece).points:
                    raise
                continue  # a process without cells writes no arrays
            for _, block in read:
                blocks.append((name, _without_ghosts(block)))
    return VtkMesh(blocks, choices)


def peek(file: SourceFile) -> Contents:
    """Names and sizes of the arrays and of the mesh, and the names of its parts; raises ValueError."""
    pieces = _pieces(file)
    elements = vtk_xml.Elements()
    for _, piece in pieces:
        with _errors_of(piece):
            elements.add(piece.pieces())
    return elements.contents(_names(pieces))


def _names(pieces: Iterable[tuple[str, SourceFile]]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(name for name, _ in pieces if name))


def _without_ghosts(block: Any) -> Any:
    """The mesh without copies of cells of another piece.

    ``RemoveGhostCells`` of VTK 9.7 damages the faces of polyhedra, so grids with polyhedra go through a filter. It has
    another order of points, so all other meshes keep the order that stores were written with.
    """
    from vtkmodules.vtkFiltersCore import vtkExtractCells

    flags = block.GetCellData().GetArray(GHOSTS)
    if flags is None:
        return block
    if block.IsA("vtkUnstructuredGrid") and block.GetPolyhedronFaces() is not None:
        kept = np.flatnonzero(numpy_of(flags) & LEFT_OUT == 0)
        extract = vtkExtractCells()
        extract.SetCellIds(kept, len(kept))
        block = output_of(extract, block)
    else:
        block.RemoveGhostCells()
    block.GetCellData().RemoveArray(GHOSTS)
    return block


@contextmanager
def _errors_of(piece: SourceFile) -> Iterator[None]:
    try:
        yield
    except ValueError as error:
        raise ValueError(f"{piece.info.name}: {error}") from error


def _pieces(file: SourceFile) -> list[tuple[str, SourceFile]]:
    """Names and files of the pieces; raises ValueError.

    A piece of a ``.vtm`` file has its own name, or that of the block that contains it; others have none.
    """
    parts = {part.name: replace(file, info=part) for part in file.info.stored}
    root = parts.pop(file.info.name)
    found: dict[str, str] = {}
    blocks: list[str] = []

    def start(element: str, attributes: dict[str, str]) -> None:
        if element == "VTKFile" and attributes.get("type") not in _ROOT_TYPES:
            raise ValueError(f"has the type {attributes.get('type')!r:.100}; expected {', '.join(_ROOT_TYPES)}")
        if element == "Block":
            blocks.append(attributes.get("name", ""))
        source = attributes.get(_SOURCES.get(element, ""))
        if source:
            path = _path(file.info.name, source, parts)
            if path in found:
                raise ValueError(f"rejected: names its piece {path!r:.200} twice")
            found[path] = attributes.get("name", "") or (blocks[-1] if blocks else "")

    def end(element: str) -> None:
        if element == "Block":
            blocks.pop()

    vtk_xml.parse(vtk_xml.new_parser(start, end), root.pieces())
    if not found:
        raise ValueError("names no piece")
    return [(name, parts[path]) for path, name in found.items()]


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
