"""Meshes that VTK reads: ``.vtp``, ``.vtu``, ``.vtk`` and ``.stl``.

VTK reports a damaged file to a window and returns an empty or partial mesh, so its messages are collected here, and
every array is checked. Its readers trust the sizes that a file claims, so those are compared with the file beforehand.
"""

from __future__ import annotations

import importlib
import mmap
import re
import threading
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from zarr_core.sources.arrays import PIECES, ArrayChoice
from zarr_core.sources.formats import vtk_xml
from zarr_core.sources.formats.arrays import side_by_side
from zarr_core.sources.formats.contents import Contents, FoundArray, Mesh, MissingArrayError
from zarr_core.sources.formats.files import SourceFile
from zarr_core.sources.formats.vtk_geometry import (
    check_cells,
    computed,
    dimension_of,
    note_flat_cells,
    numpy_of,
    real_dtype,
    unstructured,
)
from zarr_core.sources.left_out import note
from zarr_core.sources.limits import check_claim

#: Cell array that marks copies of cells of another piece.
GHOSTS = "vtkGhostType"
# And its name in files of older programs: VTK gives it the other one, if it is read.
_GHOST_LEVELS = "vtkGhostLevels"
#: Its bits for cells that do not count: copies of another piece's, refined ones and hidden ones.
LEFT_OUT = 1 | 8 | 32
# The root element of an XML file must begin within these bytes.
_XML_HEAD = 65_536
# Sections of a legacy file that announce a number of tuples.
_LEGACY_COUNT = re.compile(
    rb"^(?:POINTS|POINT_DATA|CELL_DATA|CELLS|CELL_TYPES|POLYGONS|VERTICES|LINES|TRIANGLE_STRIPS|OFFSETS|CONNECTIVITY)"
    rb"\s+(\d+)(?:\s+(\d+))?",
    re.MULTILINE,
)
_STL_HEADER, _STL_TRIANGLE = 84, 50
# VTK has one message window per process.
_window_lock = threading.Lock()


def open_file(file: SourceFile, choices: Collection[ArrayChoice]) -> VtkMesh:
    """Read the mesh and the chosen arrays; only names and sizes without choices."""
    with file.local_path() as path:
        return read_mesh(path, file.suffix, choices)


def read_mesh(path: Path, suffix: str, choices: Collection[ArrayChoice]) -> VtkMesh:
    """Read a local file; raises ValueError."""
    blocks = read_blocks(path, suffix, choices)
    for _, block in blocks:
        flags = block.GetCellGhostArray()
        if flags is not None and (count := np.count_nonzero(numpy_of(flags) & LEFT_OUT)):
            note("ghost cells, which only pieces of a .pvtu or .pvtp file leave out, became points", f"{count:,} cells")
    return VtkMesh(blocks, choices)


def read_blocks(path: Path, suffix: str, choices: Collection[ArrayChoice]) -> list[tuple[str, Any]]:
    """Names and meshes of the parts of a local file, with their ghost cells and the arrays of the choices.

    Raises:
        ValueError: the file is damaged or refused, or lacks a chosen array.
    """
    if not path.stat().st_size:
        raise ValueError("is empty")
    check, module, name = _READERS[suffix]
    check(path)
    with vtk_errors():
        reader = getattr(importlib.import_module(f"vtkmodules.{module}"), name)()
        if suffix == ".vtk":  # by default VTK reads the first array of each kind
            for kind in ("Scalars", "Vectors", "Fields", "Tensors", "Normals"):
                getattr(reader, f"ReadAll{kind}On")()
        reader.SetFileName(str(path))
        reader.UpdateInformation()
        if suffix in PIECES and reader.GetNumberOfTimeSteps() > 1:
            raise ValueError(f"contains {reader.GetNumberOfTimeSteps()} times; write each to a file of its own")
        select_arrays(reader, choices, [GHOSTS, _GHOST_LEVELS])
        if suffix in PIECES:
            vtk_xml.check_pieces(path, choices)
        reader.Update()
        blocks = list(leaves(reader.GetOutput()))
    if suffix == ".stl":
        _note_dropped(path, sum(block.GetNumberOfCells() for _, block in blocks))
    return blocks


@contextmanager
def vtk_errors() -> Iterator[None]:
    """Raise ValueError with the first error that VTK reports inside the block, instead of printing it."""
    from vtkmodules.vtkCommonCore import vtkLogger, vtkOutputWindow, vtkStringOutputWindow

    messages: list[str] = []

    def report(_window: object, _event: str, text: str) -> None:
        messages.append(text)

    report.CallDataType = "string0"  # type: ignore[attr-defined]
    with _window_lock:
        before = vtkOutputWindow.GetInstance()
        window = vtkStringOutputWindow()
        verbosity = vtkLogger.GetCurrentVerbosityCutoff()
        vtkLogger.SetStderrVerbosity(vtkLogger.VERBOSITY_OFF)
        window.AddObserver("ErrorEvent", report)
        vtkOutputWindow.SetInstance(window)
        try:
            yield
        finally:
            vtkOutputWindow.SetInstance(before)
            vtkLogger.SetStderrVerbosity(verbosity)
    if messages:
        reason = " ".join(re.sub(r"^.*?\): ", "", messages[0], flags=re.DOTALL).split())
        raise ValueError(f"truncated or damaged: {reason[:200]}")


def select_arrays(reader: Any, choices: Collection[ArrayChoice], also: Collection[str] = ()) -> None:
    """Enable the arrays that a choice needs, or all without choices, and disable the others, if the reader can.

    Those with one of the names of ``also`` are enabled if the file contains them; it must contain the others.
    """
    for at, kind in (("cells", "Cell"), ("points", "Point")):
        if not hasattr(reader, f"Set{kind}ArrayStatus"):
            continue
        wanted: list[str] = []
        for choice in choices:
            if choice.at == at:
                wanted += choice.arrays
        count = getattr(reader, f"GetNumberOf{kind}Arrays")()
        names = [getattr(reader, f"Get{kind}ArrayName")(i) for i in range(count)]
        for name in wanted:
            if name not in names:
                raise MissingArrayError(name, at, names)
        for name in names:
            chosen = not choices or name in wanted or name in also
            getattr(reader, f"Set{kind}ArrayStatus")(name, int(chosen))


def leaves(data: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """Name and mesh of every part of the output of a reader; raises ValueError for cells that no filter may get."""
    if data is None:
        return
    if not data.IsA("vtkMultiBlockDataSet"):
        check_cells(data)
        yield name, data
        return
    for own, block in children(data):
        yield from leaves(block, own or name)


def children(data: Any) -> Iterator[tuple[str, Any]]:
    """Name and content of every block of a ``vtkMultiBlockDataSet`` that has content."""
    for i in range(data.GetNumberOfBlocks()):
        if data.GetBlock(i) is None:
            continue
        name = data.GetMetaData(i).Get(data.NAME()) if data.HasMetaData(i) else None
        yield name or "", data.GetBlock(i)


class _Part:
    """A mesh of a file, a ``vtkDataSet``, and its arrays."""

    def __init__(self, name: str, block: Any) -> None:
        self.name, self.block = name, block
        self._arrays = {
            "cells": (block.GetCellData(), int(block.GetNumberOfCells())),
            "points": (block.GetPointData(), int(block.GetNumberOfPoints())),
        }

    def found(self, at: str) -> Iterator[FoundArray]:
        """What is known of the arrays at the cells or at the points."""
        attributes, rows = self._arrays[at]
        for i in range(attributes.GetNumberOfArrays()):
            array = attributes.GetArray(i)
            if array is not None:
                yield FoundArray(array.GetName() or "", at, array.GetNumberOfComponents(), rows)

    def values(self, choice: ArrayChoice) -> np.ndarray:
        """The chosen field; raises ValueError."""
        if choice.compute:
            return computed(self.block, choice)
        return side_by_side([self._array(name, choice.at) for name in choice.arrays])

    def _array(self, name: str, at: str) -> np.ndarray:
        attributes, rows = self._arrays[at]
        array = attributes.GetArray(name)
        if array is None:
            raise MissingArrayError(name, at, [each.name for each in self.found(at)])
        count = array.GetNumberOfTuples()
        if count != rows:
            raise ValueError(f"truncated or damaged: array {name!r} has {count:,} of {rows:,} values")
        return numpy_of(array)


class VtkMesh:
    """The meshes of one file: ``blocks``, which a choice without patches means, and ``patches``, which it does not.

    As soon as all that the choices compute from the meshes is known, the meshes are dropped, unless the store keeps
    them. Without choices they stay. Raises ValueError if there is no mesh with points.
    """

    def __init__(
        self,
        blocks: Iterable[tuple[str, Any]],
        choices: Collection[ArrayChoice] = (),
        patches: Iterable[tuple[str, Any]] = (),
    ) -> None:
        self._blocks = _with_points(blocks)
        self._patches = _with_points(patches)
        if not self._blocks and not self._patches:
            raise ValueError("contains no mesh")
        self._keep_mesh = not choices or any(choice.keep_mesh for choice in choices)
        self._to_compute = {choice for choice in choices if choice.compute}
        self._computed: dict[ArrayChoice, np.ndarray] = {}

    def values(self, choice: ArrayChoice) -> np.ndarray:
        if choice in self._computed:
            return self._computed[choice]
        chosen = self._chosen(choice)
        with vtk_errors():
            parts = [part.values(choice) for part in chosen]
        values = parts[0] if len(parts) == 1 else np.concatenate(parts)
        if choice.scale != 1:
            values = values * choice.scale
        if not choice.compute:
            return values
        if choice.at == "cells":
            note_flat_cells([part.block for part in chosen], choice, values)
        self._computed[choice] = values
        if not self._keep_mesh and self._to_compute <= self._computed.keys():
            for part in (*self._blocks, *self._patches):
                part.block = None
        return values

    def contents(self) -> Contents:
        """Names and sizes of the arrays and of the mesh, and names of its parts; of the patches only the names."""
        parts = self._blocks or self._patches
        found: dict[tuple[str, str], FoundArray] = {}
        points = cells = 0
        for part in parts:
            points += part.block.GetNumberOfPoints()
            cells += part.block.GetNumberOfCells()
            for array in (*part.found("cells"), *part.found("points")):
                found[array.at, array.name] = array
        return Contents(tuple(found.values()), points, cells, self._names, dimension_of(parts[0].block))

    def mesh(self, choice: ArrayChoice) -> Mesh:
        points, types = [], []
        ids, ends = [], [np.zeros(1, np.int64)]  # of the cells, as VTK has them: without a copy
        first_point, first_id = [0], [0, 0]  # what to add to those of each part
        for part in self._chosen(choice):
            block = unstructured(part.block)
            cells = block.GetCells()
            points.append(numpy_of(block.GetPoints().GetData()))
            types.append(numpy_of(block.GetCellTypes()).astype(np.uint8).ravel())
            ids.append(numpy_of(cells.GetConnectivityArray()))
            ends.append(numpy_of(cells.GetOffsetsArray())[1:])
            first_point.append(first_point[-1] + len(points[-1]))
            first_id.append(first_id[-1] + len(ids[-1]))
        joined = np.concatenate(points)
        joined = joined.astype(real_dtype(joined), copy=False)
        if choice.scale != 1:
            joined *= choice.scale
        return Mesh(joined, _joined(ids, first_point), _joined(ends, first_id), np.concatenate(types), choice.at)

    @cached_property
    def _names(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(part.name for part in (*self._blocks, *self._patches) if part.name))

    def _chosen(self, choice: ArrayChoice) -> list[_Part]:
        if not choice.patches:
            return self._blocks
        check_patches(choice, self._names)
        return [part for part in (*self._blocks, *self._patches) if part.name in choice.patches]


def _joined(parts: list[np.ndarray], shifts: list[int]) -> np.ndarray:
    """The numbers of all parts one after another, those of each part plus its shift."""
    joined = np.empty(sum(map(len, parts)), np.int64)
    at = 0
    for part, shift in zip(parts, shifts, strict=False):
        np.add(part, shift, out=joined[at : at + len(part)])
        at += len(part)
    return joined


def _with_points(blocks: Iterable[tuple[str, Any]]) -> list[_Part]:
    return [_Part(name, block) for name, block in blocks if block.GetNumberOfPoints()]


def check_patches(choice: ArrayChoice, names: Collection[str]) -> None:
    """Raise ValueError for a patch that a file does not have."""
    for name in choice.patches:
        if name not in names:
            raise ValueError(f"has no patch {name!r}; it has {', '.join(names) or 'none'}")


def _ends(path: Path, head: int, tail: int) -> tuple[int, bytes, bytes]:
    """Size of a file, and its first and last bytes."""
    size = path.stat().st_size
    with path.open("rb") as opened:
        first = opened.read(head)
        opened.seek(max(size - tail, 0))
        return size, first, opened.read()


def check_xml(path: Path) -> None:
    """Raise ValueError unless the file is VTK XML without a document type, which could declare entities."""
    size, head, tail = _ends(path, _XML_HEAD, _XML_HEAD)
    root = head.find(b"<VTKFile")
    if root < 0 or b"\0" in head[:root]:
        raise ValueError("truncated or damaged: it does not begin with a VTKFile element")
    if b"<!DOCTYPE" in head[:root] or b"<!ENTITY" in head[:root]:
        raise ValueError("rejected: it declares a document type, which could contain entities; no solver writes one")
    if b"</VTKFile" not in tail:  # VTK reads what stands before the cut and reports nothing
        raise ValueError("truncated: it does not end with </VTKFile>")
    for count in re.findall(rb"NumberOf\w+\s*=\s*[\"']\s*(\d+)", head[root:]):
        check_claim(int(count), size)


def check_legacy(path: Path) -> None:
    """Raise ValueError unless the file is legacy VTK whose counts fit its size."""
    with path.open("rb") as opened, mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ) as data:
        if data[:22] != b"# vtk DataFile Version":
            raise ValueError("truncated or damaged: it does not begin with '# vtk DataFile Version'")
        head = data[:1024].upper().split(b"\n")
        if b"ASCII" in map(bytes.strip, head[2:3]) and not data[-1:].isspace():
            raise ValueError("truncated: it does not end with a line break, so its last number may be incomplete")
        for found in _LEGACY_COUNT.finditer(data):
            for count in filter(None, found.groups()):
                check_claim(int(count), len(data))


def check_stl(path: Path) -> None:
    """Raise ValueError unless the file is a whole STL file, binary or ASCII."""
    size, head, tail = _ends(path, _STL_HEADER, 1024)
    triangles = int.from_bytes(head[80:84], "little")
    if size >= _STL_HEADER and size == _STL_HEADER + triangles * _STL_TRIANGLE:
        return
    if not head.lstrip().startswith(b"solid") or b"endsolid" not in tail:
        raise ValueError("truncated or damaged: neither a whole binary nor a whole ASCII STL file")


def _note_dropped(path: Path, kept: int) -> None:
    """Note the degenerate triangles of an STL file, which VTK drops when it joins equal points."""
    size = path.stat().st_size
    with path.open("rb") as opened, mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ) as data:
        triangles = int.from_bytes(data[_STL_HEADER - 4 : _STL_HEADER], "little")
        if size != _STL_HEADER + triangles * _STL_TRIANGLE:
            triangles = len(re.findall(rb"\bendfacet\b", data, re.IGNORECASE))
    if triangles > kept:
        note("degenerate triangles were left out", f"{triangles - kept:,} of {triangles:,}")


# By suffix: a check of the file, and the module and the class of VTK that reads it.
_READERS: dict[str, tuple[Callable[[Path], None], str, str]] = {
    ".vtp": (check_xml, "vtkIOXML", "vtkXMLPolyDataReader"),
    ".vtu": (check_xml, "vtkIOXML", "vtkXMLUnstructuredGridReader"),
    ".vtk": (check_legacy, "vtkIOLegacy", "vtkDataSetReader"),
    ".stl": (check_stl, "vtkIOGeometry", "vtkSTLReader"),
}
