"""A matrix as dask and xarray see it."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from tests.helpers.matrices import FEATURES, SMALL, append
from zarr_core import open_store
from zarr_core.errors import UnknownFieldError
from zarr_core.matrix import WideMatrix
from zarr_core.matrix.read import lazy
from zarr_core.matrix.stage import stage_matrix


@pytest.fixture
def matrix(tmp_path: Path) -> WideMatrix:
    """Batches of 5, 3 and 4 samples, the first and last of them with a column-major copy; shards of 4 rows."""
    matrix = WideMatrix.create(tmp_path, FEATURES, {"beta": "float32", "coverage": "float64"}, **SMALL)
    for number, (batch, samples) in enumerate({"a": 5, "b": 3, "c": 4}.items()):
        append(matrix, batch, samples, seed=number)
    matrix.derive_columns()
    return matrix


def test_blocks_of_dask_are_shards(matrix: WideMatrix, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("dask.array", reason="needs the extra views")
    whole = matrix.read(matrix.sample_ids, value="coverage")
    array = matrix.to_dask("coverage")
    assert (array.dtype, array.chunks) == (np.dtype("float64"), ((4, 1, 3, 4), (100,)))
    np.testing.assert_array_equal(array.compute(), whole)
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(array[3:9, 5:50:3])).compute(), whole[3:9, 5:50:3])
    monkeypatch.setattr(lazy, "_BLOCK_BYTES", 3 * 100 * 8)
    assert matrix.to_dask("coverage").chunks[0] == (3, 1, 1, 3, 3, 1)
    with pytest.raises(UnknownFieldError, match="no value table 'gamma'"):
        matrix.to_dask("gamma")


def test_an_empty_matrix(tmp_path: Path) -> None:
    matrix = WideMatrix.create(tmp_path, FEATURES, {"beta": "float32"}, **SMALL)
    pytest.importorskip("dask.array", reason="needs the extra views")
    assert matrix.to_dask().compute().shape == (0, 100)
    pytest.importorskip("xarray", reason="needs the extra views")
    assert matrix.to_xarray()["beta"].values.shape == (0, 100)


def test_labels_of_xarray(matrix: WideMatrix, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("xarray", reason="needs the extra views")
    assert matrix.to_xarray(chunked=True)["beta"].chunks == ((4, 1, 3, 4), (100,))
    read = []
    original = WideMatrix.read
    monkeypatch.setattr(WideMatrix, "read", lambda self, *key: (read.append(key), original(self, *key))[1])
    dataset = matrix.to_xarray()
    assert dict(dataset.sizes) == {"sample": 12, "feature": 100}
    assert dataset["batch"].sel(sample="b_s1") == "b"
    samples, features = ["c_s2", "a_s0"], [FEATURES[70], FEATURES[3]]
    chosen = dataset.sel(sample=samples, feature=features)
    assert read == []
    for value in ("beta", "coverage"):
        np.testing.assert_array_equal(chosen[value].values, original(matrix, samples, features, value))
    assert [len(key[1]) for key in read] == [2, 2]  # the two features, not their rows
    np.testing.assert_array_equal(dataset["beta"][4, 7].values, original(matrix, ["a_s4"], [FEATURES[7]])[0, 0])
    np.testing.assert_array_equal(dataset["beta"][::-1, 2:9:3].values, original(matrix, matrix.sample_ids)[::-1, 2:9:3])


def test_metadata_are_coordinates(matrix: WideMatrix) -> None:
    pytest.importorskip("xarray", reason="needs the extra views")
    table = {
        "sample_id": ["c_s0", "a_s1"],
        "age": [61, 40],
        "sex/batch": ["f", "m"],
        "batch": [1, 2],
        "beta": [True, False],
    }
    matrix.set_metadata(pa.table(table))
    matrix.set_metadata(pa.table({"batch_id": ["a", "b", "c"], "weight": [1, 2, 3]}), "batches")
    dataset = matrix.to_xarray()
    assert {*dataset.coords} - {"feature"} == {*("sample", "batch", "weight", "age", "sex_batch"), *RENAMED}
    assert [*dataset.indexes] == ["sample", "feature"]
    assert dataset["weight"].values.tolist() == [1] * 5 + [2] * 3 + [3] * 4
    old = dataset.sel(sample=dataset["age"] > 50)
    assert old["sample"].values.tolist() == ["c_s0"]
    assert old["sex_batch"].item() == "f"
    assert [old[name].item() for name in RENAMED] == [1, True]
    np.testing.assert_array_equal(old["beta"].values, matrix.read(["c_s0"]))
    assert "sex_batch" in open_store(matrix.url).coords  # a tree allows no "/" in names


RENAMED = ("metadata_batch", "metadata_beta")


def test_whole_numbers_with_nulls_are_not_rounded(matrix: WideMatrix) -> None:
    pytest.importorskip("xarray", reason="needs the extra views")
    numbers = {"barcode": [2**53 + 1, 3], "serial": pa.array([2**64 - 1, 3], pa.uint64()), "n": [1, 2]}
    matrix.set_metadata(pa.table({"sample_id": ["a_s0", "a_s1"], **numbers}))
    dataset = matrix.to_xarray()
    assert dataset["barcode"].values.tolist()[:3] == [2**53 + 1, 3, None]
    assert dataset["serial"].values.tolist()[:3] == [2**64 - 1, 3, None]
    assert dataset["n"].dtype == np.float64


def test_later_commits_do_not_change_what_was_opened(matrix: WideMatrix) -> None:
    pytest.importorskip("xarray", reason="needs the extra views")
    dataset, before = matrix.to_xarray(), matrix.read(["a_s1"])
    matrix.retire(["a_s1"])
    assert "a_s1" not in matrix.refresh().sample_ids
    np.testing.assert_array_equal(dataset["beta"].sel(sample=["a_s1"]).values, before)


def test_many_features_have_no_index(matrix: WideMatrix, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("xarray", reason="needs the extra views")
    monkeypatch.setattr(lazy, "_INDEXED_FEATURES", 99)
    dataset = matrix.to_xarray()
    assert "feature" not in dataset.indexes
    assert dataset["feature"][[5, 2]].values.tolist() == [FEATURES[5], FEATURES[2]]
    assert dataset["feature"].values.tolist() == FEATURES


def test_dask_tells_staged_parts_apart(matrix: WideMatrix, tmp_path: Path) -> None:
    pytest.importorskip("dask", reason="needs the extra views")
    parts = []
    for sample_id in ("a_s0", "c_s0"):
        stage_matrix(matrix.url, tmp_path / sample_id, sample_ids=[sample_id])
        parts.append(WideMatrix.open(tmp_path / sample_id))
    first, second = (part.to_dask() for part in parts)
    assert parts[0].generation == parts[1].generation
    assert first.name != second.name
    assert first.name == parts[0].to_dask().name
