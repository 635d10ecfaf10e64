"""Damaged shards, caches and threads."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from tests.helpers.matrices import FEATURES, SMALL, append, flip
from zarr_core.errors import CorruptChunkError
from zarr_core.matrix import WideMatrix
from zarr_core.storage.byte_ranges import CountingObjects, open_objects


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
    with pytest.raises(CorruptChunkError, match=r"sample 'a_s0': beta.zarr/c/0/0 is committed but missing"):
        WideMatrix.open(tmp_path).read(["a_s0"])
    flip(tmp_path / "beta_columns.zarr/c/0/0", 3)
    with pytest.raises(CorruptChunkError, match="beta of sample 'a_s0' and [0-9]+ others: chunk 0 of beta_columns"):
        WideMatrix.open(tmp_path).read(list(rows), FEATURES[:1])
    (axis,) = (tmp_path / "cpg_ids").iterdir()
    flip(axis, -1)
    with pytest.raises(CorruptChunkError, match="not those that the matrix was created with"):
        WideMatrix.open(tmp_path).read(["a_s5"], FEATURES[:1])


def test_cached_ranges_do_not_depend_on_the_other_samples_of_a_read(tmp_path: Path) -> None:
    """Every epoch has another order, so ranges must not be cached together with their neighbours."""
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
        for requested in groups:
            np.testing.assert_array_equal(matrix.read(requested), np.stack([rows[i] for i in requested]))
    assert opened[0].requests == 5  # two indices, and a range for the neighbours in each group and shard
    assert opened[1].requests == 0


def test_threads_share_the_shard_indices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However little may be kept, and however often two fetch the same."""
    from zarr_core.matrix.read import fetch

    limit = 3 * 4 * fetch._INDEX_ENTRY_BYTES
    monkeypatch.setattr(fetch, "_INDEX_BYTES", limit)
    writer = WideMatrix.create(tmp_path, FEATURES[:4], {"beta": "float32"}, shard_rows=4, chunk_features=4)
    rows = append(writer, "a", 40)["beta"]
    matrix = WideMatrix.open(tmp_path)

    def read(seed: int) -> None:
        rng = np.random.default_rng(seed)
        for _ in range(200):
            requested = rng.choice(list(rows), 3, replace=False).tolist()
            np.testing.assert_array_equal(matrix.read(requested), np.stack([rows[i] for i in requested]))

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(read, range(8)))
    kept = matrix._fetcher
    sizes = [fetch._INDEX_ENTRY_BYTES * len(shard.slots) for shard in kept._shards.values()]
    assert kept._index_bytes == sum(sizes) <= limit


def test_the_cache_distinguishes_matrices_at_one_place(s3_root: str, tmp_path: Path) -> None:
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
