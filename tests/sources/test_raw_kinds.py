"""The published raw layouts: the files of one sample, with the names of files and arrays of the data sets."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.helpers.solver_files import surface, volume, write_vtk
from zarr_core.sources import SampleTree, resolve_kind

pytest.importorskip("vtkmodules", reason="the extra vtk is not installed")

#: By kind and path of a file: number of components by name of the array.
FILES: dict[str, dict[str, dict[str, int]]] = {
    "ahmedml_raw": {
        "run_1/boundary_1.vtp": {"pMean": 1, "wallShearStressMean": 3},
        "run_1/volume_1.vtu": {"total(p)_coeffMean": 1, "UMean": 3, "vorticityMean": 3},
    },
    "drivaerml_raw": {
        "run_1/boundary_1.vtp": {"pMeanTrim": 1, "wallShearStressMeanTrim": 3},
        "run_1/volume_1.vtu": {"CptMeanTrim": 1, "UMeanTrim": 3},
    },
    "drivaernet_raw": {
        "PressureVTK/E_S/run_1.vtk": {"p": 1},
        "WallShearStressVTK_Updated/E_S/run_1.vtk": {"wallShearStress": 3},
        "CFD/E_S/run_1.vtk": {"p": 1, "U": 3},
    },
    "windsorml_raw": {
        "run_1/boundary_1.vtu": {"cpavg": 1, "cfxavg": 1, "cfyavg": 1, "cfzavg": 1, "Normals": 3},
        "run_1/volume_1.vtu": {"pressureavg": 1, "velocityxavg": 1, "velocityyavg": 1, "velocityzavg": 1},
    },
}


#: Files of one sample with its scalars, as published, and what a store records of them.
SCALARS = {
    "ahmedml_raw": {"force_mom_1.csv": "cd,cl\n0.3,0.1\n", "force_mom_varref_1.csv": "cd,cl\n0.4,0.2\n"},
    "windsorml_raw": {"force_mom_1.csv": "cd,cl\n0.3,0.1\n", "force_mom_varref_1.csv": "cd,cl\n0.4,0.2\n"},
    "drivaerml_raw": {
        "force_mom_1.csv": "Cd,Cl,Clf,Clr,Cs\n0.2758,-0.053,-0.18,0.1267,0.025\n",
        "force_mom_constref_1.csv": "Cd,Cl,Clf,Clr,Cs\n0.2921,-0.056,-0.19,0.1344,0.027\n",
        "geo_ref_1.csv": "lRef,aRef,forcesCoR,lRefRef,aRefRef,forcesCoRRef\n"
        "2.79,2.298,(1.402 0 -0.3176),2.78618,2.17,(1.40009 0 -0.3176)\n",
        "geo_parameters_1.csv": "Run,Vehicle_Length\n1,30.5\n",
    },
}


@pytest.mark.parametrize("kind", SCALARS)
def test_coefficients_of_both_reference_areas_are_recorded(tmp_path: Path, kind: str) -> None:
    (tmp_path / "run_1").mkdir()
    for name, text in SCALARS[kind].items():
        (tmp_path / "run_1" / name).write_text(text)
    for name in FILES[kind]:
        (tmp_path / name).touch()
    tree = SampleTree(kind, tmp_path)
    found = tree.load_parameters(tree.discover()["run_1"])
    if kind == "drivaerml_raw":
        assert (found["Cd"], found["constref_Cd"]) == (0.2758, 0.2921)
        assert (found["aRef"], found["aRefRef"], found["Vehicle_Length"]) == (2.298, 2.17, 30.5)
    else:
        assert found == {"cd": 0.3, "cl": 0.1, "varref_cd": 0.4, "varref_cl": 0.2}


@pytest.mark.parametrize("kind", FILES)
def test_a_sample_of_a_published_layout_has_all_fields(tmp_path: Path, kind: str) -> None:
    from vtkmodules.util.numpy_support import numpy_to_vtk

    from zarr_core.sources.formats.vtk_geometry import unstructured

    for name, arrays in FILES[kind].items():
        of_volume = "volume" in name or "CFD" in name
        mesh = volume() if of_volume else unstructured(surface()) if name.endswith(".vtu") else surface()
        for attributes, rows in (
            (mesh.GetCellData(), mesh.GetNumberOfCells()),
            (mesh.GetPointData(), mesh.GetNumberOfPoints()),
        ):
            for array, components in arrays.items():
                values = numpy_to_vtk(np.arange(rows * components, dtype=np.float32).reshape(rows, components), True)
                values.SetName(array)
                attributes.AddArray(values)
        path = write_vtk(mesh, tmp_path / name)
        if (kind, of_volume) == ("drivaerml_raw", True):  # published in parts
            content = path.read_bytes()
            path.with_name("volume_1.vtu.00.part").write_bytes(content[:999])
            path.with_name("volume_1.vtu.01.part").write_bytes(content[999:])
            path.unlink()
    tree = SampleTree(kind, tmp_path)
    (sample,) = tree.discover().values()
    assert (sample.sample_id, sample.complete) == ("run_1", True)
    sizes = {"cells": {"surface": 9, "volume": 27}, "points": {"surface": 16, "volume": 64}}
    for canonical, file in resolve_kind(kind).fields.items():
        assert file.choice is not None
        scalar = file.name in ("pressure", "area")
        expected = (sizes[file.choice.at][file.domain], *(() if scalar else (3,)))
        assert tuple(tree.load(sample, canonical).shape) == expected
