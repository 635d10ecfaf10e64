"""CGNS files in HDF5: the zones of all bases at the latest time as one mesh, and patches of the boundary."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Any

from zarr_core.sources.arrays import ArrayChoice
from zarr_core.sources.formats.arrays import damaged
from zarr_core.sources.formats.files import SourceFile
from zarr_core.sources.formats.hdf5 import check_dataset, datasets, open_hdf5
from zarr_core.sources.formats.vtk import VtkMesh, children, leaves, select_arrays, vtk_errors
from zarr_core.sources.formats.vtk_geometry import output_of
from zarr_core.sources.limits import check_claim

_ADF = b"@(#)ADF Database"
# Labels of the nodes whose values VTK takes as sizes of the arrays that it allocates.
_SIZES = (b"Zone_t", b"IndexRange_t")


def open_file(file: SourceFile, choices: Collection[ArrayChoice]) -> VtkMesh:
    """Read the mesh and the chosen arrays; only names and sizes without choices."""
    with file.local_path() as path:
        return read_cgns(path, choices)


def read_cgns(path: Path, choices: Collection[ArrayChoice]) -> VtkMesh:
    """Read a local file; raises ValueError. A choice without patches means all zones."""
    from vtkmodules.vtkCommonExecutionModel import vtkStreamingDemandDrivenPipeline
    from vtkmodules.vtkFiltersCore import vtkRemoveUnusedPoints
    from vtkmodules.vtkIOCGNSReader import vtkCGNSReader

    _check(path)
    with vtk_errors():
        reader = vtkCGNSReader()
        reader.SetFileName(str(path))
        reader.SetLoadBndPatch(not choices or any(choice.patches for choice in choices))
        reader.UpdateInformation()
        reader.EnableAllBases()
        reader.EnableAllFamilies()
        select_arrays(reader, choices)
        times = reader.GetOutputInformation(0).Get(vtkStreamingDemandDrivenPipeline.TIME_STEPS())
        if times:
            reader.UpdateTimeStep(times[-1])
        reader.Update()
        zones, patches = _parts(reader.GetOutput())
        # A patch has the points of its whole zone.
        return VtkMesh(zones, choices, [(name, output_of(vtkRemoveUnusedPoints(), patch)) for name, patch in patches])


def _parts(data: Any) -> tuple[list[tuple[str, Any]], list[tuple[str, Any]]]:
    """Names and meshes of the zones, and of the patches."""
    zones: list[tuple[str, Any]] = []
    patches: list[tuple[str, Any]] = []
    for _, base in children(data):
        for name, zone in children(base):
            if not zone.IsA("vtkMultiBlockDataSet"):
                zones += leaves(zone, name)
                continue
            for _, part in children(zone):  # "Internal", and the blocks of "Patches"
                if part.IsA("vtkMultiBlockDataSet"):
                    patches += leaves(part)
                else:
                    zones += leaves(part, name)
    return zones, patches


def _check(path: Path) -> None:
    """Raise ValueError unless the file is HDF5 that VTK can read safely.

    It has no links to other files, no filters of plug-ins, and claims no more points and cells than fit into it.
    """
    size = path.stat().st_size
    with path.open("rb") as opened:
        if opened.read(len(_ADF)) == _ADF:
            raise ValueError("is a CGNS file in the older ADF format; convert it with `adf2hdf`, a tool of CGNS")
        with damaged("truncated or damaged"), open_hdf5(opened) as file:
            found = datasets(file)
            for name, dataset in found:
                check_dataset(dataset, size)
                if name.endswith("/ data") and dataset.parent.attrs.get("label") in _SIZES:
                    _check_sizes(dataset, size)
                coordinates = dataset.parent.parent
                if coordinates.attrs.get("label") == b"GridCoordinates_t" and "CoordinateX" not in coordinates:
                    names = ", ".join(sorted(coordinates))  # VTK takes 0 for a coordinate that is not there
                    raise ValueError(f"{coordinates.name} has no CoordinateX, but {names}; write Cartesian coordinates")
            if not any(name.endswith("/FlowSolutionPointers/ data") for name, _ in found):
                _check_solutions(dataset.parent for _, dataset in found)


def _check_solutions(nodes: Iterable[Any]) -> None:
    """Raise ValueError if solutions without times have the same array at one place: VTK reads the first of them."""
    first: dict[tuple[str, bytes, str], str] = {}
    for node in nodes:
        if node.attrs.get("label") != b"DataArray_t" or node.parent.attrs.get("label") != b"FlowSolution_t":
            continue
        location = node.parent.get("GridLocation/ data")
        zone, solution, array = node.name.rsplit("/", 2)
        place = zone, b"Vertex" if location is None else location[()].tobytes(), array
        if first.setdefault(place, solution) != solution:
            raise ValueError(
                f"the solutions {first[place]!r} and {solution!r} of {zone} both have {array!r}, and no "
                "FlowSolutionPointers tell their times; delete one of the two"
            )


def _check_sizes(dataset: Any, size: int) -> None:
    if dataset.dtype.kind not in "iu" or not dataset.size:
        raise ValueError(f"damaged: {dataset.name} is not a size")
    lengths = dataset[:10]
    for row in lengths.reshape(len(lengths), -1)[:, :10]:
        check_claim(math.prod(abs(int(length)) for length in row), size)
