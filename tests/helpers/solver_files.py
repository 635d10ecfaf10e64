"""Small files as solvers write them: a block of hexahedra around a box, and the box's surface."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np


def surface(n: int = 3, seed: int = 0) -> Any:
    """``vtkPolyData``: n x n quadrilaterals of a bent sheet, with cell arrays p and tau and a point array T."""
    from vtkmodules.vtkCommonCore import vtkPoints
    from vtkmodules.vtkCommonDataModel import vtkCellArray, vtkPolyData

    x, y = (axis.ravel() for axis in np.meshgrid(np.arange(n + 1.0), np.arange(n + 1.0), indexing="ij"))
    points = vtkPoints()
    points.SetData(_vtk(np.stack([x, y, 0.1 * x * x], axis=1).astype(np.float32)))
    cells = vtkCellArray()
    for i in range(n):
        for j in range(n):
            corner = i * (n + 1) + j
            cells.InsertNextCell(4, [corner, corner + 1, corner + n + 2, corner + n + 1])
    mesh = vtkPolyData()
    mesh.SetPoints(points)
    mesh.SetPolys(cells)
    return _with_arrays(mesh, {"p": 1, "tau": 3}, {"T": 1}, seed)


def volume(n: int = 3, seed: int = 0) -> Any:
    """``vtkUnstructuredGrid``: n x n x n hexahedra, with cell arrays p, U, ux, uy, uz and a point array T."""
    from vtkmodules.vtkCommonDataModel import vtkImageData
    from vtkmodules.vtkFiltersCore import vtkAppendFilter

    image = vtkImageData()
    image.SetDimensions(n + 1, n + 1, n + 1)
    append = vtkAppendFilter()
    append.SetInputData(image)
    append.Update()
    return _with_arrays(append.GetOutput(), {"p": 1, "U": 3, "ux": 1, "uy": 1, "uz": 1}, {"T": 1}, seed + 1)


def write_vtk(mesh: Any, path: Path, mode: str = "Appended") -> Path:
    """Write a mesh in the format of the suffix; ``mode`` is Ascii, Binary (inline base64) or Appended."""
    from vtkmodules import vtkIOGeometry, vtkIOLegacy, vtkIOXML

    path.parent.mkdir(parents=True, exist_ok=True)
    writers = {
        ".vtp": vtkIOXML.vtkXMLPolyDataWriter,
        ".vtu": vtkIOXML.vtkXMLUnstructuredGridWriter,
        ".vtk": vtkIOLegacy.vtkDataSetWriter,
        ".stl": vtkIOGeometry.vtkSTLWriter,
    }
    writer = writers[path.suffix]()
    writer.SetFileName(str(path))
    writer.SetInputData(mesh)
    if path.suffix in (".vtp", ".vtu"):
        getattr(writer, f"SetDataModeTo{mode}")()
    elif mode != "Ascii":
        writer.SetFileTypeToBinary()
    assert writer.Write()
    return path


def cell_array(mesh: Any, name: str) -> np.ndarray:
    from vtkmodules.util.numpy_support import vtk_to_numpy

    return np.array(vtk_to_numpy(mesh.GetCellData().GetArray(name)))


def _with_arrays(mesh: Any, cells: dict[str, int], points: dict[str, int], seed: int) -> Any:
    random = np.random.default_rng(seed)
    for names, attributes, rows in (
        (cells, mesh.GetCellData(), mesh.GetNumberOfCells()),
        (points, mesh.GetPointData(), mesh.GetNumberOfPoints()),
    ):
        for name, components in names.items():
            shape = (rows, components) if components > 1 else (rows,)
            array = _vtk(random.normal(5, 2, shape).astype(np.float32))
            array.SetName(name)
            attributes.AddArray(array)
    return mesh


def _vtk(values: np.ndarray) -> Any:
    from vtkmodules.util.numpy_support import numpy_to_vtk

    return numpy_to_vtk(np.ascontiguousarray(values), deep=True)
