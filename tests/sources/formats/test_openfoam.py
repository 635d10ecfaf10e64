"""OpenFOAM cases: a cube of one cell per octant, written as OpenFOAM writes it."""

from __future__ import annotations

import gzip
import shutil
from pathlib import Path

import numpy as np
import pytest

from tests.helpers.solver_files import write_case
from zarr_core.errors import SampleError
from zarr_core.sources import SampleTree, SourceDescription
from zarr_core.sources.left_out import collected_notes
from zarr_core.sources.sample import SourceSample

pytest.importorskip("vtkmodules", reason="the extra vtk is not installed")

KIND = SourceDescription.model_validate(
    {
        "name": "cases",
        "samples": "run_*",
        "meshes": {
            "surface": {"file": "./", "patches": ["body"], "fields": {"pressure": "p"}, "compute": ["normals", "area"]},
            "volume": {"file": "./", "fields": {"pressure": "p", "velocity": "U"}},
        },
    }
)


def opened(root: Path) -> tuple[SampleTree, SourceSample]:
    tree = SampleTree(KIND, root)
    return tree, tree.discover()["run_1"]


@pytest.mark.parametrize("binary", [False, True])
def test_cells_and_patches_of_the_latest_time(tmp_path: Path, binary: bool) -> None:
    write_case(tmp_path / "run_1", {"9": 1.0, "10": 2.0}, binary)
    tree, sample = opened(tmp_path)
    values = {canonical: tree.load(sample, canonical).numpy() for canonical in KIND.fields}
    np.testing.assert_allclose(values["volume_position"], [[0.5, 0.5, 0.5], [1.5, 0.5, 0.5]], atol=1e-6)
    np.testing.assert_allclose(values["volume_pressure"], [2, 3])
    np.testing.assert_allclose(values["volume_velocity"], [[2, 0, 0], [3, 0, 0]])
    np.testing.assert_allclose(values["surface_position"], [[0, 0.5, 0.5]], atol=1e-6)
    np.testing.assert_allclose(values["surface_normals"], [[-1, 0, 0]], atol=1e-6)
    np.testing.assert_allclose(values["surface_area"], [1])
    np.testing.assert_allclose(values["surface_pressure"], [20])


def test_another_time_is_another_sample_and_a_log_file_is_not(tmp_path: Path) -> None:
    write_case(tmp_path / "run_1", {"9": 1.0})
    tree, sample = opened(tmp_path)
    (tmp_path / "run_1" / "log.simpleFoam").write_text("done")
    (tmp_path / "run_1" / "8").mkdir()
    (tmp_path / "run_1" / "8" / "p").write_text("earlier")
    assert opened(tmp_path)[1].fingerprint == sample.fingerprint
    (tmp_path / "run_1" / "10").mkdir()
    (tmp_path / "run_1" / "10" / "p").write_text("later")
    assert opened(tmp_path)[1].fingerprint != sample.fingerprint
    assert tree.is_unchanged(sample)  # the files that it was listed with are the same
    (tmp_path / "run_1" / "9" / "p").write_text("changed")
    assert not tree.is_unchanged(sample)


def refusal(root: Path, canonical: str = "volume_pressure") -> str:
    tree, sample = opened(root)
    with pytest.raises(SampleError) as caught:
        tree.load(sample, canonical)
    return str(caught.value)


@pytest.mark.parametrize("name", ["9/p", "constant/polyMesh/faces", "constant/polyMesh/points"])
@pytest.mark.parametrize("share", [0, 0.5])
@pytest.mark.parametrize("binary", [False, True])
def test_a_file_that_was_cut_off_is_refused(tmp_path: Path, name: str, share: float, binary: bool) -> None:
    write_case(tmp_path / "run_1", {"9": 1.0}, binary)
    path = tmp_path / "run_1" / name
    path.write_bytes(path.read_bytes()[: int(share * path.stat().st_size)])
    assert "run_1, volume_pressure" in refusal(tmp_path)


@pytest.mark.parametrize("directive", ["#include", "#codeStream", "#calc", "#includeEtc"])
def test_directives_are_refused(tmp_path: Path, directive: str) -> None:
    write_case(tmp_path / "run_1", {"9": 1.0})
    with (tmp_path / "run_1" / "9" / "p").open("a") as target:
        target.write(f'\n{directive} "/etc/hostname"\n')
    assert f"rejected: p contains {directive}" in refusal(tmp_path)


@pytest.mark.parametrize(
    ("name", "old", "new", "claim"),
    [
        ("constant/polyMesh/owner", "11\n(", "2000000000\n(", "2,000,000,000"),
        ("constant/polyMesh/owner", "11\n(\n0", "11\n(\n2000000000", "2,000,000,000"),
        ("constant/polyMesh/neighbour", "1\n(\n1", "1\n(\n77777777", "77,777,777"),
        ("constant/polyMesh/faces", "11\n(", "2000000000\n(", "2,000,000,000"),
        ("9/p", "List<scalar> 2\n", "List<scalar> 2000000000\n", "2,000,000,000"),
    ],
)
def test_a_claim_of_more_cells_than_fit_is_refused(tmp_path: Path, name: str, old: str, new: str, claim: str) -> None:
    write_case(tmp_path / "run_1", {"9": 1.0})
    path = tmp_path / "run_1" / name
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new, 1))
    assert f"rejected: claims {claim} values" in refusal(tmp_path)


def test_a_binary_claim_of_more_cells_than_fit_is_refused(tmp_path: Path) -> None:
    write_case(tmp_path / "run_1", {"9": 1.0}, binary=True)
    path = tmp_path / "run_1" / "constant" / "polyMesh" / "owner"
    owner = np.array([0] * 6 + [1] * 5, "<i4").tobytes()
    assert owner in path.read_bytes()
    path.write_bytes(path.read_bytes().replace(owner, owner[:-4] + (2 * 10**9).to_bytes(4, "little")))
    assert "rejected: claims 2,000,000,000 values" in refusal(tmp_path)


def test_a_patch_that_is_not_there_is_named(tmp_path: Path) -> None:
    write_case(tmp_path / "run_1", {"9": 1.0}, patch="car")
    assert "has no patch 'body'; it has car, rest" in refusal(tmp_path, "surface_pressure")


def moved(points: Path, target: Path, distance: float) -> None:
    """Write the points, moved along x, to another file."""
    head, _, numbers = points.read_text().partition("\n(\n")
    rows = [row.strip("()").split() for row in numbers.splitlines()[:-1]]
    lines = "\n".join(f"({float(x) + distance} {y} {z})" for x, y, z in rows)
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(f"{head}\n(\n{lines}\n)")


def write_decomposed(folder: Path, times: dict[str, float]) -> None:
    """Two processors, each with its own mesh; that of the second lies 10 m further along x, with values 10 higher."""
    for number in (0, 1):
        processor = write_case(folder / f"processor{number}", {t: v + 10 * number for t, v in times.items()})
        points = processor / "constant" / "polyMesh" / "points"
        moved(points, points, 10 * number)
    shutil.copytree(folder / "processor0" / "system", folder / "system")


def positions_and_pressure(root: Path) -> tuple[list[float], list[float]]:
    """The x of the cells, and their pressure."""
    tree, sample = opened(root)
    position, pressure = (tree.load(sample, f"volume_{name}").numpy() for name in ("position", "pressure"))
    return position[:, 0].tolist(), pressure.tolist()


def test_positions_of_a_mesh_that_moves_are_those_of_the_time_of_the_fields(tmp_path: Path) -> None:
    case = write_case(tmp_path / "run_1", {"1": 5.0, "2": 7.0})
    for time, distance in (("1", 10), ("2", 20), ("3", 30)):
        moved(case / "constant" / "polyMesh" / "points", case / time / "polyMesh" / "points", distance)
    assert positions_and_pressure(tmp_path) == ([20.5, 21.5], [7, 8])
    tree, sample = opened(tmp_path)
    (case / "2" / "polyMesh" / "points").write_text("changed")
    assert not tree.is_unchanged(sample)
    assert opened(tmp_path)[1].fingerprint != sample.fingerprint


def test_a_mesh_that_changed_earlier_is_read_with_later_points(tmp_path: Path) -> None:
    case = write_case(tmp_path / "run_1", {"3": 7.0})
    (case / "1").mkdir()
    shutil.copytree(case / "constant" / "polyMesh", case / "1" / "polyMesh")
    (case / "2").mkdir()
    moved(case / "constant" / "polyMesh" / "points", case / "2" / "polyMesh" / "points", 20)
    assert positions_and_pressure(tmp_path) == ([20.5, 21.5], [7, 8])
    shutil.rmtree(case / "constant")  # as after a mesher that writes to times only
    assert positions_and_pressure(tmp_path) == ([20.5, 21.5], [7, 8])


@pytest.mark.parametrize(("earlier", "latest"), [("999000", "1e+06"), ("-20", "-10")])
def test_times_with_exponents_and_negative_times(tmp_path: Path, earlier: str, latest: str) -> None:
    write_case(tmp_path / "run_1", {earlier: 5.0, latest: 7.0})
    assert positions_and_pressure(tmp_path) == ([0.5, 1.5], [7, 8])


@pytest.mark.parametrize("array", ["alpha.water", "total(p)_coeffMean"])
def test_names_of_fields_with_dots_and_parentheses(tmp_path: Path, array: str) -> None:
    case = write_case(tmp_path / "run_1", {"2": 7.0})
    text = (case / "2" / "p").read_text().replace("object p;", f"object {array};")
    (case / "2" / array).write_text(text.replace("(\n7.0\n8.0\n)", "(\n1.0\n0.0\n)"))
    kind = {"name": "cases", "samples": "run_*", "meshes": {"volume": {"file": "./", "fields": {"share": array}}}}
    tree = SampleTree(SourceDescription.model_validate(kind), tmp_path)
    assert tree.load(tree.discover()["run_1"], "volume_share").tolist() == [1, 0]


@pytest.mark.parametrize("copy", ["p.orig", "pPrevious", "a", "total(p)"])
@pytest.mark.parametrize("decomposed", [False, True])
def test_a_field_has_the_name_of_its_file(tmp_path: Path, copy: str, decomposed: bool) -> None:
    """VTK takes the name in the head of a file, which is that of another field in a copy."""
    case = tmp_path / "run_1" / ("processor0" if decomposed else "")
    write_case(case, {"2": 7.0})
    text = (case / "2" / "p").read_text()
    (case / "2" / copy).write_text(text.replace("(\n7.0\n8.0\n)", "(\n1.0\n2.0\n)"))
    fields = {"pressure": "p", "copy": copy}
    kind = {"name": "cases", "samples": "run_*", "meshes": {"volume": {"file": "./", "fields": fields}}}
    tree = SampleTree(SourceDescription.model_validate(kind), tmp_path)
    sample = tree.discover()["run_1"]
    assert tree.load(sample, "volume_pressure").tolist() == [7, 8]
    assert tree.load(sample, "volume_copy").tolist() == [1, 2]
    assert positions_and_pressure(tmp_path)[1] == [7, 8]


@pytest.mark.parametrize(
    "values", ["uniform (1 2 3 4 5 6)", "nonuniform List<symmTensor> 2((1 2 3 4 5 6) (1 2 3 4 5 6))"]
)
@pytest.mark.parametrize("patch", ["uniform (1 2\n 3 4 5 6)", "nonuniform List<symmTensor> 1{(1 2 3 4 5 6)}"])
def test_components_of_symmetric_tensors_have_one_order(tmp_path: Path, values: str, patch: str) -> None:
    """VTK reorders those of lists, but not those of uniform values."""
    case = write_case(tmp_path / "run_1", {"2": 7.0})
    head = "FoamFile { version 2.0; format ascii; class volSymmTensorField; object R; }\ndimensions [0 0 0 0 0 0 0];\n"
    patches = f"body {{ type calculated; value {patch}; }} rest {{ type zeroGradient; }}"
    (case / "2" / "R").write_text(f"{head}internalField {values};\nboundaryField {{ {patches} }}\n")
    mesh = {"file": "./", "fields": {"stress": "R"}}
    meshes = {"surface": {**mesh, "patches": ["body", "rest"]}, "volume": mesh}
    kind = SourceDescription.model_validate({"name": "cases", "samples": "run_*", "meshes": meshes})
    tree = SampleTree(kind, tmp_path)
    sample = tree.discover()["run_1"]
    for canonical, rows in (("surface_stress", 10), ("volume_stress", 2)):
        assert tree.load(sample, canonical).tolist() == [[1, 4, 6, 2, 5, 3]] * rows  # XX YY ZZ XY YZ XZ
    assert (case / "2" / "R").read_text().count(values) == 1  # the source is as it was


@pytest.mark.parametrize("suffix", [".gz", ""])
@pytest.mark.parametrize("name", ["constant/polyMesh/points", "2/p"])
def test_compressed_files_are_refused(tmp_path: Path, name: str, suffix: str) -> None:
    path = write_case(tmp_path / "run_1", {"2": 7.0}) / name
    content = gzip.compress(path.read_bytes())
    path.unlink()
    path.with_name(path.name + suffix).write_bytes(content)
    assert f"{path.name}{suffix} is compressed: decompress the case" in refusal(tmp_path)


def test_a_decomposed_case(tmp_path: Path) -> None:
    write_decomposed(tmp_path / "run_1", {"100": 1.0, "200": 2.0})
    assert positions_and_pressure(tmp_path) == ([0.5, 1.5, 10.5, 11.5], [2, 3, 12, 13])
    tree, sample = opened(tmp_path)
    assert tree.load(sample, "surface_pressure").tolist() == [20, 120]


def test_a_decomposed_case_with_a_mesh_that_moves(tmp_path: Path) -> None:
    write_decomposed(tmp_path / "run_1", {"100": 1.0, "200": 2.0})
    for processor in (tmp_path / "run_1").glob("processor*"):
        moved(processor / "constant" / "polyMesh" / "points", processor / "200" / "polyMesh" / "points", 100)
    assert positions_and_pressure(tmp_path) == ([100.5, 101.5, 110.5, 111.5], [2, 3, 12, 13])


@pytest.mark.parametrize("root", [{}, {"0": 0.0}, {"100": 50.0}])
def test_processors_with_a_later_time_are_read(tmp_path: Path, root: dict[str, float]) -> None:
    write_decomposed(tmp_path / "run_1", {"0": 0.0, "200": 2.0})
    write_case(tmp_path / "run_1", root)
    assert positions_and_pressure(tmp_path) == ([0.5, 1.5, 10.5, 11.5], [2, 3, 12, 13])


@pytest.mark.parametrize("time", ["200", "300"])
def test_a_reconstructed_case_beside_its_processors_is_read(tmp_path: Path, time: str) -> None:
    write_decomposed(tmp_path / "run_1", {"100": 1.0, "200": 2.0})
    write_case(tmp_path / "run_1", {time: 50.0})
    assert positions_and_pressure(tmp_path) == ([0.5, 1.5], [50, 51])


def test_a_collated_case_is_refused(tmp_path: Path) -> None:
    case = write_case(tmp_path / "run_1", {"0": 0.0})
    write_case(case / "processors3", {"0": 0.0, "200": 2.0})
    assert "its latest time is in processors3, the collated format; run reconstructPar" in refusal(tmp_path)
    shutil.copytree(case / "processors3" / "200", case / "200")
    assert positions_and_pressure(tmp_path) == ([0.5, 1.5], [2, 3])
    for own in ("0", "200", "constant"):
        shutil.rmtree(case / own)
    assert "the collated format" in refusal(tmp_path)


@pytest.mark.parametrize("missing", [0, 1])
def test_a_decomposed_case_without_one_of_its_processors_is_refused(tmp_path: Path, missing: int) -> None:
    write_decomposed(tmp_path / "run_1", {"200": 2.0})
    boundary = tmp_path / "run_1" / "processor0" / "constant" / "polyMesh" / "boundary"
    patch = "procBoundary0to1 { type processor; nFaces 0; startFace 11; myProcNo 0; neighbProcNo 1; }\n"
    text = boundary.read_text().replace("2\n(", "3\n(")
    boundary.write_text(text[: text.rindex(")")] + patch + ")")
    assert len(positions_and_pressure(tmp_path)[0]) == 4
    shutil.rmtree(tmp_path / "run_1" / f"processor{missing}")
    assert f"processor{missing} is missing" in refusal(tmp_path)


@pytest.mark.parametrize("lacking", ["200", "200/p"])
def test_processors_with_different_times_or_fields_are_refused(tmp_path: Path, lacking: str) -> None:
    write_decomposed(tmp_path / "run_1", {"100": 1.0, "200": 2.0})
    path = tmp_path / "run_1" / "processor1" / lacking
    path.unlink() if lacking.endswith("p") else shutil.rmtree(path)
    field = "200/p" if lacking.endswith("p") else "200/U"
    assert f"processor1 has no {field}, which processor0 has" in refusal(tmp_path)


@pytest.mark.parametrize("decomposed", [False, True])
def test_a_case_that_never_ran_is_refused(tmp_path: Path, decomposed: bool) -> None:
    (write_decomposed if decomposed else write_case)(tmp_path / "run_1", {"0": 0.0})
    assert "never ran: its latest time is 0" in refusal(tmp_path)
    geometry = {"surface": {"file": "./", "patches": ["body"], "compute": ["area"]}}
    kind = {"name": "cases", "samples": "run_*", "meshes": geometry}
    tree = SampleTree(SourceDescription.model_validate(kind), tmp_path)
    assert tree.load(tree.discover()["run_1"], "surface_area").tolist() == [1] * (1 + decomposed)


CONTROL = """FoamFile { version 2.0; format ascii; class dictionary; object controlDict; }
// endTime 1;
stopAt          endTime;
endTime         300; /* endTime 2; */
functions { #includeFunc forces
}
"""


def test_a_case_that_stopped_early_is_noted(tmp_path: Path) -> None:
    case = write_case(tmp_path / "run_1", {"200": 2.0})
    (case / "system" / "controlDict").write_text(CONTROL)
    tree, sample = opened(tmp_path)
    with collected_notes() as notes:
        assert tree.load(sample, "volume_pressure").tolist() == [2, 3]
    assert notes == {"the latest time is before endTime in system/controlDict": "200 of 300"}
    (case / "system" / "controlDict").write_text("startTime 0;stopAt endTime; endTime 250; deltaT 1; f {endTime 9;}")
    with collected_notes() as notes:
        SampleTree(KIND, tmp_path).load(opened(tmp_path)[1], "volume_pressure")
    assert list(notes.values()) == ["200 of 250"]
    for text in (CONTROL.replace("300", "200"), CONTROL.replace("stopAt          endTime", "stopAt writeNow"), "", "x"):
        (case / "system" / "controlDict").write_text(text)
        tree, sample = opened(tmp_path)
        with collected_notes() as notes:
            tree.load(sample, "volume_pressure")
        assert not notes


def test_regions_are_named(tmp_path: Path) -> None:
    case = write_case(tmp_path / "run_1", {"200": 2.0})
    shutil.copytree(case / "constant" / "polyMesh", case / "constant" / "fluid" / "polyMesh")
    found = SampleTree(KIND, tmp_path).find()
    assert found.samples["run_1"].complete
    assert any("'run_1': their OpenFOAM cases have further regions" in sentence for sentence in found.left_out)
    shutil.rmtree(case / "constant" / "polyMesh")
    found = SampleTree(KIND, tmp_path).find()
    (missing,) = found.samples["run_1"].missing
    assert "an OpenFOAM case of the regions fluid, which are not read" in missing
