"""Uploads go on together, in bounded memory, and all have ended when their context has."""

from __future__ import annotations

import asyncio
import os
import random
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from tests.helpers.servers.fault_proxy import FaultProxy
from zarr_core.errors import StoreError, TransferError
from zarr_core.storage import Storage, retries
from zarr_core.storage.backends.generic import MemoryBackend
from zarr_core.storage.backends.obstore import ObstoreBackend
from zarr_core.storage.backends.s3 import ConditionalPut, S3Backend
from zarr_core.storage.uploads import Uploads, abort_uploads, unfinished_uploads


class SlowBackend(MemoryBackend):
    """Its writes wait until they are released, if only by the beginning of another; ``broken`` cannot be written."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.released = threading.Event()
        self.released_by = 0
        self.in_flight: list[str] = []
        self.most_bytes = self.bytes = 0

    async def put(self, path: str, data: bytes | bytearray) -> None:
        self.in_flight.append(path.rpartition("/")[2])
        if len(self.in_flight) == self.released_by:
            self.released.set()
        self.bytes += len(data)
        self.most_bytes = max(self.most_bytes, self.bytes)
        while not self.released.is_set():
            await asyncio.sleep(0.001)
        await asyncio.sleep(0.03)  # time for too many writes to begin
        self.bytes -= len(data)
        if path.endswith("broken"):
            raise PermissionError("no")
        await super().put(path, data)


@pytest.fixture
def slow(memory_root: str) -> tuple[Storage, SlowBackend]:
    backend = SlowBackend(memory_root)
    return Storage(memory_root, client=lambda url: backend), backend


def wait_until_begun(backend: SlowBackend, count: int) -> None:
    while len(backend.in_flight) < count:
        threading.Event().wait(0.001)


def test_uploads_go_on_together(slow: tuple[Storage, SlowBackend]) -> None:
    storage, backend = slow
    with Uploads(storage) as uploads:
        for name in "abc":
            assert uploads.write(name, [b"1", b"2"]) == 2  # none of them is written yet
        wait_until_begun(backend, 3)
        backend.released.set()
    assert storage.list() == {"a": 2, "b": 2, "c": 2}


def test_bytes_that_wait_are_bounded(slow: tuple[Storage, SlowBackend], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("zarr_core.storage.uploads._MAX_BYTES", 5)
    storage, backend = slow
    backend.released_by = 2
    with Uploads(storage) as uploads:
        for number in range(4):
            uploads.write(str(number), [b"12"])
    assert backend.most_bytes == 4
    with Uploads(storage) as uploads:  # a larger one is written alone
        uploads.write("4", [b"12"])
        uploads.write("large", [bytes(20)])
    assert backend.most_bytes == 20
    assert storage.list() == {"0": 2, "1": 2, "2": 2, "3": 2, "4": 2, "large": 20}


def test_a_failed_upload_is_reported_when_all_have_ended(
    slow: tuple[Storage, SlowBackend], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retries, "POLICY", retries.RetryPolicy(attempts=1))
    storage, backend = slow
    uploads = Uploads(storage)
    uploads.write("broken", [b"1"])
    uploads.write("a", [b"1"])
    backend.released.set()
    with pytest.raises(TransferError, match=r"broken was refused: PermissionError: no"), uploads:
        pass
    assert storage.list() == {"a": 1}


def test_no_upload_goes_on_after_an_error(slow: tuple[Storage, SlowBackend]) -> None:
    storage, backend = slow
    threading.Timer(0.01, backend.released.set).start()

    def convert() -> None:
        with Uploads(storage) as uploads:
            uploads.write("a", [b"1"])
            raise ValueError("the sample is refused")

    with pytest.raises(ValueError, match="the sample is refused"):
        convert()
    assert backend.bytes == 0
    assert storage.list() == {"a": 1}


def test_local_files_are_written_at_once(tmp_path: Path) -> None:
    with Uploads(Storage(tmp_path)) as uploads:
        assert uploads.write("a", [b"1", b"2"]) == 2
        assert (tmp_path / "a").read_bytes() == b"12"


def test_files_and_arrays_on_s3_go_through_obstore(s3_root: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """s3fs takes more of the processor. It stays for commits, and where obstore is not installed."""
    pytest.importorskip("obstore", reason="needs the obstore extra")
    used: list[str] = []

    def count(backend: type, name: str) -> None:
        request = getattr(backend, name)

        async def counted(*arguments: Any) -> Any:
            used.append(backend.__name__)
            return await request(*arguments)

        monkeypatch.setattr(backend, name, counted)

    for backend in (S3Backend, ObstoreBackend):
        count(backend, "get")
        count(backend, "put")
    storage = Storage(s3_root)
    with Uploads(storage) as uploads:
        uploads.write("a", [b"0123", b"456"])
    data, version = storage.begin_read("a", 2, 5).result()
    assert (bytes(data), version) == (b"234", storage.info("a").version)
    assert used == ["ObstoreBackend", "ObstoreBackend"]
    assert storage.read("a") == b"0123456"
    monkeypatch.setitem(sys.modules, "obstore.store", None)
    assert bytes(Storage(s3_root).begin_read("a").result()[0]) == b"0123456"
    assert used[2:] == ["S3Backend", "S3Backend"]


@pytest.mark.parametrize("backend", [S3Backend, ObstoreBackend])
def test_a_large_object_is_uploaded_in_parts(
    s3_root: str, backend: type[ConditionalPut], monkeypatch: pytest.MonkeyPatch
) -> None:
    """S3 takes 5 GiB per request, and parts of at least 5 MiB."""
    pytest.importorskip("obstore", reason="needs the obstore extra")
    monkeypatch.setattr(ConditionalPut, "single_put_bytes", 6 << 20)
    monkeypatch.setattr(ConditionalPut, "part_bytes", 5 << 20)
    storage = Storage(s3_root, client=backend)
    large = random.Random(0).randbytes(11 << 20)
    for name, data, parts in (("large", large, "-3"), ("small", large[: 6 << 20], "")):
        storage.write(name, [data])
        assert storage.read(name) == data
        assert storage.info(name).version[32:] == parts  # the etag names the number of parts


class _LosesTheFirstEnd(FaultProxy):
    """Passes the end of the first upload in parts on, and resets the connection instead of answering it."""

    async def _serve(self, request: Any, reader: Any, writer: Any, upstream: Any) -> bool:
        if request.method != "POST" or "uploadId=" not in request.target or self.counts["lost"]:
            return await super()._serve(request, reader, writer, upstream)
        self.counts["lost"] += 1
        await self._pass_on(request, reader, writer, upstream)
        writer.transport.abort()
        return False


@pytest.mark.parametrize("backend", [S3Backend, ObstoreBackend])
def test_an_upload_whose_end_was_not_answered_is_repeated(
    s3_root: str, backend: type[ConditionalPut], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client aborts an upload that is no more, which looked as if there were no bucket."""
    pytest.importorskip("obstore", reason="needs the obstore extra")
    s3fs = pytest.importorskip("s3fs", reason="needs the s3 extra")
    monkeypatch.setattr(ConditionalPut, "single_put_bytes", 1 << 20)
    monkeypatch.setattr(ConditionalPut, "part_bytes", 5 << 20)
    large = random.Random(0).randbytes(11 << 20)
    with _LosesTheFirstEnd(os.environ["AWS_ENDPOINT_URL"]) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.url)
        s3fs.S3FileSystem.clear_instance_cache()
        storage = Storage(s3_root, client=backend)
        storage.write("large", [large])
        assert storage.read("large") == large
        assert proxy.counts["lost"] == 1
        with pytest.raises(StoreError, match="the bucket does not exist"):
            Storage("s3://no-such-bucket/store", client=backend).write("large", [large])
    s3fs.S3FileSystem.clear_instance_cache()


def test_uploads_that_may_not_be_listed_are_told(
    s3_root: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def denied(backend: S3Backend, prefix: str) -> Any:
        raise PermissionError("Access Denied")

    pytest.importorskip("s3fs", reason="needs the s3 extra")
    monkeypatch.setattr(S3Backend, "unfinished_uploads", denied)
    assert unfinished_uploads(Storage(s3_root)) == []
    (warning,) = caplog.messages
    assert "lifecycle rule" in warning
    assert "Access Denied" in warning


def test_only_uploads_below_the_root_are_listed_and_one_that_has_ended_is_left_alone(s3_root: str) -> None:
    s3fs = pytest.importorskip("s3fs", reason="needs the s3 extra")
    bucket, _, prefix = s3_root.removeprefix("s3://").partition("/")
    client = s3fs.S3FileSystem()
    for key in (f"{prefix}/a", f"{prefix}-other/b"):
        client.call_s3("create_multipart_upload", Bucket=bucket, Key=key)
    storage = Storage(s3_root)
    found = unfinished_uploads(storage)
    assert [upload.path for upload in found] == [f"{bucket}/{prefix}/a"]
    for _ in range(2):
        abort_uploads(storage, found)
    assert unfinished_uploads(storage) == []
    assert unfinished_uploads(Storage(f"{s3_root}-other"))
