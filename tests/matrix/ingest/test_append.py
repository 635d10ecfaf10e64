"""Append batches: what is written, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.helpers.matrices import FEATURES, SMALL, append, block, count_writes
from tests.helpers.odd_arrays import ODD, odd_arrays
from zarr_core.errors import MatrixError
from zarr_core.matrix import WideMatrix
from zarr_core.storage import Storage


@pytest.mark.slow
def test_an_append_writes_its_shards_the_lengths_of_the_arrays_and_one_commit(
    any_root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    matrix = WideMatrix.create(any_root, list(range(8)), {"beta": "float32", "coverage": "float32"}, shard_rows=2_000)
    cells = np.arange(80_000, dtype=np.float32).reshape(10_000, 8)
    matrix.append("many", [f"s{n}" for n in range(10_000)], {"beta": cells, "coverage": cells})
    names = count_writes(monkeypatch)
    matrix.append("few", ["x", "y"], {"beta": cells[:2], "coverage": cells[:2]})
    assert sorted(names) == [
        "create beta.zarr/c/5/0",
        "create claims/rows/00000005.json",
        "create coverage.zarr/c/5/0",
        "create generations/00000003.json.gz",
        "replace HEAD.json",
        "replace beta.zarr/zarr.json",
        "replace coverage.zarr/zarr.json",
    ]
    np.testing.assert_array_equal(matrix.read(["y", "s9999"]), cells[[1, 9999]])
    assert Storage(any_root).size("HEAD.json") < 200_000


def test_a_batch_is_not_appended_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    matrix = WideMatrix.create(tmp_path, FEATURES, {"beta": "float32"}, **SMALL)
    cells = block(3)
    matrix.append("a", ["x", "y", "z"], {"beta": cells})
    names = count_writes(monkeypatch)
    other_nan = cells[::-1].copy()
    other_nan[np.isnan(other_nan)] = -np.nan
    assert not WideMatrix.open(tmp_path).append("a", ["z", "y", "x"], {"beta": other_nan})
    assert names == []
    cells[0, 0] = 7
    with pytest.raises(MatrixError, match="batch 'a': already in the matrix with the same samples but other values"):
        matrix.append("a", ["x", "y", "z"], {"beta": cells})
    with pytest.raises(MatrixError, match="'a': already in the matrix with other samples; they differ in 'w'"):
        matrix.append("a", ["x", "y", "z", "w"], {"beta": block(4)})
    with pytest.raises(MatrixError, match="batch 'b': sample 'y' is already in batch 'a'"):
        matrix.append("b", ["v", "y"], {"beta": block(2)})
    assert names == []
    assert matrix.generation == 2


def _infinite() -> np.ndarray:
    cells = block(2)
    cells[1, 3] = -np.inf
    return cells


@pytest.mark.parametrize(
    ("sample_ids", "values", "message"),
    [
        (["x", "y"], {"beta": block(3)}, r"beta has shape \(3, 100\), \(samples, features\) is \(2, 100\)"),
        (["x", "y"], {"beta": block(2)[:, :-1]}, r"shape \(2, 99\)"),
        (["x", "y"], {"beta": block(2, dtype="float64")}, "beta is float64, the matrix stores float32"),
        (["x", "x"], {"beta": block(2)}, "duplicate sample 'x'"),
        (["x", 1], {"beta": block(2)}, "must be strings of valid Unicode, not 1"),
        (["x", "\ud800"], {"beta": block(2)}, r"valid Unicode, not '\\ud800'"),
        ([], {"beta": block(0)}, "at least one sample"),
        ("xy", {"beta": block(2)}, "sample_ids must be a collection of names; for one name pass"),
        (["x", "y"], {}, "value tables of this matrix are beta; given: none"),
        (["x", "y"], {"beta": block(2), "depth": block(2)}, "given: beta, depth"),
        (["x", "y"], {"beta": _infinite()}, "beta of sample 'y' is infinite at feature 'cg000021'"),
    ],
)
def test_invalid_batches_are_refused_and_nothing_is_written(
    tmp_path: Path, sample_ids: Any, values: Any, message: str
) -> None:
    matrix = WideMatrix.create(tmp_path, FEATURES, {"beta": "float32"}, **SMALL)
    before = Storage(tmp_path).list()
    with pytest.raises(MatrixError, match=message):
        matrix.append("a", sample_ids, values)
    assert Storage(tmp_path).list() == before


def test_a_full_matrix_is_refused(tmp_path: Path) -> None:
    matrix = WideMatrix.create(tmp_path, FEATURES, {"beta": "float32"}, **SMALL, max_shards=2)
    append(matrix, "a", 5)
    with pytest.raises(MatrixError, match=r"is full: it has room for 2 shards of 4 samples. Create a new matrix"):
        matrix.append("b", ["x"], {"beta": block(1)})


def test_a_batch_without_room_takes_no_room_from_smaller_ones(tmp_path: Path) -> None:
    matrix = WideMatrix.create(tmp_path, FEATURES, {"beta": "float32"}, **SMALL, max_shards=3)
    append(matrix, "a", 5)
    before = Storage(tmp_path).list()
    with pytest.raises(MatrixError, match=r"\(needed: 2, taken by earlier writers: 2\)"):
        append(matrix, "b", 6)
    assert Storage(tmp_path).list() == before
    append(matrix, "c", 4)


@pytest.mark.parametrize("name", ODD)
def test_cells_are_appended_as_they_are_meant_or_refused(tmp_path: Path, name: str) -> None:
    make, expected = odd_arrays(block(3))[name]
    cells = make()
    matrix = WideMatrix.create(tmp_path, FEATURES, {"beta": "float32"}, **SMALL)
    before = Storage(tmp_path).list()
    if expected is None:
        with pytest.raises(MatrixError, match="batch 'a': beta (is|has) "):
            matrix.append("a", ["x", "y", "z"], {"beta": cells})
        assert Storage(tmp_path).list() == before
        return
    matrix.append("a", ["x", "y", "z"], {"beta": cells})
    np.testing.assert_array_equal(WideMatrix.open(tmp_path).read(["x", "y", "z"]), expected)
    assert not matrix.append("a", ["x", "y", "z"], {"beta": expected})


def test_labels_of_a_table_are_those_of_the_samples_and_features(tmp_path: Path) -> None:
    import pandas as pd

    matrix = WideMatrix.create(tmp_path, FEATURES, {"beta": "float32"}, **SMALL)
    table = pd.DataFrame(block(3), ["x", "y", "z"], FEATURES)
    for wrong in (table.loc[["y", "x", "z"]], table[FEATURES[::-1]]):
        with pytest.raises(MatrixError, match=r"beta is a DataFrame with labels such as .*select them in this order"):
            matrix.append("a", ["x", "y", "z"], {"beta": wrong})
    assert matrix.append("a", pd.Series(["x", "y", "z"], [2, 1, 0]), {"beta": table})  # type: ignore[arg-type]
    assert not matrix.append("a", ["z", "y", "x"], {"beta": table[::-1]})
    with pytest.raises(MatrixError, match="values must be a mapping such as {'beta': cells}, not"):
        matrix.append("b", ["w"], [block(1)])  # type: ignore[arg-type]
    np.testing.assert_array_equal(matrix.read(["z"]), block(3)[2:])
