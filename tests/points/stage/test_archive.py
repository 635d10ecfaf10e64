"""Packed samples copied as they are: requests, damage, interruptions."""

from __future__ import annotations

import shutil
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.helpers.counting_store import Requests
from tests.helpers.faults import Kill, is_killed
from tests.helpers.small_source import KIND, write_source
from tests.helpers.stores import assert_reads_equal, flip, forge_head, objects
from zarr_core import write_sample
from zarr_core.format.packed import parse_head
from zarr_core.format.ranges import MAX_READ_BYTES
from zarr_core.points.convert.conversion import convert
from zarr_core.points.stage.store import stage_sample, stage_store
from zarr_core.points.stage.task import StageTask
from zarr_core.points.store.head import HEAD, load_manifest
from zarr_core.points.verify.store import verify_store
from zarr_core.storage import Storage
from zarr_core.versioning.generations import Retention, amend

SAMPLES = ["run_1", "run_2", "run_3"]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("made")
    write_source(root / "source")
    convert(KIND, root / "store", root=root / "source", chunk_points=16, layout="packed")
    return root / "store"


@pytest.fixture
def source(made: Path, tmp_path: Path) -> Path:
    shutil.copytree(made, tmp_path / "source_store")
    return tmp_path / "source_store"


def archive_of(store: Path, sample_id: str) -> Path:
    return store / load_manifest(store).samples[sample_id].relpath


def test_a_new_sample_costs_one_read_and_one_write(
    source: Path, memory_root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage_store(source, memory_root)
    read = Requests(memory_root, monkeypatch)
    target = f"{memory_root}-copy"
    written = Requests(target, monkeypatch)
    assert stage_store(memory_root, target).ok
    assert read.counts == {"read": 3}
    assert written.counts["write"] == 3
    assert written.counts["read"] == 0
    assert written.counts["info"] <= 3
    read.counts.clear()
    written.counts.clear()
    assert stage_store(memory_root, target).copied == 0
    assert read.counts == {"read": 3}  # of the heads
    assert max(read.sizes[3:]) < max(read.sizes[:3])
    assert written.counts["write"] == 0


def test_a_copy_is_the_same_object(source: Path, tmp_path: Path) -> None:
    report = stage_store(source, tmp_path / "copy", workers=2)
    found, expected = objects(tmp_path / "copy"), objects(source)
    archives = {name: data for name, data in expected.items() if name.endswith(".zip")}
    assert {name: data for name, data in found.items() if name.startswith("samples/")} == archives
    assert report.copied == sum(map(len, archives.values()))
    assert_reads_equal(tmp_path / "copy", source, SAMPLES)


def test_a_large_archive_is_read_in_ranges(tmp_path: Path, memory_root: str, monkeypatch: pytest.MonkeyPatch) -> None:
    positions = np.random.default_rng(0).random((2_000_000, 3))
    write_sample(tmp_path / "store", "a", {"volume_position": positions}, layout="packed")
    stage_store(tmp_path / "store", memory_root)
    size = archive_of(tmp_path / "store", "a").stat().st_size
    read = Requests(memory_root, monkeypatch)
    stage_store(memory_root, tmp_path / "copy")
    assert max(read.sizes) <= MAX_READ_BYTES + 100
    assert len(read.sizes) == -(-size // MAX_READ_BYTES) + 1  # the last one of the directory
    assert archive_of(tmp_path / "copy", "a").read_bytes() == archive_of(tmp_path / "store", "a").read_bytes()


@pytest.mark.slow
@pytest.mark.parametrize("damage", ["chunk", "head", "cut", "gone", "longer"])
def test_a_damaged_archive_is_not_copied(source: Path, tmp_path: Path, damage: str) -> None:
    archive = archive_of(source, "run_2")
    data = archive.read_bytes()
    place = parse_head(data).entries["volume/velocity/c/3/0"]
    match damage:
        case "chunk":
            flip(archive, place.start + 5)
        case "head":
            flip(archive, 100)
        case "cut":
            archive.write_bytes(data[:-1])
        case "gone":
            archive.unlink()
        case "longer":
            archive.write_bytes(data + b"?")
    report = stage_store(source, tmp_path / "copy")
    (failed,) = report.failed
    assert failed.sample_id == "run_2"
    assert archive.name in failed.problem
    assert damage != "chunk" or failed.problem.startswith("volume/velocity/c/3/0: checksum mismatch (bytes ")
    assert_reads_equal(tmp_path / "copy", source, ["run_1", "run_3"])
    archive.write_bytes(data)
    assert stage_store(source, tmp_path / "copy").ok
    assert_reads_equal(tmp_path / "copy", source, SAMPLES)


def test_a_byte_that_flips_in_flight_is_fetched_again(
    source: Path, memory_root: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage_store(source, memory_root)
    place = parse_head(archive_of(source, "run_1").read_bytes()).entries["volume/velocity/c/3/0"]
    whole, flips = Storage._read, [place.start + 3, 30]

    def read(self: Storage, name: str, start: int | None = None, stop: int | None = None) -> bytes:
        data = whole(self, name, start, stop)
        if flips and name.endswith(".zip") and self.root == memory_root:
            at = flips.pop()
            data = data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]
        return data

    monkeypatch.setattr(Storage, "_read", read)
    assert stage_store(memory_root, tmp_path / "copy").ok
    assert not flips
    monkeypatch.undo()
    assert_reads_equal(tmp_path / "copy", source, SAMPLES)


@pytest.mark.parametrize("where", ["head", "chunk", "directory"])
def test_a_copy_that_rots_is_repaired(source: Path, tmp_path: Path, where: str) -> None:
    stage_store(source, tmp_path / "copy")
    before = objects(tmp_path / "copy")
    rotten = archive_of(tmp_path / "copy", "run_3")
    size = rotten.stat().st_size
    chunk = parse_head(rotten.read_bytes()).entries["volume/velocity/c/3/0"]
    flip(rotten, {"head": 100, "chunk": chunk.start, "directory": size - 200}[where])
    assert not verify_store(tmp_path / "copy").ok
    report = stage_store(source, tmp_path / "copy", check=True)
    if where == "directory":  # the bytes around the entries are left to verify
        assert report.copied == 0
    else:
        assert report.copied == size
        assert objects(tmp_path / "copy") == before


@pytest.mark.slow
@pytest.mark.parametrize(
    "kill",
    [
        Kill("create", r"\.zip\."),
        Kill("create", r"\.zip\.", 3),
        Kill("rename", r"\.zip$", 2),
        Kill("rename", "/manifest.json$"),
    ],
    ids=str,
)
@pytest.mark.parametrize("layout", ["packed", "directory"])
def test_a_stage_that_is_killed_is_finished_by_the_next(made: Path, tmp_path: Path, kill: Kill, layout: Any) -> None:
    if layout == "directory" and "zip" in kill.path:
        kill = Kill(kill.operation, kill.path.replace(r"\.zip\.", "/c/0/").replace(r"\.zip$", "/zarr.json$"), 9)
    assert is_killed(kill, stage_store, made, tmp_path / "copy", layout=layout)
    assert stage_store(made, tmp_path / "copy", layout=layout).ok
    assert not list((tmp_path / "copy").rglob("*.tmp"))
    assert_reads_equal(tmp_path / "copy", made, SAMPLES)
    stage_store(made, tmp_path / "straight", layout=layout)
    found, expected = objects(tmp_path / "copy"), objects(tmp_path / "straight")
    assert {n: d for n, d in found.items() if "/" in n} == {n: d for n, d in expected.items() if "/" in n}


def test_a_tombstoned_name_is_not_written(source: Path, tmp_path: Path) -> None:
    entry = load_manifest(source).samples["run_1"]
    arrays = {column.array_name: name for name, column in (entry.fields or {}).items()}
    task = StageTask(Storage(source), Storage(tmp_path / "copy"), arrays, False, frozenset({entry.relpath}))
    staged = stage_sample(task, ("run_1", entry, None)).entry
    assert staged is not None
    assert staged.relpath != entry.relpath
    assert staged.relpath.endswith(".zip")
    assert not (tmp_path / "copy" / entry.relpath).exists()
    assert stage_sample(task, ("run_1", entry, staged.relpath)).copied == 0


def test_a_name_that_is_tombstoned_in_another_spelling_is_not_written(source: Path, tmp_path: Path) -> None:
    copy, relpath = Storage(tmp_path / "copy"), load_manifest(source).samples["run_1"].relpath
    stage_store(source, copy.root, sample_ids=["run_2"])
    tombstones = {relpath.replace("run", "Run"): int(time.time())}
    amend(copy, HEAD, lambda _: Retention(tombstones=tombstones, collections=1))
    report = stage_store(source, copy.root)
    assert report.ok
    assert report.manifest.samples["run_1"].relpath != relpath


def test_another_archive_of_the_same_name_is_left_alone(source: Path, tmp_path: Path) -> None:
    stage_store(source, tmp_path / "copy")
    copy = archive_of(tmp_path / "copy", "run_1")
    other = archive_of(source, "run_2").read_bytes()
    copy.write_bytes(other)
    report = stage_store(source, tmp_path / "copy")
    assert copy.read_bytes() == other
    assert archive_of(tmp_path / "copy", "run_1").read_bytes() == archive_of(source, "run_1").read_bytes()
    assert report.copied == archive_of(source, "run_1").stat().st_size


@pytest.mark.slow
def test_between_object_stores_and_disks(source: Path, tmp_path: Path, s3_root: str) -> None:
    to_s3 = stage_store(source, s3_root)
    from_s3 = stage_store(s3_root, tmp_path / "copy")
    assert to_s3.copied == from_s3.copied
    assert_reads_equal(tmp_path / "copy", source, SAMPLES)
    assert verify_store(s3_root).problems == []
    assert stage_store(s3_root, tmp_path / "copy").copied == 0
    assert stage_store(source, s3_root, check=True).copied == 0
    stage_store(s3_root, tmp_path / "folders", layout="directory")
    assert_reads_equal(tmp_path / "folders", source, SAMPLES)
    stage_store(tmp_path / "folders", f"{s3_root}-folders", layout="packed", points="30%")
    assert verify_store(f"{s3_root}-folders").problems == []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("chunks", {"volume/velocity": [0, 0, 2**47, 15]}),
        ("chunks", {"volume/velocity": [2**40, 4, 4, 15]}),
        ("chunks", {"../escape": [0, 4, 4, 1]}),
        ("chunks", {}),
        ("objects", {"../../escape": [0, 4]}),
        ("objects", {"_mesh/zarr.json": [-4, 4]}),
        ("bytes", 2**60),
        ("bytes", 1),
    ],
)
@pytest.mark.parametrize("options", [{}, {"layout": "directory"}, {"fields": ["volume_velocity"]}], ids=str)
def test_an_archive_that_lies_is_a_problem_of_its_sample(
    source: Path, tmp_path: Path, key: str, value: Any, options: Any
) -> None:
    archive = archive_of(source, "run_2")
    head = parse_head(archive.read_bytes()).head

    def lie(document: Any) -> None:
        document["attributes"]["zarr_core"]["packed"][key] = value

    assert forge_head(archive, lie) == head
    report = stage_store(source, tmp_path / "copy", **options)
    assert [sample.sample_id for sample in report.failed] == (["run_2"] if report.failed else [])
    assert {path.name for path in tmp_path.iterdir()} == {"copy", "source_store"}
    if not options:
        assert report.failed or archive_of(tmp_path / "copy", "run_2").read_bytes() == archive.read_bytes()
    assert verify_store(source).damaged == ["run_2"]
