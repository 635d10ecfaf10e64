"""Batches of later epochs are copied from maps of the files: the same values, and no map where it is not safe."""

from __future__ import annotations

import os
import sys
import time
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.helpers.arrays import assert_equal
from tests.helpers.examples import examples
from tests.helpers.small_source import KIND
from tests.points.read.engines.conftest import CHUNK
from zarr_core.errors import CorruptChunkError, ZarrCoreError
from zarr_core.points.convert.conversion import convert
from zarr_core.points.read import selection as together
from zarr_core.points.read.engines import direct
from zarr_core.points.read.engines import mapped as engine_maps
from zarr_core.points.read.engines.direct import DirectEngine
from zarr_core.points.read.reader import ZarrChunkReader
from zarr_core.storage import local_files
from zarr_core.storage.byte_ranges import LocalObjects
from zarr_core.storage.local_files import AT_ONCE_BYTES

RUNS = ["run_1", "run_2", "run_3"]


def batch(reader: ZarrChunkReader, points: dict[str, int | None], epoch: int = 0) -> list[dict[str, np.ndarray]]:
    """The samples of a batch, each by name."""
    selection = reader.selection(points)
    draws = [reader.draws(selection, run, epoch=epoch) for run in RUNS]
    found = reader.read_batch(draws)
    if found is None:  # of different numbers of points
        return reader.read_items(draws)
    return [{name: values[number] for name, values in found.items()} for number in range(len(RUNS))]


def mapped(reader: ZarrChunkReader) -> int:
    """Number of samples that were copied from maps in this process."""
    engine = reader._engine
    assert isinstance(engine, DirectEngine)
    samples = engine._this_process.mapped.values()
    return sum(len(sample._last[1]) > 0 for sample in samples)


@pytest.mark.slow
@settings(max_examples=examples(40))
@given(
    points=st.dictionaries(st.sampled_from(["surface", "volume"]), st.none() | st.integers(1, 260)),
    epochs=st.lists(st.integers(0, 9), min_size=1, max_size=2),
    codec=st.sampled_from(["none", "zstd"]),
    shard_points=st.sampled_from([None, 48]),
)
def test_read_and_copied_batches_are_those_of_zarr_python(
    source: Path,
    tmp_path_factory: pytest.TempPathFactory,
    points: dict[str, int | None],
    epochs: list[int],
    codec: str,
    shard_points: int | None,
) -> None:
    store = tmp_path_factory.getbasetemp() / f"mapped_{codec}_{shard_points}"
    if not store.exists():
        convert(KIND, store, root=source, chunk_points=CHUNK, codec=codec, shard_points=shard_points)
    reader, reference = ZarrChunkReader(store), ZarrChunkReader(store, engine="zarr")
    expected = {}
    for epoch in epochs:
        expected[epoch] = [reference.read_sample(run, points, epoch=epoch) for run in RUNS]
    for epoch in [*epochs, *epochs]:
        for found, wanted in zip(batch(reader, points, epoch), expected[epoch], strict=True):
            assert_equal(found, wanted)
    # Stores of several shards per array, and compressed ones, are read.
    assert bool(mapped(reader)) == (codec == "none" and shard_points is None)


@pytest.mark.parametrize(("limit", "samples"), [(AT_ONCE_BYTES, [3]), (0, [1, 1, 1])])
def test_a_batch_is_one_copy_per_field_unless_it_is_large(
    store: Path, limit: int, samples: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    reader, reference = ZarrChunkReader(store), ZarrChunkReader(store, engine="zarr")
    batch(reader, {"surface": 40, "volume": 40})
    monkeypatch.setattr(together, "AT_ONCE_BYTES", limit)
    join, joined = together.join_pieces, []

    def counting(pieces: Any, out: Any) -> None:
        joined.append(len(pieces))
        join(pieces, out)

    monkeypatch.setattr(together, "join_pieces", counting)
    for run, found in zip(RUNS, batch(reader, {"surface": 40, "volume": 40}), strict=True):
        assert_equal(found, reference.read_sample(run, {"surface": 40, "volume": 40}))
    assert joined == samples


def test_verified_chunks_cost_no_system_call_that_reads(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reader = ZarrChunkReader(store)
    first = batch(reader, {})
    monkeypatch.setattr(LocalObjects, "read_into", None)
    monkeypatch.setattr(LocalObjects, "fetch", None)
    again = batch(reader, {})
    for one, other in zip(first, again, strict=True):
        assert_equal(one, other)


def test_single_samples_and_other_fields_are_copied_from_the_same_maps(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader = ZarrChunkReader(store)
    whole = reader.read_sample("run_1")
    points = reader.read_coords("run_1", "volume")
    monkeypatch.setattr(LocalObjects, "read_into", None)
    monkeypatch.setattr(LocalObjects, "fetch", None)
    assert_equal(reader.read_sample("run_1"), whole)
    for name, values in whole.items():
        assert_equal(reader.read_sample("run_1", fields=[name]), {name: values})
    assert np.array_equal(reader.read_coords("run_1", "volume"), points)


def test_a_batch_of_copied_and_read_samples_has_each_in_its_place(store: Path) -> None:
    """Also of one of which some fields were read before, and others not."""
    expected = batch(ZarrChunkReader(store, engine="zarr"), {"volume": 20, "surface": 9})
    reader = ZarrChunkReader(store)
    reader.read_sample("run_2")
    reader.read_sample("run_3", fields=["volume_velocity"])
    for one, other in zip(batch(reader, {"volume": 20, "surface": 9}), expected, strict=True):
        assert_equal(one, other)
    selection = reader.selection({"volume": 20, "surface": 9})
    items = ZarrChunkReader(store).read_items([reader.draws(selection, run) for run in RUNS])
    for one, other in zip(items, expected, strict=True):
        assert_equal(one, other)


def test_a_chunk_that_was_not_verified_is_read_and_checked(store: Path) -> None:
    reader = ZarrChunkReader(store)
    selection = reader.selection({"volume": 3})
    # Only the chunks of this draw are verified.
    reader.read_batch([reader.draws(selection, "run_1", epoch=0)])
    for path in store.glob("samples/run_1/*/volume/velocity/c/0/0"):
        content = bytearray(path.read_bytes())
        path.write_bytes(bytes(byte ^ 1 for byte in content))
    with pytest.raises(CorruptChunkError, match="run_1, volume_velocity.*checksum mismatch"):
        batch(reader, {})


def test_a_chunk_between_verified_ones_is_read_and_checked(store: Path) -> None:
    reader = ZarrChunkReader(store)
    selection = reader.selection({"volume": 3}, ["volume_velocity"])
    chunks = -(-reader.manifest.samples["run_1"].domains["volume"].n_points // CHUNK)
    verified = []
    for epoch in range(999):
        sample = reader.draws(selection, "run_1", epoch=epoch)
        if 1 not in sample.draws["volume"].chunks:
            reader.read_batch([sample])
            verified.append(sample)
    assert {chunk for sample in verified for chunk in sample.draws["volume"].chunks} == {*range(chunks)} - {1}
    (path,) = store.glob("samples/run_1/*/volume/velocity/c/0/0")
    content = bytearray(path.read_bytes())
    content[(CHUNK * 3 * 2 + 4) * 2 - 5] ^= 1  # the last value of the second chunk, float16
    path.write_bytes(content)
    assert reader.read_batch(verified) is not None
    with pytest.raises(CorruptChunkError, match="run_1, volume_velocity.*chunk 1 .*checksum mismatch"):
        reader.read_sample("run_1", fields=["volume_velocity"])


@pytest.fixture(params=[0.25, 0.0], ids=["files stay open", "no file stays open"])
def share_of_open_files(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """How many maps may keep their files open."""
    monkeypatch.setattr(local_files, "_SHARE_OF_OPEN_FILES", request.param)


@pytest.mark.usefixtures("share_of_open_files")
@pytest.mark.parametrize("rows", [0, 1])
def test_a_mapped_file_that_shrinks_is_an_error_and_no_signal(
    store: Path, monkeypatch: pytest.MonkeyPatch, rows: int
) -> None:
    monkeypatch.setattr(engine_maps, "LOOK_AGAIN", 0.0)
    reader = ZarrChunkReader(store)
    for _ in range(2):
        batch(reader, {})
    assert mapped(reader) == len(RUNS)
    (path,) = store.glob("samples/run_2/*/volume/velocity/c/0/0")
    os.truncate(path, rows * 6)
    with pytest.raises(CorruptChunkError, match="run_2, volume_velocity.*expected"):
        batch(reader, {})


@pytest.mark.usefixtures("share_of_open_files")
def test_a_mapped_file_that_is_deleted_or_replaced_keeps_its_content(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As an open file does. The path of a sample names its content, so another content has another path."""
    monkeypatch.setattr(engine_maps, "LOOK_AGAIN", 0.0)
    reader = ZarrChunkReader(store)
    batch(reader, {})
    expected = batch(reader, {})
    (deleted,) = store.glob("samples/run_1/*/volume/velocity/c/0/0")
    deleted.unlink()
    (replaced,) = store.glob("samples/run_2/*/volume/velocity/c/0/0")
    (store / "other").write_bytes(b"other")
    (store / "other").rename(replaced)
    for one, other in zip(batch(reader, {}), expected, strict=True):
        assert_equal(one, other)


@pytest.mark.parametrize("never", [False, True], ids=["mapped", "never mapped"])
def test_a_chunk_that_was_verified_in_another_file_is_verified_again(
    store: Path, monkeypatch: pytest.MonkeyPatch, never: bool
) -> None:
    if never:
        monkeypatch.setenv("ZARR_CORE_MMAP", "never")
    reader = ZarrChunkReader(store)
    batch(reader, {})
    (path,) = store.glob("samples/run_2/*/volume/velocity/c/0/0")
    whole = path.read_bytes()
    for content in (b"\1" * len(whole), whole):
        (store / "other").write_bytes(content)
        (store / "other").rename(path)
        local_files._opened.clear()  # as if many others had been opened since
        if content != whole:
            with pytest.raises(CorruptChunkError, match="run_2, volume_velocity.*checksum mismatch"):
                batch(reader, {})
    for _ in range(3):
        for found, expected in zip(batch(reader, {}), batch(ZarrChunkReader(store), {}), strict=True):
            assert_equal(found, expected)


def test_a_file_that_vanishes_before_it_is_mapped_is_an_error(store: Path) -> None:
    reader = ZarrChunkReader(store)
    batch(reader, {})
    local_files._opened.clear()  # as if many others had been opened since
    (path,) = store.glob("samples/run_2/*/volume/velocity/c/0/0")
    path.unlink()
    with pytest.raises(CorruptChunkError, match="run_2, volume_velocity.*c/0/0 is missing"):
        batch(reader, {})


def test_a_network_file_system_is_read_and_not_mapped(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that goes away ends a process that uses a map, and is an error of a read."""
    monkeypatch.setattr(local_files, "file_system", lambda folder: "nfs4")
    reader = ZarrChunkReader(store)
    for _ in range(2):
        batch(reader, {})
    assert mapped(reader) == 0


def test_the_environment_says_that_nothing_is_mapped(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ZARR_CORE_MMAP", "never")
    reader = ZarrChunkReader(store)
    for _ in range(2):
        batch(reader, {})
    assert mapped(reader) == 0
    monkeypatch.setenv("ZARR_CORE_MMAP", "no")
    with pytest.raises(ZarrCoreError, match="ZARR_CORE_MMAP must be auto or never, not 'no'"):
        batch(ZarrChunkReader(store), {})


def test_chunks_that_differ_from_the_manifest_are_read(store: Path) -> None:
    """A draw is made for the chunks of the manifest; only their number is compared with the array's."""
    reader = ZarrChunkReader(store)
    reader.manifest = deepcopy(reader.manifest)  # other readers have the same
    for entry in reader.manifest.samples.values():
        for grid in entry.domains.values():
            others = [c for c in range(CHUNK - 3, CHUNK + 4) if c != CHUNK and -(-grid.n_points // c) == grid.n_chunks]
            for other in others[:1]:
                object.__setattr__(grid, "chunk_points", other)
    changed = {grid.chunk_points for entry in reader.manifest.samples.values() for grid in entry.domains.values()}
    assert changed - {CHUNK}
    reference = ZarrChunkReader(store, engine="zarr")
    reference.manifest = reader.manifest
    for _ in range(2):
        for run, found in zip(RUNS, batch(reader, {"volume": 9, "surface": 9}), strict=True):
            assert_equal(found, reference.read_sample(run, {"volume": 9, "surface": 9}))


@pytest.mark.parametrize(("limit", "value"), [("_MAX_MAPS", 0), ("_SHARE_OF_MEMORY", 1e-12)])
def test_beyond_the_limits_files_are_read(
    store: Path, monkeypatch: pytest.MonkeyPatch, limit: str, value: float
) -> None:
    monkeypatch.setattr(local_files, limit, value)
    reader = ZarrChunkReader(store)
    for _ in range(2):
        batch(reader, {})
    assert mapped(reader) == 0


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux names file systems in /proc")
def test_the_file_system_of_a_folder_is_that_of_the_innermost_mount(tmp_path: Path) -> None:
    assert local_files.file_system("/proc/self") == "proc"
    assert local_files.file_system(str(tmp_path / "not there yet")) == local_files.file_system(str(tmp_path))
    assert local_files.file_system(str(tmp_path)) not in ("", "proc")


def test_a_look_at_other_files_in_another_thread_hides_no_file_that_shrank(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shrunk = False
    make = local_files.MappedChunks.of

    def made(*arguments: Any, **more: Any) -> local_files.MappedChunks | None:
        found = make(*arguments, **more)
        assert found is not None
        is_velocity = found.chunks.shape[-1] == 3
        return found._replace(file_size=lambda: 0 if shrunk and is_velocity else found.size)

    monkeypatch.setattr(local_files.MappedChunks, "of", made)
    reader = ZarrChunkReader(store)
    velocity, pressure = (
        reader.draws(reader.selection(None, [f"volume_{name}"]), "run_1") for name in ("velocity", "pressure")
    )
    for draws in (velocity, velocity, pressure, pressure):
        reader.read_items([draws])
    engine = reader._engine
    assert isinstance(engine, DirectEngine)
    assert engine.mapped_pieces(velocity) is not None
    assert engine.mapped_pieces(pressure) is not None
    shrunk = True
    clock = time.monotonic

    def meanwhile() -> float:
        monkeypatch.setattr(engine_maps.time, "monotonic", clock)
        assert engine.mapped_pieces(pressure) is not None
        return clock()

    monkeypatch.setattr(engine_maps.time, "monotonic", meanwhile)
    assert engine.mapped_pieces(velocity) is None


def test_a_sample_that_another_thread_drops_is_not_kept_as_a_map(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(direct, "_METADATA_BYTES", 1)  # room for one sample
    reader = ZarrChunkReader(store)
    selection = reader.selection({"volume": 10})
    reader.read_items([reader.draws(selection, "run_1")])
    make = direct.MappedSample

    def made(*arguments: Any) -> engine_maps.MappedSample:
        monkeypatch.setattr(direct, "MappedSample", make)
        reader.read_sample("run_2")
        return make(*arguments)

    monkeypatch.setattr(direct, "MappedSample", made)
    engine = reader._engine
    assert isinstance(engine, DirectEngine)
    engine.mapped_pieces(reader.draws(selection, "run_1"))
    process = engine._this_process
    assert len(process.samples) == 1
    assert process.mapped.keys() <= process.samples.keys()
