"""Whole arrays: chunks in order, requests of bounded size, any order of chunks in a shard."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import google_crc32c
import numpy as np
import pytest

from zarr_core.format.array_metadata import ArrayLayout
from zarr_core.format.codecs import Codec
from zarr_core.format.shards import encode_shard
from zarr_core.points.read import scan as chunks
from zarr_core.points.read.scan import read_chunks
from zarr_core.storage import Storage

LAYOUT = ArrayLayout(n_points=150, dim=3, chunk_points=16, shard_points=64, dtype="float32", codec=Codec("none", 0))
ROWS = np.arange(450, dtype=np.float32).reshape(150, 3)
CHUNK_BYTES = 16 * 3 * 4 + 4


@pytest.fixture
def storage(tmp_path: Path) -> Storage:
    storage = Storage(tmp_path)
    for shard in range(LAYOUT.n_shards):
        points = ROWS[64 * shard : 64 * (shard + 1)]
        data = encode_shard(LAYOUT, [points[start : start + 16] for start in range(0, len(points), 16)])
        storage.write(f"a/{LAYOUT.shard_key(shard)}", data)
    return storage


def with_checksum(index: np.ndarray) -> bytes:
    return index.tobytes() + google_crc32c.value(index.tobytes()).to_bytes(4, "little")


def read(storage: Storage, **options: Any) -> np.ndarray:
    found = list(read_chunks(storage, "a", LAYOUT, **options))
    assert [chunk.number for chunk in found] == list(range(LAYOUT.n_chunks))
    assert [chunk.shard for chunk in found] == [number // 4 for number in range(LAYOUT.n_chunks)]
    return np.concatenate([chunk.rows for chunk in found if chunk.rows is not None])


@pytest.mark.parametrize("read_concurrency", [1, 3])
@pytest.mark.parametrize("span_bytes", [1, 2 * CHUNK_BYTES, 1 << 20])
def test_rows_come_in_order(
    storage: Storage, monkeypatch: pytest.MonkeyPatch, read_concurrency: int, span_bytes: int
) -> None:
    monkeypatch.setattr(chunks, "MAX_READ_BYTES", span_bytes)
    assert np.array_equal(read(storage, read_concurrency=read_concurrency), ROWS)


def test_neighbours_share_a_request_up_to_the_limit(storage: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []
    plain = Storage.read

    def noted(self: Storage, name: str, start: int | None = None, stop: int | None = None) -> bytes:
        data = plain(self, name, start, stop)
        sizes.append(len(data))
        return data

    monkeypatch.setattr(Storage, "read", noted)
    monkeypatch.setattr(chunks, "MAX_READ_BYTES", 3 * CHUNK_BYTES)
    read(storage)
    index = LAYOUT.index_bytes
    assert sizes == [index, 3 * CHUNK_BYTES, CHUNK_BYTES] * 2 + [index, 2 * CHUNK_BYTES]


def test_chunks_may_lie_in_any_order_with_gaps_between(storage: Storage) -> None:
    name = f"a/{LAYOUT.shard_key(0)}"
    data = storage.read(name)
    pieces = [data[CHUNK_BYTES * n : CHUNK_BYTES * (n + 1)] for n in range(4)]
    order, shard, index = [2, 0, 3, 1], b"", np.zeros((4, 2), "<u8")
    for number in order:
        shard += b"gap"
        index[number] = len(shard), CHUNK_BYTES
        shard += pieces[number]
    storage.write(name, [shard, with_checksum(index)])
    assert np.array_equal(read(storage), ROWS)


def test_an_index_that_points_outside_is_damage(storage: Storage) -> None:
    name = f"a/{LAYOUT.shard_key(1)}"
    data = storage.read(name)
    index = np.frombuffer(data[-LAYOUT.index_bytes : -4], "<u8").reshape(-1, 2).copy()
    index[2] = 2**63, CHUNK_BYTES
    storage.write(name, [data[: -LAYOUT.index_bytes], with_checksum(index)])
    found = list(read_chunks(storage, "a", LAYOUT))
    assert [chunk.number for chunk in found] == [0, 1, 2, 3, None, 8, 9]
    assert found[4].problem == "shard index: names bytes beyond the end of the object"


def test_a_chunk_that_was_never_written_is_damage(storage: Storage) -> None:
    storage.write(f"a/{LAYOUT.shard_key(2)}", encode_shard(LAYOUT, [ROWS[128:144]]))
    found = list(read_chunks(storage, "a", LAYOUT))
    assert (found[-1].number, found[-1].problem) == (9, "not in the shard's index")
