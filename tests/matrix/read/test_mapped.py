"""Later reads of a matrix without codec are copies from maps: the same cells, and no map where it is not safe."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.helpers.examples import examples
from tests.helpers.matrices import FEATURES, SMALL, append, flip
from zarr_core.errors import CorruptChunkError, StoreError
from zarr_core.matrix import WideMatrix
from zarr_core.matrix.read import cells as mapped_copies
from zarr_core.matrix.read import fetch
from zarr_core.matrix.read import reader as matrix_reader
from zarr_core.storage import local_files
from zarr_core.storage.byte_ranges import LocalObjects

PLAIN: dict[str, Any] = SMALL | {"codec": "none"}
SAMPLES = [f"a_s{number}" for number in range(6)]


@pytest.fixture
def written(tmp_path: Path) -> tuple[Path, np.ndarray]:
    """A matrix of two shards, and its cells."""
    matrix = WideMatrix.create(tmp_path / "matrix", FEATURES, {"beta": "float32"}, **PLAIN)
    rows = append(matrix, "a", 6)["beta"]
    return tmp_path / "matrix", np.stack([rows[sample_id] for sample_id in SAMPLES])


def shard(root: Path, number: int = 0) -> Path:
    return root / f"beta.zarr/c/{number}/0"


def mapped(matrix: WideMatrix) -> int:
    """Number of shards that are mapped."""
    return sum(shard.mapped is not None for shard in matrix._fetcher._shards.values())


@pytest.mark.slow
@settings(max_examples=examples(15))
@given(data=st.data())
def test_read_and_copied_cells_are_those_of_zarr_python(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    draw = data.draw
    layout = {
        "chunk_features": draw(st.integers(1, 70)),
        "shard_rows": draw(st.integers(1, 5)),
        "column_chunk": draw(st.sampled_from([(1, 1), (2, 3), (16, 4)])),
    }
    dtype, features = draw(st.sampled_from(["float16", "float32", "float64"])), FEATURES[: draw(st.integers(1, 60))]
    folder, with_columns = tmp_path_factory.mktemp("mapped"), draw(st.booleans())
    for codec in ("none", "zstd"):
        writer = WideMatrix.create(folder / codec, features, {"beta": dtype}, codec=codec, **layout)
        append(writer, "a", 6)
        append(writer, "b", 3, seed=5)
        if with_columns:
            writer.derive_columns()
    matrices = [WideMatrix.open(folder / codec) for codec in ("none", "zstd")]
    known, rows = matrices[0].sample_ids, matrices[0].rows
    reference = zarr.open_array(folder / "none/beta.zarr", mode="r")[:]
    for _ in range(3):
        samples = draw(st.just(known) | st.lists(st.sampled_from(known), min_size=1, max_size=14))
        places = draw(st.none() | st.lists(st.integers(0, len(features) - 1), min_size=1, max_size=9))
        names = None if places is None else [features[place] for place in places]
        expected = reference[[rows[sample_id] for sample_id in samples]][:, slice(None) if places is None else places]
        for matrix in matrices * 2:
            found = matrix.read(samples, names)
            np.testing.assert_array_equal(found, expected)
            assert found.dtype == dtype
    shutil.rmtree(folder)


@pytest.mark.parametrize("features", [None, FEATURES[3:80:7], FEATURES[:2]])
def test_verified_chunks_cost_no_system_call_that_reads(
    written: tuple[Path, np.ndarray], features: list[str] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    root, cells = written
    matrix = WideMatrix.open(root)
    first = matrix.read(SAMPLES, features)
    monkeypatch.setattr(LocalObjects, "read_into", None)
    monkeypatch.setattr(LocalObjects, "fetch", None)
    np.testing.assert_array_equal(matrix.read(SAMPLES, features), first)
    np.testing.assert_array_equal(first, cells[:, [FEATURES.index(name) for name in features or FEATURES]])


@pytest.mark.parametrize("features", [None, FEATURES[:2], FEATURES[36:48]])
def test_missing_cells_of_chunks_that_are_not_stored_cost_no_read_either(
    tmp_path: Path, features: list[str] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = WideMatrix.create(tmp_path, FEATURES, {"beta": "float32"}, **PLAIN | {"chunk_features": 4})
    rows = append(writer, "a", 6)["beta"]
    matrix = WideMatrix.open(tmp_path)
    matrix.read(SAMPLES)
    assert any(start < 0 for shard in matrix._fetcher._shards.values() for start in shard.ranges.starts)
    monkeypatch.setattr(LocalObjects, "read_into", None)
    monkeypatch.setattr(LocalObjects, "fetch", None)
    columns = [FEATURES.index(name) for name in features or FEATURES]
    np.testing.assert_array_equal(matrix.read(SAMPLES, features), np.stack(list(rows.values()))[:, columns])


@pytest.mark.parametrize("limit", [mapped_copies.AT_ONCE_BYTES, 0])
def test_whole_samples_are_one_copy_unless_they_are_large(
    written: tuple[Path, np.ndarray], limit: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    root, cells = written
    matrix = WideMatrix.open(root)
    matrix.read(SAMPLES)
    monkeypatch.setattr(mapped_copies, "AT_ONCE_BYTES", limit)
    monkeypatch.setattr(LocalObjects, "read_into", None)
    if limit:
        monkeypatch.setattr(matrix_reader, "read_cells", None)
    wide = np.zeros((6, cells.shape[1] + 1), np.float32)
    numbers = [5, 4, 3, 2, 1, 2]  # the first sample lacks a chunk
    np.testing.assert_array_equal(matrix.read([SAMPLES[number] for number in numbers]), cells[numbers])
    if not limit:
        np.testing.assert_array_equal(matrix.read(SAMPLES, out=wide[:, 1:]), cells)
        assert not wide[:, 0].any()


def test_a_chunk_that_was_not_verified_is_read_and_checked(written: tuple[Path, np.ndarray]) -> None:
    root, _ = written
    matrix = WideMatrix.open(root)
    matrix.read(["a_s1"], FEATURES[:20])  # its first two chunks
    content = shard(root).read_bytes()
    shard(root).write_bytes(bytes(byte ^ 1 for byte in content[:-200]) + content[-200:])
    for features in (None, FEATURES[:2], FEATURES[40:]):
        with pytest.raises(CorruptChunkError, match=r"beta of sample 'a_s\d'.*: chunk \d+ of .*: checksum mismatch"):
            matrix.read(["a_s0", "a_s1", "a_s3"], features)


def test_a_chunk_that_was_verified_in_another_file_is_not_copied_from_the_map(
    written: tuple[Path, np.ndarray],
) -> None:
    root, cells = written
    whole = shard(root).read_bytes()
    damaged = bytearray(whole)
    damaged[5] ^= 1  # the second cell of the first sample; the first one is missing
    shard(root).write_bytes(damaged)
    matrix = WideMatrix.open(root)
    matrix.read(SAMPLES[1:])
    assert mapped(matrix) == 2
    (root / "other").write_bytes(whole)
    (root / "other").rename(shard(root))
    local_files._opened.clear()  # as if many others had been opened since
    for _ in range(3):
        np.testing.assert_array_equal(matrix.read(SAMPLES), cells)


@pytest.mark.parametrize("size", [0, 1, 600])
def test_a_mapped_file_that_shrinks_is_an_error_and_no_signal(
    written: tuple[Path, np.ndarray], size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetch, "LOOK_AGAIN", 0.0)
    root, _ = written
    matrix = WideMatrix.open(root)
    for _ in range(2):
        matrix.read(SAMPLES)
    assert mapped(matrix) == 2
    os.truncate(shard(root), size)
    for features in (None, FEATURES[:2]):
        message = r"sample 'a_s\d'.*chunk \d+ of beta.zarr/c/0/0: expected \d+ bytes"
        with pytest.raises(CorruptChunkError, match=message):
            matrix.read(SAMPLES, features)


def test_a_mapped_file_that_is_deleted_or_replaced_keeps_its_content(written: tuple[Path, np.ndarray]) -> None:
    """As an open file does. A shard is written once, so the name of another one would be another name."""
    root, cells = written
    matrix = WideMatrix.open(root)
    for _ in range(2):
        matrix.read(SAMPLES)
    shard(root, 0).unlink()
    (root / "other").write_bytes(b"other")
    (root / "other").rename(shard(root, 1))
    np.testing.assert_array_equal(matrix.read(SAMPLES), cells)


def test_another_matrix_at_the_same_place_is_noticed(written: tuple[Path, np.ndarray]) -> None:
    """Shards of two matrices have the same names."""
    root, _ = written
    matrix = WideMatrix.open(root)
    for _ in range(2):
        matrix.read(SAMPLES)
    shutil.rmtree(root)
    rows = append(WideMatrix.create(root, FEATURES, {"beta": "float32"}, **PLAIN), "a", 6, seed=9)["beta"]
    with pytest.raises(StoreError, match="another"):
        matrix.read(SAMPLES)
    opened = WideMatrix.open(root)
    for _ in range(2):
        np.testing.assert_array_equal(opened.read(SAMPLES), np.stack(list(rows.values())))


def test_samples_that_moved_are_those_of_the_new_generation(written: tuple[Path, np.ndarray]) -> None:
    root, cells = written
    matrix, pinned = WideMatrix.open(root), WideMatrix.open(root, generation=2)
    for _ in range(2):
        matrix.read(SAMPLES)
        pinned.read(SAMPLES)
    matrix.retire(["a_s2"])
    left = [0, 1, 3, 4, 5]
    for _ in range(2):
        np.testing.assert_array_equal(matrix.read([SAMPLES[number] for number in left]), cells[left])
        np.testing.assert_array_equal(pinned.read(SAMPLES), cells)


def test_a_sample_that_was_loaded_again_has_its_new_cells(written: tuple[Path, np.ndarray]) -> None:
    root, cells = written
    matrix, whole = WideMatrix.open(root), SAMPLES[1:]  # the first sample lacks a chunk
    for _ in range(3):
        np.testing.assert_array_equal(matrix.read(whole), cells[1:])
    matrix.retire(batch_ids=["a"])
    matrix.reinstate(SAMPLES, ["a"])
    rows = append(matrix, "a", 6, seed=9)["beta"]
    for _ in range(3):
        np.testing.assert_array_equal(matrix.read(whole), np.stack([rows[sample_id] for sample_id in whole]))


def test_a_network_file_system_is_read_and_not_mapped(
    written: tuple[Path, np.ndarray], monkeypatch: pytest.MonkeyPatch
) -> None:
    root, cells = written
    monkeypatch.setattr(local_files, "file_system", lambda folder: "nfs4")
    matrix = WideMatrix.open(root)
    for _ in range(2):
        np.testing.assert_array_equal(matrix.read(SAMPLES), cells)
    assert mapped(matrix) == 0
    flip(shard(root), 3)  # then every read is checked
    with pytest.raises(CorruptChunkError, match="checksum mismatch"):
        matrix.read(SAMPLES)


def test_compressed_cells_are_read_and_checked_each_time(tmp_path: Path) -> None:
    matrix = WideMatrix.create(tmp_path, FEATURES, {"beta": "float32"}, **SMALL | {"codec": "blosc-lz4"})
    append(matrix, "a", 6)
    for _ in range(2):
        matrix.read(SAMPLES)
    assert mapped(matrix) == 0
    flip(shard(tmp_path), 30)
    with pytest.raises(CorruptChunkError):
        matrix.read(SAMPLES)


def test_features_of_samples_in_one_chunk_are_taken_from_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = WideMatrix.create(tmp_path, FEATURES, {"beta": "float32"}, **PLAIN | {"chunk_features": len(FEATURES)})
    rows = np.stack(list(append(writer, "a", 6)["beta"].values()))
    matrix = WideMatrix.open(tmp_path)
    matrix.read(SAMPLES)
    monkeypatch.setattr(matrix_reader, "read_cells", None)
    columns = [40, 3, 3, 77, 0, 12]
    names = [FEATURES[column] for column in columns]
    np.testing.assert_array_equal(matrix.read(SAMPLES[::-1], names), rows[::-1][:, columns])
    monkeypatch.undo()
    np.testing.assert_array_equal(matrix.read(SAMPLES, names[:2]), rows[:, columns[:2]])
