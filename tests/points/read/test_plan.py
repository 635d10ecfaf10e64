"""Plans, without any I/O: carried out over bytes in memory they give the rows of the draw, at the cost of the draw."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.helpers.draws import indices_of
from tests.helpers.examples import LAYOUTS, examples
from zarr_core.errors import CorruptChunkError
from zarr_core.format.array_metadata import ArrayLayout
from zarr_core.format.codecs import Codec
from zarr_core.format.shards import ChunkIndex, decode_shard_index, encode_shard, pack_lengths, unpack_lengths
from zarr_core.points.read.plan import plan_read, unpack
from zarr_core.points.read.sampling import Draw, draw


def rows(layout: ArrayLayout) -> np.ndarray:
    return np.random.default_rng(0).normal(size=(layout.n_points, layout.dim)).astype(layout.dtype)


def encode(layout: ArrayLayout, points: np.ndarray) -> tuple[list[bytes], list[int]]:
    """Shards, and the length of each chunk."""
    shards, lengths = [], []
    for first in range(0, layout.n_points, layout.shard_points):
        part = points[first : first + layout.shard_points]
        chunks = [part[i : i + layout.chunk_points] for i in range(0, len(part), layout.chunk_points)]
        shards.append(b"".join(encode_shard(layout, chunks, lengths)))
    return shards, lengths


def execute(
    layout: ArrayLayout, index: ChunkIndex, drawn: Draw, shards: list[bytes], max_gap: int = 1 << 20
) -> np.ndarray:
    ranges, missing = plan_read(layout, index, drawn, max_gap)
    out = np.full((drawn.num_points, layout.dim), 77, layout.dtype)
    scratch = np.empty((layout.chunk_points, layout.dim), layout.dtype)
    for chunks in ranges:
        start, stop = chunks[0].start, chunks[-1].stop
        data = np.frombuffer(shards[chunks[0].shard][start:stop], np.uint8)
        assert len(data) == stop - start
        unpack(layout, chunks, data, out, scratch)
    for chunk in missing:
        for first, last, to in chunk.rows:
            out[to : to + last - first] = 0
    return out


def shuffled(layout: ArrayLayout, shards: list[bytes], seed: int) -> tuple[list[bytes], list[np.ndarray]]:
    """The same chunks as another writer may store them: in any order, with bytes between them, zeros left out."""
    rng = np.random.default_rng(seed)
    moved, indices = [], []
    for shard in shards:
        index = decode_shard_index(layout, shard[-layout.index_bytes :]).copy()
        data = b""
        for entry in rng.permutation(len(index)):
            if index[entry, 0] == 2**64 - 1:
                continue
            start, length = int(index[entry, 0]), int(index[entry, 1])
            data += bytes(rng.integers(0, 9))
            index[entry] = len(data), length
            data += shard[start : start + length]
        moved.append(data)
        indices.append(index)
    return moved, indices


@settings(max_examples=examples(150))
@given(layout=LAYOUTS, wanted=st.integers(1, 220), seed=st.integers(0, 999), max_gap=st.sampled_from([0, 5, 1 << 20]))
def test_executing_a_plan_gives_the_rows_of_the_draw(layout: ArrayLayout, wanted: int, seed: int, max_gap: int) -> None:
    points = rows(layout)
    shards, lengths = encode(layout, points)
    drawn = draw(layout.n_points, layout.chunk_points, wanted, seed=seed)
    expected = points[indices_of(drawn)]
    index = ChunkIndex.from_lengths(layout, unpack_lengths(pack_lengths(lengths)))
    stored = [decode_shard_index(layout, shard[-layout.index_bytes :]) for shard in shards]
    assert index == ChunkIndex.from_shards(layout, stored)
    assert np.array_equal(execute(layout, index, drawn, shards, max_gap), expected)
    moved, indices = shuffled(layout, shards, seed)
    assert np.array_equal(execute(layout, ChunkIndex.from_shards(layout, indices), drawn, moved, max_gap), expected)


@settings(max_examples=examples(100))
@given(layout=LAYOUTS, wanted=st.integers(1, 220), seed=st.integers(0, 999))
def test_a_draw_is_one_range_of_each_shard_it_touches(layout: ArrayLayout, wanted: int, seed: int) -> None:
    _, lengths = encode(layout, rows(layout))
    drawn = draw(layout.n_points, layout.chunk_points, wanted, seed=seed)
    ranges, _ = plan_read(layout, ChunkIndex.from_lengths(layout, lengths), drawn)
    touched = {chunk // layout.chunks_per_shard for chunk in indices_of(drawn) // layout.chunk_points}
    assert [chunks[0].shard for chunks in ranges] == sorted(touched)
    assert sum(chunks[-1].stop - chunks[0].start for chunks in ranges) <= sum(lengths[i] for i in drawn.chunks)


def test_distant_chunks_of_a_wrapped_draw_are_two_ranges_where_the_gap_is_large() -> None:
    layout = ArrayLayout(100, 1, 10, 100, "float32", Codec.parse("none"), False)
    index = ChunkIndex.from_lengths(layout, [40] * 10)
    drawn = Draw(((85, 90), (12, 18)), 10)
    for max_gap, expected in ((10, [(40, 80), (320, 360)]), (1 << 20, [(40, 360)])):
        ranges, _ = plan_read(layout, index, drawn, max_gap)
        assert [(chunks[0].start, chunks[-1].stop) for chunks in ranges] == expected


def test_chunks_that_were_not_written_are_listed_as_missing() -> None:
    layout = ArrayLayout(30, 1, 10, 30, "float32", Codec.parse("none"), False)
    stored = np.array([[0, 40], [2**64 - 1, 2**64 - 1], [40, 40]], np.uint64)
    ranges, missing = plan_read(layout, ChunkIndex.from_shards(layout, [stored]), Draw(((0, 30),), 10))
    assert [chunk.chunk for chunk in missing] == [1]
    assert [[chunk.chunk for chunk in chunks] for chunks in ranges] == [[0, 2]]
    ranges, missing = plan_read(layout, ChunkIndex.from_shards(layout, [None]), Draw(((0, 30),), 10))
    assert (ranges, len(missing)) == ([], 3)


@settings(max_examples=examples(60))
@given(layout=LAYOUTS.filter(lambda layout: layout.checksum), data=st.data())
def test_wrong_lengths_are_noticed_by_the_checksums(layout: ArrayLayout, data: st.DataObject) -> None:
    """Chunk lengths in a group's attributes locate the chunks; checksums tell whether the bytes are right."""
    shards, lengths = encode(layout, rows(layout))
    place = data.draw(st.integers(0, len(lengths) - 1))
    wrong = list(lengths)
    wrong[place] += data.draw(st.sampled_from([-1, 1, 7])) if wrong[place] > 1 else 1
    index = ChunkIndex.from_lengths(layout, wrong)
    with pytest.raises((CorruptChunkError, AssertionError)):
        execute(layout, index, Draw(((0, layout.n_points),), layout.chunk_points), shards)


def test_lengths_of_another_array_are_refused() -> None:
    layout = ArrayLayout(30, 1, 10, 30, "float32", Codec.parse("none"))
    with pytest.raises(ValueError, match="2 chunk lengths of an array with 3"):
        ChunkIndex.from_lengths(layout, [1, 2])
    for text in ("not base64!", "AAA=", "ÿ"):
        with pytest.raises(ValueError):  # noqa: PT011
            unpack_lengths(text)
