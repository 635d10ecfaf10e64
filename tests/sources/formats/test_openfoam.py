"""OpenFOAM cases: a cube of one cell per octant, written as OpenFOAM writes it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.helpers.solver_files import write_case
from zarr_core.errors import SampleError
from zarr_core.sources import SampleTree, SourceDescription
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
