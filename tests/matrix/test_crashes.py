"""Writers of a matrix that are killed, race, or resume late: committed data stays correct."""

from __future__ import annotations

import random
from collections.abc import Collection
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.helpers import fork_server
from tests.helpers.faults import Kill, is_killed
from tests.helpers.matrix_writer import N_FEATURES, OPTIONS, cells_of, samples_of, write_batches
from zarr_core.errors import MatrixError, StoreError
from zarr_core.matrix import WideMatrix
from zarr_core.matrix.store.claims import claim
from zarr_core.matrix.store.head import HEAD, named
from zarr_core.storage import Storage

BATCHES = ["a", "b", "c"]


def make(root: str) -> WideMatrix:
    return WideMatrix.create(root, list(range(N_FEATURES)), **OPTIONS)


def check(root: str, batches: list[str] | None = None, only: Collection[str] | None = None) -> None:
    """Every committed sample is right, in both copies; and if given, those batches are what is committed.

    Args:
        root: of the matrix.
        batches: every committed batch.
        only: check the samples of those of these that are committed.
    """
    matrix = WideMatrix.open(root)
    if batches is not None:
        assert sorted(matrix.batches) == sorted(batches)
    for batch_id, sample_ids in matrix.batches.items():
        if only is not None and batch_id not in only:
            continue
        assert sample_ids == samples_of(batch_id)
        for value, cells in cells_of(batch_id).items():
            np.testing.assert_array_equal(matrix.read(sample_ids, value=value), cells)
            np.testing.assert_array_equal(matrix.read(sample_ids, [7, 2_900], value), cells[:, [7, 2_900]])


class Versions:
    """Versions (times and inode, or etag) of shards, to detect a shard that is written twice."""

    def __init__(self, root: str) -> None:
        self._storage = Storage(root)
        self._seen: dict[str, Any] = {}

    def check(self) -> None:
        """Compare with the recorded versions, and record new shards."""
        for name, info in self._storage.infos().items():
            if "/c/" in name and not name.endswith(".tmp"):
                version = info.version, info.modified, info.changed
                assert self._seen.setdefault(name, version) == version, f"{name} was written twice"


LOCAL_KILLS = [
    Kill("create", "claims/"),
    Kill("link", "claims/"),
    Kill("rename", "/beta.zarr/zarr.json$"),
    Kill("rename", "/beta_columns.zarr/zarr.json$"),
    Kill("create", "/c/"),
    Kill("link", "/c/", 3),
    Kill("link", "/c/", 8),
    Kill("rename", "/HEAD.json$"),
    Kill("link", "/generations/", 2),
    Kill("link", "_columns.zarr/c/"),
    Kill("rename", "/HEAD.json$", 4),
]
S3_KILLS = [
    Kill("put_if", "/claims/"),
    Kill("put_if", "/coverage.zarr/zarr.json$"),
    Kill("put_if", "/c/", 3),
    Kill("put_if", "/HEAD.json$"),
    Kill("put_if", "_columns.zarr/c/"),
]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["local", "s3"])
def test_a_writer_may_be_killed_at_any_moment(kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    root = str(tmp_path / "matrix") if kind == "local" else str(request.getfixturevalue("s3_root"))
    matrix = make(root)
    versions = Versions(root)
    committed: set[str] = set()
    for number, kill in enumerate(LOCAL_KILLS if kind == "local" else S3_KILLS):
        batches = [f"{name}{number}" for name in (BATCHES if kind == "local" else BATCHES[:1])]
        assert is_killed(kill, write_batches, root, number, batches), kill
        versions.check()
        check(root, only=batches)  # all of them in the end
        now = set(matrix.refresh().batches)
        assert now >= committed
        for batch_id in batches:  # the retry
            assert matrix.append(batch_id, samples_of(batch_id), cells_of(batch_id)) == (batch_id not in now)
        committed = now | set(batches)
        versions.check()
    matrix.derive_columns()
    check(root, sorted(committed))
    versions.check()


@pytest.mark.slow
def test_writers_of_overlapping_batches_end_with_each_once(any_root: str) -> None:
    make(any_root)
    batches = [f"b{n}" for n in range(3)]
    added: list[str] = []
    failed: list[BaseException] = []

    def write(seed: int) -> None:
        try:
            matrix = WideMatrix.open(any_root)
            for batch_id in random.Random(seed).sample(batches, 2):
                if matrix.append(batch_id, samples_of(batch_id), cells_of(batch_id)):
                    added.append(batch_id)
            matrix.derive_columns()
        except BaseException as error:
            failed.append(error)

    with ThreadPoolExecutor(3) as threads:
        list(threads.map(write, range(3)))
    assert failed == []
    assert len(added) == len(set(added))  # each append was reported once
    check(any_root, added)


def test_four_processes_on_overlapping_batches(tmp_path: Path) -> None:
    root = str(tmp_path)
    make(root)
    writers = [fork_server.start(write_batches, root, seed, BATCHES) for seed in range(4)]
    for writer in writers:
        writer.join()
    assert [writer.exitcode for writer in writers] == [0] * 4
    check(root, BATCHES)


def test_no_two_writers_claim_the_same_rows_even_for_the_same_batch(any_root: str) -> None:
    storage = Storage(any_root)
    assert [claim(storage, "rows", 0, 3, "batch 'a'") for _ in range(3)] == [0, 3, 6]


class Died(BaseException):
    """Simulates the death of the process."""


@pytest.mark.slow
def test_an_append_after_a_crash_uses_other_rows(any_root: str, monkeypatch: pytest.MonkeyPatch) -> None:
    matrix = make(any_root)
    matrix.append("a", samples_of("a"), cells_of("a"))

    def die(*_: Any) -> None:
        raise Died

    with monkeypatch.context() as patched:
        patched.setattr("zarr_core.matrix.ingest.append.commit", die)
        with pytest.raises(Died):
            matrix.append("b", samples_of("b"), cells_of("b"))
    check(any_root, ["a"])
    versions = Versions(any_root)
    versions.check()
    assert WideMatrix.open(any_root).append("b", samples_of("b"), cells_of("b"))
    versions.check()
    check(any_root, ["a", "b"])
    rows = WideMatrix.open(any_root).rows
    assert rows["b_s0"] >= rows["a_s10"] + 2 + 12  # behind the rows that the dead writer claimed


def test_a_writer_that_resumes_late_overwrites_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A writer is suspended between two shards while others write the same batch and another one."""
    from zarr_core.matrix.ingest import append

    make(str(tmp_path))
    slow, quick = WideMatrix.open(tmp_path), WideMatrix.open(tmp_path)
    original, versions = append.create_shard, Versions(str(tmp_path))
    written = 0

    def stand_still(*arguments: Any) -> int:
        nonlocal written
        written += 1
        if written == 4:
            monkeypatch.setattr(append, "create_shard", original)
            assert quick.append("a", samples_of("a"), cells_of("a"))
            assert quick.append("b", samples_of("b"), cells_of("b"))
            versions.check()
        return original(*arguments)

    monkeypatch.setattr(append, "create_shard", stand_still)
    assert not slow.append("a", samples_of("a"), cells_of("a"))  # it is there by now
    versions.check()
    check(str(tmp_path), ["a", "b"])
    needed = set(named(HEAD.parse((tmp_path / "HEAD.json").read_bytes(), "")))
    orphans = {name for name in Storage(tmp_path).list() if "/c/" in name} - needed
    assert len(orphans) == 6  # shards of the slow writer, left to garbage collection


def test_a_writer_that_loses_to_other_content_gets_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from zarr_core.matrix.ingest import append

    make(str(tmp_path))
    slow, quick = WideMatrix.open(tmp_path), WideMatrix.open(tmp_path)
    original = append.create_shard

    def overtaken(*arguments: Any) -> int:
        monkeypatch.setattr(append, "create_shard", original)
        assert quick.append("other", samples_of("a"), cells_of("b"))
        return original(*arguments)

    monkeypatch.setattr(append, "create_shard", overtaken)
    with pytest.raises(MatrixError, match="batch 'a': sample 'a_s0' is already in batch 'other'"):
        slow.append("a", samples_of("a"), cells_of("a"))
    assert list(WideMatrix.open(tmp_path).batches) == ["other"]


def test_no_commit_to_a_matrix_that_was_recreated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import shutil

    from zarr_core.matrix.ingest import append

    matrix = make(str(tmp_path))
    original = append.create_shard

    def removed(*arguments: Any) -> int:
        monkeypatch.setattr(append, "create_shard", original)
        shutil.rmtree(tmp_path)
        make(str(tmp_path))
        return original(*arguments)

    monkeypatch.setattr(append, "create_shard", removed)
    with pytest.raises(StoreError, match="opened here at generation 1 was replaced by another one"):
        matrix.append("a", samples_of("a"), cells_of("a"))
    assert WideMatrix.open(tmp_path).batches == {}
