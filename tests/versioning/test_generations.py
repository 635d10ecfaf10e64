"""Commits: no commit is lost, on any kind of location that supports commits.

On another S3 service than moto: ``TEST_S3_ENDPOINT=http://127.0.0.1:7480 pytest tests/versioning``, with credentials in
``AWS_*`` (see CONTRIBUTING.md).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import fsspec.config
import pytest

from tests.helpers import fork_server
from tests.helpers.commits import add
from tests.helpers.faults import lost_response
from tests.helpers.waiting import LIMIT_SECONDS
from zarr_core.errors import CommitConflict
from zarr_core.format.object_names import MANIFEST
from zarr_core.points.store.head import HEAD, load_manifest
from zarr_core.points.store.manifest import StoreManifest
from zarr_core.storage import Storage
from zarr_core.storage.backends import RemoteBackend
from zarr_core.storage.backends.obstore import ObstoreBackend
from zarr_core.storage.backends.s3 import S3Backend
from zarr_core.versioning.archive import generation_name
from zarr_core.versioning.generations import commit
from zarr_core.versioning.tags import make_tag

WRITERS = 8


@dataclass(frozen=True)
class Place:
    """A root and its environment; picklable."""

    root: str
    backend: Callable[[str], RemoteBackend] | None = None

    def open(self) -> Storage:
        return Storage(self.root, client=self.backend)

    @property
    def shared_by_processes(self) -> bool:
        return not self.root.startswith("memory://")


@pytest.fixture(params=["local", "memory", "s3fs", "obstore", "oci", "gs", "az"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    """An empty root on each kind of location that can commit."""
    match request.param:
        case "local":
            return Place(str(tmp_path / "store"))
        case "memory":
            return Place(request.getfixturevalue("memory_root"))
        case "s3fs":
            return Place(request.getfixturevalue("s3_root"), S3Backend)
        case "obstore":
            pytest.importorskip("obstore", reason="needs the obstore extra")
            return Place(request.getfixturevalue("s3_root"), ObstoreBackend)
        case _:
            return Place(request.getfixturevalue(f"{request.param}_root"))


def _commit_together(place: Place, numbers: Sequence[int], barrier: Any) -> None:
    """Commit each number in a thread of its own."""
    fsspec.config.set_conf_env(fsspec.config.conf)

    def commit_one(number: int) -> None:
        storage = place.open()
        barrier.wait(LIMIT_SECONDS)
        commit(storage, HEAD, add(f"sample_{number}"))

    with ThreadPoolExecutor(len(numbers)) as threads:
        list(threads.map(commit_one, numbers))


def test_racing_writers_each_commit_once(place: Place) -> None:
    """Eight, in four processes where a place is shared by processes."""
    if place.shared_by_processes:
        barrier = fork_server.context().Barrier(WRITERS)
        processes = [
            fork_server.start(_commit_together, place, range(first, first + WRITERS // 4), barrier)
            for first in range(0, WRITERS, WRITERS // 4)
        ]
        for process in processes:
            process.join()
        assert [process.exitcode for process in processes] == [0] * 4
    else:
        _commit_together(place, range(WRITERS), threading.Barrier(WRITERS))
    storage = place.open()
    samples = [set(load_manifest(storage, generation).samples) for generation in range(1, WRITERS + 1)]
    assert samples[-1] == {f"sample_{number}" for number in range(WRITERS)}
    assert load_manifest(storage).generation == WRITERS
    assert [len(known) for known in samples] == list(range(1, WRITERS + 1))
    assert all(before < after for before, after in pairwise(samples))
    names = {name for name in storage.list() if not name.endswith(".lock")}
    assert names == {"manifest.json", *map(generation_name, range(1, WRITERS + 1))}  # no probe, no temporary file


@pytest.mark.slow
def test_a_change_that_lost_a_race_is_repeated_on_the_new_state(place: Place) -> None:
    storage, other = place.open(), place.open()
    commit(storage, HEAD, add("a"))
    seen: list[list[str]] = []

    def change(current: StoreManifest | None) -> StoreManifest:
        assert current is not None
        seen.append(sorted(current.samples))
        if len(seen) == 1:
            commit(other, HEAD, add("b"))
        return add("c")(current)

    assert sorted(commit(storage, HEAD, change).samples) == ["a", "b", "c"]
    assert seen == [["a"], ["a", "b"]]
    assert [len(load_manifest(storage, generation).samples) for generation in (1, 2, 3)] == [1, 2, 3]


@pytest.mark.slow
@pytest.mark.parametrize("others", ["no commit", "a tag", "a commit", "two commits"])
@pytest.mark.parametrize("root", ["memory_root", "s3_root"])
def test_a_commit_whose_response_is_lost_is_reported_once_whatever_others_do_then(
    root: str, others: str, request: pytest.FixtureRequest
) -> None:
    """The head was written, the client saw an error, and the head is another one when it is read back."""
    root = request.getfixturevalue(root)
    storage, other = Storage(root), Storage(root)
    commit(storage, HEAD, add("a"))

    def others_come() -> None:
        if others == "a tag":
            make_tag(other, HEAD, "paper")
        for number in range({"a commit": 1, "two commits": 2}.get(others, 0)):
            commit(other, HEAD, add(f"other_{number}"))

    changes: list[int] = []

    def change(current: StoreManifest | None) -> StoreManifest:
        assert current is not None
        changes.append(current.generation)
        return add("b")(current)

    with lost_response(storage, MANIFEST, others_come):
        committed = commit(storage, HEAD, change)
    assert (committed.generation, sorted(committed.samples), changes) == (2, ["a", "b"], [1])
    assert sorted(load_manifest(storage, 2).samples) == ["a", "b"]
    assert "b" in load_manifest(storage).samples


@pytest.mark.slow
def test_an_equal_number_of_another_writer_is_not_taken_for_the_own_commit(place: Place) -> None:
    storage, other = place.open(), place.open()
    commit(storage, HEAD, add("a"))
    seen: list[int] = []

    def change(current: StoreManifest | None) -> StoreManifest:
        assert current is not None
        seen.append(current.generation)
        if len(seen) == 1:
            commit(other, HEAD, add("b"))
            commit(other, HEAD, add("d"))
        return add("c")(current)

    assert (commit(storage, HEAD, change).generation, seen) == (4, [1, 3])


@pytest.mark.slow
def test_a_change_that_raises_changes_nothing(place: Place) -> None:
    storage = place.open()
    commit(storage, HEAD, add("a"))
    before = {name: storage.read(name) for name in storage.list()}

    def change(current: StoreManifest | None) -> StoreManifest:
        raise RuntimeError("no")

    with pytest.raises(RuntimeError, match="no"):
        commit(storage, HEAD, change)
    assert {name: storage.read(name) for name in storage.list()} == before
    assert commit(storage, HEAD, add("b")).generation == 2


def test_no_number_is_given_twice(place: Place) -> None:
    """Also after the head was restored from a backup, or deleted: an archived generation stays what it is."""
    storage = place.open()
    commit(storage, HEAD, add("a"))
    backup = storage.read("manifest.json")
    commit(storage, HEAD, add("b"))
    storage.write("manifest.json", [backup])
    assert commit(storage, HEAD, add("c")).generation == 3
    storage.delete(["manifest.json"])
    assert commit(storage, HEAD, add("d")).generation == 4
    kept = [set(load_manifest(storage, generation).samples) for generation in (1, 2, 3, 4)]
    assert kept == [{"a"}, {"a", "b"}, {"a", "c"}, {"d"}]


@pytest.mark.slow
def test_the_version_belongs_to_the_bytes_that_were_read(place: Place) -> None:
    """While another writer keeps writing, a swap with a version only replaces the bytes that were read with it."""
    storage, busy = place.open(), True
    storage.replace("m", b"0", None)

    def count_up() -> None:
        mine = place.open()
        while busy:
            data, version = mine.read_versioned("m")
            try:
                mine.replace("m", str(int(data) + 1).encode(), version)
            except CommitConflict:
                continue

    writers = [threading.Thread(target=count_up, daemon=True) for _ in range(3)]
    for writer in writers:
        writer.start()
    replaced = 0
    while replaced < 5:
        data, version = storage.read_versioned("m")
        try:
            storage.replace("m", data, version)  # would turn the clock back if the version were of later bytes
        except CommitConflict:
            continue
        replaced += 1
        assert int(storage.read("m")) >= int(data)
    busy = False
    for writer in writers:
        writer.join()


def test_objects_are_deleted(place: Place) -> None:
    storage = place.open()
    storage.write("a/b", [b"x"])
    storage.delete(["a/b"])
    storage.delete(["a/b"])
    assert storage.list() == {}
    assert storage.create("a/b", b"y")
