"""Arrays of a mesh, and checks of its cells: filters of VTK trust them, and would read memory outside the mesh."""

from __future__ import annotations

from typing import Any

import numpy as np

# Cells that are looked at together.
_CELLS = 1 << 20
#: Number of points by type of cell, 0 where it is not fixed: linear cells, then quadratic ones.
SIZES = np.zeros(256, np.int64)
SIZES[[1, 3, 5, 8, 9, 10, 11, 12, 13, 14, 15, 16]] = 1, 2, 3, 4, 4, 4, 8, 8, 6, 5, 10, 12
SIZES[[21, 22, 23, 24, 25, 26, 27, 28, 29]] = 3, 6, 8, 10, 20, 15, 13, 9, 27
SIZES[[30, 31, 32, 33, 34, 37]] = 6, 12, 18, 24, 7, 19


def numpy_of(array: Any) -> np.ndarray:
    """A view of the values of a VTK array, which stay alive with it."""
    from vtkmodules.util.numpy_support import vtk_to_numpy

    values: np.ndarray = vtk_to_numpy(array)
    return values


def check_cells(block: Any) -> None:
    """Raise ValueError for cells that have points outside the mesh, or another number of points than their type."""
    n_points = int(block.GetNumberOfPoints())
    if block.IsA("vtkPolyData"):
        for cells in (block.GetVerts(), block.GetLines(), block.GetPolys(), block.GetStrips()):
            _check_ids(cells, n_points)
    elif block.IsA("vtkUnstructuredGrid"):
        _check_ids(block.GetCells(), n_points)
        _check_sizes(block)
        if (faces := block.GetPolyhedronFaces()) is not None:
            _check_ids(faces, n_points)
            _check_ids(block.GetPolyhedronFaceLocations(), int(faces.GetNumberOfCells()))


def _check_ids(cells: Any, count: int) -> None:
    if cells is None:
        return
    if not cells.IsValid():
        raise ValueError("truncated or damaged: the offsets of its cells are not those of their points")
    ids = cells.GetConnectivityArray()
    if ids.GetNumberOfTuples():
        low, high = ids.GetRange()
        if low < 0 or high >= count:
            raise ValueError(f"truncated or damaged: its cells have points {low:.0f} to {high:.0f} of {count:,}")


def _check_sizes(block: Any) -> None:
    if not block.GetNumberOfCells():
        return
    offsets, types = numpy_of(block.GetCells().GetOffsetsArray()), numpy_of(block.GetCellTypes()).ravel()
    for start in range(0, len(types), _CELLS):
        own = types[start : start + _CELLS]
        sizes, expected = np.diff(offsets[start : start + len(own) + 1]), SIZES[own]
        wrong = np.flatnonzero((expected > 0) & (sizes != expected))
        if len(wrong):
            cell = int(wrong[0])
            raise ValueError(
                f"truncated or damaged: cell {start + cell:,} of type {own[cell]} has {sizes[cell]} points, "
                f"expected {expected[cell]}"
            )
