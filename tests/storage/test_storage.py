"""Bytes below a root: whole objects, ranges, and the compare-and-swap, on every kind of location."""

from __future__ import annotations

import os
import pickle
import threading
import time
import zipfile
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.servers.oci import Stored
from zarr_core._util.redaction import redact
from zarr_core.errors import CommitConflict, SourceError, StoreError, TransferError
from zarr_core.storage import Storage
from zarr_core.storage.backends.generic import MemoryBackend
from zarr_core.storage.byte_ranges import Request, open_objects


def test_an_object_is_read_as_it_was_written(any_root: str) -> None:
    storage = Storage(any_root)
    assert storage.write("a/b/c", [b"0123", b"", b"456789"]) == 10
    assert storage.read("a/b/c") == b"0123456789"
    assert storage.read("a/b/c", 2, 5) == b"234"
    assert [bytes(data) for data in open_objects(any_root).fetch([Request("a/b/c", -3)])] == [b"789"]
    assert storage.size("a/b/c") == 10
    storage.write("a/b/c", [b"new"])
    assert storage.read("a/b/c") == b"new"
    assert storage.size("a/b/c") == 3
    assert storage.list() == {"a/b/c": 3}
    assert storage.list("a") == {"a/b/c": 3}
    assert pickle.loads(pickle.dumps(storage)).read("a/b/c") == b"new"


class KeepsAll(MemoryBackend):
    """A service that lets nothing be deleted."""

    async def delete(self, path: str) -> None:
        raise PermissionError("no")


def test_an_object_that_cannot_be_deleted_is_named(memory_root: str) -> None:
    with pytest.raises(TransferError, match=f"^{memory_root}/a/b was refused: PermissionError: no"):
        Storage(memory_root, client=KeepsAll).delete(["a/b"])


def test_a_missing_object_is_not_found(any_root: str) -> None:
    storage = Storage(any_root)
    assert not storage.exists("a")
    assert storage.list() == {}
    with pytest.raises(FileNotFoundError):
        storage.read("a")
    with pytest.raises(FileNotFoundError):
        storage.read_versioned("a")


def test_create_never_replaces(any_root: str) -> None:
    storage = Storage(any_root)
    assert storage.create("g/1", b"first")
    assert not storage.create("g/1", b"second")
    assert storage.read("g/1") == b"first"
    assert list(storage.list()) == ["g/1"]  # and leaves nothing else behind


def test_replace_writes_only_over_the_version_it_knows(any_root: str) -> None:
    storage = Storage(any_root)
    storage.replace("m", b"one", None)
    with pytest.raises(CommitConflict):
        storage.replace("m", b"other", None)
    data, version = storage.read_versioned("m")
    assert data == b"one"
    storage.replace("m", b"two", version)
    with pytest.raises(CommitConflict):
        storage.replace("m", b"three", version)
    assert storage.read("m") == b"two"


def test_exactly_one_of_racing_writers_wins(any_root: str) -> None:
    Storage(any_root).replace("m", b"start", None)
    _, version = Storage(any_root).read_versioned("m")
    won: list[int] = []
    barrier = threading.Barrier(8)

    def race(number: int) -> None:
        storage = Storage(any_root)
        barrier.wait()
        try:
            storage.replace("m", str(number).encode(), version)
        except CommitConflict:
            return
        won.append(number)

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(race, range(8)))
    assert len(won) == 1
    assert Storage(any_root).read("m") == str(won[0]).encode()


def test_a_failed_write_leaves_the_old_object(tmp_path: Path) -> None:
    storage = Storage(tmp_path)
    storage.write("a", [b"whole"])

    def pieces():
        yield b"half"
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        storage.write("a", pieces())
    assert storage.read("a") == b"whole"
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


@pytest.mark.parametrize("name", ["../x", "/etc/passwd", "a/../../x", "a//b", "", ".", "a\\b"])
def test_no_name_leaves_the_root(tmp_path: Path, name: str) -> None:
    with pytest.raises(SourceError, match="leaves the folder"):
        Storage(tmp_path).read(name)


def test_a_file_is_no_root(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(StoreError, match="is a file"):
        Storage(tmp_path / "file")


def test_a_location_that_cannot_compare_and_swap_is_refused(tmp_path: Path) -> None:
    storage = Storage(f"simplecache::file://{tmp_path}")
    with pytest.raises(StoreError, match="no compare-and-swap"):
        storage.replace("m", b"x", None)


def test_an_unknown_protocol_is_a_clear_error() -> None:
    with pytest.raises(StoreError, match="nosuch"):
        Storage("nosuch://bucket/x")


def test_a_cloud_without_its_client_is_a_clear_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a fork of a process that has used obstore."""
    monkeypatch.setattr("zarr_core.storage.backends.obstore.may_be_used", lambda: False)
    for url in ("gs://bucket/x", "az://container/x", "abfss://container@account.dfs.core.windows.net/x"):
        with pytest.raises(StoreError, match=rf"{url} needs obstore .* by 'forkserver' or 'spawn'"):
            Storage(url)


@pytest.mark.parametrize(
    ("url", "reason"), [("az://container/x", "Account must be specified"), ("abfs://c@one/x", "not match any known")]
)
def test_an_account_that_is_not_named_is_a_clear_error(url: str, reason: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("obstore", reason="needs the obstore extra")
    monkeypatch.delenv("AZURE_STORAGE_ACCOUNT_NAME", raising=False)
    with pytest.raises(StoreError, match=f"^{url}: .*{reason}.*clouds.md"):
        Storage(url)


def test_equal_names_at_two_accounts_are_two_stores(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("obstore", reason="needs the obstore extra")
    monkeypatch.delenv("AZURE_STORAGE_ENDPOINT", raising=False)
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_KEY", "a2V5")
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_NAME", "one")
    assert Storage("az://container/x").identity == "az://container/x at one"
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_NAME", "two")
    assert Storage("az://container/x").identity == "az://container/x at two"


@pytest.mark.parametrize("scheme", ["az", "abfs", "abfss"])
def test_two_containers_of_an_account_are_two_stores(scheme: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The container stands where other URLs have a user, which is not printed."""
    pytest.importorskip("obstore", reason="needs the obstore extra")
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_KEY", "a2V5")
    urls = [f"{scheme}://{container}@one.dfs.core.windows.net/x" for container in ("train", "copy")]
    assert [Storage(url).url for url in urls] == urls
    assert Storage(urls[0]).identity != Storage(urls[1]).identity


def test_a_path_with_two_colons_is_not_cut_off(any_root: str) -> None:
    """Fsspec takes them for the end of the first of several URLs."""
    one, two = Storage(f"{any_root}/a::1"), Storage(f"{any_root}/a::2")
    one.write("x", [b"1"])
    two.write("x", [b"2"])
    assert (one.read("x"), two.read("x")) == (b"1", b"2")
    assert one.list() == {"x": 1}
    assert one.identity != two.identity


def test_a_host_that_is_an_address_with_colons() -> None:
    assert Storage("http://[::1]:9000/store").identity == "http://[::1]:9000/store"


def test_one_filesystem_in_another(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.writestr("store/x", b"1")
    assert Storage(f"zip://store::file://{tmp_path}/a.zip").read("x") == b"1"


def test_passwords_are_not_printed() -> None:
    assert redact("ftp://me:secret@host/x") == "ftp://host/x"
    assert redact("oci://bucket@namespace/x") == "oci://bucket@namespace/x"


@pytest.mark.slow
def test_objects_are_listed_with_sizes_and_times_and_deleted(any_root: str) -> None:
    storage = Storage(any_root)
    assert list(storage.objects("a")) == []
    began = storage.now()
    names = ["a/one", "a/b/two", "a/b/c/three", "ab"]
    for name in names:
        storage.write(name, [name.encode()])
    found = {found.name: found for found in storage.objects("a")}
    assert {name: found[name].size for name in found} == {name: len(name) for name in names[:3]}
    assert all(began - 1 <= stamped.modified <= storage.now() + 1 for stamped in found.values())
    assert [found.name for found in storage.objects("ab")] == ["ab"]
    assert abs(began - time.time()) < 600
    storage.delete(["a/one", "a/b/c/three", "a/gone"])
    assert list(storage.list()) == ["a/b/two", "ab"]  # and no temporary object of ``now()``


@pytest.mark.slow
def test_more_folders_than_are_listed_at_a_time(any_root: str) -> None:
    storage = Storage(any_root)
    names = [f"a/{number:02d}/x" for number in range(40)]
    for name in names:
        storage.write(name, [b"x"])
    assert sorted(found.name for found in storage.objects("a")) == names
    storage.delete(names)
    assert storage.list() == {}


def test_deleting_leaves_no_empty_folder_of_a_local_store_and_no_other_one_touched(tmp_path: Path) -> None:
    storage = Storage(tmp_path / "store")
    storage.write("a/b/c", [b"x"])
    storage.write("a/d", [b"x"])
    storage.delete(["a/b/c"])
    assert [path.name for path in (tmp_path / "store" / "a").iterdir()] == ["d"]
    storage.delete(["a/d"])
    assert list((tmp_path / "store").iterdir()) == []


def test_a_folder_is_no_object(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    with pytest.raises(FileNotFoundError):
        Storage(tmp_path).read("folder")


@pytest.mark.parametrize("cloud", ["s3", "gs", "az"])
def test_objects_that_stand_for_folders_are_not_listed(cloud: str, request: pytest.FixtureRequest) -> None:
    """Web consoles make them, and so do programs that copy folders to a bucket, or mount it, one for each."""
    storage = Storage(request.getfixturevalue(f"{cloud}_root"))
    storage.write("a/b", [b"x"])
    for folder in ("", "a/", "c/"):
        if cloud == "s3":
            storage.request("", lambda backend, path=f"{storage.location}/{folder}": backend.put(path, b""))  # type: ignore[misc]
        else:
            bucket, _, key = f"{storage.location}/{folder}".partition("/")
            request.getfixturevalue(f"{cloud}_server").buckets[bucket][key] = Stored(b"", "1", datetime.now(UTC))
    assert storage.list() == storage.list("a") == {"a/b": 1}
    assert [each.name for each in storage.objects("")] == ["a/b"]
    assert list(storage.objects("", recursive=False)) == []


def test_a_folder_that_cannot_be_listed_is_not_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("run_1", "run_2", "lost+found"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "p.npy").write_bytes(b"data")
    scandir = os.scandir
    closed = "lost+found"

    def refusing(path: Any) -> Any:
        if str(path).endswith(closed):
            raise PermissionError(13, "Permission denied", str(path))
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refusing)
    storage = Storage(tmp_path)
    assert list(storage.list()) == ["run_1/p.npy", "run_2/p.npy"]
    assert storage.list("run_3") == {}
    closed = "run_2"
    for listed in (storage.list, lambda: list(storage.objects(""))):
        with pytest.raises(PermissionError, match="run_2"):
            listed()
