"""Copies of a matrix to other features."""

from __future__ import annotations

import json
import logging
import re
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import zarr

from tests.helpers.long_tables import FEATURES as PROBES
from tests.helpers.long_tables import pivoted, write_long
from tests.helpers.matrices import FEATURES, SMALL, append, count_writes
from zarr_core.errors import CorruptChunkError, MatrixError, StoreError, UnknownFieldError, WarehouseError
from zarr_core.matrix import WideMatrix
from zarr_core.matrix.__main__ import main
from zarr_core.matrix.ingest import reindex
from zarr_core.matrix.ingest.loader import MatrixLoader
from zarr_core.matrix.store import create
from zarr_core.matrix.store.axis import FeatureAxis
from zarr_core.matrix.store.claims import announce
from zarr_core.matrix.verify import verify_matrix
from zarr_core.storage import Storage
from zarr_core.warehouses import DuckDBWarehouse

MORE = ["aa", *FEATURES[::-1], *(f"cg{number:06d}" for number in range(3, 700, 7)), "zz"]


@pytest.fixture
def matrix(tmp_path: Path) -> WideMatrix:
    made = WideMatrix.create(tmp_path / "m", FEATURES, {"beta": "float32", "depth": "float64"}, codec="zstd:1", **SMALL)
    append(made, "second", 9)
    append(made, "first", 3, seed=4)
    return made


def on_axis(matrix: WideMatrix, value: str, axis: list[str]) -> pd.DataFrame:
    """All rows of a matrix on another axis, by pandas."""
    rows = pd.DataFrame(matrix.read(matrix.sample_ids, value=value), matrix.sample_ids, list(matrix.feature_ids))
    return rows.reindex(columns=axis)


@pytest.mark.slow
@pytest.mark.parametrize("axis", [MORE, FEATURES[10:3:-1], sorted(MORE), ["cg000007"]])
@pytest.mark.parametrize("block_bytes", [1, 3_000, 1 << 30])
def test_cells_are_those_of_the_source(
    tmp_path: Path, matrix: WideMatrix, axis: list[str], block_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reindex, "_BLOCK_BYTES", block_bytes)
    copy = matrix.reindex(tmp_path / "copy", axis)
    for opened in (copy, WideMatrix.open(tmp_path / "copy")):
        assert list(opened.feature_ids) == axis
        assert opened.batches == matrix.batches
        assert opened.values == matrix.values
        assert (opened.generation, opened.matrix_id != matrix.matrix_id) == (1, True)
        for value in matrix.values:
            expected = on_axis(matrix, value, axis).to_numpy()
            np.testing.assert_array_equal(opened.read(matrix.sample_ids, value=value), expected)
    # A repeated append of a batch recognizes it, so the digest is that of the cells on the new axis.
    for batch_id, ids in matrix.batches.items():
        assert not copy.append(batch_id, ids, {value: copy.read(ids, value=value) for value in copy.values})
    append(copy, "third", 2)
    copy.derive_columns()
    assert verify_matrix(copy.url).problems == []


def test_a_copy_with_other_settings_holds_the_same_cells(tmp_path: Path, matrix: WideMatrix) -> None:
    command = [
        "reindex",
        matrix.url,
        str(tmp_path / "copy"),
        "--codec",
        "blosc-lz4",
        "--chunk-features",
        "30",
        "--quiet",
    ]
    assert main(command) == 0
    copy = WideMatrix.open(tmp_path / "copy")
    assert list(copy.feature_ids) == FEATURES
    array = zarr.open_array(tmp_path / "copy/beta.zarr", mode="r")
    assert array.metadata.to_dict()["codecs"][0]["configuration"]["chunk_shape"] == (1, 28)  # a multiple of 4
    for value in matrix.values:
        np.testing.assert_array_equal(
            copy.read(copy.sample_ids, value=value), matrix.read(matrix.sample_ids, value=value)
        )
    with pytest.raises(MatrixError, match="codec"):
        matrix.reindex(tmp_path / "other", codec="unheard-of")


def test_other_zarr_readers_open_the_copy(tmp_path: Path, matrix: WideMatrix) -> None:
    copy = matrix.reindex(tmp_path / "copy", MORE)
    array = zarr.open_array(tmp_path / "copy/depth.zarr", mode="r")
    assert array.shape == (15, len(MORE))
    expected = on_axis(matrix, "depth", MORE)
    for sample_id, row in copy.rows.items():
        np.testing.assert_array_equal(np.asarray(array[row]), expected.loc[sample_id])


def test_memory_is_bounded_by_blocks(tmp_path: Path, matrix: WideMatrix, monkeypatch: pytest.MonkeyPatch) -> None:
    original, rows = reindex.read_copy, []

    def counted(*arguments: Any) -> Any:
        rows.append(len(arguments[3]))
        return original(*arguments)

    monkeypatch.setattr(reindex, "_BLOCK_BYTES", 2 * 8 * len(MORE))
    monkeypatch.setattr(reindex, "read_copy", counted)
    matrix.reindex(tmp_path / "copy", MORE)
    assert max(rows) == 2
    assert sum(rows) == 2 * 2 * 12  # each value twice: for its shards and for the digest


def test_features_that_are_left_out_are_named(
    tmp_path: Path, matrix: WideMatrix, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        matrix.reindex(tmp_path / "all", MORE)
        assert caplog.text == ""
        matrix.reindex(tmp_path / "some", [*FEATURES[:4], *FEATURES[6:]])
    assert "2 of 100 features are not on the new axis and are left out, such as 'cg000028'" in caplog.text


def test_a_pinned_generation_is_copied_as_it_is(tmp_path: Path, matrix: WideMatrix) -> None:
    copy = WideMatrix.open(matrix.url, generation=2).reindex(tmp_path / "copy", MORE)
    assert list(copy.batches) == ["second"]
    empty = WideMatrix.open(matrix.url, generation=1).reindex(tmp_path / "empty", MORE)
    assert (empty.shape, verify_matrix(empty.url).problems) == ((0, len(MORE)), [])
    append(empty, "a", 2)


def test_what_cannot_be_copied(tmp_path: Path, matrix: WideMatrix) -> None:
    before = Storage(matrix.url).list()
    with pytest.raises(MatrixError, match="already holds a matrix"):
        matrix.reindex(matrix.url, MORE)
    with pytest.raises(MatrixError, match=r"none of the 2 features is on the axis of the matrix \(100 features\)"):
        matrix.reindex(tmp_path / "copy", ["x", "y"])
    with pytest.raises(UnknownFieldError, match="are strings, not integers: 3"):
        matrix.reindex(tmp_path / "copy", [3, 4])
    with pytest.raises(MatrixError, match="'a' appears twice"):
        matrix.reindex(tmp_path / "copy", ["a", "a"])
    assert Storage(matrix.url).list() == before
    assert Storage(tmp_path / "copy").list() == {}
    shard = next((Path(matrix.url) / "beta.zarr/c/0").iterdir())
    shard.write_bytes(b"\0" * shard.stat().st_size)
    with pytest.raises(CorruptChunkError, match=r"beta of sample 'second_s\d': beta.zarr/c/0/0: shard index"):
        matrix.reindex(tmp_path / "copy", MORE)
    with pytest.raises(StoreError, match=r"holds no HEAD.json"):
        WideMatrix.open(tmp_path / "copy")


def test_a_call_that_dies_at_any_write_leaves_no_matrix_and_can_be_repeated(
    tmp_path: Path, matrix: WideMatrix, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Died(BaseException):
        pass

    with monkeypatch.context() as patched:
        names = count_writes(patched)
        matrix.reindex(tmp_path / "whole", MORE)
    total = names.index("replace HEAD.json") + 1
    assert total == 1 + 2 * (3 + 1) + 2 + 1 + 1  # a claim, shards, metadata, the axis, the head
    expected = on_axis(matrix, "beta", MORE).to_numpy()
    for number in range(1, total + 1):
        written = 0

        def die(original: Any, *arguments: Any, number: int = number) -> Any:
            nonlocal written
            written += 1
            if written == number:
                raise Died
            return original(*arguments)

        with monkeypatch.context() as patched:
            for method in ("create", "replace"):
                original = getattr(Storage, method)
                patched.setattr(Storage, method, lambda *arguments, original=original: die(original, *arguments))
            with pytest.raises(Died):
                matrix.reindex(tmp_path / "copy", MORE)
        with pytest.raises(StoreError, match=r"holds no HEAD.json"):
            WideMatrix.open(tmp_path / "copy")
    # Even to other features: nothing that the dead calls left is mistaken for a part of it.
    copy = matrix.reindex(tmp_path / "copy", sorted(MORE))
    np.testing.assert_array_equal(copy.read(copy.sample_ids, MORE), expected)
    assert verify_matrix(copy.url).problems == []
    append(copy, "later", 3)


@pytest.mark.parametrize(
    ("module", "step", "message"),
    [
        (reindex, "write_shards", "already holds a matrix"),
        (reindex, "commit_new", "already holds a matrix"),
        (create, "commit", "another process has just created a matrix here"),
    ],
)
def test_a_matrix_made_meanwhile_is_left_alone(
    tmp_path: Path, matrix: WideMatrix, monkeypatch: pytest.MonkeyPatch, module: Any, step: str, message: str
) -> None:
    original = getattr(module, step)

    def overtaken(*arguments: Any) -> Any:
        monkeypatch.setattr(module, step, original)
        append(WideMatrix.create(tmp_path / "copy", ["other"], {"beta": "float32"}), "a", 2)
        if step == "commit":  # the description that the call has just written
            announce(Storage(tmp_path / "copy"), arguments[2](None).row_copy)
        return original(*arguments)

    monkeypatch.setattr(module, step, overtaken)
    with pytest.raises(MatrixError, match=message):
        matrix.reindex(tmp_path / "copy", MORE)
    assert list(WideMatrix.open(tmp_path / "copy").feature_ids) == ["other"]
    assert verify_matrix(tmp_path / "copy").problems == []  # also the description for other Zarr readers


def test_a_location_with_too_few_shards_left(tmp_path: Path) -> None:
    matrix = WideMatrix.create(tmp_path / "m", FEATURES, {"beta": "float32"}, shard_rows=1, max_shards=3)
    append(matrix, "a", 2)
    (tmp_path / "copy/claims/rows").mkdir(parents=True)
    (tmp_path / "copy/claims/rows/00000000.json").write_text('{"end": 2}')
    with pytest.raises(MatrixError, match=r"3 shards of .*Choose another location \(needed: 2, taken by .*: 2\)"):
        matrix.reindex(tmp_path / "copy", MORE)


def test_the_union_of_two_axes() -> None:
    assert list(FeatureAxis(["a", "c"]).union(["b", "c", "dd"])) == ["a", "b", "c", "dd"]
    assert list(FeatureAxis(["c", "a"]).union(["dd", "c", "b"])) == ["c", "a", "dd", "b"]
    assert list(FeatureAxis([1, 3]).union(np.array([2, 3]))) == [1, 2, 3]
    axis = FeatureAxis(["a", "c"])
    assert axis.union(axis) == axis
    with pytest.raises(UnknownFieldError, match="are strings, not integers: 1"):
        axis.union([1])


def test_the_next_array_type_is_loaded_after_a_copy(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The axis of the first batch refuses other probes for ever; a copy to the union of both takes them."""
    long = tmp_path / "long"
    write_long(long, {"b1": ["s1", "s2"]})
    first = pd.read_parquet(long / "batch_id=b1/part-0.parquet")
    first[first["cpg_id"] < PROBES[20]].to_parquet(long / "batch_id=b1/part-0.parquet", index=False)
    warehouse = DuckDBWarehouse(f"{long}/*/*.parquet")
    matrix = WideMatrix.create(tmp_path / "m", warehouse.feature_ids())
    assert re.search(r"holds \d+ features now. A matrix with this axis refuses later batches", caplog.text)
    MatrixLoader(warehouse, matrix).load(["s1"])
    write_long(long, {"b2": ["s3"]}, seed=1)
    with pytest.raises(WarehouseError, match=r"is not on the matrix's axis of \d+ features; copy .*WideMatrix.reindex"):
        MatrixLoader(warehouse, matrix).load(["s3"])
    (long / "batch_id=b1").rename(tmp_path / "batch_id=b1")  # the copy does not query the warehouse
    copy = matrix.reindex(tmp_path / "copy", matrix.feature_ids.union(warehouse.feature_ids()))
    (tmp_path / "batch_id=b1").rename(long / "batch_id=b1")
    loaded = MatrixLoader(warehouse, copy).load(["s3", "s2", "s1"])
    assert copy.shape[1] > matrix.shape[1]
    np.testing.assert_array_equal(loaded, pivoted(long, ["s3", "s2", "s1"], list(copy.feature_ids), "beta"))


def test_the_command(tmp_path: Path, matrix: WideMatrix, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "probes.txt").write_text("\n".join(["zz", *FEATURES[:10]]))
    pd.DataFrame({"probe": ["aa", FEATURES[0]]}).to_parquet(tmp_path / "probes.parquet")
    copy = str(tmp_path / "copy")
    assert main(["reindex", matrix.url, copy, "--features", str(tmp_path / "probes.txt"), "--quiet"]) == 0
    assert list(WideMatrix.open(copy).feature_ids) == ["zz", *FEATURES[:10]]
    command = ["reindex", matrix.url, str(tmp_path / "both"), "--features", str(tmp_path / "probes.parquet"), "--union"]
    assert main([*command, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document.items() >= {"samples": 12, "features": 101, "kept": 100, "added": 1, "dropped": 0}.items()
    assert main(command) == 1
    assert "already holds a matrix" in capsys.readouterr().err
    assert main(["reindex", matrix.url, copy, "--features", str(tmp_path / "nothing.txt")]) == 1
    assert "cannot be read" in capsys.readouterr().err
    assert main(["reindex", matrix.url]) == 2
    (tmp_path / "probes.parquet").write_bytes(b"no Parquet")
    assert main(command) == 1
    assert "cannot be read" in capsys.readouterr().err


def test_the_command_with_integers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    matrix = WideMatrix.create(tmp_path / "m", [10, 20], {"beta": "float32"}, **SMALL)
    append(matrix, "a", 2)
    file = tmp_path / "positions.txt"
    file.write_text("30 10")
    assert main(["reindex", matrix.url, str(tmp_path / "copy"), "--features", str(file)]) == 0
    assert "2 samples x 2 features (1 kept, 1 added, 1 dropped)" in capsys.readouterr().out
    assert list(WideMatrix.open(tmp_path / "copy").feature_ids) == [30, 10]
    file.write_text("chr1")
    assert main(["reindex", matrix.url, str(tmp_path / "other"), "--features", str(file)]) == 1
    assert "the features of this matrix are integers" in capsys.readouterr().err
