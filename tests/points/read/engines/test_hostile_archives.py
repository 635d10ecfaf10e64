"""Archives that are damaged, or lie: an error that names the sample, and never other values."""

from __future__ import annotations

import copy
import json
import os
import shutil
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.helpers.arrays import assert_equal
from tests.helpers.documents import edit
from tests.helpers.examples import examples
from tests.helpers.small_source import KIND
from tests.helpers.stores import forge_head
from tests.points.read.engines.conftest import CHUNK
from zarr_core.errors import CorruptChunkError, ManifestError, ZarrCoreError
from zarr_core.points.convert.conversion import convert
from zarr_core.points.read.engines import ENGINES
from zarr_core.points.read.engines import mapped as engine_maps
from zarr_core.points.read.reader import ZarrChunkReader
from zarr_core.points.store.head import load_manifest
from zarr_core.points.verify.store import verify_store
from zarr_core.storage import Storage

RUN = "run_1"


@pytest.fixture(scope="module")
def truth(packed: Path) -> dict[str, np.ndarray]:
    return ZarrChunkReader(packed, engine="zarr").read_sample(RUN)


@pytest.fixture
def store(packed: Path, tmp_path: Path) -> Path:
    shutil.copytree(packed, tmp_path / "store")
    return tmp_path / "store"


def archive(store: Path, sample_id: str = RUN) -> Path:
    return store / load_manifest(store).samples[sample_id].relpath


def forge_packed(store: Path, change: Callable[[Any], None]) -> None:
    """Change what an archive says of its entries; the manifest says the right sizes of its head and of all of it."""
    head = forge_head(archive(store), lambda document: change(document["attributes"]["zarr_core"]["packed"]))
    edit(store / "manifest.json", "samples", RUN, "head", value=head)
    edit(store / "manifest.json", "samples", RUN, "size", value=archive(store).stat().st_size)


def reads_right_or_names_the_sample(store: Path, truth: dict[str, np.ndarray], engine: str) -> bool:
    """Whether reads of a sample, twice, are errors; those that are not return what was stored."""
    problems = []
    reader = ZarrChunkReader(store, engine=engine)
    for name, values in truth.items():
        for _ in range(2):
            try:
                found = reader.read_sample(RUN, fields=[name])
            except ZarrCoreError as error:
                problems.append(str(error))
            else:
                np.testing.assert_array_equal(found[name], values)
    assert [problem for problem in problems if RUN not in problem] == []
    return bool(problems)


@pytest.mark.slow
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("size", [0, 20, "head - 1", "head", "half", "all - 1"])
def test_a_truncated_archive(store: Path, truth: dict[str, np.ndarray], engine: str, size: str | int) -> None:
    path = archive(store)
    whole, head = path.stat().st_size, load_manifest(store).samples[RUN].head
    sizes = {"head - 1": head - 1, "head": head, "half": whole // 2, "all - 1": whole - 1}
    os.truncate(path, sizes.get(str(size), size))
    failed = reads_right_or_names_the_sample(store, truth, engine)
    assert failed or (size == "all - 1" and engine == "direct")  # which does not read the central directory
    assert verify_store(str(store)).problems


@pytest.mark.slow
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("region", ["head", "chunks", "directory", "all"])
def test_zeros_instead_of_a_region(store: Path, truth: dict[str, np.ndarray], engine: str, region: str) -> None:
    """As after a power cut."""
    path = archive(store)
    data, head = bytearray(path.read_bytes()), load_manifest(store).samples[RUN].head
    end = data.index(b"PK\1\2", head)
    regions = {"head": (0, head), "chunks": (head, end), "directory": (end, len(data)), "all": (0, len(data))}
    first, last = regions[region]
    data[first:last] = bytes(last - first)
    path.write_bytes(data)
    assert reads_right_or_names_the_sample(store, truth, engine) or engine == "direct"
    assert verify_store(str(store)).problems


@pytest.mark.slow
@settings(max_examples=examples(60))
@given(data=st.data())
def test_any_changed_bytes(
    packed: Path, truth: dict[str, np.ndarray], tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    store = tmp_path_factory.getbasetemp() / "changed"
    if not store.exists():
        shutil.copytree(packed, store)
    path = archive(store)
    whole = path.read_bytes()
    changed = bytearray(whole)
    regions = [(0, 64), (0, 8192), (0, len(whole)), (len(whole) - 6000, len(whole)), (len(whole) - 100, len(whole))]
    first, last = data.draw(st.sampled_from(regions))
    at = data.draw(st.integers(first, last - 1))
    new = data.draw(st.binary(min_size=1, max_size=16) | st.sampled_from([b"\0" * 16, b"\xff" * 8, b"PK\1\2", b"PK"]))
    changed[at : at + len(new)] = new[: len(changed) - at]
    path.write_bytes(changed)
    try:
        for engine in ENGINES:
            reads_right_or_names_the_sample(store, truth, engine)
    finally:
        path.write_bytes(whole)


def places(packed: Any, array: str = "volume/pressure") -> Any:
    return packed["chunks"][array]


LIES: dict[str, Callable[[Any], Any]] = {
    "no chunks": lambda packed: packed["chunks"].clear(),
    "no record": lambda packed: packed.clear(),
    "one chunk less": lambda packed: places(packed).__setitem__(3, places(packed)[3] - 1),
    "one chunk more": lambda packed: places(packed).__setitem__(3, places(packed)[3] + 1),
    "millions of chunks": lambda packed: places(packed).__setitem__(3, 1 << 22),
    "a huge chunk": lambda packed: places(packed).__setitem__(2, 1 << 47),
    "a longer chunk": lambda packed: places(packed).__setitem__(2, places(packed)[2] + 1),
    "a shorter chunk": lambda packed: places(packed).__setitem__(2, places(packed)[2] - 1),
    "an empty chunk": lambda packed: places(packed).__setitem__(2, 0),
    "the same chunk again": lambda packed: places(packed).__setitem__(1, 0),
    "another step": lambda packed: places(packed).__setitem__(1, places(packed)[1] + 64),
    "a later start": lambda packed: places(packed).__setitem__(0, places(packed)[0] + 1),
    "behind the end": lambda packed: places(packed).__setitem__(0, 1 << 47),
    "before the start": lambda packed: places(packed).__setitem__(0, -64),
    "a small archive": lambda packed: packed.__setitem__("bytes", 100),
    "no numbers": lambda packed: packed["chunks"].__setitem__("volume/pressure", ["a", None, 1.5, []]),
    "no text": lambda packed: packed["chunks"].__setitem__("volume/pressure", {"starts": "?", "lengths": 1}),
    "a list": lambda packed: packed.__setitem__("chunks", [[0, 0, 0, 0]]),
}


@pytest.mark.slow
@pytest.mark.parametrize("lie", LIES)
def test_a_head_that_lies(store: Path, truth: dict[str, np.ndarray], lie: str) -> None:
    forge_packed(store, LIES[lie])
    tracemalloc.start()
    began = time.monotonic()
    try:
        assert reads_right_or_names_the_sample(store, truth, "direct")
        assert tracemalloc.get_traced_memory()[1] < 30 << 20
    finally:
        tracemalloc.stop()
    assert time.monotonic() - began < 60
    assert verify_store(str(store)).problems


@pytest.mark.parametrize("name", ["../../manifest.json", "/etc/passwd", "a/../../b"])
def test_names_that_climb_out(store: Path, name: str) -> None:
    before = sorted(store.parent.rglob("*"))
    forge_packed(store, lambda packed: packed["objects"].__setitem__(name, [0, 10]))
    relpath = load_manifest(store).samples[RUN].relpath
    for action in (Storage(store).list, lambda path: Storage(store).read(f"{path}/zarr.json")):
        with pytest.raises(CorruptChunkError, match="leaves the folder"):
            action(relpath)
    assert verify_store(str(store)).problems
    assert sorted(store.parent.rglob("*")) == before


@pytest.mark.parametrize("engine", ENGINES)
def test_archives_that_were_swapped(store: Path, truth: dict[str, np.ndarray], engine: str) -> None:
    one, other = archive(store), archive(store, "run_2")
    one.rename(store / "aside")
    other.rename(one)
    (store / "aside").rename(other)
    assert reads_right_or_names_the_sample(store, truth, engine)
    with pytest.raises(ZarrCoreError, match=RUN):
        ZarrChunkReader(store, engine=engine).read_attributes(RUN)
    assert {problem.sample_id for problem in verify_store(str(store)).problems} == {RUN, "run_2"}


def test_a_manifest_that_exchanges_two_archives(store: Path) -> None:
    """With all that it says of them."""
    document = json.loads((store / "manifest.json").read_text())
    samples = document["samples"]
    samples[RUN], samples["run_2"] = samples["run_2"], samples[RUN]
    (store / "manifest.json").write_text(json.dumps(document))
    with pytest.raises(ManifestError, match="which is the group of 'run_2'"):
        ZarrChunkReader(store).read_sample(RUN)


@pytest.mark.parametrize("head", [1, 38, 39, 64, "less", "more", 1 << 28])
def test_another_head_in_the_manifest(store: Path, truth: dict[str, np.ndarray], head: int | str) -> None:
    right = load_manifest(store).samples[RUN].head
    value = {"less": right - 64, "more": right + 64}.get(str(head), head)
    edit(store / "manifest.json", "samples", RUN, "head", value=value)
    edit(store / "manifest.json", "samples", RUN, "size", value=0)  # not recorded
    assert reads_right_or_names_the_sample(store, truth, "direct")
    with pytest.raises(CorruptChunkError, match=f"{RUN}.*zarr.json cannot be read"):
        ZarrChunkReader(store).read_sample(RUN)
    assert verify_store(str(store)).problems


@pytest.mark.parametrize("by", [-1, 1, 1 << 40])
def test_another_size_in_the_manifest(store: Path, truth: dict[str, np.ndarray], by: int) -> None:
    edit(store / "manifest.json", "samples", RUN, "size", value=load_manifest(store).samples[RUN].size + by)
    assert reads_right_or_names_the_sample(store, truth, "direct")
    with pytest.raises(CorruptChunkError, match=f"{RUN}.*its head says .* bytes, the manifest"):
        ZarrChunkReader(store).read_sample(RUN)
    assert verify_store(str(store)).problems


def test_a_folder_has_no_head(source: Path, tmp_path: Path) -> None:
    convert(KIND, tmp_path / "store", root=source, chunk_points=CHUNK)
    edit(tmp_path / "store" / "manifest.json", "samples", RUN, "head", value=4096)
    with pytest.raises(ManifestError, match=f"{RUN}: head is 4096"):
        load_manifest(tmp_path / "store")


@pytest.mark.parametrize("head", [-1, 0, 1.5, "7", (1 << 28) + 1, 1 << 62])
def test_a_head_that_no_manifest_has(store: Path, head: Any) -> None:
    edit(store / "manifest.json", "samples", RUN, "head", value=head)
    with pytest.raises(ManifestError, match="head"):
        load_manifest(store)


@pytest.mark.parametrize("size", [-1, 64, 1.5, "7", 1 << 63])
def test_a_size_that_no_manifest_has(store: Path, size: Any) -> None:
    edit(store / "manifest.json", "samples", RUN, "size", value=size)
    with pytest.raises(ManifestError, match="size"):
        load_manifest(store)


@pytest.mark.parametrize("engine", ["direct", "zarr"])
def test_a_central_directory_that_contradicts(store: Path, truth: dict[str, np.ndarray], engine: str) -> None:
    """It exchanges the positions of two chunks, which TensorStore believes. Readers by the head are not concerned."""
    path = archive(store)
    data = bytearray(path.read_bytes())
    records = []
    for name in (b"volume/pressure/c/0/0", b"volume/pressure/c/1/0"):
        at = data.rindex(name)
        records.append(at + len(name) + 4)
    one, other = (bytes(data[at : at + 8]) for at in records)
    data[records[0] : records[0] + 8], data[records[1] : records[1] + 8] = other, one
    path.write_bytes(data)
    failed = reads_right_or_names_the_sample(store, truth, engine)
    assert failed == (engine != "direct")
    if failed:
        with pytest.raises(CorruptChunkError, match="BadZipFile|differ"):
            ZarrChunkReader(store, engine=engine).read_sample(RUN)
    assert {problem.sample_id for problem in verify_store(str(store)).problems} == {RUN}


def test_metadata_that_claims_any_size_takes_no_memory(store: Path, truth: dict[str, np.ndarray]) -> None:
    def claim(document: Any) -> None:
        arrays = document["consolidated_metadata"]["metadata"]
        for number in range(50):
            unused = arrays[f"volume/unused_{number}"] = copy.deepcopy(arrays["volume/pressure"])
            unused["shape"], unused["chunk_grid"]["configuration"]["chunk_shape"] = [1 << 22, 1], [1, 1]
            packed = document["attributes"]["zarr_core"]["packed"]
            packed["chunks"][f"volume/unused_{number}"] = [0, 64, 64, 1 << 22]
            packed["bytes"] = 1 << 47

    head = forge_head(archive(store), claim)
    edit(store / "manifest.json", "samples", RUN, "head", value=head)
    edit(store / "manifest.json", "samples", RUN, "size", value=head + (1 << 47))
    tracemalloc.start()
    try:
        assert_equal(ZarrChunkReader(store).read_sample(RUN), truth)
        assert tracemalloc.get_traced_memory()[1] < 10 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("size", [0, 5000, "half"])
def test_a_mapped_archive_that_shrinks_is_an_error_and_no_signal(
    store: Path, monkeypatch: pytest.MonkeyPatch, size: int | str
) -> None:
    monkeypatch.setattr(engine_maps, "LOOK_AGAIN", 0.0)
    reader = ZarrChunkReader(store)
    selection = reader.selection({})
    draws = [reader.draws(selection, run) for run in reader.sample_ids]
    for _ in range(3):
        reader.read_items(draws)
    path = archive(store)
    os.truncate(path, path.stat().st_size // 2 if size == "half" else size)
    with pytest.raises(CorruptChunkError, match=f"{RUN}.*expected"):
        reader.read_items(draws)


def test_an_archive_that_vanishes_is_named(store: Path) -> None:
    archive(store).unlink()
    for engine in ENGINES:
        with pytest.raises(ManifestError, match=f"{RUN}.* is missing"):
            ZarrChunkReader(store, engine=engine).read_sample(RUN)
