"""Conversion of raw ``.vtp`` and ``.vtu`` files compared with VTK's own reading and with conversion from ``.pt``.

``python -m benchmarks.solvers`` writes one sample in the layout of ``ahmedml_raw`` and the same fields in that of
``ahmedml``. Nine tenths of its cells belong to the volume: hexahedra, every tenth of them as a polyhedron, as in the
meshes of snappyHexMesh; the others are quadrilaterals of the surface. Then, in turn, each in a process of its own: VTK
reads both files with the arrays that the description names; the ``.pt`` files are converted; the raw files are
converted. Seconds are without imports, memory is the process's peak. Page cache warm.
"""

from __future__ import annotations

import argparse
import json
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.result import Result, parse

WAYS = {"read": "VTK reads", "pt": "convert .pt", "raw": "convert raw files"}
_SURFACE = {"pMean": 1, "wallShearStressMean": 3}
_VOLUME = {"total(p)_coeffMean": 1, "UMean": 3, "vorticityMean": 3}


def make_sample(root: Path, cells: int, encoding: str) -> None:
    """The raw files of one sample, and its tensors."""
    import torch
    from vtkmodules.vtkIOXML import vtkXMLPolyDataWriter, vtkXMLUnstructuredGridWriter

    from zarr_core.sources import SampleTree, resolve_kind

    folder = root / "raw" / "run_1"
    folder.mkdir(parents=True)
    for mesh, arrays, writer, name in (
        (_surface(round((0.1 * cells) ** 0.5)), _SURFACE, vtkXMLPolyDataWriter(), "boundary_1.vtp"),
        (_volume(round((0.9 * cells) ** (1 / 3))), _VOLUME, vtkXMLUnstructuredGridWriter(), "volume_1.vtu"),
    ):
        random = np.random.default_rng(0)
        for array, components in {**arrays, "notUsed": 1}.items():
            values = _array(random.normal(5, 2, (mesh.GetNumberOfCells(), components)))
            values.SetName(array)
            mesh.GetCellData().AddArray(values)
        writer.SetFileName(str(folder / name))
        writer.SetInputData(mesh)
        if encoding == "base64":
            writer.SetDataModeToBinary()
        writer.EncodeAppendedDataOff()
        if encoding != "zlib":
            writer.SetCompressorTypeToNone()
        assert writer.Write()
    tree = SampleTree("ahmedml_raw", root / "raw")
    sample = tree.discover()["run_1"]
    (root / "pt" / "run_1").mkdir(parents=True)
    for canonical, file in resolve_kind("ahmedml").fields.items():
        torch.save(tree.load(sample, canonical).clone(), root / "pt" / "run_1" / file.filename)


def _surface(n: int) -> Any:
    """n x n quadrilaterals of a wave."""
    from vtkmodules.vtkCommonCore import vtkPoints
    from vtkmodules.vtkCommonDataModel import vtkPolyData

    x, y = (axis.ravel() for axis in np.meshgrid(np.arange(n + 1.0), np.arange(n + 1.0), indexing="ij"))
    corner = (np.arange(n)[:, None] * (n + 1) + np.arange(n)).ravel()[:, None]
    points, mesh = vtkPoints(), vtkPolyData()
    points.SetData(_array(np.stack([x, y, np.sin(x)], axis=1)))
    mesh.SetPoints(points)
    mesh.SetPolys(_cells(corner + np.array([0, 1, n + 2, n + 1])))
    return mesh


def _volume(n: int) -> Any:
    """n x n x n cubes; every tenth is a polyhedron."""
    from vtkmodules.vtkCommonCore import vtkPoints
    from vtkmodules.vtkCommonDataModel import vtkUnstructuredGrid

    axes = np.meshgrid(*[np.arange(n + 1.0)] * 3, indexing="ij")
    steps = np.array([(n + 1) ** 2, n + 1, 1])
    corner = np.stack([axis[:-1, :-1, :-1].ravel() for axis in axes], axis=1).astype(np.int64) @ steps
    x, y, z = steps
    cells = corner[:, None] + np.array([0, x, x + y, y, z, x + z, x + y + z, y + z])
    types = np.full(len(cells), 12, np.uint8)
    types[::10] = 42
    sides = np.array([[0, 3, 2, 1], [4, 5, 6, 7], [0, 1, 5, 4], [1, 2, 6, 5], [2, 3, 7, 6], [3, 0, 4, 7]])
    faces = cells[types == 42][:, sides].reshape(-1, 4)
    points, mesh = vtkPoints(), vtkUnstructuredGrid()
    points.SetData(_array(np.stack([axis.ravel() for axis in axes], axis=1)))
    mesh.SetPoints(points)
    locations = _cells(np.arange(len(faces)), np.concatenate([[0], np.cumsum(np.where(types == 42, 6, 0))]))
    mesh.SetPolyhedralCells(_array(types, np.uint8), _cells(cells), locations, _cells(faces))
    return mesh


def _cells(points: np.ndarray, offsets: np.ndarray | None = None) -> Any:
    """``vtkCellArray``; without offsets each row is a cell."""
    from vtkmodules.vtkCommonDataModel import vtkCellArray

    cells = vtkCellArray()
    if offsets is None:
        cells.SetData(points.shape[1], _array(points.ravel(), np.int64))
    else:
        cells.SetData(_array(offsets, np.int64), _array(points, np.int64))
    return cells


def _array(values: np.ndarray, dtype: Any = np.float32) -> Any:
    from vtkmodules.util.numpy_support import numpy_to_vtk

    return numpy_to_vtk(np.ascontiguousarray(values, dtype), deep=True)


def run(way: str, root: Path) -> dict[str, float]:
    """Seconds and peak of memory of one way, in this process."""
    from vtkmodules.vtkIOXML import vtkXMLPolyDataReader, vtkXMLUnstructuredGridReader

    if way != "read":
        import torch  # noqa: F401

        from zarr_core.convert import convert
        from zarr_core.sources.formats import vtk  # noqa: F401
    started, own = time.perf_counter(), time.process_time()
    if way == "read":
        folder = root / "raw" / "run_1"
        for reader, name, arrays in (
            (vtkXMLPolyDataReader(), "boundary_1.vtp", _SURFACE),
            (vtkXMLUnstructuredGridReader(), "volume_1.vtu", _VOLUME),
        ):
            reader.SetFileName(str(folder / name))
            reader.UpdateInformation()
            reader.GetCellDataArraySelection().DisableAllArrays()
            for array in arrays:
                reader.SetCellArrayStatus(array, 1)
            reader.Update()
            del reader
    else:
        kind = {"pt": "ahmedml", "raw": "ahmedml_raw"}[way]
        report = convert(kind, root / "store", root=root / way)
        assert report.ok, report.results
    seconds = time.perf_counter() - started
    return {
        "seconds": seconds,
        "CPU": time.process_time() - own,
        "GB": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6,
    }


def _in_own_process(*arguments: str) -> str:
    """The output of this program. A process that starts others must be small: they begin with its peak of memory."""
    command = [sys.executable, "-m", "benchmarks.solvers", *arguments]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


def measure(root: Path, rounds: int) -> dict[str, dict[str, float]]:
    """Medians of each way."""
    found: dict[str, list[dict[str, float]]] = {way: [] for way in WAYS}
    for number in range(rounds + 1):
        for way in WAYS:
            shutil.rmtree(root / "store", ignore_errors=True)
            measured = json.loads(_in_own_process("--way", way, "--folder", str(root)))
            if number or rounds == 1:  # the first round warms the page cache
                found[way].append(measured)
        if rounds == 1:
            break
    return {
        way: {key: statistics.median(each[key] for each in values) for key in values[0]}
        for way, values in found.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cells", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=3, help="1: no round to warm up")
    parser.add_argument(
        "--encoding", choices=("base64", "raw", "zlib"), default="base64", help="of the files; OpenFOAM writes base64"
    )
    parser.add_argument("--folder", type=Path, help="where to work (default: the system's folder for temporary files)")
    parser.add_argument("--way", choices=("make", *WAYS), help=argparse.SUPPRESS)
    arguments = parse(parser)
    if arguments.way == "make":
        make_sample(arguments.folder, arguments.cells, arguments.encoding)
        return
    if arguments.way:
        print(json.dumps(run(arguments.way, arguments.folder)))
        return
    result = Result("solvers", "Converting files of solvers", arguments)
    result.describe(
        f"One sample of {arguments.cells:,} cells, {arguments.encoding} files, median of {arguments.rounds} rounds."
    )
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        own = ("--folder", folder, "--cells", str(arguments.cells), "--encoding", arguments.encoding)
        _in_own_process("--way", "make", *own)
        found = measure(Path(folder), arguments.rounds)
    rows = [(name, *found[way].values()) for way, name in WAYS.items()]
    result.add_table("Ways to read and to convert", ("way", "seconds", "CPU seconds", "peak, GB"), rows, "seconds")
    both = found["read"]["seconds"] + found["pt"]["seconds"]
    result.add_target("raw files / VTK's reading and .pt files", found["raw"]["seconds"] / both, "at most", 1.3, "x")
    peak = found["raw"]["GB"] / found["read"]["GB"]
    result.add_target("peak memory of raw files / VTK's reading", peak, "at most", 1.2, "x")
    result.save()


if __name__ == "__main__":
    main()
