"""Staged copies of matrices."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from tests.helpers.clocks import clocks_ahead
from tests.helpers.matrices import FEATURES, SMALL, append, block, flip
from zarr_core import MatrixDataset
from zarr_core.__main__ import main
from zarr_core.errors import MatrixError, StoreError, TransferError, UnknownFieldError
from zarr_core.matrix import WideMatrix
from zarr_core.matrix.stage import COPY_OF, _MatrixCopy, stage_matrix
from zarr_core.matrix.store.head import HEAD
from zarr_core.matrix.verify import verify_matrix
from zarr_core.storage import Storage
from zarr_core.versioning.gc import collect_garbage
from zarr_core.versioning.tags import make_tag


@pytest.fixture
def matrix(tmp_path: Path) -> WideMatrix:
    made = WideMatrix.create(tmp_path / "m", FEATURES, **SMALL)
    append(made, "a", 9)
    append(made, "b", 3, seed=4)
    made.derive_columns()
    append(made, "c", 2, seed=7)
    made.set_metadata(pa.table({"sample_id": made.sample_ids, "age": list(range(14))}))
    return made


def assert_equal(copy: WideMatrix, matrix: WideMatrix) -> None:
    for value in copy.values:
        for features in (None, FEATURES[3:5]):
            cells = matrix.read(copy.sample_ids, features, value)
            np.testing.assert_array_equal(copy.read(copy.sample_ids, features, value), cells)
    assert copy.samples().equals(matrix.samples(sample_ids=copy.sample_ids))
    assert verify_matrix(copy.url).problems == []


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["local", "s3"])
def test_a_copy_has_the_same_content_and_fingerprint(
    matrix: WideMatrix, kind: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    root = str(tmp_path / "copy") if kind == "local" else request.getfixturevalue("s3_root")
    report = stage_matrix(matrix.url, root)
    assert report.ok
    copy = WideMatrix.open(root)
    assert copy.sample_ids == matrix.sample_ids
    assert_equal(copy, matrix)
    assert MatrixDataset(copy).fingerprint == MatrixDataset(matrix).fingerprint
    assert json.loads(Storage(root).read("HEAD.json"))["origin"]["generation"] == matrix.generation
    again = stage_matrix(matrix.url, root)
    assert (again.copied, again.kept, again.state.generation) == (0, report.copied, copy.generation)
    append(matrix, "d", 2, seed=9)
    matrix.retire(["a_s1"], ["b"])
    later = stage_matrix(matrix.url, root)
    assert 0 < later.copied < report.copied
    assert_equal(copy.refresh(), matrix)
    assert set(copy.sample_ids) == set(matrix.sample_ids)


def test_some_batches_and_values_and_then_more(matrix: WideMatrix, tmp_path: Path) -> None:
    report = stage_matrix(matrix.url, tmp_path / "copy", sample_ids=["c_s1"], values=["beta"])
    copy = WideMatrix.open(tmp_path / "copy")
    assert (list(copy.batches), list(copy.values), report.batches) == (["c"], ["beta"], ("c",))
    assert_equal(copy, matrix)
    stage_matrix(matrix.url, tmp_path / "copy", sample_ids=["a_s1", "b_s0"], values=pd.Series(["beta"]))  # type: ignore[arg-type]
    assert list(copy.refresh().batches) == ["a", "b", "c"]
    assert copy._state.column_blocks
    assert_equal(copy, matrix)
    with pytest.raises(StoreError, match="holds 2 more batches, with the value tables beta; all batches"):
        stage_matrix(matrix.url, tmp_path / "copy", sample_ids=["c_s0"])
    stage_matrix(matrix.url, tmp_path / "copy")
    assert_equal(copy.refresh(), matrix)
    assert set(copy.values) == {"beta", "coverage"}
    assert collect_garbage(Storage(tmp_path / "copy"), HEAD, 0).prefixes == {}


def test_an_interrupted_copy_is_finished(matrix: WideMatrix, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Died(BaseException):
        pass

    original, count = Storage.write, 0

    def write(self: Storage, name: str, pieces: Any) -> int:
        nonlocal count
        count += "/c/" in name
        if count == 4:
            raise Died
        return original(self, name, pieces)

    monkeypatch.setattr(Storage, "write", write)
    with pytest.raises(Died):
        stage_matrix(matrix.url, tmp_path / "copy")
    monkeypatch.undo()
    assert not (tmp_path / "copy/HEAD.json").exists()
    shards = sorted(file for file in (tmp_path / "copy").rglob("c/*/*"))
    flip(shards[1], 5)  # damaged on the way: of the right size, but not intact
    report = stage_matrix(matrix.url, tmp_path / "copy")
    assert report.kept == sum(file.stat().st_size for file in (shards[0], shards[2]))
    assert_equal(WideMatrix.open(tmp_path / "copy"), matrix)


def test_damage_fails_its_batch_alone(matrix: WideMatrix, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    batch = matrix._state.batches["b"]
    damaged = f"beta.zarr/c/{batch.row // 4}/0"
    flip(Path(matrix.url, damaged), 5)
    assert main(["stage", str(tmp_path / "copy"), "--source", matrix.url, "--json"]) == 1
    document = json.loads(capsys.readouterr().out)
    assert (document["staged"], list(document["failed"])) == (["a", "c"], ["b"])
    assert damaged in document["failed"]["b"]
    copy = WideMatrix.open(tmp_path / "copy")
    assert list(copy.batches) == ["a", "c"]
    flip(Path(matrix.url, damaged), 5)
    *_, (column, _) = matrix._state.column_copy.shards()
    Path(matrix.url, column).unlink()
    assert main(["stage", str(tmp_path / "copy"), "--source", matrix.url]) == 1
    assert f"failed: {column}: committed but missing" in capsys.readouterr().out
    assert list(copy.refresh().batches) == ["a", "b", "c"]
    assert [each.batches for each in copy._state.column_blocks] == [("a",)]
    for file in Path(matrix.url).rglob("c/*/*"):
        flip(file, 5)
    with pytest.raises(StoreError, match="none of 3 batches could be copied; the first problem: beta"):
        stage_matrix(matrix.url, tmp_path / "other")


def test_a_shard_that_cannot_be_fetched_fails_its_batch_alone(
    matrix: WideMatrix, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original, refused = Storage.read, f"beta.zarr/c/{matrix._state.batches['b'].row // 4}/0"

    def read(storage: Storage, name: str, *args: Any) -> bytes:
        if name == refused:
            raise TransferError(f"{name} was refused: access denied")
        return original(storage, name, *args)

    monkeypatch.setattr(Storage, "read", read)
    report = stage_matrix(matrix.url, tmp_path / "copy")
    assert list(report.state.batches) == ["a", "c"]
    assert report.failed == {"b": f"{refused}: {refused} was refused: access denied"}


def test_a_copy_that_was_collected_is_staged_again(tmp_path: Path) -> None:
    matrix = WideMatrix.create(tmp_path / "m", FEATURES, **SMALL)
    append(matrix, "a", 9)
    append(matrix, "b", 3, seed=4)
    make_tag(Storage(matrix.url), HEAD, "v1")
    copy = tmp_path / "copy"
    stage_matrix(matrix.url, copy, values=["beta"])
    matrix.retire(["a_s1"])
    stage_matrix(matrix.url, copy, values=["beta"])
    with clocks_ahead(10):
        assert collect_garbage(Storage(copy), HEAD, 0).prefixes
    with pytest.raises(StoreError, match=r"beta.zarr/c/0/0 and 2 more objects are pending .* after 20\d\d-.* UTC, and"):
        stage_matrix(matrix.url, copy, generation="v1")
    stage_matrix(matrix.url, copy)  # the arrays of coverage are new
    assert_equal(WideMatrix.open(copy), matrix)


def test_check_reads_what_is_there(matrix: WideMatrix, tmp_path: Path) -> None:
    stage_matrix(matrix.url, tmp_path / "copy")
    file = next(iter((tmp_path / "copy").rglob("c/*/*")))
    flip(file, 5)
    assert stage_matrix(matrix.url, tmp_path / "copy").copied == 0
    assert stage_matrix(matrix.url, tmp_path / "copy", check=True).copied == file.stat().st_size
    assert verify_matrix(tmp_path / "copy").problems == []


def test_what_is_refused(matrix: WideMatrix, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    stage_matrix(matrix.url, tmp_path / "copy")
    copy = WideMatrix.open(tmp_path / "copy")
    for write in (
        lambda: copy.append("d", ["d0"], {value: block(1) for value in copy.values}),
        copy.derive_columns,
        lambda: copy.retire(["a_s0"]),
        lambda: copy.set_metadata(pa.table({"sample_id": ["a_s0"]})),
    ):
        with pytest.raises(MatrixError, match="is a staged copy: .* in .*m, and stage it again"):
            write()
    for options, error, message in (
        ({"values": ["betas"]}, UnknownFieldError, "no value table 'betas'"),
        ({"sample_ids": ["x"]}, UnknownFieldError, "no sample 'x'"),
        ({"generation": 99}, StoreError, "no generation 99"),
    ):
        with pytest.raises(error, match=message):
            stage_matrix(matrix.url, tmp_path / "copy", **options)  # type: ignore[arg-type]
    with pytest.raises(StoreError, match="onto itself"):
        stage_matrix(matrix.url, matrix.url)
    WideMatrix.create(tmp_path / "other", FEATURES)
    with pytest.raises(StoreError, match="is not a copy of"):
        stage_matrix(matrix.url, tmp_path / "other")
    assert main(["stage", str(tmp_path / "copy"), "--source", matrix.url, "--split", "train"]) == 2
    assert "a matrix has no splits" in capsys.readouterr().err


def test_shards_of_another_matrix_are_not_taken_for_those_of_a_copy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A matrix that was made again has shards of the same names and sizes, and their checksums are right."""
    made = [WideMatrix.create(tmp_path / name, FEATURES, {"beta": "float32"}, **SMALL) for name in ("old", "new")]
    for number, matrix in enumerate(made):
        cells = np.full((3, len(FEATURES)), number, np.float32)
        assert matrix.append("a", ["x", "y", "z"], {"beta": cells})

    def die(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(_MatrixCopy, "commit", die)
        with pytest.raises(KeyboardInterrupt):
            stage_matrix(made[0].url, tmp_path / "copy")
    with pytest.raises(StoreError, match="a copy of another matrix was begun here; use an empty target"):
        stage_matrix(made[1].url, tmp_path / "copy")
    Storage(tmp_path / "copy").delete([COPY_OF])  # as an earlier version left it
    with pytest.raises(StoreError, match=r"copy is not a copy, but holds cpg_ids/.*; use an empty target"):
        stage_matrix(made[1].url, tmp_path / "copy")
    assert not (tmp_path / "copy" / "HEAD.json").exists()
