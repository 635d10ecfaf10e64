"""Arrays of a mesh, checks of its cells, and fields that are computed from it: centres, unit normals and areas."""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any

import numpy as np

from zarr_core.sources.arrays import ArrayChoice
from zarr_core.sources.left_out import note

# Cells whose centres are computed together, so that the intermediate arrays stay small.
_CELLS = 1 << 14
_POLYHEDRON = 42
# Components of a unit normal below the precision of float32 are rounding errors of the positions. They are set to 0, so
# that a plane parallel to an axis does not count as a loss of values that float16 cannot store.
_NOISE = 1e-7
# Cells whose sizes are checked together.
_CHECKED_CELLS = 1 << 20
#: Number of points by type of cell, 0 where it is not fixed: linear cells, then quadratic ones.
SIZES = np.zeros(256, np.int64)
SIZES[[1, 3, 5, 8, 9, 10, 11, 12, 13, 14, 15, 16]] = 1, 2, 3, 4, 4, 4, 8, 8, 6, 5, 10, 12
SIZES[[21, 22, 23, 24, 25, 26, 27, 28, 29]] = 3, 6, 8, 10, 20, 15, 13, 9, 27
SIZES[[30, 31, 32, 33, 34, 37]] = 6, 12, 18, 24, 7, 19


def computed(block: Any, choice: ArrayChoice) -> np.ndarray:
    """Positions, unit normals or areas, in the dtype of the mesh's points, or as float64; raises ValueError.

    Normals are those of ``vtkPolyDataNormals``, in the order of the points of each cell, not oriented again. Areas are
    those of ``vtkCellSizeFilter``.
    """
    at_cells = choice.at == "cells"
    if choice.compute == "position" and at_cells:
        return _centres(block)
    points = numpy_of(block.GetPoints().GetData())
    if choice.compute == "position":
        return points
    if choice.compute == "area":
        return _areas(block, at_cells).astype(real_dtype(points), copy=False)
    return _normals(block, at_cells).astype(real_dtype(points), copy=False)


def real_dtype(points: np.ndarray) -> np.dtype:
    """Dtype of what is computed from points. Where they are whole numbers, their centre is not."""
    return points.dtype if points.dtype.kind == "f" else np.dtype(np.float64)


def note_flat_cells(blocks: Iterable[Any], choice: ArrayChoice, values: np.ndarray) -> None:
    """Note the cells that became points of a domain although they have no area, or no normal.

    The values are those of a field that was computed at the cells.
    """
    by_dimension = np.sum(list(map(_count_by_dimension, blocks)), axis=0)
    dimension = int(np.flatnonzero(by_dimension).max(initial=0))
    lower = int(by_dimension[:dimension].sum())
    if choice.compute == "position" and lower:
        names = ("vertices", "lines", "faces")[:dimension]
        counted = [f"{by_dimension[i]:,} {name}" for i, name in enumerate(names) if by_dimension[i]]
        note(
            "cells of fewer dimensions than the others became points as well",
            f"{' and '.join(counted)} of {len(values):,} cells",
        )
    if choice.compute in ("area", "normals") and dimension == 2:
        # A vertex or a line has an area of 0, too, and any normal.
        without = int((values.reshape(len(values), -1) == 0).all(axis=1).sum())
        without -= lower if choice.compute == "area" else 0
        if without:
            note("degenerate cells became points with normal or area 0", f"{without:,} of {len(values):,} cells")


def dimension_of(block: Any) -> int:
    """The highest dimension of the cells of a mesh; 0 without cells."""
    return int(np.flatnonzero(_count_by_dimension(block)).max(initial=0))


def _count_by_dimension(block: Any) -> np.ndarray:
    """Number of cells with 0, 1, 2 and 3 dimensions."""
    if block.IsA("vtkPolyData"):
        faces = block.GetNumberOfPolys() + block.GetNumberOfStrips()
        return np.array([block.GetNumberOfVerts(), block.GetNumberOfLines(), faces, 0])
    counts = np.zeros(4, np.int64)
    cells = block.GetNumberOfCells()
    if not block.IsA("vtkUnstructuredGrid") or not cells:
        counts[block.GetCell(0).GetCellDimension() if cells else 0] = cells
        return counts
    types = np.bincount(numpy_of(block.GetCellTypes()).ravel())
    for kind in np.flatnonzero(types):
        counts[_dimension(int(kind))] += types[kind]
    return counts


@cache
def _dimension(kind: int) -> int:
    """Dimension of a type of cell."""
    from vtkmodules.vtkCommonDataModel import vtkGenericCell

    cell = vtkGenericCell.InstantiateCell(kind)
    return int(cell.GetCellDimension()) if cell is not None else 0


def _areas(block: Any, at_cells: bool) -> np.ndarray:
    from vtkmodules.vtkFiltersVerdict import vtkCellSizeFilter

    if not at_cells:
        raise ValueError("has no areas at its points; convert its cells")
    sizes = output_of(vtkCellSizeFilter(), _bare(block), ComputeVertexCount=0, ComputeLength=0, ComputeVolume=0)
    return numpy_of(sizes.GetCellData().GetArray("Area"))


def _normals(block: Any, at_cells: bool) -> np.ndarray:
    from vtkmodules.vtkFiltersCore import vtkPolyDataNormals

    surface = output_of(
        vtkPolyDataNormals(),
        _surface(block),
        ComputeCellNormals=at_cells,
        ComputePointNormals=not at_cells,
        Splitting=False,
        Consistency=False,
        AutoOrientNormals=False,
    )
    array = (surface.GetCellData() if at_cells else surface.GetPointData()).GetArray("Normals")
    # The filter cuts strips into triangles.
    if array is None or (at_cells and array.GetNumberOfTuples() != block.GetNumberOfCells()):
        raise ValueError("has no normals: its cells are not polygons")
    normals = numpy_of(array)
    normals[np.abs(normals) < _NOISE] = 0
    return normals


def _centres(block: Any) -> np.ndarray:
    """Centres of the cells.

    They are those of ``vtkCellCenters``: of a polyhedron the centroid of its volume, otherwise the centre of the cell's
    parametric coordinates. Computed in blocks of cells, they need neither the time nor the memory of that filter.
    """
    import torch

    if not block.IsA("vtkUnstructuredGrid"):
        return _centres_of_vtk(block)
    points, types = numpy_of(block.GetPoints().GetData()), numpy_of(block.GetCellTypes()).ravel()
    cells = block.GetCells()
    ids, starts = numpy_of(cells.GetConnectivityArray()), numpy_of(cells.GetOffsetsArray())
    blocks = [slice(first, first + _CELLS) for first in range(0, len(types), _CELLS)]
    kinds: set[int] = set()
    for own in blocks:
        kinds.update(np.flatnonzero(np.bincount(types[own])).tolist())
    others = kinds - {_POLYHEDRON, *np.flatnonzero(SIZES)}
    centres = _centres_of_vtk(block) if others else np.empty((len(types), 3), real_dtype(points))

    def fill(own: slice) -> None:
        for kind in kinds - others:
            rows = own.start + np.flatnonzero(types[own] == kind)
            if kind == _POLYHEDRON and len(rows):
                centres[rows] = _centroids(block, points, rows)
            elif len(rows):
                total, corner = np.zeros((len(rows), 3)), starts.take(rows)
                for i, weight in enumerate(_weights(kind)):
                    total += weight * points.take(ids.take(corner + i), axis=0)
                centres[rows] = total

    with ThreadPoolExecutor(torch.get_num_threads()) as pool:  # one in a worker process
        for _ in pool.map(fill, blocks):
            pass
    return centres


def _centres_of_vtk(block: Any) -> np.ndarray:
    from vtkmodules.vtkFiltersCore import vtkCellCenters

    if not block.GetNumberOfCells():
        raise ValueError("has no cells; `at: points` takes its points")
    centres = numpy_of(output_of(vtkCellCenters(), _bare(block), VertexCells=False).GetPoints().GetData())
    if len(centres) != block.GetNumberOfCells():
        raise ValueError("contains empty cells, which have no centre")
    return centres.astype(real_dtype(numpy_of(block.GetPoints().GetData())))


@cache
def _weights(kind: int) -> np.ndarray:
    """Weights of the points of a cell in its centre."""
    from vtkmodules.vtkCommonDataModel import vtkGenericCell

    cell, centre, weights = vtkGenericCell.InstantiateCell(kind), [0.0] * 3, [0.0] * int(SIZES[kind])
    cell.GetParametricCenter(centre)
    cell.InterpolateFunctions(centre, weights)
    return np.array(weights)


def _centroids(block: Any, points: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Centroids of the volumes of some polyhedra, (rows, 3), float64.

    A face consists of the triangles with its first point, as in ``vtkPolyhedron::GetCentroid`` of VTK 9.7. A triangle
    and the mean of the faces form a tetrahedron. That mean has to be inside the cell; faces may turn either way.
    """
    locations, faces = block.GetPolyhedronFaceLocations(), block.GetPolyhedronFaces()
    if faces is None:
        raise ValueError("truncated or damaged: its polyhedra have no faces")
    begin, of_cells = numpy_of(locations.GetOffsetsArray()), numpy_of(locations.GetConnectivityArray())
    counts = begin[rows + 1] - begin[rows]
    if not counts.all():
        raise ValueError(f"truncated or damaged: its polyhedron {rows[np.argmin(counts)]:,} has no faces")
    owner = np.repeat(np.arange(len(rows)), counts)
    own = of_cells.take(np.arange(len(owner)) + (begin[rows] - np.cumsum(counts) + counts)[owner])
    starts, ids = numpy_of(faces.GetOffsetsArray()), numpy_of(faces.GetConnectivityArray())
    first = starts.take(own)
    sizes = starts.take(own + 1) - first
    if sizes.min() < 3:
        raise ValueError(f"truncated or damaged: a face of a polyhedron has {sizes.min()} points")

    def per_cell(values: np.ndarray) -> np.ndarray:
        return np.stack([np.bincount(owner, each, len(rows)) for each in values])

    mean, moment, volume = np.empty((3, len(own))), np.empty((3, len(own))), np.empty(len(own))
    groups = []  # faces with the same number of points: their numbers, and (3, points, faces)
    for size in np.flatnonzero(np.bincount(sizes)).tolist():
        at = np.flatnonzero(sizes == size)
        corners = points.take(ids.take(first[at] + np.arange(size)[:, None]), axis=0)
        corners = corners.transpose(2, 0, 1).astype(np.float64, "C")
        mean[:, at] = corners.mean(axis=1)
        groups.append((at, corners))
    centre: np.ndarray = per_cell(mean) / counts
    for at, corners in groups:
        corners -= centre[:, owner[at]][:, None]
        a, p, q = corners[:, :1], corners[:, 1:-1], corners[:, 2:]
        six = sum(a[i] * (p[j] * q[k] - p[k] * q[j]) for i, j, k in ((0, 1, 2), (1, 2, 0), (2, 0, 1)))
        volume[at], moment[:, at] = six.sum(axis=0), (six * (a + p + q)).sum(axis=1)
    total = 4 * np.bincount(owner, np.abs(volume), len(rows))
    centre += per_cell(moment * np.sign(volume)) / np.where(total > 0, total, 1)
    return centre.T


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

    block = unstructured(block)
    types = set(np.unique(numpy_of(block.GetCellTypes())).tolist())
    if not types <= {5, 7, 9}:  # triangle, polygon, quadrilateral
        raise ValueError("has no normals: its cells are not polygons")
    surface = vtkPolyData()
    surface.SetPoints(block.GetPoints())
    surface.SetPolys(block.GetCells())
    return surface


def unstructured(block: Any) -> Any:
    """The mesh as ``vtkUnstructuredGrid``."""
    if block.IsA("vtkUnstructuredGrid"):
        return block
    from vtkmodules.vtkFiltersCore import vtkAppendFilter

    return output_of(vtkAppendFilter(), _bare(block))


def numpy_of(array: Any) -> np.ndarray:
    """A view of the values of a VTK array, which stay alive with it."""
    from vtkmodules.util.numpy_support import vtk_to_numpy

    values: np.ndarray = vtk_to_numpy(array)
    return values


def check_cells(block: Any) -> None:
    """Raise ValueError for cells that have points outside the mesh, or another number of points than their type.

    Filters of VTK trust them, and would read memory outside the mesh.
    """
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
    for start in range(0, len(types), _CHECKED_CELLS):
        own = types[start : start + _CHECKED_CELLS]
        sizes, expected = np.diff(offsets[start : start + len(own) + 1]), SIZES[own]
        wrong = np.flatnonzero((expected > 0) & (sizes != expected))
        if len(wrong):
            cell = int(wrong[0])
            raise ValueError(
                f"truncated or damaged: cell {start + cell:,} of type {own[cell]} has {sizes[cell]} points, "
                f"expected {expected[cell]}"
            )
