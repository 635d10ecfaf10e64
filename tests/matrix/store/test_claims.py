"""The arrays as other Zarr readers see them: as many rows as were claimed, whatever room a matrix has."""

from __future__ import annotations

import json
import math
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import zarr

from tests.helpers.matrices import FEATURES, SMALL, append, block
from zarr_core.errors import CommitConflict
from zarr_core.matrix import WideMatrix
from zarr_core.matrix.ingest import append as append_module
from zarr_core.matrix.store.claims import announce
from zarr_core.matrix.verify import verify_matrix
from zarr_core.storage import Storage


def shape_of(root: Path, array: str) -> tuple[int, ...]:
    return tuple(json.loads((root / array / "zarr.json").read_bytes())["shape"])


def as_before(root: Path, matrix: WideMatrix) -> None:
    """Write the metadata as earlier versions did: with room for all shards."""
    state = matrix._state
    for value, layout in state.row_copy.layouts.items():
        (root / f"{value}.zarr/zarr.json").write_text(json.dumps(layout.to_zarr_json()))
    for value, layout in state.column_copy.layouts.items():
        (root / f"{value}_columns.zarr/zarr.json").write_text(json.dumps(layout.to_zarr_json()))


def test_a_small_matrix_is_small_for_other_readers(tmp_path: Path) -> None:
    """With default settings; the arrays of earlier versions had 399,245,312 rows."""
    features = [f"cg{number}" for number in range(32_829)]
    matrix = WideMatrix.create(tmp_path, features, {"beta": "float32"})
    assert zarr.open_array(tmp_path / "beta.zarr", mode="r").shape == (0, len(features))
    cells = append(matrix, "a", 3)["beta"] | append(matrix, "b", 2)["beta"]
    matrix.derive_columns()
    for name, most in (("beta.zarr", 514), ("beta_columns.zarr", 2_052)):
        array = zarr.open_array(tmp_path / name, mode="r")
        assert isinstance(array, zarr.Array)
        assert math.prod(map(math.ceil, np.divide(array.shape, array.chunks))) <= most
        assert array.shards is not None
        assert math.prod(map(math.ceil, np.divide(array.shape, array.shards))) <= 2
    array = zarr.open_array(tmp_path / "beta.zarr", mode="r")
    assert array.shape == (514, len(features))
    assert array.attrs["head"] == "../HEAD.json"
    for sample_id, row in matrix.rows.items():
        np.testing.assert_array_equal(np.asarray(array[row]), cells[sample_id])


def test_dask_reads_a_matrix_by_shards(tmp_path: Path) -> None:
    dask_array = pytest.importorskip("dask.array", reason="dask is not a dependency")
    matrix = WideMatrix.create(tmp_path, FEATURES, {"beta": "float32"})
    cells = append(matrix, "a", 5)["beta"]
    array = zarr.open_array(tmp_path / "beta.zarr", mode="r")
    assert dask_array.from_zarr(array).npartitions == 5
    lazy = dask_array.from_zarr(array, chunks=array.shards)
    assert lazy.npartitions == 1
    np.testing.assert_array_equal(lazy.compute(), np.stack(list(cells.values())))


def test_committed_rows_are_announced_before_their_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Died(BaseException):
        pass

    def die(*_: object) -> None:
        assert shape_of(tmp_path, "beta.zarr") == (11, 100)
        raise Died

    matrix = WideMatrix.create(tmp_path, FEATURES, {"beta": "float32"}, **SMALL)
    append(matrix, "a", 5)
    monkeypatch.setattr(append_module, "commit", die)
    with pytest.raises(Died):
        append(matrix, "b", 3)
    monkeypatch.undo()
    append(matrix, "b", 3)
    assert shape_of(tmp_path, "beta.zarr") == (15, 100)  # behind the rows of the dead writer


def test_arrays_never_get_shorter(any_root: str) -> None:
    matrix = WideMatrix.create(any_root, FEATURES, {"beta": "float32"}, **SMALL)
    append(matrix, "a", 5)
    storage, state = Storage(any_root), matrix._state
    for end, expected in ((20, 20), (7, 20), (0, 20), (21, 21)):
        announce(storage, state.row_copy, end)
        assert json.loads(storage.read("beta.zarr/zarr.json"))["shape"] == [expected, 100]


def test_arrays_with_room_for_all_shards_are_sound_and_shortened_by_the_next_append(tmp_path: Path) -> None:
    matrix = WideMatrix.create(tmp_path, FEATURES, {"beta": "float32"}, **SMALL)
    append(matrix, "a", 5)
    matrix.derive_columns()
    as_before(tmp_path, matrix)
    assert shape_of(tmp_path, "beta.zarr") == (4 * 65_536, 100)
    assert verify_matrix(tmp_path).problems == []
    append(matrix, "b", 2)
    assert shape_of(tmp_path, "beta.zarr") == (10, 100)
    assert verify_matrix(tmp_path).problems == []


def test_verify_reports_arrays_that_are_too_short(tmp_path: Path) -> None:
    matrix = WideMatrix.create(tmp_path, FEATURES, {"beta": "float32"}, **SMALL)
    append(matrix, "a", 5)
    file = tmp_path / "beta.zarr/zarr.json"
    before = file.read_bytes()
    for shape, problem in (
        ([4, 100], "other Zarr readers see 4 of 5 rows"),
        ([4 * 65_536 + 1, 100], "does not describe"),
        ([6, 99], "does not describe"),
        ([True, 100], "does not describe"),
        ([], "does not describe"),
    ):
        file.write_text(json.dumps(json.loads(before) | {"shape": shape}))
        assert problem in verify_matrix(tmp_path).problems[0]
    matrix.append("b", ["b0"], {"beta": block(1)})
    assert verify_matrix(tmp_path).problems == []


def test_an_array_that_others_keep_changing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    matrix = WideMatrix.create(tmp_path, FEATURES, {"beta": "float32"}, **SMALL)

    def lose(*_: object) -> None:
        raise CommitConflict("changed")

    monkeypatch.setattr(Storage, "replace", lose)
    monkeypatch.setattr("zarr_core.matrix.store.claims.time", SimpleNamespace(sleep=lambda _: None))
    with pytest.raises(CommitConflict, match="overtaken by other writers"):
        announce(Storage(tmp_path), matrix._state.row_copy, 4)
