"""Meshes of VTK become fields, bit for bit; damaged and hostile files are refused by name."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.helpers.small_source import SHARED
from tests.helpers.solver_files import cell_array, surface, volume, write_vtk
from zarr_core import ZarrChunkReader, verify_store
from zarr_core.convert import convert
from zarr_core.errors import SampleError
from zarr_core.format.shuffle import shuffle_permutation
from zarr_core.sources import SampleTree, SourceDescription
from zarr_core.sources.arrays import ArrayChoice
from zarr_core.sources.formats.vtk import read_mesh

pytest.importorskip("vtkmodules", reason="the extra vtk is not installed")

AHMED = SHARED / "data" / "ahmed_vtk"
LAYOUT = {
    "name": "box",
    "samples": "run_*",
    "meshes": {
        "surface": {
            "file": "boundary_*.vtp",
            "fields": {"pressure": "p", "friction": "tau"},
            "compute": ["normals", "area"],
        },
        "volume": {"file": "volume_*.vtu", "fields": {"pressure": "p", "velocity": ["ux", "uy", "uz"]}},
    },
}
SHARED_LAYOUT = {
    "name": "ahmed",
    "samples": "run_*",
    "meshes": {
        "surface": {
            "file": "vtk/boundary_*.vtp",
            "fields": {"pressure": "p", "friction": "wallShearStress"},
            "compute": ["normals"],
        },
        "volume": {
            "file": "vtk/volume_*.vtu",
            "fields": {"pressure": "p", "velocity": "U", "vorticity": "vorticity"},
        },
    },
}
#: The tensors of the same run.
TWINS = {
    "surface_position": "surface_position_vtp",
    "surface_pressure": "surface_pressure",
    "surface_friction": "surface_wallshearstress",
    "surface_normals": "surface_normals",
    "volume_position": "volume_cell_position",
    "volume_pressure": "volume_cell_pressure",
    "volume_velocity": "volume_cell_velocity",
    "volume_vorticity": "volume_cell_vorticity",
}


def layout(**changes: object) -> SourceDescription:
    return SourceDescription.model_validate(LAYOUT | changes)


def write_run(root: Path, number: int = 1, mode: str = "Appended") -> Path:
    write_vtk(surface(seed=number), root / f"run_{number}" / f"boundary_{number}.vtp", mode)
    write_vtk(volume(seed=number), root / f"run_{number}" / f"volume_{number}.vtu", mode)
    return root


def values_of(root: Path, description: SourceDescription, sample_id: str = "run_1") -> dict[str, np.ndarray]:
    tree = SampleTree(description, root)
    sample = tree.discover()[sample_id]
    assert sample.complete, sample.missing
    return {canonical: tree.load(sample, canonical).numpy() for canonical in description.fields}


@pytest.mark.parametrize("mode", ["Ascii", "Binary", "Appended"])
def test_arrays_of_a_mesh_are_fields(tmp_path: Path, mode: str) -> None:
    values = values_of(write_run(tmp_path, mode=mode), layout())
    sheet, block = surface(seed=1), volume(seed=1)
    np.testing.assert_array_equal(values["surface_pressure"], cell_array(sheet, "p"))
    np.testing.assert_array_equal(values["surface_friction"], cell_array(sheet, "tau"))
    np.testing.assert_array_equal(values["volume_velocity"], np.stack([cell_array(block, f"u{c}") for c in "xyz"], 1))
    np.testing.assert_allclose(values["volume_position"][0], [0.5, 0.5, 0.5])
    np.testing.assert_allclose(values["surface_position"][-1], [2.5, 2.5, 0.65], rtol=1e-6)
    np.testing.assert_allclose(np.linalg.norm(values["surface_normals"], axis=1), 1, rtol=1e-6)
    np.testing.assert_allclose(values["surface_area"], np.repeat(np.hypot(1, [0.1, 0.3, 0.5]), 3), rtol=1e-6)
    assert {each.dtype for each in values.values()} == {np.dtype(np.float32)}


def test_points_instead_of_cells_and_lengths_in_millimetres(tmp_path: Path) -> None:
    meshes = {
        "surface": {
            "file": "boundary_*.vtp",
            "at": "points",
            "length_scale": 0.001,
            "fields": {"temperature": {"array": "T", "scale": 2.0, "units": "K"}},
            "compute": ["normals"],
        }
    }
    values = values_of(write_run(tmp_path), layout(meshes=meshes))
    np.testing.assert_allclose(values["surface_position"][-1], [0.003, 0.003, 0.0009], rtol=1e-6)
    assert values["surface_normals"].shape == values["surface_position"].shape == (16, 3)
    assert values["surface_temperature"].shape == (16,)


def test_a_file_in_parts_is_one_file(tmp_path: Path) -> None:
    run = write_run(tmp_path) / "run_1"
    whole = (run / "volume_1.vtu").read_bytes()
    expected = values_of(tmp_path, layout())
    (run / "volume_1.vtu").unlink()
    (run / "volume_1.vtu.00.part").write_bytes(whole[:1000])
    (run / "volume_1.vtu.01.part").write_bytes(whole[1000:])
    for name, values in values_of(tmp_path, layout()).items():
        np.testing.assert_array_equal(values, expected[name])
    (run / "volume_1.vtu.00.part").unlink()
    assert SampleTree(layout(), tmp_path).discover()["run_1"].missing == ("volume_*.vtu",)


def test_a_store_of_meshes_equals_its_source(tmp_path: Path) -> None:
    write_run(write_run(tmp_path / "source", 1), 2)
    report = convert(layout(), tmp_path / "store", root=tmp_path / "source", values_dtype="float32", chunk_points=8)
    assert report.ok, [result.reason for result in report.results]
    assert [result.status for result in convert(layout(), tmp_path / "store", root=tmp_path / "source").results] == [
        "up to date",
        "up to date",
    ]
    found = ZarrChunkReader(tmp_path / "store").read_sample("run_2", {})
    for canonical, values in values_of(tmp_path / "source", layout(), "run_2").items():
        domain = canonical.partition("_")[0]
        rows = shuffle_permutation(0, "run_2", domain, len(values))
        np.testing.assert_array_equal(found[canonical], values.reshape(len(values), -1)[rows])
    verified = verify_store(str(tmp_path / "store"), source=str(tmp_path / "source"))
    assert verified.ok, verified


def test_another_choice_of_arrays_is_another_sample(tmp_path: Path) -> None:
    write_run(tmp_path / "source")
    convert(layout(), tmp_path / "store", root=tmp_path / "source", values_dtype="float32")
    LAYOUT["meshes"]["volume"]["fields"]["pressure"] = {"array": "p", "scale": 0.5}  # type: ignore[index]
    try:
        (result,) = convert(layout(), tmp_path / "store", root=tmp_path / "source").results
    finally:
        LAYOUT["meshes"]["volume"]["fields"]["pressure"] = "p"  # type: ignore[index]
    assert result.status == "converted"


def test_fields_of_two_files_are_matched_by_position(tmp_path: Path) -> None:
    """As in DrivAerNet++, where the two files of a design list the same points in another order."""
    from vtkmodules.util.numpy_support import numpy_to_vtk, vtk_to_numpy

    sheet = surface()
    write_vtk(sheet, tmp_path / "Pressure" / "a" / "X_1.vtk")
    points = vtk_to_numpy(sheet.GetPoints().GetData()).copy()
    temperature = vtk_to_numpy(sheet.GetPointData().GetArray("T")).copy()
    order = np.random.default_rng(0).permutation(len(points))
    sheet.GetPoints().SetData(numpy_to_vtk(points[order], deep=True))
    shuffled = numpy_to_vtk(temperature[order], deep=True)
    shuffled.SetName("T")
    sheet.GetPointData().AddArray(shuffled)
    write_vtk(sheet, tmp_path / "Heat" / "a" / "X_1.vtk")
    mesh = {
        "file": "Pressure/*/{id}.vtk",
        "at": "points",
        "fields": {"temperature": {"file": "Heat/*/{id}.vtk", "array": "T"}},
    }
    description = layout(samples="*", meshes={"surface": mesh})
    values = values_of(tmp_path, description, "X_1")
    np.testing.assert_array_equal(values["surface_position"], points)
    np.testing.assert_array_equal(values["surface_temperature"], temperature)
    report = convert(description, tmp_path / "store", root=tmp_path, values_dtype="float32")
    assert report.ok
    assert verify_store(str(tmp_path / "store"), source=str(tmp_path)).ok
    points[0] += 1
    sheet.GetPoints().SetData(numpy_to_vtk(points[order], deep=True))
    write_vtk(sheet, tmp_path / "Heat" / "a" / "X_1.vtk")
    with pytest.raises(Exception, match="its points are not those of the file with the positions"):
        values_of(tmp_path, description, "X_1")


def test_a_pattern_that_several_files_match_is_refused(tmp_path: Path) -> None:
    write_vtk(surface(), write_run(tmp_path) / "run_1" / "boundary_2.vtp")
    (missing,) = SampleTree(layout(), tmp_path).discover()["run_1"].missing
    assert missing == "boundary_*.vtp, which 2 files match: boundary_1.vtp, boundary_2.vtp"


def test_an_array_that_is_not_there_is_named(tmp_path: Path) -> None:
    meshes = {"volume": {"file": "volume_*.vtu", "fields": {"pressure": "q"}}}
    with pytest.raises(
        SampleError,
        match=r"volume_1.vtu: has no array 'q' at its cells; it has p, U, ux, uy, uz; volume_pressure needs it "
        r"\(repair or upload the file again, or correct the description\)",
    ):
        values_of(write_run(tmp_path), layout(meshes=meshes))


@pytest.mark.parametrize("suffix", [".vtp", ".vtu", ".vtk", ".stl"])
@pytest.mark.parametrize("mode", ["Ascii", "Binary", "Appended"])
def test_a_file_that_was_cut_off_is_refused(tmp_path: Path, suffix: str, mode: str) -> None:
    mesh = volume() if suffix == ".vtu" else surface()
    if suffix == ".stl":
        mesh = triangles(mesh)
    path = write_vtk(mesh, tmp_path / f"mesh{suffix}", mode)
    whole = path.read_bytes()
    arrays = {} if suffix == ".stl" else {"T": "points", "p": "cells", "U" if suffix == ".vtu" else "tau": "cells"}
    choices = [ArrayChoice.model_validate({"arrays": name, "at": at}) for name, at in arrays.items()]

    def read() -> None:
        mesh = read_mesh(path, suffix, choices)
        for choice in choices:
            mesh.values(choice)

    read()
    # The legacy format does not say which arrays follow.
    reason = "empty|truncated|no array" if suffix == ".vtk" else "empty|truncated"
    for share in (0, 0.02, 0.3, 0.6, 0.9):
        path.write_bytes(whole[: int(share * len(whole))])
        with pytest.raises(ValueError, match=reason):
            read()


@pytest.mark.parametrize(("written", "changed"), [("ASCII", "ascii"), ("ASCII", "ASCII "), ("\n", "\r\n")])
def test_a_text_that_ends_in_a_number_is_refused_however_it_is_written(
    tmp_path: Path, written: str, changed: str
) -> None:
    head = "# vtk DataFile Version 3.0\na triangle\nASCII\nDATASET POLYDATA\nPOINTS 3 float\n0 0 0 1 0 0 0 1 0\n"
    text = f"{head}POLYGONS 1 4\n3 0 1 2\nCELL_DATA 1\nSCALARS p float\nLOOKUP_TABLE default\n12.345\n"
    path = tmp_path / "mesh.vtk"
    path.write_bytes(text.replace(written, changed).encode())
    pressure = ArrayChoice(arrays=("p",), at="cells")
    assert read_mesh(path, ".vtk", [pressure]).values(pressure) == np.float32(12.345)
    path.write_bytes(path.read_bytes().partition(b"45")[0])
    with pytest.raises(ValueError, match="its last number may be incomplete"):
        read_mesh(path, ".vtk", [pressure])


@pytest.mark.parametrize("suffix", [".vtp", ".vtu"])
def test_a_file_of_several_times_is_refused(tmp_path: Path, suffix: str) -> None:
    """VTK writes such files, but reads the values of the first time only, in Ascii with the cells of all."""
    from vtkmodules import vtkIOXML

    name = {".vtp": "vtkXMLPolyDataWriter", ".vtu": "vtkXMLUnstructuredGridWriter"}[suffix]
    writer = getattr(vtkIOXML, name)()
    path = tmp_path / f"mesh{suffix}"
    writer.SetFileName(str(path))
    writer.SetInputData(surface() if suffix == ".vtp" else volume())
    writer.SetNumberOfTimeSteps(2)
    writer.Start()
    for time in (0.5, 1.5):
        writer.WriteNextTime(time)
    writer.Stop()
    with pytest.raises(ValueError, match="contains 2 times; write each to a file of its own"):
        read_mesh(path, suffix, [ArrayChoice(arrays=("p",), at="cells")])


@pytest.mark.parametrize("mode", ["Ascii", "Appended"])
def test_an_array_that_a_piece_lacks_is_refused(tmp_path: Path, mode: str) -> None:
    """VTK would give the cells of this piece whatever is in the memory."""
    from vtkmodules.vtkIOXML import vtkXMLUnstructuredGridWriter

    path, pressure = tmp_path / "mesh.vtu", ArrayChoice(arrays=("p",), at="cells")
    writer = vtkXMLUnstructuredGridWriter()
    getattr(writer, f"SetDataModeTo{mode}")()
    writer.SetFileName(str(path))
    writer.SetInputData(volume())
    writer.SetNumberOfPieces(2)
    writer.Write()
    assert len(read_mesh(path, ".vtu", [pressure]).values(pressure)) == 2 * volume().GetNumberOfCells()
    before, _, after = path.read_bytes().rpartition(b'Name="p"')
    path.write_bytes(before + b'Name="q"' + after)
    with pytest.raises(ValueError, match="has no array 'p' at the cells of 1 of its 2 pieces"):
        read_mesh(path, ".vtu", [pressure])


def triangles(mesh: object) -> object:
    from vtkmodules.vtkFiltersCore import vtkTriangleFilter

    split = vtkTriangleFilter()
    split.SetInputData(mesh)
    split.Update()
    return split.GetOutput()


def test_entities_are_refused_before_they_are_read(tmp_path: Path) -> None:
    path = write_vtk(surface(), tmp_path / "mesh.vtp", "Ascii")
    text = path.read_text()
    entity = '<!DOCTYPE x [<!ENTITY a "1 1 1"><!ENTITY b SYSTEM "file:///etc/hostname">]>'
    path.write_text(text.replace("<VTKFile", f"{entity}<VTKFile", 1))
    with pytest.raises(ValueError, match="rejected: it declares a document type"):
        read_mesh(path, ".vtp", [])


@pytest.mark.parametrize("suffix", [".vtu", ".vtk"])
def test_a_claim_of_more_points_than_fit_is_refused(tmp_path: Path, suffix: str) -> None:
    path = write_vtk(volume(), tmp_path / f"mesh{suffix}", "Ascii")
    text = path.read_text()
    path.write_text(
        text.replace('NumberOfPoints="64"', 'NumberOfPoints="64000000000"').replace("POINTS 64", "POINTS 64000000000")
    )
    with pytest.raises(ValueError, match="rejected: claims 64,000,000,000 values"):
        read_mesh(path, suffix, [])


@pytest.mark.parametrize("suffix", [".vtp", ".vtu", ".vtk"])
@pytest.mark.parametrize("point", ["99999999", "-9999999"])
def test_cells_with_points_outside_the_mesh_are_refused(tmp_path: Path, suffix: str, point: str) -> None:
    path = write_vtk(volume() if suffix == ".vtu" else surface(), tmp_path / f"mesh{suffix}", "Ascii")
    text = path.read_text()
    marker = "CONNECTIVITY" if suffix == ".vtk" else 'Name="connectivity"'
    start = text.index("\n", text.index(marker, max(text.find("<Polys"), 0)))
    path.write_text(text[:start] + re.sub(r"\d+", point, text[start:], count=1))
    with pytest.raises(ValueError, match=f"truncated or damaged: its cells have points .*{point}"):
        read_mesh(path, suffix, [ArrayChoice(compute="position", at="cells")])


def test_a_cell_with_fewer_points_than_its_type_is_refused(tmp_path: Path) -> None:
    path = write_vtk(volume(), tmp_path / "mesh.vtu", "Ascii")
    text = path.read_text()
    start = text.index(">", text.index('Name="types"'))
    path.write_text(text[:start] + re.sub(r"\d+", "16", text[start:], count=1))  # a hexagonal prism
    with pytest.raises(ValueError, match="truncated or damaged: cell 0 of type 16 has 8 points, expected 12"):
        read_mesh(path, ".vtu", [])


def test_offsets_that_are_not_those_of_the_cells_are_refused(tmp_path: Path) -> None:
    path = write_vtk(surface(), tmp_path / "mesh.vtk", "Ascii")
    text = path.read_text()
    start = text.index("\n", text.index("OFFSETS"))
    path.write_text(text[:start] + text[start:].replace("4 ", "9999999 ", 1))
    with pytest.raises(ValueError, match="truncated or damaged: the offsets of its cells"):
        read_mesh(path, ".vtk", [])


@pytest.mark.skipif(not AHMED.is_dir(), reason="../shared/data is not beside this clone")
def test_solver_output_equals_the_tensors_of_the_same_run() -> None:
    """Fields bit for bit. Centres of polyhedra differ, because VTK and OpenFOAM define them differently."""
    description = SourceDescription.model_validate(SHARED_LAYOUT)
    values = values_of(AHMED, description, "run_42")
    twins = {c: torch.load(AHMED / "run_42" / "pt" / f"{name}.pt").numpy() for c, name in TWINS.items()}
    mesh = read_mesh(AHMED / "run_42" / "vtk" / "volume_42.vtu", ".vtu", [ArrayChoice()])
    polyhedral = mesh.mesh(ArrayChoice(at="cells")).types == 42
    for canonical, twin in twins.items():
        found = values[canonical].reshape(len(twin), -1)
        twin = twin.reshape(len(twin), -1)
        if canonical == "volume_position":
            assert np.abs(found - twin).max() < 1.2e-3
            found, twin = found[~polyhedral], twin[~polyhedral]
        if canonical.endswith(("position", "normals")):
            np.testing.assert_allclose(found, twin, rtol=0, atol=4e-7, err_msg=canonical)
        else:
            np.testing.assert_array_equal(found, twin, err_msg=canonical)
