"""Create, open and read a matrix, at any location, and with other Zarr readers."""

from __future__ import annotations

import json
import pickle
import uuid
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pandas as pd
import pytest
import zarr
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.helpers.examples import examples
from tests.helpers.matrices import FEATURES, SMALL, append, block
from tests.helpers.odd_arrays import ODD, odd_arrays
from zarr_core.errors import MatrixError, StoreError, UnknownFieldError
from zarr_core.matrix import WideMatrix
from zarr_core.matrix.read.reader import MatrixReader
from zarr_core.storage import Storage


@pytest.mark.slow
def test_reads_return_what_was_appended_in_the_given_order(any_root: str) -> None:
    matrix = WideMatrix.create(any_root, FEATURES, **SMALL)
    expected = append(matrix, "first", 3)
    for value, rows in append(matrix, "second", 9, seed=5).items():
        expected[value] |= rows
    opened = WideMatrix.open(any_root)
    assert opened.batches == {"first": [f"first_s{n}" for n in range(3)], "second": [f"second_s{n}" for n in range(9)]}
    assert (opened.generation, opened.shape) == (3, (12, 100))
    requested = [*reversed(opened.sample_ids), "first_s1"]
    for value, rows in expected.items():
        np.testing.assert_array_equal(opened.read(requested, value=value), np.stack([rows[i] for i in requested]))
        picked = [99, 0, 40, 41, 0]
        got = opened.read(requested, [FEATURES[i] for i in picked], value=value)
        np.testing.assert_array_equal(got, np.stack([rows[i][picked] for i in requested]))
    out = np.empty((2, 100), np.float32)
    assert pickle.loads(pickle.dumps(opened)).read(requested[:2], out=out) is out
    np.testing.assert_array_equal(out, np.stack([expected["beta"][i] for i in requested[:2]]))


class Case:
    """Appends, transpositions and reads as hypothesis draws them, beside a dictionary that must agree."""

    def __init__(self, data: st.DataObject, root: str) -> None:
        draw = data.draw
        n_features = draw(st.integers(1, 60))
        numbers = draw(st.permutations(range(n_features)))
        self.features = [f"f{n}" for n in numbers] if draw(st.booleans()) else [10 * n - 50 for n in numbers]
        values = draw(st.sampled_from([{"beta": "float32"}, {"beta": "float32", "coverage": "float64"}]))
        self.values = values
        self.matrix = WideMatrix.create(
            root,
            self.features,
            values,
            codec=draw(st.sampled_from(["none", "blosc-lz4", "zstd:1"])),
            chunk_features=draw(st.integers(1, 70)),
            shard_rows=draw(st.integers(1, 5)),
            column_chunk=draw(st.sampled_from([(1, 1), (2, 3), (16, 4), (8, 100)])),
        )
        self.rows: dict[str, dict[str, np.ndarray]] = {value: {} for value in values}
        for number in range(draw(st.integers(0, 5))):
            n_samples = draw(st.integers(1, 9))
            ids = draw(st.permutations([f"b{number}s{n}" for n in range(n_samples)]))
            tables = {v: block(n_samples, n_features, 7 * number + n, d) for n, (v, d) in enumerate(values.items())}
            value = draw(st.sampled_from(sorted(tables)))
            odd = odd_arrays(tables[value])
            make, tables[value] = odd[draw(st.sampled_from(["plain", *ODD]))]
            given_as = make()
            if tables[value] is None:
                with pytest.raises(MatrixError, match=f"batch 'b{number}': {value} (is|has) "):
                    self.matrix.append(f"b{number}", ids, tables | {value: given_as})
                continue
            assert self.matrix.append(f"b{number}", ids, tables | {value: given_as})
            for value, table in tables.items():
                self.rows[value] |= dict(zip(ids, table, strict=True))
            if draw(st.booleans()):
                self.matrix.derive_columns()

    def check(self, data: st.DataObject) -> None:
        """Read some, in any order."""
        matrix, known = WideMatrix.open(self.matrix.url), list(self.rows["beta"])
        assert matrix.sample_ids == known
        for _ in range(3):
            value = data.draw(st.sampled_from(sorted(self.values)))
            requested = data.draw(st.lists(st.sampled_from(known), max_size=12)) if known else []
            places = data.draw(st.none() | st.lists(st.integers(0, len(self.features) - 1), max_size=10))
            got = matrix.read(requested, None if places is None else [self.features[i] for i in places], value)
            columns = slice(None) if places is None else places
            expected = [self.rows[value][i][columns] for i in requested]
            width = len(self.features) if places is None else len(places)
            np.testing.assert_array_equal(got, np.array(expected).reshape(len(requested), width))
            assert got.dtype == self.values[value]


@settings(max_examples=examples(30))
@given(st.data())
def test_any_matrix_reads_as_the_rows_that_were_appended(data: st.DataObject) -> None:
    root = f"memory://{uuid.uuid4().hex}"  # a local disk would sync for each commit
    try:
        Case(data, root).check(data)
    finally:
        fsspec.filesystem("memory").store.clear()


def test_other_zarr_readers_see_the_same_cells(tmp_path: Path) -> None:
    matrix = WideMatrix.create(tmp_path, FEATURES, **SMALL)
    expected = append(matrix, "a", 5)
    expected_later = append(matrix, "b", 6)
    matrix.derive_columns()
    head = json.loads((tmp_path / "HEAD.json").read_bytes())
    for value in matrix.values:
        array = zarr.open_array(tmp_path / f"{value}.zarr", mode="r")
        transposed = zarr.open_array(tmp_path / f"{value}_columns.zarr", mode="r")
        assert isinstance(array, zarr.Array)
        assert isinstance(transposed, zarr.Array)
        both = expected[value] | expected_later[value]
        for batch in head["batches"].values():
            for number, sample_id in enumerate(batch["sample_ids"]):
                np.testing.assert_array_equal(array[batch["row"] + number], both[sample_id])
        for held in head["column_blocks"]:
            ids = [i for batch_id in held["batches"] for i in head["batches"][batch_id]["sample_ids"]]
            cells = np.asarray(transposed[:, held["row"] : held["row"] + len(ids)])
            np.testing.assert_array_equal(cells.T, np.stack([both[i] for i in ids]))
        assert np.isnan(array[5:8]).all()  # between the batches
        assert array.shape == (14, 100)
        assert transposed.shape == (100, 14)


def test_cells_are_read_into_plain_arrays(tmp_path: Path) -> None:
    matrix = WideMatrix.create(tmp_path, FEATURES, {"beta": "float32"}, **SMALL)
    append(matrix, "a", 2)
    read_only = np.zeros((2, 100), np.float32)
    read_only.flags.writeable = False
    for out in (np.ma.zeros((2, 100), np.float32), read_only):
        for features in (None, matrix.select(FEATURES)):
            with pytest.raises(MatrixError, match="out must be a plain NumPy array that can be written"):
                matrix.read(["a_s0", "a_s1"], features, out=out)


def test_the_rows_of_a_table_are_read_in_its_order_whatever_its_index(tmp_path: Path) -> None:
    matrix = WideMatrix.create(tmp_path, FEATURES, {"beta": "float32"}, **SMALL)
    rows = append(matrix, "a", 3)["beta"]
    table = pd.DataFrame({"sample": list(rows), "age": [3, 1, 2]})
    for chosen in (table.sort_values("age")["sample"], table[table.age > 1]["sample"], dict.fromkeys(reversed(rows))):
        expected = np.array([rows[sample] for sample in chosen])
        for features in (None, FEATURES):
            assert np.array_equal(WideMatrix.open(tmp_path).read(chosen, features), expected, equal_nan=True)  # type: ignore[arg-type]


def test_unknown_samples_features_and_values_are_named(tmp_path: Path) -> None:
    matrix = WideMatrix.create(tmp_path / "m", FEATURES, {"beta": "float32"}, **SMALL)
    append(matrix, "a", 2)
    with pytest.raises(UnknownFieldError, match="no sample 'nobody'"):
        matrix.read(["a_s0", "nobody"])
    with pytest.raises(UnknownFieldError, match="feature 'cg1' is not on the axis"):
        matrix.read(["a_s0"], ["cg000007", "cg1"])
    with pytest.raises(UnknownFieldError, match="feature 'cg000007_and_more' is not"):
        matrix.read(["a_s0"], ["cg000007_and_more"])
    with pytest.raises(UnknownFieldError, match="are strings, not integers: 3"):
        matrix.read(["a_s0"], [3])
    with pytest.raises(UnknownFieldError, match="no value table 'depth'; it has beta"):
        matrix.read(["a_s0"], value="depth")
    with pytest.raises(UnknownFieldError, match=r"feature_ids must be a collection of names; for one name pass \['cg"):
        matrix.read(["a_s0"], "cg000007")
    with pytest.raises(MatrixError, match=r"out has shape \(1, 2\)"):
        matrix.read(["a_s0"], out=np.empty((1, 2), np.float32))
    with pytest.raises(MatrixError, match="already holds a matrix"):
        WideMatrix.create(tmp_path / "m", FEATURES)
    with pytest.raises(StoreError, match="holds no HEAD.json"):
        WideMatrix.open(tmp_path / "nothing")


@pytest.mark.parametrize(
    ("features", "options", "message"),
    [
        (["a", "b", "a"], {}, "feature 'a' appears twice"),
        ([3, 3], {}, "feature 3 appears twice"),
        ([], {}, "at least one feature"),
        ([1.5], {}, "strings or integers"),
        (["a", ""], {}, "empty name"),
        (np.array([1, 2**63], np.uint64), {}, "feature 9223372036854775808 does not fit in a signed 64-bit integer"),
        (["a"], {"values": {"beta": "int32"}}, "'int32' is not one of"),
        (["a"], {"values": ["beta"]}, "values must be a mapping such as {'beta': 'float32'}, not \\['beta'\\]"),
        (["a"], {"values": {1: "float32"}}, "value table 1: use lower-case letters"),
        (["a"], {"values": {"batch": "float32"}}, "value table 'batch': views and exports have another column of this"),
        (["a"], {"values": {"feature": "float32"}}, "value table 'feature': views and exports have another column"),
        (["a"], {"values": {"../x": "float32"}}, "lower-case letters"),
        (["a"], {"values": {}}, "at least one value table"),
        (["a", "\ud800"], {}, "not valid Unicode"),
        (["a", "b\0"], {}, "zero character"),
        (["a"], {"shard_rows": 0}, "must be positive"),
        (["a"], {"shard_rows": 2**31}, "shard_rows is 2147483648: input should be less than or equal to 2147483647"),
        (["a"], {"max_shards": 2**40}, "max_shards is 1099511627776: input should be"),
        (["a"], {"column_chunk": (16, 2**28)}, "a chunk is larger than 1073741824 bytes"),
        (["a"], {"column_chunk": (16,)}, "column_chunk must be"),
        (["a"], {"column_chunk": (16, True)}, "column_chunk must be a whole number, not True"),
        (["a"], {"chunk_features": 1.5}, "chunk_features must be a whole number, not 1.5"),
        (["a"], {"shard_rows": "4"}, "shard_rows must be a whole number, not '4'"),
        (["a"], {"codec": "lzma"}, "codec 'lzma'"),
        ("abc", {}, "feature_ids must be a collection of names"),
        (3, {}, "feature_ids must be a collection of names, not 3"),
    ],
)
def test_invalid_matrices_are_not_created(tmp_path: Path, features: Any, options: Any, message: str) -> None:
    with pytest.raises(MatrixError, match=message):
        WideMatrix.create(tmp_path, features, **options)
    assert Storage(tmp_path).list() == {}


@pytest.mark.slow
def test_an_open_matrix_sees_one_generation(any_root: str) -> None:
    writer = WideMatrix.create(any_root, FEATURES, {"beta": "float32"}, **SMALL)
    append(writer, "a", 2)
    reader, pinned = WideMatrix.open(any_root), WideMatrix.open(any_root, generation=2)
    append(writer, "b", 2)
    assert reader.sample_ids == ["a_s0", "a_s1"]
    assert len(reader.refresh().sample_ids) == 4
    assert len(pinned.refresh().sample_ids) == 2
    assert WideMatrix.open(any_root, generation=1).sample_ids == []
    with pytest.raises(MatrixError, match="was opened at generation 2"):
        pinned.append("c", ["x"], {"beta": block(1)})
    with pytest.raises(StoreError, match="no generation 9"):
        WideMatrix.open(any_root, generation=9)


def test_an_interrupted_creation_is_completed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def die(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(Storage, "replace", die)  # before the head
        with pytest.raises(KeyboardInterrupt):
            WideMatrix.create(tmp_path, ["other"], {"beta": "float32"})
    with monkeypatch.context() as patched:
        patched.setattr("zarr_core.matrix.store.create.announce", die)  # right after it
        with pytest.raises(KeyboardInterrupt):
            WideMatrix.create(tmp_path, FEATURES, {"beta": "float32"}, **SMALL)
    matrix = WideMatrix.open(tmp_path)
    expected = append(matrix, "a", 1)["beta"]["a_s0"]
    array = zarr.open_array(tmp_path / "beta.zarr", mode="r")
    np.testing.assert_array_equal(np.asarray(array[0]), expected)


def test_a_refresh_in_another_thread_changes_no_read_that_has_begun(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = WideMatrix.create(tmp_path, FEATURES, {"beta": "float32"}, **SMALL)
    for seed, batch_id in enumerate(("a", "b")):
        append(writer, batch_id, 2, seed)
    reader = WideMatrix.open(tmp_path)
    expected = reader.read(["b_s0"])
    writer.retire(batch_ids=["a"])
    numbers = MatrixReader._positions

    def refreshed_meanwhile(self: MatrixReader, *arguments: Any) -> np.ndarray:
        self.refresh()
        return numbers(self, *arguments)

    monkeypatch.setattr(MatrixReader, "_positions", refreshed_meanwhile)
    np.testing.assert_array_equal(WideMatrix.open(tmp_path, generation=3).read(["b_s0"]), expected)
    np.testing.assert_array_equal(reader.read(["b_s0"]), expected)
