"""Compare-and-swap on networks that lose responses, services without conditions, and local disks."""

from __future__ import annotations

import errno
import logging
import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import fsspec.config
import pytest
from filelock import FileLock

from tests.helpers.commits import add
from tests.helpers.servers.oci import NAMESPACE, OciServer
from zarr_core.errors import CommitConflict, StoreError
from zarr_core.points.store.head import HEAD, load_manifest
from zarr_core.points.store.manifest import StoreManifest
from zarr_core.storage import Storage
from zarr_core.storage.backends import ConditionFailed, RemoteBackend
from zarr_core.storage.backends.generic import MemoryBackend
from zarr_core.storage.backends.obstore import ObstoreBackend
from zarr_core.storage.backends.oci import OciBackend
from zarr_core.storage.backends.s3 import S3Backend
from zarr_core.versioning.generations import commit

# --- networks that lose responses ---------------------------------------------------------------------------------


class LosesResponses:
    """A service that carries out requests but loses its first responses."""

    def __init__(self, backend: RemoteBackend, times: int, then: Callable[[], None] = lambda: None) -> None:
        self.backend, self.times, self.then = backend, times, then

    def __getattr__(self, name: str) -> Any:
        return getattr(self.backend, name)

    async def put_if(self, path: str, data: bytes, version: str | None) -> None:
        await self.backend.put_if(path, data, version)
        if self.times and not path.rpartition("/")[2].startswith("."):
            self.times -= 1
            self.then()
            raise ConnectionResetError("answer lost")


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    from zarr_core.storage import retries

    monkeypatch.setattr(retries, "POLICY", retries.RetryPolicy(attempts=3, first_wait_s=0.001))


def test_a_commit_whose_response_was_lost_is_made_once(
    memory_root: str, impatient: None, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "zarr_core")
    commit(Storage(memory_root), HEAD, add("a"))
    storage = Storage(memory_root, client=lambda url: LosesResponses(MemoryBackend(url), 1))
    changes: list[object] = []

    def change(current: StoreManifest | None) -> StoreManifest:
        changes.append(current)
        return add("b")(current)

    assert commit(storage, HEAD, change).generation == 2
    assert len(changes) == 1
    assert load_manifest(memory_root).generation == 2
    assert "manifest.json: written by an attempt whose response was lost" in caplog.text


def test_a_commit_whose_responses_were_all_lost_is_found(memory_root: str, impatient: None) -> None:
    storage = Storage(memory_root, client=lambda url: LosesResponses(MemoryBackend(url), 1))
    assert commit(storage, HEAD, add("a")).generation == 1
    never = Storage(memory_root, client=lambda url: Unreachable(MemoryBackend(url)))
    with pytest.raises(StoreError, match=r"manifest.json failed after 3 attempts in 0 s: ConnectionResetError"):
        commit(never, HEAD, add("b"))
    assert load_manifest(memory_root).generation == 1


class Unreachable(LosesResponses):
    """A service that answers reads, and resets writes without carrying them out."""

    def __init__(self, backend: RemoteBackend) -> None:
        super().__init__(backend, 10**6)

    async def put_if(self, path: str, data: bytes, version: str | None) -> None:
        raise ConnectionResetError("cable cut")


def test_a_commit_replaced_after_its_response_was_lost_is_repeated(memory_root: str, impatient: None) -> None:
    commit(Storage(memory_root), HEAD, add("a"))

    def overtake() -> None:
        plain = MemoryBackend(memory_root)  # on the event loop: no Storage here
        current = StoreManifest.from_json(plain.fs.cat_file(f"{plain.location}/manifest.json"))
        plain.fs.pipe_file(f"{plain.location}/manifest.json", replace(add("other")(current), generation=3).to_json())

    storage = Storage(memory_root, client=lambda url: LosesResponses(MemoryBackend(url), 1, overtake))
    commit(storage, HEAD, add("b"))
    assert sorted(load_manifest(memory_root).samples) == ["a", "b", "other"]


def test_an_object_whose_response_was_lost_counts_as_created(memory_root: str, impatient: None) -> None:
    storage = Storage(memory_root, client=lambda url: LosesResponses(MemoryBackend(url), 1))
    assert storage.create("a", b"mine")
    assert not storage.create("a", b"other")


class SendsTwice(LosesResponses):
    """An HTTP client that silently resends a request when a kept-alive connection breaks."""

    async def put_if(self, path: str, data: bytes, version: str | None) -> None:
        await self.backend.put_if(path, data, version)
        await self.backend.put_if(path, data, version)


def test_a_commit_that_the_client_resends_is_made_once(memory_root: str) -> None:
    storage = Storage(memory_root, client=lambda url: SendsTwice(MemoryBackend(url), 0))
    assert commit(storage, HEAD, add("a")).generation == 1
    assert commit(storage, HEAD, add("b")).generation == 2
    assert not Storage(memory_root).create("manifest.json", b"other")


# --- services without conditional writes --------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["oci", "gs", "az"])
def test_a_service_that_ignores_conditions_is_refused(
    kind: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    import ocifs

    with type(request.getfixturevalue(f"{kind}_server"))(ignore_conditions=True) as server:
        server.buckets["careless"] = {}
        if kind == "oci":
            monkeypatch.setitem(fsspec.config.conf, "oci", {"config_kwargs": {"service_endpoint": server.url}})
            ocifs.OCIFileSystem.clear_instance_cache()
        else:
            for name, value in server.environment().items():
                monkeypatch.setenv(name, value)
        storage = Storage(f"oci://careless@{NAMESPACE}/store" if kind == "oci" else f"{kind}://careless/store")
        with pytest.raises(StoreError, match="ignores If-None-Match.*would not be safe"):
            commit(storage, HEAD, add("a"))
        with pytest.raises(StoreError, match="ignores If-None-Match"):
            storage.create("a", b"x")
        assert server.buckets["careless"] == {}
    ocifs.OCIFileSystem.clear_instance_cache()


class IgnoresMatch(OciBackend):
    """A service that honours If-None-Match, but ignores If-Match."""

    async def put_if(self, path: str, data: bytes, version: str | None) -> None:
        await (super().put_if(path, data, None) if version is None else self.put(path, data))


class NeverMatches(OciBackend):
    """A service on which no etag ever matches."""

    async def put_if(self, path: str, data: bytes, version: str | None) -> None:
        if version is not None:
            raise ConditionFailed
        await super().put_if(path, data, None)


@pytest.mark.parametrize(
    ("backend", "reason"), [(IgnoresMatch, "ignores If-Match"), (NeverMatches, "refuses to replace an object by its")]
)
def test_a_service_that_honours_one_condition_only_is_refused(
    oci_root: str, backend: type, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("zarr_core.storage.storage._checked_roots", set())
    storage = Storage(oci_root, client=backend)
    with pytest.raises(StoreError, match=reason):
        commit(storage, HEAD, add("a"))
    assert storage.list() == {}


class RefusesOneEtag(OciBackend):
    """A service that refuses the first etag that matches."""

    refused = False

    async def put_if(self, path: str, data: bytes, version: str | None) -> None:
        if version not in (None, self.impossible_version) and not RefusesOneEtag.refused:
            RefusesOneEtag.refused = True
            raise ConditionFailed
        await super().put_if(path, data, version)


def test_a_service_that_refuses_an_etag_once_is_not_refused(oci_root: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As Ceph's gateway does, when it is busy."""
    monkeypatch.setattr("zarr_core.storage.storage._checked_roots", set())
    monkeypatch.setattr(RefusesOneEtag, "refused", False)
    commit(Storage(oci_root, client=RefusesOneEtag), HEAD, add("a"))
    assert RefusesOneEtag.refused
    assert load_manifest(oci_root).samples.keys() == {"a"}


def test_the_check_of_conditions_runs_once_per_process(oci_root: str, oci_server: OciServer) -> None:
    commit(Storage(oci_root), HEAD, add("a"))
    before = len(oci_server.requests)
    commit(Storage(oci_root), HEAD, add("b"))
    requests = [line.rpartition("/store/") for line in oci_server.requests[before:]]
    assert [f"{what.split()[0]} {name}" if what else "GET list" for what, _, name in requests] == [
        "GET manifest.json",
        "HEAD generations/00000001.json",
        "HEAD generations",
        "GET list",
        "PUT manifest.json",
        "PUT generations/00000002.json",
    ]


@pytest.mark.parametrize("kind", ["s3fs", "obstore", "oci", "gs", "az"])
def test_a_bucket_that_is_not_there_is_named(kind: str, request: pytest.FixtureRequest, impatient: None) -> None:
    if kind == "obstore":
        pytest.importorskip("obstore", reason="needs the obstore extra")
    backend = {"s3fs": S3Backend, "obstore": ObstoreBackend}.get(kind)
    root = request.getfixturevalue("s3_root" if backend else f"{kind}_root").replace("//bucket-", "//missing-")
    storage = Storage(root, client=backend)
    for write in (lambda: storage.write("a", [b"x"]), lambda: commit(storage, HEAD, add("a"))):
        with pytest.raises(StoreError, match=r"//missing-.* the bucket does not exist"):
            write()


class ComparesBareEtags:
    """Like Ceph RGW: it reports etags in quotes, but only matches them without."""

    async def _put_on_condition(self, path: str, data: bytes, etag: str | None) -> None:
        if etag is not None and etag.startswith('"'):
            raise ConditionFailed
        await super()._put_on_condition(path, data, etag)  # type: ignore[misc]


class CephByS3fs(ComparesBareEtags, S3Backend):
    """See there."""


class CephByObstore(ComparesBareEtags, ObstoreBackend):
    """See there."""


@pytest.mark.slow
@pytest.mark.parametrize("backend", [CephByS3fs, CephByObstore])
def test_a_service_that_compares_etags_without_their_quotes(s3_root: str, backend: type) -> None:
    if backend is CephByObstore:
        pytest.importorskip("obstore", reason="needs the obstore extra")
    storage = Storage(s3_root, client=backend)
    for sample_id in "abc":
        commit(storage, HEAD, add(sample_id))
    assert len(load_manifest(storage).samples) == 3
    stale = storage.read_versioned("manifest.json")[1]
    commit(storage, HEAD, add("d"))
    with pytest.raises(CommitConflict):
        storage.replace("manifest.json", b"other", stale)


class NoEtags(MemoryBackend):
    """A location that reports no versions."""

    async def get(self, path: str, start: int | None = None, stop: int | None = None) -> tuple[Any, str]:
        return (await super().get(path, start, stop))[0], ""


def test_a_location_without_etags_is_refused(memory_root: str) -> None:
    commit(Storage(memory_root), HEAD, add("a"))
    with pytest.raises(StoreError, match="reports no etag"):
        commit(Storage(memory_root, client=NoEtags), HEAD, add("b"))


# --- local disks --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("code", [errno.EPERM, errno.EOPNOTSUPP])
def test_a_disk_without_hard_links_commits_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "link", refuse)
    created: list[int] = []
    barrier = threading.Barrier(8)

    def race(number: int) -> None:
        barrier.wait()
        if Storage(tmp_path).create("generations/1", str(number).encode()):
            created.append(number)

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(race, range(8)))
    assert len(created) == 1
    assert Storage(tmp_path).read("generations/1") == str(created[0]).encode()
    for number, name in enumerate("abc", start=1):
        assert commit(Storage(tmp_path), HEAD, add(name)).generation == number
    assert not list(tmp_path.rglob("*.tmp"))


@pytest.mark.parametrize("error", [NotImplementedError("flock"), OSError(errno.ENOLCK, "no locks available")])
def test_a_disk_without_locks_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr("filelock.FileLock.acquire", refuse)
    with pytest.raises(StoreError, match="no locks, so commits to it would not be safe"):
        commit(Storage(tmp_path), HEAD, add("a"))
    assert not (tmp_path / "manifest.json").exists()


def test_objects_are_synced_before_a_commit_names_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Order of syncs: the file, its folder after the rename, and new parent folders."""
    done: list[str] = []
    real = {name: getattr(os, name) for name in ("fsync", "replace", "link")}

    def fsync(handle: int) -> None:
        done.append(f"sync {Path(os.readlink(f'/proc/self/fd/{handle}')).relative_to(tmp_path)}")
        real["fsync"](handle)

    def name(how: str) -> Callable[[str, str], None]:
        def rename(source: str, target: str) -> None:
            done.append(f"{how} {Path(target).relative_to(tmp_path)}")
            real[how](source, target)

        return rename

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(os, "replace", name("replace"))
    monkeypatch.setattr(os, "link", name("link"))
    commit(Storage(tmp_path / "new" / "store"), HEAD, add("a"))
    assert [line for line in done if not line.endswith(".tmp")] == [
        "sync .",
        "sync new",
        "replace new/store/manifest.json",
        "sync new/store",
        "sync new/store",
        "link new/store/generations/00000001.json",
        "sync new/store/generations",
    ]
    assert done.index("replace new/store/manifest.json") == 3  # after the file's own sync
    assert sum(line.endswith(".tmp") for line in done) == 2


def test_an_error_names_a_lock_that_is_never_released(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    commit(Storage(tmp_path), HEAD, add("a"))
    monkeypatch.setattr("zarr_core.storage.backends.local.LOCK_PATIENCE", 0.1)
    with FileLock(tmp_path / "manifest.json.lock"), pytest.raises(StoreError, match=r"manifest.json.lock.* run again"):
        commit(Storage(tmp_path), HEAD, add("b"))
    assert commit(Storage(tmp_path), HEAD, add("b")).generation == 2


def test_obstore_accepts_every_spelling_of_s3() -> None:
    pytest.importorskip("obstore", reason="needs the obstore extra")
    assert {ObstoreBackend(f"{scheme}://bucket/store").location for scheme in ("s3", "s3a")} == {"bucket/store"}
