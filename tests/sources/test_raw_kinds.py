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
