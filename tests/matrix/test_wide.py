"""The wide matrix: what was appended is what is read, in any order, on any location, and by any Zarr reader."""

from __future__ import annotations

import json
import logging
import pickle
import re
import uuid
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest
import zarr
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.helpers.examples import examples
from zarr_core.errors import CorruptChunkError, ManifestError, MatrixError, StoreError, UnknownFieldError
from zarr_core.matrix import WideMatrix
from zarr_core.storage import Storage
from zarr_core.storage.byte_ranges import CountingObjects, open_objects

FEATURES = [f"cg{number:06d}" for number in range(0, 700, 7)]
SMALL: dict[str, Any] = {"chunk_features": 16, "shard_rows": 4, "column_chunk": (4, 8)}


def block(n_samples: int, n_features: int = len(FEATURES), seed: int = 0, dtype: str = "float32") -> np.ndarray:
    """Cells of which some are missing, and a run of features that are missing altogether."""
    rng = np.random.default_rng(seed)
    cells = rng.random((n_samples, n_features)).astype(dtype)
    cells[rng.random(cells.shape) < 0.2] = np.nan
    cells[:, n_features // 3 : n_features // 2] = np.nan
    return cells


def append(matrix: WideMatrix, batch_id: str, n_samples: int, seed: int = 0) -> dict[str, dict[str, np.ndarray]]:
    """Append a batch of made-up samples; their rows by value and sample."""
    sample_ids = [f"{batch_id}_s{number}" for number in range(n_samples)]
    tables = {
        value: block(n_samples, matrix.shape[1], seed + number, dtype)
        for number, (value, dtype) in enumerate(matrix.values.items())
    }
    assert matrix.append(batch_id, sample_ids, tables)
    return {value: dict(zip(sample_ids, table, strict=True)) for value, table in tables.items()}


def count_writes(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names that are written through ``Storage`` from now on; "replace HEAD.json" for a swap."""
    names: list[str] = []
    inside: list[str] = []

    def counted(method: str) -> None:
        original = getattr(Storage, method)

        def wrapper(self: Storage, name: str, *arguments: Any, **options: Any) -> Any:
            if not inside:
                names.append(f"{method} {name}")
            inside.append(name)
            try:
                return original(self, name, *arguments, **options)
            finally:
                inside.pop()

        monkeypatch.setattr(Storage, method, wrapper)

    for method in ("write", "create", "replace"):
        counted(method)
    return names


def test_what_was_appended_is_read_in_the_order_asked_for(any_root: str) -> None:
    matrix = WideMatrix.create(any_root, FEATURES, **SMALL)
    expected = append(matrix, "first", 3)
    for value, rows in append(matrix, "second", 9, seed=5).items():
        expected[value] |= rows
    opened = WideMatrix.open(any_root)
    assert opened.batches == {"first": [f"first_s{n}" for n in range(3)], "second": [f"second_s{n}" for n in range(9)]}
    assert (opened.generation, opened.shape) == (3, (12, 100))
    asked = [*reversed(opened.sample_ids), "first_s1"]
    for value, rows in expected.items():
        np.testing.assert_array_equal(opened.read(asked, value=value), np.stack([rows[i] for i in asked]))
        picked = [99, 0, 40, 41, 0]
        got = opened.read(asked, [FEATURES[i] for i in picked], value=value)
        np.testing.assert_array_equal(got, np.stack([rows[i][picked] for i in asked]))
    out = np.empty((2, 100), np.float32)
    assert pickle.loads(pickle.dumps(opened)).read(asked[:2], out=out) is out
    np.testing.assert_array_equal(out, np.stack([expected["beta"][i] for i in asked[:2]]))


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
            assert self.matrix.append(f"b{number}", ids, tables)
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
            asked = data.draw(st.lists(st.sampled_from(known), max_size=12)) if known else []
            places = data.draw(st.none() | st.lists(st.integers(0, len(self.features) - 1), max_size=10))
            got = matrix.read(asked, None if places is None else [self.features[i] for i in places], value)
            columns = slice(None) if places is None else places
            expected = [self.rows[value][i][columns] for i in asked]
            width = len(self.features) if places is None else len(places)
            np.testing.assert_array_equal(got, np.array(expected).reshape(len(asked), width))
            assert got.dtype == self.values[value]


@settings(max_examples=examples(60))
@given(st.data())
def test_any_matrix_reads_as_the_rows_that_it_was_given(data: st.DataObject) -> None:
    root = f"memory://{uuid.uuid4().hex}"  # a local disk would be asked to sync for each commit
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
        gap = array[5:8]  # between the batches, and behind the last
        assert np.isnan(gap).all()
        assert np.isnan(array[-1]).all()
        assert array.shape == (4 * 65_536, 100)


def test_an_append_writes_its_shards_and_one_commit(any_root: str, monkeypatch: pytest.MonkeyPatch) -> None:
    matrix = WideMatrix.create(any_root, list(range(8)), {"beta": "float32", "coverage": "float32"}, shard_rows=2_000)
    cells = np.arange(80_000, dtype=np.float32).reshape(10_000, 8)
    matrix.append("many", [f"s{n}" for n in range(10_000)], {"beta": cells, "coverage": cells})
    names = count_writes(monkeypatch)
    matrix.append("few", ["x", "y"], {"beta": cells[:2], "coverage": cells[:2]})
    assert sorted(names) == [
        "create beta.zarr/c/5/0",
        "create claims/rows/00000005.json",
        "create coverage.zarr/c/5/0",
        "create generations/00000003.json",
        "replace HEAD.json",
    ]
    np.testing.assert_array_equal(matrix.read(["y", "s9999"]), cells[[1, 9999]])
    assert Storage(any_root).size("HEAD.json") < 200_000


def test_a_batch_that_is_there_is_not_written_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    matrix = WideMatrix.create(tmp_path, FEATURES, {"beta": "float32"}, **SMALL)
    cells = block(3)
    matrix.append("a", ["x", "y", "z"], {"beta": cells})
    names = count_writes(monkeypatch)
    other_nan = cells[::-1].copy()
    other_nan[np.isnan(other_nan)] = -np.nan
    assert not WideMatrix.open(tmp_path).append("a", ["z", "y", "x"], {"beta": other_nan})
    assert names == []
    cells[0, 0] = 7
    with pytest.raises(MatrixError, match="batch 'a': it is there already with the same samples but other values"):
        matrix.append("a", ["x", "y", "z"], {"beta": cells})
    with pytest.raises(MatrixError, match="'a': it is there already with other samples; they differ in 'w'"):
        matrix.append("a", ["x", "y", "z", "w"], {"beta": block(4)})
    with pytest.raises(MatrixError, match="batch 'b': sample 'y' is there already, in batch 'a'"):
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
        (["x", "x"], {"beta": block(2)}, "sample 'x' is named twice"),
        (["x", 1], {"beta": block(2)}, "named by strings, not 1"),
        ([], {"beta": block(0)}, "at least one sample"),
        ("xy", {"beta": block(2)}, "a sequence of at least one sample"),
        (["x", "y"], {}, "value tables of this matrix are beta; given: none"),
        (["x", "y"], {"beta": block(2), "depth": block(2)}, "given: beta, depth"),
        (["x", "y"], {"beta": _infinite()}, "beta of sample 'y' is infinite at feature 'cg000021'"),
    ],
)
def test_what_does_not_fit_is_refused_and_nothing_is_written(
    tmp_path: Path, sample_ids: Any, values: Any, message: str
) -> None:
    matrix = WideMatrix.create(tmp_path, FEATURES, {"beta": "float32"}, **SMALL)
    before = Storage(tmp_path).list()
    with pytest.raises(MatrixError, match=message):
        matrix.append("a", sample_ids, values)
    assert Storage(tmp_path).list() == before


def test_what_is_not_there_is_named(tmp_path: Path) -> None:
    matrix = WideMatrix.create(tmp_path / "m", FEATURES, {"beta": "float32"}, **SMALL)
    append(matrix, "a", 2)
    with pytest.raises(UnknownFieldError, match="no sample 'nobody'"):
        matrix.read(["a_s0", "nobody"])
    with pytest.raises(UnknownFieldError, match="feature 'cg1' is not on the axis"):
        matrix.read(["a_s0"], ["cg000007", "cg1"])
    with pytest.raises(UnknownFieldError, match="feature 'cg000007_and_more' is not"):
        matrix.read(["a_s0"], ["cg000007_and_more"])
    with pytest.raises(UnknownFieldError, match="are strings, not whole numbers: 3"):
        matrix.read(["a_s0"], [3])
    with pytest.raises(UnknownFieldError, match="no value table 'depth'; it has beta"):
        matrix.read(["a_s0"], value="depth")
    with pytest.raises(MatrixError, match=r"out has shape \(1, 2\)"):
        matrix.read(["a_s0"], out=np.empty((1, 2), np.float32))
    with pytest.raises(MatrixError, match="holds a matrix already"):
        WideMatrix.create(tmp_path / "m", FEATURES)
    with pytest.raises(StoreError, match="holds no HEAD.json"):
        WideMatrix.open(tmp_path / "nothing")


@pytest.mark.parametrize(
    ("features", "options", "message"),
    [
        (["a", "b", "a"], {}, "feature 'a' is named twice"),
        ([3, 3], {}, "feature 3 is named twice"),
        ([], {}, "at least one feature"),
        ([1.5], {}, "strings or whole numbers"),
        (["a", ""], {}, "empty name"),
        (np.array([1, 2**63], np.uint64), {}, "feature 9223372036854775808 is beyond 64 bits"),
        (["a"], {"values": {"beta": "int32"}}, "'int32' is none of"),
        (["a"], {"values": {"../x": "float32"}}, "lower-case letters"),
        (["a"], {"values": {}}, "at least one value table"),
        (["a"], {"shard_rows": 0}, "are positive"),
    ],
)
def test_a_matrix_that_cannot_be_is_not_made(tmp_path: Path, features: Any, options: Any, message: str) -> None:
    with pytest.raises(MatrixError, match=message):
        WideMatrix.create(tmp_path, features, **options)
    assert Storage(tmp_path).list() == {}


def test_features_are_found_by_name_whatever_their_order() -> None:
    from zarr_core.matrix.axis import FeatureAxis

    for ids in (["b", "ab", "a", "zürich"], [5, -3, 2**40]):
        axis = FeatureAxis(ids)
        assert list(axis) == ids
        assert np.asarray(axis).tolist() == ids
        assert axis[1] == ids[1]
        assert axis[[2, 0]].tolist() == [ids[2], ids[0]]
        assert axis.positions([ids[2], ids[0], ids[2]]).tolist() == [2, 0, 2]
        assert axis.positions(np.asarray(axis)).tolist() == list(range(len(ids)))
        assert len(axis.positions([])) == 0


def test_a_full_matrix_says_so(tmp_path: Path) -> None:
    matrix = WideMatrix.create(tmp_path, FEATURES, {"beta": "float32"}, **SMALL, max_shards=2)
    append(matrix, "a", 5)
    with pytest.raises(MatrixError, match=r"is full: it has room for 2 shards of 4 samples; make a new matrix"):
        matrix.append("b", ["x"], {"beta": block(1)})


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


def test_a_creation_that_died_is_made_good(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def die(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(Storage, "replace", die)  # before the head
        with pytest.raises(KeyboardInterrupt):
            WideMatrix.create(tmp_path, ["other"], {"beta": "float32"})
    with monkeypatch.context() as patched:
        patched.setattr(WideMatrix, "_ensure_metadata", die)  # right behind it
        with pytest.raises(KeyboardInterrupt):
            WideMatrix.create(tmp_path, FEATURES, {"beta": "float32"}, **SMALL)
    matrix = WideMatrix.open(tmp_path)
    expected = append(matrix, "a", 1)["beta"]["a_s0"]
    array = zarr.open_array(tmp_path / "beta.zarr", mode="r")
    np.testing.assert_array_equal(np.asarray(array[0]), expected)


# --- the transposed copy


def test_few_features_of_many_samples_come_from_the_transposed_copy(
    any_root: str, caplog: pytest.LogCaptureFixture
) -> None:
    options = {"chunk_features": 4_000, "shard_rows": 64, "column_chunk": (4, 32), "codec": "none"}
    names = [f"cg{number:05d}" for number in range(16_000)]
    writer = WideMatrix.create(any_root, names, {"beta": "float32"}, **options)
    rows = append(writer, "a", 30)["beta"] | append(writer, "b", 30, seed=3)["beta"]
    assert writer.derive_columns() == ["a", "b"]
    rows |= append(writer, "c", 20, seed=4)["beta"]
    opened: list[CountingObjects] = []

    def counting(url: str) -> CountingObjects:
        opened.append(CountingObjects(open_objects(url)))
        return opened[-1]

    matrix = WideMatrix.open(any_root, objects_factory=counting)
    picked = list(range(37, 16_000, 800))
    with caplog.at_level(logging.DEBUG, "zarr_core.matrix"):
        got = matrix.read(matrix.sample_ids, [names[i] for i in picked])
    np.testing.assert_array_equal(got, np.stack([rows[i][picked] for i in matrix.sample_ids]))
    used = {key.split("/")[0] for key in opened[0].by_key}
    assert used == {"beta_columns.zarr", "beta.zarr"}  # the last batch has not been transposed yet
    said = [record.getMessage() for record in caplog.records if "samples x" in record.getMessage()]
    assert len(said) == 2
    assert "60 samples x 20 features from columns" in said[0]
    assert "20 samples x 20 features from rows" in said[1]
    assert sum(int(re.findall(r": (\d+) requests", words)[0]) for words in said) == opened[0].requests

    assert writer.derive_columns() == ["c"]
    assert writer.derive_columns() == []
    matrix.refresh()
    opened[0].reset()
    np.testing.assert_array_equal(matrix.read(matrix.sample_ids, [names[i] for i in picked]), got)
    assert {key.split("/")[0] for key in opened[0].by_key} == {"beta_columns.zarr"}
    by_columns = opened[0].bytes
    from_rows = WideMatrix.open(any_root, generation=3, objects_factory=counting)
    from_rows.read(from_rows.sample_ids, [names[i] for i in picked])
    assert by_columns < opened[1].bytes / 4
    # Whole rows come from the row copy, and so do many features of one sample.
    opened[0].reset()
    matrix.read(matrix.sample_ids[:2])
    matrix.read(["a_s0"], names[1::2])
    assert {key.split("/")[0] for key in opened[0].by_key} == {"beta.zarr"}


def test_deriving_writes_only_what_is_new(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    matrix = WideMatrix.create(tmp_path, FEATURES, {"beta": "float32"}, **SMALL)
    append(matrix, "a", 5)
    append(matrix, "b", 3)
    append(matrix, "c", 2)
    matrix.derive_columns()
    append(matrix, "d", 17)
    names = count_writes(monkeypatch)
    matrix.derive_columns()
    written = {name.split()[1] for name in names if "columns" in name and "claims" not in name}
    # 17 samples in shards of 8, behind the two of the first call: "a" and "b" fill one, "c" has the other.
    expected = {f"beta_columns.zarr/c/{shard}/{along}" for shard in range(7) for along in (2, 3, 4)}
    assert written == expected
    assert sum(name.startswith("replace") for name in names) == 1


def test_two_who_derive_at_once_do_no_harm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from zarr_core.matrix import columns

    matrix = WideMatrix.create(tmp_path, FEATURES, {"beta": "float32"}, **SMALL)
    rows = append(matrix, "a", 5)["beta"]
    original, other = columns.write_block, WideMatrix.open(tmp_path)
    rows |= append(matrix, "b", 2)["beta"]

    def overtaken(*arguments: Any) -> Any:
        """Somebody who has not seen the second batch."""
        written = original(*arguments)
        monkeypatch.setattr(columns, "write_block", original)
        plans = iter([[("a",)], []])
        with monkeypatch.context() as patched:
            patched.setattr(columns, "plan_blocks", lambda _: next(plans))
            assert other.derive_columns() == ["a"]
        return written

    monkeypatch.setattr(columns, "write_block", overtaken)
    assert matrix.derive_columns() == ["b"]
    assert matrix.generation == other.generation + 1 == 5
    got = matrix.read(list(rows), FEATURES[:2])
    np.testing.assert_array_equal(got, np.stack(list(rows.values()))[:, :2])


# --- damage


def flip(path: Path, offset: int) -> None:
    data = bytearray(path.read_bytes())
    data[offset] ^= 1
    path.write_bytes(data)


def test_damage_is_named_and_never_returned(tmp_path: Path) -> None:
    matrix = WideMatrix.create(tmp_path, FEATURES, {"beta": "float32"}, **SMALL)
    rows = append(matrix, "a", 6)["beta"]
    matrix.derive_columns()
    shard = tmp_path / "beta.zarr/c/0/0"
    flip(shard, 10)
    with pytest.raises(CorruptChunkError, match=r"beta of sample 'a_s0': chunk 0 of beta.zarr/c/0/0: checksum"):
        WideMatrix.open(tmp_path).read(["a_s1", "a_s0"])
    np.testing.assert_array_equal(WideMatrix.open(tmp_path).read(["a_s5"])[0], rows["a_s5"])
    flip(shard, 10)
    flip(shard, -8)
    with pytest.raises(CorruptChunkError, match=r"beta.zarr/c/0/0: shard index: checksum"):
        WideMatrix.open(tmp_path).read(["a_s0"])
    shard.unlink()
    with pytest.raises(CorruptChunkError, match=r"sample 'a_s0': beta.zarr/c/0/0 is committed but not there"):
        WideMatrix.open(tmp_path).read(["a_s0"])
    flip(tmp_path / "beta_columns.zarr/c/0/0", 3)
    with pytest.raises(CorruptChunkError, match=r"beta, transposed, column 0 .*: chunk 0 of beta_columns.zarr/c/0/0"):
        WideMatrix.open(tmp_path).read(list(rows), FEATURES[:1])
    (axis,) = (tmp_path / "cpg_ids").iterdir()
    flip(axis, -1)
    with pytest.raises(CorruptChunkError, match="not those that the matrix was made with"):
        WideMatrix.open(tmp_path).read(["a_s5"], FEATURES[:1])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda head: head["batches"]["b"].update(row=head["batches"]["a"]["row"]), "a shard of its own"),
        (lambda head: head["batches"]["b"].update(row=6), "a shard of its own"),
        (lambda head: head["batches"]["b"].update(sample_ids=["a_s0"]), "two rows"),
        (lambda head: head["batches"]["b"].update(row=4 * 10**9), "more rows than the arrays have"),
        (lambda head: head.update(values={"../../x": "float32"}), "lower-case letters"),
        (lambda head: head["cpg_ids"].update(path="../secret"), "leaves the folder"),
        (lambda head: head.update(format_version=2), "version 2"),
        (lambda head: head.pop("codec"), "codec"),
        (lambda head: head["column_blocks"].append({"row": 0, "batches": ["x"], "bytes": {}}), "not there"),
    ],
)
def test_a_head_that_contradicts_itself_is_refused(tmp_path: Path, change: Any, message: str) -> None:
    matrix = WideMatrix.create(tmp_path, FEATURES, {"beta": "float32"}, **SMALL)
    append(matrix, "a", 2)
    append(matrix, "b", 1)
    head = json.loads((tmp_path / "HEAD.json").read_bytes())
    change(head)
    (tmp_path / "HEAD.json").write_text(json.dumps(head))
    with pytest.raises(ManifestError, match=message):
        WideMatrix.open(tmp_path)


def test_a_cache_answers_whatever_samples_are_read_together(tmp_path: Path) -> None:
    """Epochs draw samples in orders of their own: who was whose neighbour must not matter."""
    root = tmp_path / "matrix"
    rows = append(WideMatrix.create(root, FEATURES, {"beta": "float32"}, **SMALL), "a", 6)["beta"]
    opened: list[CountingObjects] = []

    def counting(url: str) -> CountingObjects:
        opened.append(CountingObjects(open_objects(url)))
        return opened[-1]

    for groups in (
        [["a_s0", "a_s1", "a_s2"], ["a_s3", "a_s5", "a_s4"]],
        [["a_s1"], ["a_s2", "a_s5"], ["a_s0", "a_s4"]],
    ):
        matrix = WideMatrix.open(root, cache_dir=tmp_path / "cache", objects_factory=counting)
        for asked in groups:
            np.testing.assert_array_equal(matrix.read(asked), np.stack([rows[i] for i in asked]))
    assert opened[0].requests == 5  # two indices, and a range for the neighbours in each group and shard
    assert opened[1].requests == 0


def test_threads_share_what_is_known_of_shards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However little may be kept, and however often two fetch the same."""
    from zarr_core.matrix import fetch

    monkeypatch.setattr(fetch, "_INDEX_BYTES", 3 * 16 * 4)
    writer = WideMatrix.create(tmp_path, FEATURES[:4], {"beta": "float32"}, shard_rows=4, chunk_features=4)
    rows = append(writer, "a", 40)["beta"]
    matrix = WideMatrix.open(tmp_path)

    def read(seed: int) -> None:
        rng = np.random.default_rng(seed)
        for _ in range(200):
            asked = rng.choice(list(rows), 3, replace=False).tolist()
            np.testing.assert_array_equal(matrix.read(asked), np.stack([rows[i] for i in asked]))

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(read, range(8)))
    kept = matrix._this_fetcher
    assert kept._index_bytes == sum(index.nbytes for index in kept._indices.values()) <= 3 * 16 * 4


def test_a_cache_answers_again_and_knows_one_matrix_from_the_next(s3_root: str, tmp_path: Path) -> None:
    import s3fs

    for seed in (0, 1):  # another matrix at the same place
        rows = append(WideMatrix.create(s3_root, FEATURES, {"beta": "float32"}, **SMALL), "a", 6, seed)["beta"]
        opened: list[CountingObjects] = []

        def counting(url: str, opened: list[CountingObjects] = opened) -> CountingObjects:
            opened.append(CountingObjects(open_objects(url)))
            return opened[-1]

        for _ in range(2):
            matrix = WideMatrix.open(s3_root, cache_dir=tmp_path, objects_factory=counting)
            np.testing.assert_array_equal(matrix.read(list(rows)), np.stack(list(rows.values())))
        assert opened[0].requests > 0
        assert opened[1].requests == 0
        s3fs.S3FileSystem().rm(s3_root, recursive=True)
