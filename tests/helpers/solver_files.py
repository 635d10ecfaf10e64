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


def polyhedra(points: np.ndarray, cells: list[list[list[int]]]) -> Any:
    """``vtkUnstructuredGrid`` of polyhedra, each given by the points of its faces."""
    from vtkmodules.vtkCommonCore import vtkPoints
    from vtkmodules.vtkCommonDataModel import vtkCellArray, vtkUnstructuredGrid

    def lists(rows: list[list[int]]) -> Any:
        array = vtkCellArray()
        offsets = np.cumsum([0, *map(len, rows)])
        array.SetData(_vtk(offsets), _vtk(np.array([i for row in rows for i in row], np.int64)))
        return array

    locations, mesh = vtkPoints(), vtkUnstructuredGrid()
    locations.SetData(_vtk(np.asarray(points, np.float64)))
    mesh.SetPoints(locations)
    faces = [face for cell in cells for face in cell]
    numbers = iter(range(len(faces)))
    mesh.SetPolyhedralCells(
        _vtk(np.full(len(cells), 42, np.uint8)),
        lists([sorted({i for face in cell for i in face}) or [0] for cell in cells]),
        lists([[next(numbers) for _ in cell] for cell in cells]),
        lists(faces),
    )
    return mesh


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


def write_case(folder: Path, times: dict[str, float], binary: bool = False, patch: str = "body") -> Path:
    """An OpenFOAM case of two unit cubes side by side in x.

    Args:
        folder: of the case.
        times: value of p and U_x in the first cell by name of the time; the second cell has one more, the patch ten
            times as much.
        binary: whether numbers are written as binary.
        patch: name of the patch at x = 0; all other faces belong to the patch "rest".
    """
    x, y, z = (axis.ravel(order="F") for axis in np.meshgrid([0, 1, 2], [0, 1], [0, 1], indexing="ij"))
    points = np.stack([x, y, z], axis=1).astype(np.float64)

    def quadrilateral(axis: int, at: float, first: float) -> list[int]:
        """Points of a face with the outward normal along the axis, of the cube that begins at x = first."""
        (a, b), lows = [i for i in range(3) if i != axis], [first, 0, 0]
        corners = []
        for da, db in ((0, 0), (1, 0), (1, 1), (0, 1)):
            corner = list(lows)
            corner[axis], corner[a], corner[b] = at, lows[a] + da, lows[b] + db  # type: ignore[call-overload]
            corners.append(int(corner[0] + 3 * corner[1] + 6 * corner[2]))
        outward = (axis != 1) == (at > lows[axis])
        return corners if outward else corners[::-1]

    inner = [(quadrilateral(0, 1, 0), 0)]
    body = [(quadrilateral(0, 0, 0), 0)]
    rest = [(quadrilateral(axis, at, cell), cell) for cell in (0, 1) for axis in (1, 2) for at in (0, 1)]
    rest.append((quadrilateral(0, 2, 1), 1))
    faces = [*inner, *body, *rest]
    mesh = folder / "constant" / "polyMesh"
    mesh.mkdir(parents=True, exist_ok=True)
    (folder / "system").mkdir(exist_ok=True)
    (folder / "system" / "controlDict").write_text(_foam("dictionary", "controlDict", "application simpleFoam;"))
    (mesh / "points").write_bytes(_foam_list("vectorField", "points", points, binary))
    sizes = "\n".join(f"4({' '.join(map(str, corners))})" for corners, _ in faces)
    (mesh / "faces").write_text(_foam("faceList", "faces", f"{len(faces)}\n(\n{sizes}\n)"))
    owner, neighbour = np.array([cell for _, cell in faces], np.int32), np.array([1], np.int32)
    (mesh / "owner").write_bytes(_foam_list("labelList", "owner", owner, binary))
    (mesh / "neighbour").write_bytes(_foam_list("labelList", "neighbour", neighbour, binary))
    patches = "".join(
        f"{name} {{ type wall; nFaces {n}; startFace {start}; }}\n"
        for name, n, start in ((patch, 1, 1), ("rest", len(rest), 2))
    )
    (mesh / "boundary").write_text(_foam("polyBoundaryMesh", "boundary", f"2\n(\n{patches})"))
    for time, value in times.items():
        (folder / time).mkdir()
        for name, kind, dim in (("p", "scalar", 1), ("U", "vector", 3)):
            cells = np.zeros((2, dim))
            cells[:, 0] = value, value + 1
            numbers = _foam_numbers(cells, binary)
            on_patch = f"({value * 10} 0 0)" if dim == 3 else f"{value * 10}"
            body = f"dimensions [0 0 0 0 0 0 0];\ninternalField nonuniform List<{kind}> "
            head = _foam(f"vol{kind.title()}Field", name, body, binary)
            tail = (
                f";\nboundaryField\n{{\n{patch} {{ type fixedValue; value uniform {on_patch}; }}\n"
                "rest { type zeroGradient; }\n}\n"
            )
            (folder / time / name).write_bytes(head.encode() + numbers + tail.encode())
    return folder


def _foam(kind: str, name: str, body: str, binary: bool = False) -> str:
    arch = 'arch "LSB;label=32;scalar=64"; ' if binary else ""
    form = "binary" if binary else "ascii"
    return f"FoamFile {{ version 2.0; format {form}; class {kind}; {arch}object {name}; }}\n{body}"


def _foam_list(kind: str, name: str, values: np.ndarray, binary: bool) -> bytes:
    return _foam(kind, name, "", binary).encode() + _foam_numbers(values, binary) + b"\n"


def _foam_numbers(values: np.ndarray, binary: bool) -> bytes:
    if binary:
        return f"{len(values)}\n(".encode() + values.tobytes() + b")"
    table = values.reshape(len(values), -1)
    rows = (f"({' '.join(map(str, row))})" if len(row) > 1 else str(row[0]) for row in table)
    return f"{len(values)}\n(\n{chr(10).join(rows)}\n)".encode()


def write_cgns(path: Path, times: int = 1, structured: int = 0) -> dict[str, np.ndarray]:
    """A CGNS file in HDF5: a zone of 2 x 2 x 2 hexahedra and a boundary condition "floor" on its four faces at z = 0.

    Args:
        path: of the file.
        times: number of its solutions; the last has the returned values.
        structured: number of further zones, each a structured block of 2 x 1 x 1 hexahedra.

    Returns:
        Values by name: p and U at the cells of all zones, T at the points of the first.
    """
    import h5py

    types = {"int32": "I4", "float32": "R4", "float64": "R8", "int8": "C1"}

    def fill(group: Any, name: str, label: str, data: Any = None) -> Any:
        data = np.frombuffer(data.encode(), np.int8) if isinstance(data, str) else data
        for key, text, size in (
            ("name", name, 33),
            ("label", label, 33),
            ("type", types.get(str(getattr(data, "dtype", "")), "MT"), 3),
        ):
            group.attrs.create(key, np.bytes_(text), dtype=f"S{size}")
        group.attrs.create("flags", np.array([1], np.int32))
        if data is not None:
            group.create_dataset(" data", data=data)
        return group

    def node(parent: Any, name: str, label: str, data: Any = None) -> Any:
        return fill(parent.create_group(name, track_order=True), name, label, data)

    def ints(*values: Any) -> np.ndarray:
        return np.array(values, np.int32)

    corner = np.array([i + 3 * j + 9 * k for k in (0, 1) for j in (0, 1) for i in (0, 1)])[:, None] + 1
    hexahedra, faces = corner + np.array([0, 1, 4, 3, 9, 10, 13, 12]), (corner + np.array([0, 3, 4, 1]))[:4]
    axes = np.meshgrid([0.0, 1, 2], [0.0, 1, 2], [0.0, 1, 2], indexing="ij")
    random = np.random.default_rng(0)
    path.parent.mkdir(parents=True, exist_ok=True)
    with h5py.File(path, "w", libver=("v108", "v108"), track_order=True) as file:
        fill(file, "HDF5 MotherNode", "Root Node of HDF5 File")
        file.create_dataset(" format", data=np.frombuffer(b"IEEE_LITTLE_32\0", np.int8))
        file.create_dataset(" hdf5version", data=np.frombuffer(b"HDF5 Version 1.10.0".ljust(33, b"\0"), np.int8))
        node(file, "CGNSLibraryVersion", "CGNSLibraryVersion_t", np.array([4.2], np.float32))
        base = node(file, "Base", "CGNSBase_t", ints(3, 3))
        node(node(base, "floor", "Family_t"), "FamBC", "FamilyBC_t", "BCWall")
        zone = node(base, "Zone", "Zone_t", ints([27], [8], [0]))
        node(zone, "ZoneType", "ZoneType_t", "Unstructured")
        coordinates = node(zone, "GridCoordinates", "GridCoordinates_t")
        for name, axis in zip("XYZ", axes, strict=True):
            node(coordinates, f"Coordinate{name}", "DataArray_t", axis.ravel(order="F"))
        for name, kind, cells, span in (("Cells", 17, hexahedra, (1, 8)), ("Faces", 7, faces, (9, 12))):
            elements = node(zone, name, "Elements_t", ints(kind, 0))
            node(elements, "ElementRange", "IndexRange_t", ints(*span))
            node(elements, "ElementConnectivity", "DataArray_t", cells.astype(np.int32).ravel())
        condition = node(node(zone, "ZoneBC", "ZoneBC_t"), "floor", "BC_t", "BCWall")
        node(condition, "PointRange", "IndexRange_t", ints([9], [12]))
        node(condition, "GridLocation", "GridLocation_t", "FaceCenter")
        node(condition, "FamilyName", "FamilyName_t", "floor")
        for time in range(times):
            values = {"p": random.normal(size=8), "U": random.normal(size=(8, 3)), "T": random.normal(size=27)}
            cells = node(zone, f"Cells{time}", "FlowSolution_t")
            node(cells, "GridLocation", "GridLocation_t", "CellCenter")
            for name, array in {"p": values["p"], **{f"U{c}": values["U"][:, i] for i, c in enumerate("XYZ")}}.items():
                node(cells, name, "DataArray_t", array)
            points = node(zone, f"Points{time}", "FlowSolution_t")
            node(points, "GridLocation", "GridLocation_t", "Vertex")
            node(points, "T", "DataArray_t", values["T"])
        for number in range(structured):
            block = node(base, f"Block{number}", "Zone_t", ints([3, 2, 2], [2, 1, 1], [0, 0, 0]))
            node(block, "ZoneType", "ZoneType_t", "Structured")
            coordinates = node(block, "GridCoordinates", "GridCoordinates_t")
            axes = np.meshgrid([0.0, 1], [0.0, 1], [0.0, 1, 2], indexing="ij")[::-1]
            for name, axis in zip("XYZ", axes, strict=True):
                node(coordinates, f"Coordinate{name}", "DataArray_t", axis + 10 * (number + 1))
            added = {"p": random.normal(size=2), "U": random.normal(size=(2, 3))}
            cells = node(block, "Cells", "FlowSolution_t")
            node(cells, "GridLocation", "GridLocation_t", "CellCenter")
            for name, array in {"p": added["p"], **{f"U{c}": added["U"][:, i] for i, c in enumerate("XYZ")}}.items():
                node(cells, name, "DataArray_t", array.reshape(1, 1, 2))
            values |= {name: np.concatenate([values[name], array]) for name, array in added.items()}
        if times > 1:
            iteration = node(base, "Times", "BaseIterativeData_t", ints(times))
            node(iteration, "TimeValues", "DataArray_t", np.arange(times, dtype=np.float64))
            steps = node(zone, "Pointers", "ZoneIterativeData_t")
            names = "".join(f"Cells{time}".ljust(32) for time in range(times))
            node(
                steps, "FlowSolutionPointers", "DataArray_t", np.frombuffer(names.encode(), np.int8).reshape(times, 32)
            )
    return values
