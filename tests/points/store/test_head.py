"""The state of a point store and its generations, on a disk and on an object store."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from tests.helpers import fork_server
from tests.points.store.test_manifest import GRID, manifest, published
from zarr_core.errors import StoreError
from zarr_core.points.store.head import HEAD, load_manifest
from zarr_core.points.store.manifest import SampleEntry, StoreManifest
from zarr_core.storage import Storage
from zarr_core.versioning.archive import generation_name
from zarr_core.versioning.generations import commit


def add(sample_id: str):
    def change(current: StoreManifest | None) -> StoreManifest:
        start = current or manifest()
        entry = SampleEntry(f"samples/{sample_id}/0", {"surface": GRID})
        return replace(start, samples=dict(start.samples) | {sample_id: entry})

    return change


@pytest.mark.slow
def test_generations_are_numbered_and_kept(any_root: str) -> None:
    storage = Storage(any_root)
    for number, sample_id in enumerate("abc", start=1):
        assert commit(storage, HEAD, add(sample_id)).generation == number
    assert list(load_manifest(any_root).samples) == ["a", "b", "c"]
    assert list(load_manifest(any_root, generation=2).samples) == ["a", "b"]
    assert list(load_manifest(any_root, generation=1).samples) == ["a"]
    with pytest.raises(StoreError, match="no generation 9; the current one is 3"):
        load_manifest(any_root, generation=9)


def test_nothing_changed_is_nothing_committed(tmp_path: Path) -> None:
    storage = Storage(tmp_path)
    commit(storage, HEAD, add("a"))
    before = storage.list()
    assert commit(storage, HEAD, lambda current: current).generation == 1
    assert storage.list() == before


def _commit_many(root: str, prefix: str, count: int) -> None:
    for number in range(count):
        commit(Storage(root), HEAD, add(f"{prefix}{number}"))


def test_no_update_is_lost_between_processes(tmp_path: Path) -> None:
    processes = [fork_server.start(_commit_many, str(tmp_path), name, 5) for name in "abcd"]
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0] * 4
    final = load_manifest(tmp_path)
    assert sorted(final.samples) == sorted(f"{name}{number}" for name in "abcd" for number in range(5))
    assert final.generation == 20
    for generation in range(1, 21):
        assert len(load_manifest(tmp_path, generation=generation).samples) == generation


def test_a_committer_that_died_before_archiving_loses_no_generation(tmp_path: Path) -> None:
    storage = Storage(tmp_path)
    commit(storage, HEAD, add("a"))
    Path(tmp_path, generation_name(1)).unlink()  # as if it had been killed right after the swap
    assert list(load_manifest(tmp_path, generation=1).samples) == ["a"]
    commit(storage, HEAD, add("b"))
    assert list(load_manifest(tmp_path, generation=1).samples) == ["a"]


def test_a_published_store_keeps_its_splits_in_files(tmp_path: Path) -> None:
    (tmp_path / "manifest.json").write_text(json.dumps(published()))
    (tmp_path / "train_design_ids.txt").write_text("a\nb\n\n")
    (tmp_path / "blacklist.txt").write_text("/x/b.vtk\n")
    read = load_manifest(tmp_path)
    assert (read.generation, read.splits, read.excluded) == (0, {"train": ["a", "b"]}, {"b"})
    assert commit(Storage(tmp_path), HEAD, add("c")).generation == 1
    assert list(load_manifest(tmp_path, generation=0).samples) == ["a"]


def test_a_bucket_that_does_not_exist_is_not_a_place_without_a_store(s3_root: str) -> None:
    with pytest.raises(StoreError, match="holds no manifest.json; is it the root"):
        load_manifest(s3_root)
    with pytest.raises(StoreError, match="manifest.json; the bucket does not exist; create it, or correct the name$"):
        load_manifest("s3://bucket-that-is-not-there/store")


def test_a_place_without_a_store(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="holds no manifest.json"):
        load_manifest(tmp_path)
