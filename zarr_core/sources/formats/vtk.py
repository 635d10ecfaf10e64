"""Meshes that VTK reads: ``.vtp``, ``.vtu``, ``.vtk`` and ``.stl``.

VTK reports a damaged file to a window and returns an empty or partial mesh, so its messages are collected here, and
every array is checked. Its readers trust the sizes that a file claims, so those are compared with the file beforehand.
"""

from __future__ import annotations

import mmap
import re
import threading
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from zarr_core.sources.arrays import ArrayChoice, suffix_of
from zarr_core.sources.formats.contents import Contents, FoundArray, Mesh
from zarr_core.sources.formats.files import local_path
from zarr_core.sources.formats.vtk_cells import check_cells
from zarr_core.sources.sample import FileInfo
from zarr_core.storage import Storage

# A file may claim this many points or cells per byte of its size: more than any compressor of VTK achieves.
_CLAIMED_PER_BYTE = 100
# A file may claim this many in any case.
_CLAIMED = 1_000_000
# The root element of an XML file must begin within these bytes.
_XML_HEAD = 65_536
# Sections of a legacy file that announce a number of tuples.
_LEGACY_COUNT = re.compile(
    rb"^(?:POINTS|POINT_DATA|CELL_DATA|CELLS|CELL_TYPES|POLYGONS|VERTICES|LINES|TRIANGLE_STRIPS|OFFSETS|CONNECTIVITY)"
    rb"\s+(\d+)(?:\s+(\d+))?",
    re.MULTILINE,
)
# Components of a unit normal below the precision of float32 are rounding errors of the positions. They are set to 0, so
# that a plane parallel to an axis does not count as a loss of values that float16 cannot store.
_NOISE = 1e-7
_STL_HEADER, _STL_TRIANGLE = 84, 50
# VTK has one message window per process.
_window_lock = threading.Lock()


def open_file(storage: Storage, folder: str, info: FileInfo, choices: Collection[ArrayChoice]) -> VtkMesh:
    """Read the mesh and the chosen arrays; only names and sizes without choices."""
    with local_path(storage, folder, info) as path:
        return read_mesh(path, suffix_of(info.name), choices)


def read_mesh(path: Path, suffix: str, choices: Collection[ArrayChoice]) -> VtkMesh:
    """Read a local file; raises ValueError."""
    return VtkMesh(read_blocks(path, suffix, choices))


def read_blocks(
    path: Path, suffix: str, choices: Collection[ArrayChoice], also: Collection[str] = ()
) -> list[tuple[str, Any]]:
    """Names and meshes of the parts of a local file, with the chosen arrays.

    Args:
        path, suffix: of the file.
        choices: what to read; names and sizes only if there are none.
        also: names of further arrays to read, if the file contains them.

    Raises:
        ValueError: the file is damaged or refused, or lacks a chosen array.
    """
    if not path.stat().st_size:
        raise ValueError("is empty")
    check, make = _READERS[suffix]
    check(path)
    with vtk_errors():
        reader = make()
        reader.SetFileName(str(path))
        reader.UpdateInformation()
        select_arrays(reader, choices, also)
        reader.Update()
        return list(leaves(reader.GetOutput()))


@contextmanager
def vtk_errors() -> Iterator[None]:
    """Raise ValueError with the first error that VTK reports inside the block, instead of printing it."""
    from vtkmodules.vtkCommonCore import vtkLogger, vtkOutputWindow, vtkStringOutputWindow

    messages: list[str] = []

    def report(_window: object, _event: str, text: str) -> None:
        messages.append(text)

    report.CallDataType = "string0"  # type: ignore[attr-defined]
    with _window_lock:
        before, window = vtkOutputWindow.GetInstance(), vtkStringOutputWindow()
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

    Args:
        reader: after ``UpdateInformation``.
        choices: the fields to read; raises ValueError if the file lacks one of their arrays.
        also: names of further arrays to read, if the file contains them.
    """
    for at, kind in (("cells", "Cell"), ("points", "Point")):
        if not hasattr(reader, f"Set{kind}ArrayStatus"):
            continue
        wanted = {name: None for choice in choices if choice.at == at for name in choice.arrays}
        count = getattr(reader, f"GetNumberOf{kind}Arrays")()
        names = [getattr(reader, f"Get{kind}ArrayName")(i) for i in range(count)]
        for name in wanted:
            if name not in names:
                raise ValueError(_no_array(name, at, names))
        for name in names:
            getattr(reader, f"Set{kind}ArrayStatus")(name, int(not choices or name in wanted or name in also))


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
        if data.GetBlock(i) is not None:
            yield (data.GetMetaData(i).Get(data.NAME()) or "" if data.HasMetaData(i) else ""), data.GetBlock(i)


class VtkMesh:
    """The parts of one file, each a ``vtkDataSet`` with a name."""

    def __init__(self, blocks: list[tuple[str, Any]]) -> None:
        self._blocks = [(name, block) for name, block in blocks if block.GetNumberOfPoints()]
        if not self._blocks:
            raise ValueError("contains no mesh")

    def values(self, choice: ArrayChoice) -> np.ndarray:
        """The chosen field, (points,) or (points, components); raises ValueError."""
        with vtk_errors():
            parts = [self._of_block(block, choice) for block in self._chosen(choice)]
        values = parts[0] if len(parts) == 1 else np.concatenate(parts)
        return values if choice.scale == 1 else values * values.dtype.type(choice.scale)

    def contents(self) -> Contents:
        """Names and sizes of the arrays, of the mesh and of its parts."""
        found: dict[tuple[str, str], FoundArray] = {}
        for _, block in self._blocks:
            for at in ("cells", "points"):
                attributes, rows = _attributes(block, at)
                for array in (attributes.GetArray(i) for i in range(attributes.GetNumberOfArrays())):
                    if array is not None:
                        name = array.GetName() or ""
                        found.setdefault((at, name), FoundArray(name, at, array.GetNumberOfComponents(), rows))
        sizes = [(block.GetNumberOfPoints(), block.GetNumberOfCells()) for _, block in self._blocks]
        points, cells = map(sum, zip(*sizes, strict=True))
        return Contents(tuple(found.values()), points, cells, self._names, self._dimension)

    def mesh(self, choice: ArrayChoice) -> Mesh:
        """Points and cells; raises ValueError."""
        points, connectivity, offsets, types = [], [], [np.zeros(1, np.int64)], []
        n_points = n_indices = 0
        for block in self._chosen(choice):
            block = _unstructured(block)
            cells = block.GetCells()
            points.append(_numpy(block.GetPoints().GetData()))
            connectivity.append(_numpy(cells.GetConnectivityArray()).astype(np.int64) + n_points)
            offsets.append(_numpy(cells.GetOffsetsArray()).astype(np.int64)[1:] + n_indices)
            types.append(_numpy(block.GetCellTypes()).astype(np.uint8).ravel())
            n_points, n_indices = n_points + len(points[-1]), n_indices + len(connectivity[-1])
        scaled = np.concatenate(points)
        if choice.scale != 1:
            scaled = scaled * scaled.dtype.type(choice.scale)
        return Mesh(scaled, np.concatenate(connectivity), np.concatenate(offsets), np.concatenate(types), choice.at)

    @cached_property
    def _names(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(name for name, _ in self._blocks if name))

    @cached_property
    def _dimension(self) -> int:
        block = self._blocks[0][1]
        return 2 if block.IsA("vtkPolyData") else int(block.GetCell(0).GetCellDimension()) if _cells(block) else 0

    def _chosen(self, choice: ArrayChoice) -> list[Any]:
        missing = [name for name in choice.patches if name not in self._names]
        if missing:
            raise ValueError(no_patch(missing[0], self._names))
        return [block for name, block in self._blocks if not choice.patches or name in choice.patches]

    def _of_block(self, block: Any, choice: ArrayChoice) -> np.ndarray:
        if choice.compute:
            return _computed(block, choice)
        columns = [_array(block, name, choice.at) for name in choice.arrays]
        return columns[0] if len(columns) == 1 else np.stack(columns, axis=1)


def _cells(block: Any) -> int:
    return int(block.GetNumberOfCells())


def _attributes(block: Any, at: str) -> tuple[Any, int]:
    if at == "cells":
        return block.GetCellData(), _cells(block)
    return block.GetPointData(), int(block.GetNumberOfPoints())


def _numpy(array: Any) -> np.ndarray:
    """A view of the values of a VTK array, which stay alive with it."""
    from vtkmodules.util.numpy_support import vtk_to_numpy

    values: np.ndarray = vtk_to_numpy(array)
    return values


def _array(block: Any, name: str, at: str) -> np.ndarray:
    attributes, rows = _attributes(block, at)
    array = attributes.GetArray(name)
    if array is None:
        names = [attributes.GetArrayName(i) for i in range(attributes.GetNumberOfArrays())]
        raise ValueError(_no_array(name, at, names))
    if array.GetNumberOfTuples() != rows:
        raise ValueError(f"truncated or damaged: array {name!r} has {array.GetNumberOfTuples():,} of {rows:,} values")
    return _numpy(array)


def no_patch(name: str, names: Collection[str]) -> str:
    """The message for a patch that a file does not have."""
    return f"has no patch {name!r}; it has {', '.join(names) or 'none'}"


def _no_array(name: str, at: str, names: Collection[str | None]) -> str:
    return f"has no array {name!r} at its {at}; it has {', '.join(filter(None, names)) or 'none'}"


def _computed(block: Any, choice: ArrayChoice) -> np.ndarray:
    """Positions, unit normals or areas.

    Centres of cells are those of ``vtkCellCenters``: of a polyhedron the centroid of VTK's decomposition, otherwise the
    centre of the cell's parametric coordinates. Normals are those of ``vtkPolyDataNormals``, in the order of the points
    of each cell, not oriented again.
    """
    from vtkmodules.vtkFiltersCore import vtkCellCenters, vtkPolyDataNormals
    from vtkmodules.vtkFiltersVerdict import vtkCellSizeFilter

    dtype = _numpy(block.GetPoints().GetData()).dtype if hasattr(block, "GetPoints") else np.dtype(np.float32)
    if choice.compute == "position":
        if choice.at == "points":
            return _numpy(block.GetPoints().GetData())
        with _threads():  # a polyhedron takes 15 us of CPU time, a hundred times as long as a hexahedron
            centres = output_of(vtkCellCenters(), block, VertexCells=False, CopyArrays=False)
        return _numpy(centres.GetPoints().GetData()).astype(dtype, copy=False)
    if choice.compute == "area":
        if choice.at == "points":
            raise ValueError("has no areas at its points; convert its cells")
        sizes = output_of(
            vtkCellSizeFilter(), _bare(block), ComputeVertexCount=0, ComputeLength=0, ComputeArea=1, ComputeVolume=0
        )
        return _array(sizes, "Area", "cells").astype(dtype, copy=False)
    at_cells = choice.at == "cells"
    surface = output_of(
        vtkPolyDataNormals(),
        _surface(block),
        ComputeCellNormals=at_cells,
        ComputePointNormals=not at_cells,
        Splitting=False,
        Consistency=False,
        AutoOrientNormals=False,
    )
    normals = _array(surface, "Normals", choice.at).astype(dtype, copy=False)
    normals[np.abs(normals) < _NOISE] = 0
    return normals


@contextmanager
def _threads() -> Iterator[None]:
    """Run filters in as many threads as torch uses: one in a worker process. VTK's default is one in every process."""
    import torch
    from vtkmodules.vtkCommonCore import vtkSMPTools

    before = vtkSMPTools.GetBackend()
    if before == "Sequential":
        vtkSMPTools.SetBackend("STDThread")
    vtkSMPTools.Initialize(torch.get_num_threads())
    try:
        yield
    finally:
        vtkSMPTools.Initialize(0)
        vtkSMPTools.SetBackend(before)


def output_of(algorithm: Any, block: Any, **settings: Any) -> Any:
    """The output of a filter for one mesh."""
    for name, value in settings.items():
        getattr(algorithm, f"Set{name}")(value)
    algorithm.SetInputData(block)
    algorithm.Update()
    return algorithm.GetOutput()


def _bare(block: Any) -> Any:
    """The mesh without its arrays, which share their memory with it, so that a filter has none to copy."""
    bare = block.NewInstance()
    bare.CopyStructure(block)
    return bare


def _surface(block: Any) -> Any:
    """A mesh of polygons as ``vtkPolyData``, its cells and points in their order."""
    if block.IsA("vtkPolyData"):
        return _bare(block)
    from vtkmodules.vtkCommonDataModel import vtkPolyData

    block = _unstructured(block)
    types = set(np.unique(_numpy(block.GetCellTypes())).tolist())
    if not types <= {5, 7, 9}:  # triangle, polygon, quadrilateral
        raise ValueError("has no normals: its cells are not polygons")
    surface = vtkPolyData()
    surface.SetPoints(block.GetPoints())
    surface.SetPolys(block.GetCells())
    return surface


def _unstructured(block: Any) -> Any:
    """The mesh as ``vtkUnstructuredGrid``."""
    if block.IsA("vtkUnstructuredGrid"):
        return block
    from vtkmodules.vtkFiltersCore import vtkAppendFilter

    return output_of(vtkAppendFilter(), _bare(block))


def check_xml(path: Path) -> None:
    """Raise ValueError unless the file is VTK XML without a document type, which could declare entities."""
    size = path.stat().st_size
    with path.open("rb") as opened:
        head = opened.read(_XML_HEAD)
    root = head.find(b"<VTKFile")
    if root < 0 or b"\0" in head[:root]:
        raise ValueError("truncated or damaged: it does not begin with a VTKFile element")
    if b"<!DOCTYPE" in head[:root] or b"<!ENTITY" in head[:root]:
        raise ValueError("rejected: it declares a document type, which could contain entities; no solver writes one")
    for count in re.findall(rb"NumberOf\w+\s*=\s*[\"']\s*(\d+)", head[root:]):
        check_claim(int(count), size)


def check_legacy(path: Path) -> None:
    """Raise ValueError unless the file is legacy VTK whose counts fit its size."""
    with path.open("rb") as opened, mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ) as data:
        if data[:22] != b"# vtk DataFile Version":
            raise ValueError("truncated or damaged: it does not begin with '# vtk DataFile Version'")
        if data[:1024].split(b"\n")[2:3] == [b"ASCII"] and not data[-1:].isspace():
            raise ValueError("truncated: it does not end with a line break, so its last number may be incomplete")
        for found in _LEGACY_COUNT.finditer(data):
            for count in filter(None, found.groups()):
                check_claim(int(count), len(data))


def check_stl(path: Path) -> None:
    """Raise ValueError unless the file is a whole STL file, binary or ASCII."""
    size = path.stat().st_size
    with path.open("rb") as opened:
        head = opened.read(_STL_HEADER)
        opened.seek(max(size - 1024, 0))
        tail = opened.read()
    triangles = int.from_bytes(head[80:84], "little")
    if size >= _STL_HEADER and size == _STL_HEADER + triangles * _STL_TRIANGLE:
        return
    if not head.lstrip().startswith(b"solid") or b"endsolid" not in tail:
        raise ValueError("truncated or damaged: neither a whole binary nor a whole ASCII STL file")


def most_claimed(size: int) -> int:
    """Number of points, cells or indices that a file of this size may claim."""
    return max(_CLAIMED, size * _CLAIMED_PER_BYTE)


def check_claim(count: int, size: int) -> None:
    """Raise ValueError for more points, cells or indices than fit into a file of this size."""
    if count > most_claimed(size):
        raise ValueError(f"rejected: claims {count:,} values, more than fit into its {size:,} bytes")


def _xml_polygons() -> Any:
    from vtkmodules.vtkIOXML import vtkXMLPolyDataReader

    return vtkXMLPolyDataReader()


def _xml_cells() -> Any:
    from vtkmodules.vtkIOXML import vtkXMLUnstructuredGridReader

    return vtkXMLUnstructuredGridReader()


def _legacy() -> Any:
    from vtkmodules.vtkIOLegacy import vtkDataSetReader

    reader = vtkDataSetReader()
    for kind in ("Scalars", "Vectors", "Fields", "Tensors", "Normals"):
        getattr(reader, f"ReadAll{kind}On")()
    return reader


def _stl() -> Any:
    from vtkmodules.vtkIOGeometry import vtkSTLReader

    return vtkSTLReader()


_READERS: dict[str, tuple[Callable[[Path], None], Callable[[], Any]]] = {
    ".vtp": (check_xml, _xml_polygons),
    ".vtu": (check_xml, _xml_cells),
    ".vtk": (check_legacy, _legacy),
    ".stl": (check_stl, _stl),
}
