"""Copies of VTK files with more arrays open in VTK; everything else in them is as before."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.helpers.solver_files import surface, volume, write_vtk
from zarr_core.sources.formats.vtk_xml import insert_arrays

pytest.importorskip("vtkmodules", reason="the extra vtk is not installed")

MODES = ["Ascii", "Binary", "Appended", "AppendedBase64"]
COMPRESSORS = ["None", "ZLib", "LZ4", "LZMA"]


def written(mesh: Any, path: Path, mode: str = "Appended", compressor: str = "ZLib", **settings: Any) -> Path:
    """A file that VTK has written."""
    from vtkmodules import vtkIOXML

    name = "PolyData" if path.suffix == ".vtp" else "UnstructuredGrid"
    writer = getattr(vtkIOXML, f"vtkXML{name}Writer")()
    getattr(writer, f"SetDataModeTo{mode.removesuffix('Base64')}")()
    writer.SetEncodeAppendedData(mode.endswith("Base64"))
    writer.SetCompressorType(["None", "ZLib", "LZ4", "LZMA"].index(compressor))
    for setting, value in settings.items():
        getattr(writer, setting)(value)
    writer.SetFileName(str(path))
    writer.SetInputData(mesh)
    assert writer.Write()
    return path


def contents(path: Path) -> dict[str, np.ndarray]:
    """Points, cells and arrays of a file, as VTK reads them."""
    from vtkmodules import vtkIOXML
    from vtkmodules.util.numpy_support import vtk_to_numpy

    from zarr_core.sources.formats.vtk import vtk_errors

    name = "PolyData" if path.suffix == ".vtp" else "UnstructuredGrid"
    reader = getattr(vtkIOXML, f"vtkXML{name}Reader")()
    reader.SetFileName(str(path))
    with vtk_errors():
        reader.Update()
    mesh = reader.GetOutput()
    cells = mesh.GetPolys() if path.suffix == ".vtp" else mesh.GetCells()
    found = {
        "points": vtk_to_numpy(mesh.GetPoints().GetData()),
        "connectivity": vtk_to_numpy(cells.GetConnectivityArray()),
    }
    for at, attributes in (("cells", mesh.GetCellData()), ("points", mesh.GetPointData())):
        for i in range(attributes.GetNumberOfArrays()):
            found[f"{at} {attributes.GetArrayName(i)}"] = vtk_to_numpy(attributes.GetArray(i))
    return {name: np.array(values) for name, values in found.items()}


def assert_has(path: Path, before: dict[str, np.ndarray], added: dict[str, np.ndarray]) -> None:
    now = contents(path)
    assert now.keys() == before.keys() | added.keys()
    for name, values in (before | added).items():
        np.testing.assert_array_equal(now[name], values)


@pytest.mark.parametrize("compressor", COMPRESSORS)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("suffix", [".vtu", ".vtp"])
def test_a_copy_has_the_new_arrays_and_all_of_the_file(tmp_path: Path, suffix: str, mode: str, compressor: str) -> None:
    mesh = volume(4) if suffix == ".vtu" else surface(5)
    path = written(mesh, tmp_path / f"a{suffix}", mode, compressor)
    before = contents(path)
    random = np.random.default_rng(0)
    for at in ("cells", "points"):
        rows = len(before[f"{at} {'p' if at == 'cells' else 'T'}"])
        added = {
            'p <predicted> & "more"': random.normal(size=rows).astype(np.float32),
            "u": random.normal(size=(rows, 3)),
            "n": np.arange(rows, dtype=np.int32),
        }
        copy = tmp_path / f"b{suffix}"
        insert_arrays(path, copy, at, added)
        assert_has(copy, before, {f"{at} {name}": values for name, values in added.items()})


@pytest.mark.parametrize("compressor", ["None", "ZLib"])
@pytest.mark.parametrize("settings", [{"SetByteOrder": 0}, {"SetHeaderType": 64}])
def test_byte_order_and_header_are_those_of_the_file(tmp_path: Path, compressor: str, settings: dict[str, int]) -> None:
    path = written(volume(2), tmp_path / "a.vtu", compressor=compressor, **settings)
    values = np.linspace(0, 1, 8, dtype=np.float32)
    insert_arrays(path, tmp_path / "b.vtu", "cells", {"new": values})
    assert_has(tmp_path / "b.vtu", contents(path), {"cells new": values})


@pytest.mark.parametrize("compressor", COMPRESSORS)
def test_an_array_of_many_blocks(tmp_path: Path, compressor: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("zarr_core.sources.formats.vtk_xml._PIECE_BYTES", 64)
    path = written(volume(4), tmp_path / "a.vtu", compressor=compressor)
    for rows_of_last in ("partial", "full"):
        values = np.arange(64, dtype=np.float32) if rows_of_last == "full" else np.arange(192.0).reshape(64, 3)
        insert_arrays(path, tmp_path / "b.vtu", "cells", {"new": values})
        assert_has(tmp_path / "b.vtu", contents(path), {"cells new": values})


@pytest.mark.parametrize("form", ["empty", "missing"])
def test_a_file_without_arrays(tmp_path: Path, form: str) -> None:
    path = written(volume(2), tmp_path / "a.vtu", "Ascii", "None")
    text = path.read_text()
    start, stop = text.index("<CellData"), text.index("</CellData>") + len("</CellData>")
    path.write_text(text[:start] + ('<CellData Scalars="a>b" />' if form == "empty" else "") + text[stop:])
    before = contents(path)
    values = np.arange(8.0)
    insert_arrays(path, tmp_path / "b.vtu", "cells", {"new": values})
    assert_has(tmp_path / "b.vtu", before, {"cells new": values})


def test_what_does_not_fit_is_refused(tmp_path: Path) -> None:
    path, target = write_vtk(volume(2), tmp_path / "a.vtu"), tmp_path / "b.vtu"
    with pytest.raises(ValueError, match="has an array 'p' at its cells already; choose another name"):
        insert_arrays(path, target, "cells", {"p": np.zeros(8)})
    insert_arrays(path, target, "points", {"p": np.zeros(27)})
    with pytest.raises(ValueError, match="has 8 cells, and the array 'new' has 27 rows"):
        insert_arrays(path, target, "cells", {"new": np.zeros(27)})
    several = tmp_path / "several.vtu"
    several.write_bytes(
        b'<VTKFile><UnstructuredGrid><Piece NumberOfCells="1"/><Piece NumberOfCells="1"/></UnstructuredGrid></VTKFile>'
    )
    with pytest.raises(ValueError, match="has 2 pieces"):
        insert_arrays(several, target, "cells", {"new": np.zeros(2)})
    text = path.read_bytes()
    path.write_bytes(text.replace(b"vtkZLibDataCompressor", b"vtkOtherDataCompressor"))
    with pytest.raises(ValueError, match="is compressed by vtkOtherDataCompressor"):
        insert_arrays(path, target, "cells", {"new": np.zeros(8)})
    path.write_bytes(b'<!DOCTYPE a [<!ENTITY b "c">]>' + text)
    with pytest.raises(ValueError, match="document type"):
        insert_arrays(path, target, "cells", {"new": np.zeros(8)})
