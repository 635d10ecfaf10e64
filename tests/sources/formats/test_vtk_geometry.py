"""Fields that are computed from a mesh, and the memory that it takes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.helpers.solver_files import polyhedra, volume, write_vtk
from zarr_core.convert import convert
from zarr_core.sources import SourceDescription
from zarr_core.sources.arrays import ArrayChoice
from zarr_core.sources.formats import peek
from zarr_core.sources.formats.files import SourceFile
from zarr_core.sources.formats.vtk import VtkMesh, read_mesh
from zarr_core.sources.formats.vtk_geometry import SIZES
from zarr_core.sources.left_out import collected_notes
from zarr_core.sources.sample import FileInfo
from zarr_core.storage import Storage

pytest.importorskip("vtkmodules", reason="the extra vtk is not installed")

CENTRES = ArrayChoice(compute="position", at="cells")
#: A square of side 2 at z = 0 below one of side 1 at z = 1, and its faces.
FRUSTUM = np.array([[x * s, y * s, z] for z, s in ((0, 1), (1, 0.5)) for x, y in ((-1, -1), (1, -1), (1, 1), (-1, 1))])
FACES = [[3, 2, 1, 0], [4, 5, 6, 7], [0, 1, 5, 4], [1, 2, 6, 5], [2, 3, 7, 6], [3, 0, 4, 7]]


def cells_of(kind: int) -> Any:
    """Two cells of one type whose points are not quite where they are in a regular cell, unless it has to be one."""
    from vtkmodules.vtkCommonCore import vtkPoints
    from vtkmodules.vtkCommonDataModel import vtkGenericCell, vtkUnstructuredGrid

    regular = np.array(vtkGenericCell.InstantiateCell(kind).GetParametricCoords() or [0.0] * 3).reshape(-1, 3)
    rng, most = np.random.default_rng(kind), 0 if kind in (8, 11) else 0.2  # pixel, voxel
    points, grid = vtkPoints(), vtkUnstructuredGrid()
    grid.SetPoints(points)
    for _ in range(2):
        corners = regular[: SIZES[kind]] * 3 + rng.uniform(-most, most, (SIZES[kind], 3)) + 10
        ids = [points.InsertNextPoint(corner) for corner in corners]
        grid.InsertNextCell(kind, len(ids), ids)
    return grid


@pytest.mark.parametrize("kind", [*np.flatnonzero(SIZES).tolist(), 7])
def test_centres_are_those_of_vtk(kind: int) -> None:
    from vtkmodules.util.numpy_support import vtk_to_numpy
    from vtkmodules.vtkFiltersCore import vtkCellCenters

    grid = volume(2) if kind == 7 else cells_of(kind)
    if kind == 7:  # a polygon, whose centre VTK computes, among other cells
        grid.InsertNextCell(kind, 5, [0, 1, 2, 5, 3])
    centres = vtkCellCenters()
    centres.SetInputData(grid)
    centres.Update()
    expected = vtk_to_numpy(centres.GetOutput().GetPoints().GetData())
    np.testing.assert_allclose(VtkMesh([("", grid)]).values(CENTRES), expected, rtol=1e-6)


INTEGER_POINTS = """# vtk DataFile Version 3.0
two triangles
ASCII
DATASET {dataset}
POINTS 4 int
0 0 0 1 0 0 0 1 0 0 1 1
{cells} 2 8
3 0 1 2
3 1 3 2
"""


@pytest.mark.parametrize(
    ("dataset", "cells", "types"), [("POLYDATA", "POLYGONS", ""), ("UNSTRUCTURED_GRID", "CELLS", "CELL_TYPES 2\n5 5\n")]
)
def test_whole_numbers_as_points_have_centres_normals_and_areas(
    tmp_path: Path, dataset: str, cells: str, types: str
) -> None:
    path = tmp_path / "mesh.vtk"
    path.write_text(INTEGER_POINTS.format(dataset=dataset, cells=cells) + types)
    centres = ArrayChoice(compute="position", at="cells", scale=0.5, keep_mesh=True)
    normals, areas = (ArrayChoice(compute=name, at="cells") for name in ("normals", "area"))
    mesh = read_mesh(path, ".vtk", [centres, normals, areas])
    np.testing.assert_allclose(mesh.values(centres), np.array([[1, 1, 0], [1, 2, 1]]) / 6)
    np.testing.assert_allclose(mesh.values(normals), [[0, 0, 1], [-(0.5**0.5), -(0.5**0.5), 0]], rtol=1e-6)
    np.testing.assert_allclose(mesh.values(areas), [0.5, 0.5**0.5])
    np.testing.assert_array_equal(mesh.mesh(centres).points[3], [0, 0.5, 0.5])


@pytest.mark.parametrize("turned", [(), (1, 4)])
@pytest.mark.parametrize("offset", [0, 1000])
def test_the_centre_of_a_polyhedron_is_the_centroid_of_its_volume(turned: tuple[int, ...], offset: float) -> None:
    """Whatever the sense of rotation of its faces, and far away from the origin."""
    faces = [face[::-1] if i in turned else face for i, face in enumerate(FACES)]
    triangles = [[face[0], *face[i : i + 2]] for face in faces for i in (1, 2)]
    grid = polyhedra(np.concatenate([FRUSTUM, FRUSTUM + 3]) + offset, [faces, [[i + 8 for i in t] for t in triangles]])
    height = 11 / 28  # of a frustum of height 1 whose upper side is half as long
    expected = np.array([[0, 0, height], [3, 3, 3 + height]]) + offset
    np.testing.assert_allclose(VtkMesh([("", grid)]).values(CENTRES), expected, atol=1e-9 + 1e-12 * offset)


def test_damaged_polyhedra_are_refused() -> None:
    with pytest.raises(ValueError, match="polyhedron 1 has no faces"):
        VtkMesh([("", polyhedra(FRUSTUM, [FACES, []]))]).values(CENTRES)
    with pytest.raises(ValueError, match="a face of a polyhedron has 2 points"):
        VtkMesh([("", polyhedra(FRUSTUM, [[*FACES, [0, 1]]]))]).values(CENTRES)


@pytest.mark.parametrize("keep", [False, True])
def test_the_mesh_is_dropped_after_the_last_field_that_needs_it(tmp_path: Path, keep: bool) -> None:
    path = write_vtk(volume(), tmp_path / "mesh.vtu")
    position = CENTRES.model_copy(update={"keep_mesh": keep})
    pressure = ArrayChoice(arrays=("p",), at="cells")
    mesh = read_mesh(path, ".vtu", [position, pressure])
    mesh.values(pressure)
    (part,) = mesh._blocks
    assert part.block is not None
    values = mesh.values(position)
    assert (part.block is not None) == keep
    assert mesh.values(position) is values
    assert len(mesh.values(pressure)) == len(values) == 27


def test_integers_are_scaled_as_numbers(tmp_path: Path) -> None:
    from vtkmodules.util.numpy_support import numpy_to_vtk

    mesh = volume(2)
    levels = numpy_to_vtk(np.arange(8), deep=True)
    levels.SetName("level")
    mesh.GetCellData().AddArray(levels)
    choice = ArrayChoice(arrays=("level",), at="cells", scale=0.5)
    values = read_mesh(write_vtk(mesh, tmp_path / "mesh.vtu"), ".vtu", [choice]).values(choice)
    np.testing.assert_array_equal(values, np.arange(8) / 2)


def odd_surface() -> Any:
    """Two sound faces, two vertices, a line, and three faces without an area."""
    from vtkmodules.util.numpy_support import numpy_to_vtk
    from vtkmodules.vtkCommonCore import vtkPoints
    from vtkmodules.vtkCommonDataModel import vtkCellArray, vtkPolyData

    def cells(*rows: list[int]) -> Any:
        array = vtkCellArray()
        for row in rows:
            array.InsertNextCell(len(row), row)
        return array

    points = vtkPoints()
    corners = np.array([[0, 0, 0], [1, 0, 0], [0, 1, 0], [2, 0, 0], [1, 1, 1]], np.float32)
    points.SetData(numpy_to_vtk(corners, deep=True))
    mesh = vtkPolyData()
    mesh.SetPoints(points)
    mesh.SetVerts(cells([0], [1]))
    mesh.SetLines(cells([0, 1]))
    mesh.SetPolys(cells([0, 1, 2], [0, 1, 3], [0, 0, 1], [0, 1, 4, 2], [0, 1, 3, 1]))
    return mesh


@pytest.mark.parametrize("suffix", [".vtp", ".vtk"])
def test_a_mesh_without_faces_has_no_normals(tmp_path: Path, suffix: str) -> None:
    """Such as a cloud of points, often written with a vertex per point. A strip has several faces."""
    for name in ("points", "vertices", "strips"):
        mesh = odd_surface()
        strips = mesh.GetLines()
        strips.Reset()
        mesh.SetPolys(None)
        mesh.SetLines(None)
        if name == "strips":
            strips.InsertNextCell(4, [0, 1, 2, 4])
            mesh.SetStrips(strips)
        if name != "vertices":
            mesh.SetVerts(None)
        path = write_vtk(mesh, tmp_path / f"{name}{suffix}")
        contents = peek(SourceFile(Storage(str(tmp_path)), "", FileInfo(path.name, path.stat().st_size, "")))
        assert contents.dimension == (2 if name == "strips" else 0)
        for at in ("cells", "points") if name != "strips" else ("cells",):
            choice = ArrayChoice.model_validate({"compute": "normals", "at": at})
            with pytest.raises(ValueError, match="has no normals: its cells are not polygons"):
                read_mesh(path, suffix, [choice]).values(choice)
    with pytest.raises(ValueError, match="has no cells; `at: points` takes its points"):
        read_mesh(tmp_path / f"points{suffix}", suffix, [CENTRES]).values(CENTRES)


FLAT = "cells of fewer dimensions than the others became points as well"
DEGENERATE = "degenerate cells became points with normal or area 0"


@pytest.mark.parametrize("suffix", [".vtp", ".vtk"])
def test_cells_of_a_surface_that_are_no_sound_faces_are_noted(tmp_path: Path, suffix: str) -> None:
    path = write_vtk(odd_surface(), tmp_path / f"mesh{suffix}")
    choices = [ArrayChoice.model_validate({"compute": c, "at": "cells"}) for c in ("position", "normals", "area")]
    for chosen in (choices, choices[:2], choices[::2]):
        with collected_notes() as notes:
            mesh = read_mesh(path, suffix, chosen)
            for choice in chosen:
                mesh.values(choice)
        assert notes == {FLAT: "2 vertices and 1 lines of 8 cells", DEGENERATE: "3 of 8 cells"}
    with collected_notes() as notes:
        read_mesh(path, suffix, choices).values(ArrayChoice(compute="position", at="points"))
    assert not notes


def test_faces_among_the_cells_of_a_volume_are_noted(tmp_path: Path) -> None:
    block = volume(2)
    block.GetCellData().Initialize()
    block.InsertNextCell(9, 4, [0, 1, 4, 3])
    block.InsertNextCell(3, 2, [0, 1])
    path = write_vtk(block, tmp_path / "mesh.vtu")
    with collected_notes() as notes:
        read_mesh(path, ".vtu", [CENTRES]).values(CENTRES)
    assert notes == {FLAT: "1 lines and 1 faces of 10 cells"}
    with collected_notes() as notes:
        read_mesh(write_vtk(volume(2), path), ".vtu", [CENTRES]).values(CENTRES)
    assert not notes


@pytest.mark.parametrize("mode", ["Ascii", "Binary"])
def test_triangles_that_are_dropped_from_an_stl_file_are_noted(tmp_path: Path, mode: str) -> None:
    from vtkmodules.vtkFiltersCore import vtkTriangleFilter

    triangles = odd_surface()
    triangles.SetVerts(None)
    triangles.SetLines(None)
    split = vtkTriangleFilter()
    split.SetInputData(triangles)
    split.Update()
    path = write_vtk(split.GetOutput(), tmp_path / "mesh.stl", mode)
    with collected_notes() as notes:
        found = read_mesh(path, ".stl", [CENTRES]).values(CENTRES)
    written = path.read_bytes().count(b"endfacet") or int.from_bytes(path.read_bytes()[80:84], "little")
    assert written > len(found)
    assert notes["degenerate triangles were left out"] == f"{written - len(found)} of {written}"


def test_a_conversion_names_what_is_odd_in_its_samples(tmp_path: Path) -> None:
    for number in (1, 2):
        write_vtk(odd_surface(), tmp_path / "source" / f"run_{number}" / "body.vtp")
    mesh = {"file": "body.vtp", "compute": ["area"]}
    kind = SourceDescription.model_validate({"name": "own", "samples": "run_*", "meshes": {"surface": mesh}})
    report = convert(kind, tmp_path / "store", root=tmp_path / "source", values_dtype="float32", workers=2)
    assert report.ok
    assert f"{DEGENERATE} (samples: 2): run_1 (3 of 8 cells), run_2 (3 of 8 cells)" in report.notes
    assert any(note.startswith(FLAT) for note in report.notes)
