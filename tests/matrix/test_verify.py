"""Verification of a matrix finds every kind of damage."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import zarr

from tests.helpers.faults import Kill, is_killed
from tests.helpers.matrices import FEATURES, SMALL, append, flip
from zarr_core.errors import ManifestError
from zarr_core.matrix import WideMatrix
from zarr_core.matrix import verify as module
from zarr_core.matrix.store.create import VALUES
from zarr_core.matrix.store.state import HEAD_NAME
from zarr_core.matrix.verify import verify_matrix


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (
            lambda root: flip(root / "beta.zarr/c/0/0", 5),
            r"beta.zarr/c/0/0: chunk 0 \(bytes 0 to \d+\): checksum mismatch; gen.* 2 ",
        ),
        (lambda root: flip(root / "beta.zarr/c/1/0", -5), "beta.zarr/c/1/0: shard index: checksum mismatch; gen.* 2 "),
        (lambda root: (root / "beta.zarr/c/2/0").unlink(), "beta.zarr/c/2/0: committed but missing; generation 3 "),
        (lambda root: flip(root / "beta_columns.zarr/c/3/0", 9), r"beta_columns.zarr/c/3/0: chunk 0 .*; gen.* 4 "),
        (lambda root: flip(next((root / "cpg_ids").iterdir()), -1), "not those that the matrix was created with"),
        (lambda root: flip(root / "generations/00000004.json", 30), "00000004.json"),
        (lambda root: (root / "beta.zarr/zarr.json").unlink(), "beta.zarr/zarr.json: other Zarr readers cannot"),
        (lambda root: _exchange(root), "beta_columns.zarr: sample 'a_s0', column 0: differs from the row-major copy"),
    ],
)
def test_damage_is_reported(tmp_path: Path, damage: Any, message: str) -> None:
    matrix = WideMatrix.create(tmp_path, FEATURES, {"beta": "float32"}, **SMALL)
    append(matrix, "a", 6)
    append(matrix, "b", 3, seed=9)
    matrix.derive_columns()
    assert verify_matrix(tmp_path).ok
    damage(tmp_path)
    problem, *_ = verify_matrix(tmp_path).problems
    assert re.search(message, problem), problem


@pytest.mark.parametrize("kill", [Kill("create", "/generations/"), Kill("rename", "/coverage.zarr/zarr.json$")])
def test_a_matrix_whose_creation_was_killed_after_its_commit_is_sound(tmp_path: Path, kill: Kill) -> None:
    assert is_killed(kill, WideMatrix.create, tmp_path, FEATURES)
    assert verify_matrix(tmp_path).problems == []
    append(WideMatrix.open(tmp_path), "a", 2)
    assert {zarr.open_array(tmp_path / f"{value}.zarr", mode="r").shape[1] for value in VALUES} == {len(FEATURES)}
    assert verify_matrix(tmp_path).problems == []


@pytest.fixture
def matrix(tmp_path: Path) -> WideMatrix:
    made = WideMatrix.create(tmp_path, FEATURES, {"beta": "float32"}, **SMALL)
    append(made, "a", 6)
    append(made, "b", 3, seed=9)
    made.derive_columns()
    return made


def test_a_head_that_claims_more_features_is_refused_before_its_shards_are_looked_for(
    matrix: WideMatrix, monkeypatch: pytest.MonkeyPatch
) -> None:
    head = Path(matrix.url, HEAD_NAME)
    head.write_bytes(head.read_bytes().replace(b'"length":100', b'"length":1000000'))
    monkeypatch.setattr(module, "_check_shard", None)
    for look in (verify_matrix, lambda url: WideMatrix.open(url).feature_ids):
        with pytest.raises(ManifestError, match="100 features, but HEAD.json records 1000000"):
            look(matrix.url)


def test_a_commit_during_the_verification_is_no_damage(matrix: WideMatrix, monkeypatch: pytest.MonkeyPatch) -> None:
    original = module.load_axis

    def overtaken(*arguments: Any) -> Any:
        monkeypatch.setattr(module, "load_axis", original)
        append(WideMatrix.open(matrix.url), "c", 2, seed=3)
        return original(*arguments)

    monkeypatch.setattr(module, "load_axis", overtaken)
    report = verify_matrix(matrix.url)
    assert (report.problems, report.unnamed) == ([], 0)


@pytest.mark.parametrize("place", ["_check_shard", "_differences", "_states"])
def test_what_is_collected_during_the_verification_is_no_damage(
    matrix: WideMatrix, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    original = getattr(module, place)

    def collected(*arguments: Any) -> Any:
        monkeypatch.setattr(module, place, original)
        writer = WideMatrix.open(matrix.url)
        writer.retire(["a_s0"], ["b"])
        writer.forget_retired()
        return original(*arguments)

    monkeypatch.setattr(module, place, collected)
    report = verify_matrix(matrix.url)
    assert (report.problems, report.unnamed) == ([], 0)
    next(Path(matrix.url).rglob("c/*/*")).unlink()
    assert not verify_matrix(matrix.url).ok


def test_a_generation_that_is_not_archived_yet_is_no_damage(matrix: WideMatrix) -> None:
    archive = Path(matrix.url, f"generations/{matrix.generation:08d}.json")
    data = archive.read_bytes()
    archive.unlink()
    assert verify_matrix(matrix.url).ok
    archive.write_bytes(data.replace(b"a_s0", b"a_sX"))
    assert verify_matrix(matrix.url).problems == [f"generations/{archive.name} is not equal to HEAD.json"]


def _exchange(root: Path) -> None:
    """Exchange two intact shards of the column-major copy."""
    first, second = root / "beta_columns.zarr/c/0/0", root / "beta_columns.zarr/c/1/0"
    a, b = first.read_bytes(), second.read_bytes()
    first.write_bytes(b)
    second.write_bytes(a)
