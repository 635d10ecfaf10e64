"""``zarr-core inspect``: from an unknown folder to a trained step, in three commands."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shlex
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
import zarr

from tests.helpers.small_source import write_source
from tests.helpers.solver_files import surface, write_case, write_vtk
from zarr_core import ZarrChunkReader
from zarr_core import __main__ as command
from zarr_core.points.store.head import load_manifest
from zarr_core.sources import resolve_kind
from zarr_core.sources.guess import field_of

PROJECT = Path(__file__).resolve().parents[2]
RAW = PROJECT / "examples" / "data" / "ahmed_vtk"
SHARED = PROJECT.parent / "shared" / "data" / "ahmed_vtk"


def inspected(path: Path, capsys: pytest.CaptureFixture[str], *options: str) -> dict[str, object]:
    assert command.main(["inspect", str(path), "--json", *options]) == 0
    found: dict[str, object] = json.loads(capsys.readouterr().out)
    return found


def commands_of_the_readme() -> list[list[str]]:
    """The words of ``inspect``, ``convert`` and ``first-step``, without the program."""
    block = re.search(r"## Convert\n\n```\n(.*?)```", (PROJECT / "README.md").read_text(), re.DOTALL)
    assert block
    return [shlex.split(line, comments=True)[1:] for line in block[1].splitlines()]


def test_the_three_commands_of_the_readme_lead_from_an_unknown_folder_to_a_trained_step(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("vtkmodules", reason="the extra vtk is not installed")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "examples").symlink_to(PROJECT / "examples")
    inspect, convert, first_step = commands_of_the_readme()
    assert command.main(inspect) == 0
    out = capsys.readouterr().out
    assert "2 samples" in out
    assert f"next: zarr-core {shlex.join(convert)}\n".replace("raw_store", "STORE") in out
    assert f"then: zarr-core {shlex.join(first_step)}\n".replace("raw_store", "STORE") in out
    assert command.main(convert) == 0
    capsys.readouterr()
    assert command.main(first_step) == 0
    losses = re.findall(r"^step (\d): loss (\S+)$", capsys.readouterr().out, re.MULTILINE)
    assert [step for step, _ in losses] == ["1", "2", "3"]
    assert 0 < float(losses[2][1]) < float(losses[0][1]) < 10, "it learns"
    (loop,) = re.findall(r"```python\n(.*?)```", (PROJECT / "README.md").read_text(), re.DOTALL)
    names: dict[str, Any] = {}
    exec(loop.replace('"cuda"', '"cpu"').replace("100)", "1)"), names)
    assert {name: tuple(names["batch"][name].shape) for name in ("surface_position", "surface_pressure")} == {
        "surface_position": (2, 1024, 3),
        "surface_pressure": (2, 1024),
    }
    assert set(resolve_kind("raw.yaml").fields) == {
        *("surface_position", "surface_normals", "surface_area", "surface_pressure", "surface_friction"),
        *("volume_position", "volume_pressure", "volume_velocity"),
    }
    assert command.main(inspect) == 2  # the description may have been edited
    assert command.main(["inspect", "raw_store"]) == 1
    assert "is a store" in capsys.readouterr().err
    assert command.main(["first-step", "raw_store", "--domain", "roof"]) == 1
    assert "holds no samples with domain roof; its domains are" in capsys.readouterr().err


@pytest.mark.skipif(not SHARED.is_dir(), reason="../shared/data/ahmed_vtk is not beside this clone")
def test_the_three_commands_of_the_readme_on_whole_solver_output(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("vtkmodules", reason="the extra vtk is not installed")
    monkeypatch.chdir(tmp_path)
    for words in commands_of_the_readme():
        assert command.main([str(SHARED) if word == "examples/data/ahmed_vtk" else word for word in words]) == 0
    samples = load_manifest("raw_store").samples
    assert sorted(samples) == ["run_41", "run_42"]
    for sample_id, entry in samples.items():
        group = zarr.open_group(Path("raw_store", entry.relpath), mode="r")
        for field, twin in (("surface/pressure", "surface_pressure"), ("volume/velocity", "volume_cell_velocity")):
            expected = torch.load(SHARED / sample_id / "pt" / f"{twin}.pt").numpy()
            # The store's order of points is shuffled.
            found = np.asarray(group[field]).reshape(expected.shape)
            np.testing.assert_array_equal(np.sort(found, axis=0), np.sort(expected, axis=0), err_msg=field)


def test_a_published_layout_is_recognised(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = write_source(tmp_path / "source", ("run_1", "run_2"))
    (root / "run_2" / "surface_pressure.pt").unlink()
    found = inspected(root, capsys)
    assert found["kinds"] == ["ahmedml", "drivaerml"]
    assert found["samples"] == 1
    assert found["incomplete"] == {"run_2": ["surface_pressure.pt"]}
    assert sum(found["splits"].values()) == 1  # type: ignore[attr-defined]


def test_split_files_beside_a_published_layout_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The splits of a kind are those of its publication: ids of 500 samples, of which a part of it has few."""
    root = write_source(tmp_path / "source", ("run_1", "run_2"))
    (root / "train.txt").write_text("run_2\n")
    (root / "val.txt").write_text("run_1\n")
    (note,) = [each for each in inspected(root, capsys)["notes"] if "list samples" in each]  # type: ignore[attr-defined]
    assert note.startswith("train.txt, val.txt list samples, and ahmedml does not read them; the description that `")
    words = shlex.split(note.split("`")[1])
    assert command.main([*words[1:-1], str(tmp_path / words[-1])]) == 0
    kind = str(tmp_path / "description.yaml")
    assert command.main(["convert", str(tmp_path / "store"), "--source", str(root), "--dataset-kind", kind]) == 0
    manifest = load_manifest(tmp_path / "store")
    assert (manifest.split_ids("train"), manifest.split_ids("val")) == (["run_2"], ["run_1"])


def test_names_of_a_published_layout_with_other_arrays(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("vtkmodules", reason="the extra vtk is not installed")
    found = inspected(RAW, capsys)
    assert found["kinds"] == []
    assert any("named as in ahmedml_raw, but pMean of boundary_*.vtp" in note for note in found["notes"])  # type: ignore[attr-defined]


def test_without_the_library_of_a_file_the_next_step_is_to_install_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name == "vtkmodules" else find(name))
    for number in (1, 2):
        shutil.copytree(RAW / f"run_4{number}", tmp_path / "raw" / f"run_{number}")
        (tmp_path / "raw" / f"run_{number}" / "body.stl").write_bytes(b"solid")
    assert command.main(["inspect", str(tmp_path / "raw"), "--write", str(tmp_path / "raw.yaml")]) == 0
    out = capsys.readouterr().out
    assert "body.stl of run_1 cannot be read: pip install 'zarr-core[vtk]'\n" in out
    assert out.endswith(f"next: pip install 'zarr-core[vtk]', delete {tmp_path / 'raw.yaml'}, and inspect again\n")


def test_optional_fields_that_no_sample_has_are_not_listed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = inspected(write_source(tmp_path), capsys)
    assert found["fields"] == list(resolve_kind("ahmedml").required_fields)
    assert set(found["fields"]) < set(resolve_kind("ahmedml").fields)


def test_flat_files_and_folders_of_arrays(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for number in (1, 2, 3):
        run = tmp_path / "arrays" / f"case{number:03d}"
        run.mkdir(parents=True)
        np.savez(
            run / "fields.npz", xyz=np.zeros((5, 3)), U=np.zeros((5, 3)), p=np.zeros(5), broken=np.zeros((2, 2, 2))
        )
        (run / "forces.csv").write_text("Cd,Cl\n0.3,0.1\n")
        np.savez(run / "inflow.npz", speed=30.0)
        np.savez(run / "other.npz", speed=31.0)
    found = inspected(tmp_path / "arrays", capsys)
    assert found["samples"] == 3
    assert found["fields"] == ["volume_position", "volume_velocity", "volume_pressure"]
    document = yaml.safe_load(str(found["description"]))
    assert document["samples"] == "case*"
    assert document["parameters"] == found["parameter_files"] == ["forces.csv", "inflow.npz"]
    assert "other.npz ('speed' has another value in another file: give it a `prefix`)" in str(found["notes"])
    if pytest.importorskip("vtkmodules", reason="the extra vtk is not installed"):
        (tmp_path / "flat").mkdir()
        for run in RAW.glob("run_*"):
            shutil.copyfile(next(run.glob("*.vtp")), tmp_path / "flat" / f"car_{run.name}.vtp")
            (tmp_path / "flat" / f"car_{run.name}").mkdir()
            (tmp_path / "flat" / f"car_{run.name}" / "forces.csv").write_text("Cd,Cl\n0.3,0.1\n")
        found = inspected(tmp_path / "flat", capsys)
        assert yaml.safe_load(str(found["description"]))["meshes"]["surface"]["file"] == "{id}.vtp"
        assert found["samples"] == 2


@pytest.mark.parametrize("folders", [("train", "test"), ("2023", "2024"), ("data[1]", "data[1]")])
def test_files_in_folders_of_samples(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], folders: tuple[str, str]
) -> None:
    """Each file is a sample. One of the folders became one, with the first of its files."""
    for number in range(7):
        folder = tmp_path / folders[number > 3]
        folder.mkdir(exist_ok=True)
        np.savez(folder / f"{number:03d}.npz", xyz=np.zeros((5, 3)), p=np.zeros(5))
    found = inspected(tmp_path, capsys)
    assert found["samples"] == 7
    assert found["fields"] == ["volume_position", "volume_pressure"]


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="the system has no named pipes")
def test_what_is_not_a_file_is_not_opened(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A pipe waits for a writer, and a device may have no end."""
    for name in ("run_1", "run_2", "run_3"):
        (tmp_path / name).mkdir()
    os.mkfifo(tmp_path / "run_1" / "f.npz")
    (tmp_path / "run_2" / "f.npz").symlink_to("/dev/null")
    (tmp_path / "run_2" / "up").symlink_to("..")
    (tmp_path / "run_2" / "also_up").symlink_to("..")
    np.savez(tmp_path / "run_3" / "f.npz", xyz=np.zeros((5, 3)))
    assert inspected(tmp_path, capsys)["samples"] == 1


def test_fewer_samples_than_files_of_each(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Not samples called "pressure", each with a file in the folders "run_1" and "run_2"."""
    for run in ("run_1", "run_2"):
        (tmp_path / run).mkdir()
        for name, dim in (("position", 3), ("velocity", 3), ("pressure", 1), ("temperature", 1)):
            np.save(tmp_path / run / f"{name}.npy", np.zeros((5, dim)))
    found = inspected(tmp_path, capsys)
    assert found["samples"] == 2
    assert yaml.safe_load(str(found["description"]))["samples"] == "run_*"
    assert set(found["fields"]) == {f"volume_{name}" for name in ("position", "velocity", "pressure", "temperature")}


@pytest.mark.parametrize("name", ["{field}/run_{number}.npy", "run_{number}/fields/{field}.npy"])
def test_one_array_per_file_in_folders(tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str) -> None:
    source, kind, store = tmp_path / "source", str(tmp_path / "kind.yaml"), str(tmp_path / "store")
    for number in (1, 2, 3):
        for field, dim in (("points", 3), ("wss", 3), ("pressure", 1)):
            path = source / name.format(field=field, number=number)
            path.parent.mkdir(parents=True, exist_ok=True)
            np.save(path, np.full((5, dim), number, np.float32))
    assert inspected(source, capsys, "--write", kind)["samples"] == 3
    assert command.main(["convert", store, "--source", str(source), "--dataset-kind", kind, "--quiet"]) == 0
    assert command.main(["verify", store, "--source", str(source), "--quiet"]) == 0
    values = ZarrChunkReader(store).read_sample("run_2")
    assert set(values) == {"surface_position", "surface_friction", "surface_pressure"}
    assert (values["surface_pressure"] == 2).all()


@pytest.mark.parametrize(
    ("file", "arrays", "fields"),
    [
        ("surface.npz", ("pos", "p"), ["surface_position", "surface_pressure"]),
        ("fields.npz", ("pos", "wss"), ["surface_position", "surface_friction"]),
        ("fields.npz", ("pos", "U"), ["volume_position", "volume_velocity"]),
        ("data.npz", ("pos", "tau", "vol_pos"), ["surface_position", "surface_friction", "volume_position"]),
    ],
)
def test_arrays_are_filed_under_their_domain(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], file: str, arrays: tuple[str, ...], fields: list[str]
) -> None:
    for number in (1, 2):
        (tmp_path / f"run_{number}").mkdir()
        np.savez(tmp_path / f"run_{number}" / file, **{name: np.zeros((5, 3)) for name in arrays})
    assert inspected(tmp_path, capsys)["fields"] == fields


@pytest.mark.parametrize(
    ("volume_points", "fields"),
    [
        (7, ["surface_position", "surface_pressure", "volume_position", "volume_velocity"]),
        (5, ["surface_position", "volume_position", "volume_pressure", "volume_velocity"]),  # as many
    ],
)
def test_arrays_are_filed_where_positions_are_as_many(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], volume_points: int, fields: list[str]
) -> None:
    of_surface = {"surface_points": np.zeros((5, 3)), "pressure": np.zeros(5)}
    of_volume = {"volume_points": np.zeros((volume_points, 3)), "velocity": np.zeros((volume_points, 3))}
    for number in (1, 2):
        np.savez(tmp_path / f"run_{number}.npz", **of_surface, **of_volume)
    assert inspected(tmp_path, capsys)["fields"] == fields


def test_arrays_of_other_points_are_left_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for number in (1, 2):
        np.savez(tmp_path / f"run_{number}.npz", pos=np.zeros((5, 3)), pressure=np.zeros(5), velocity=np.zeros((7, 3)))
    found = inspected(tmp_path, capsys)
    assert found["fields"] == ["volume_position", "volume_pressure"]
    assert "volume_velocity left out: it has 7 points, volume_position has 5" in found["notes"]


@pytest.mark.parametrize("suffix", [".npz", ".h5"])
def test_arrays_that_cannot_be_fields_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], suffix: str
) -> None:
    arrays = {"pos": np.zeros((5, 3)), "mask": np.ones(5, bool), "re": np.float64(5e6), "grid": np.zeros((2, 2, 2))}
    for number in (1, 2):
        if suffix == ".npz":
            np.savez(tmp_path / f"run_{number}.npz", **arrays)
        else:
            h5py = pytest.importorskip("h5py", reason="the extra hdf5 is not installed")
            with h5py.File(tmp_path / f"run_{number}.h5", "w") as file:
                file.update(arrays)
    found = inspected(tmp_path, capsys)
    assert found["fields"] == ["volume_position"]
    (note,) = [note for note in found["notes"] if "left out" in note]  # type: ignore[attr-defined]
    assert all(named in note for named in ("mask: bool (5,)", "grid: float64 (2, 2, 2)"))
    assert ("re: float64 ()" in note) == (suffix == ".h5")
    assert found["parameter_files"] == (["run_1.npz"] if suffix == ".npz" else [])


@pytest.mark.parametrize(("name", "is_written"), [("{}.txt", True), ("{}_design_ids.txt", False), ("old_{}.txt", None)])
def test_split_files_beside_the_samples(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, is_written: bool | None
) -> None:
    for number in (1, 2, 3):
        np.savez(tmp_path / f"geo_{number}.npz", pos=np.zeros((5, 3)))
    (tmp_path / name.format("train")).write_text("geo_1\ngeo_3\n")
    (tmp_path / name.format("val")).write_text("geo_2\n")
    found = inspected(tmp_path, capsys)
    document = yaml.safe_load(str(found["description"]))
    assert document.get("splits") == ({"rule": "files", "filename": "{split}.txt"} if is_written else None)
    assert found["splits"] == ({} if is_written is None else {"train": 2, "val": 1})
    assert any("no splits" in note for note in found["notes"]) == (is_written is None)  # type: ignore[attr-defined]


def test_a_failure_lists_what_was_found(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for number in (1, 2):
        (tmp_path / f"run_{number}").mkdir()
        np.savez(tmp_path / f"run_{number}" / "data.npz", where=np.zeros((5, 3)), what=np.zeros(5))
        (tmp_path / f"run_{number}" / "broken.npy").write_bytes(b"x")
    assert command.main(["inspect", str(tmp_path)]) == 1
    error = capsys.readouterr().err
    assert "no file of a sample looks like positions of points or like a mesh" in error
    assert "run_1 has broken.npy (truncated or not an array file" in error
    assert "data.npz (where: 5 x 3, what: 5 x 1)" in error


def test_csv_files_of_points_alone_are_an_error_that_says_how_to_describe_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for number in (1, 2):
        (tmp_path / f"run_{number}").mkdir()
        (tmp_path / f"run_{number}" / "data.csv").write_text("x,y,z\n1,2,3\n4,5,6\n")
    assert command.main(["inspect", str(tmp_path)]) == 1
    error = capsys.readouterr().err
    assert "describe CSV files of points yourself, as in `files: {volume_position: {file: a.csv, array:" in error


def test_a_grid_of_faces_is_a_surface(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("vtkmodules", reason="the extra vtk is not installed")
    from zarr_core.sources.formats.vtk_geometry import unstructured

    for number in (1, 2):
        write_vtk(unstructured(surface()), tmp_path / f"run_{number}" / "car.vtu")
    assert list(yaml.safe_load(str(inspected(tmp_path, capsys)["description"]))["meshes"]) == ["surface"]


def write_decomposed(run: Path) -> None:
    """A case of two processors with its coefficients, after a start at 0 or at 100."""
    for number in (0, 1):
        write_case(run / f"processor{number}", {"0": 0.0, "200": 2.0}, patch="car-body.1")
        boundary = run / f"processor{number}" / "constant" / "polyMesh" / "boundary"
        boundary.write_text(boundary.read_text().replace("body { type patch;", "body { type wall;"))
    (run / "system").mkdir()
    shutil.copy(run / "processor0" / "system" / "controlDict", run / "system")
    started = run / "postProcessing" / "forces" / ("0" if run.name == "run_1" else "100")
    started.mkdir(parents=True)
    (started / "coefficient.dat").write_text("# Force coefficients\n# Time Cd Cl\n100 0.5 0.2\n200 0.3 0.1\n")
    (started / "residuals.dat").write_text("# Time Ux\n190 0.5\n")
    (run / "meta").mkdir()
    (run / "meta" / "design.json").write_text('{"angle": 25}')


def test_a_decomposed_case_is_one_sample_with_the_scalars_below_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("vtkmodules", reason="the extra vtk is not installed")
    for name in ("run_1", "run_2"):
        write_decomposed(tmp_path / "cases" / name)
    found = inspected(tmp_path / "cases", capsys, "--write", str(tmp_path / "kind.yaml"))
    assert found["samples"] == 2
    text = (tmp_path / "kind.yaml").read_text()
    assert "&id" not in text
    assert "*id" not in text
    document = yaml.safe_load(text)
    assert document["samples"] == "run_*"
    assert document["meshes"]["surface"]["patches"] == ["car-body.1", "rest"]
    assert document["parameters"] == ["meta/design.json", "postProcessing/forces/*/coefficient.dat"]
    reason = "postProcessing/forces/*/residuals.dat (it is not a table of coefficients or forces)"
    assert f"left out of the parameters: {reason}" in found["notes"]  # type: ignore[operator]
    store = str(tmp_path / "store")
    arguments = ["--source", str(tmp_path / "cases"), "--dataset-kind", str(tmp_path / "kind.yaml")]
    assert command.main(["convert", store, *arguments, "--values-dtype", "float32", "--workers", "1"]) == 0
    for name in ("run_1", "run_2"):
        recorded = ZarrChunkReader(store).read_attributes(name)["parameters"]
        assert recorded == {"Time": 200, "Cd": 0.3, "Cl": 0.1, "angle": 25}
    assert command.main(["inspect", str(tmp_path / "cases" / "run_1")]) == 1
    assert "is an OpenFOAM case, one sample: inspect the folder that contains it" in capsys.readouterr().err


def test_a_case_of_several_regions_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("run_1", "run_2"):
        for region in ("fluid", "solid"):
            mesh = tmp_path / name / "constant" / region / "polyMesh"
            mesh.mkdir(parents=True)
            (mesh / "points").write_text("points")
    assert command.main(["inspect", str(tmp_path)]) == 1
    reason = "run_1 is an OpenFOAM case with the regions fluid, solid, which are not read: write each with foamToVTK"
    assert reason in capsys.readouterr().err
    for name in ("run_1", "run_2"):
        np.savez(tmp_path / name / "fluid.npz", pos=np.zeros((5, 3)))
    found = inspected(tmp_path, capsys)
    assert found["fields"] == ["volume_position"]
    assert any(reason in note for note in found["notes"])  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("files", "reason"),
    [
        ({}, "does not exist or contains no files"),
        ({"a/notes.txt": "x"}, "OpenFOAM; read other files yourself, and give the points to zarr_core.write_sample"),
        ({"all.npz": "x"}, "if one file has many samples, write each with zarr_core.write_sample"),
    ],
)
def test_a_folder_that_is_no_dataset(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], files: dict[str, str], reason: str
) -> None:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert command.main(["inspect", str(tmp_path)]) == 1
    assert reason in capsys.readouterr().err


def test_a_file_is_no_folder_of_samples(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["inspect", str(RAW / "run_41" / "params.json")]) == 1
    assert "params.json is a file; expected the folder that contains the samples" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "field"),
    [
        ("UMeanTrim", "velocity"),
        ("wallShearStressMean", "friction"),
        ("cpavg", "pressure"),
        ("volume_cell_position", "position"),
        ("pos", "position"),
        ("node_coord", "position"),
        ("total(p)_coeffMean", "total_p_coeff"),
        ("nut", "nut"),
        ("0x", "field_0x"),
    ],
)
def test_names_of_fields(name: str, field: str) -> None:
    assert field_of(name) == field


def test_an_array_of_positions_in_a_mesh_is_no_second_position(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("vtkmodules", reason="the extra vtk is not installed")
    for number in (1, 2):
        mesh = surface()
        mesh.GetPointData().GetArray("T").SetName("Position")
        mesh.GetCellData().Initialize()
        write_vtk(mesh, tmp_path / f"run_{number}" / "surface.vtp")
    assert inspected(tmp_path, capsys)["fields"] == ["surface_position", "surface_normals"]


def test_normals_are_not_proposed_for_a_cloud_of_points(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("vtkmodules", reason="the extra vtk is not installed")
    for number in (1, 2):
        mesh = surface()
        mesh.GetCellData().Initialize()
        mesh.SetVerts(mesh.GetPolys())
        mesh.SetPolys(None)
        write_vtk(mesh, tmp_path / f"run_{number}" / "surface.vtp")
    assert inspected(tmp_path, capsys)["fields"] == ["surface_position", "surface_temperature"]


def test_a_case_lies_in_a_folder_beside_arrays(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A domain of the case's mesh has no second positions."""
    pytest.importorskip("vtkmodules", reason="the extra vtk is not installed")
    for number in (1, 2):
        write_case(tmp_path / f"run_{number}" / "case", {"10": 2.0})
        points = np.ones((4, 3), np.float32)
        np.savez(tmp_path / f"run_{number}" / "probes.npz", volume_points=points)
    assert inspected(tmp_path, capsys, "--write", str(tmp_path / "cases.yaml"))["samples"] == 2
    written = (tmp_path / "cases.yaml").read_text()
    assert "left out: a mesh has the points of their domain" in written
    assert {mesh["file"] for mesh in yaml.safe_load(written)["meshes"].values()} == {"case/"}
