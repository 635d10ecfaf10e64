"""Stores on web servers, which can only be read."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest

from tests.helpers.servers.clouds import GoogleServer
from tests.helpers.small_source import KIND, write_source
from zarr_core.errors import SourceError, StoreError, TransferError
from zarr_core.points.convert import convert
from zarr_core.points.reader import ZarrChunkReader
from zarr_core.sources import SampleTree
from zarr_core.storage import Storage
from zarr_core.storage.byte_ranges import RemoteObjects, Request


@pytest.fixture
def served(gs_server: GoogleServer, gs_root: str) -> tuple[str, str]:
    """A public bucket, and its URL on the web."""
    return gs_root, gs_root.replace("gs:/", gs_server.url)


def test_a_store_is_read_as_in_its_bucket(served: tuple[str, str], tmp_path: Path) -> None:
    bucket, web = served
    convert(KIND, bucket, root=write_source(tmp_path / "source", ("run_1",)), chunk_points=16)
    expected = ZarrChunkReader(bucket).read_sample("run_1", {"surface": 9, "volume": 40}, seed=3)
    read = ZarrChunkReader(web).read_sample("run_1", {"surface": 9, "volume": 40}, seed=3)
    assert read.keys() == expected.keys()
    for name, values in read.items():
        np.testing.assert_array_equal(values, expected[name])


def test_objects_are_read_and_described(served: tuple[str, str]) -> None:
    bucket, web = served
    Storage(bucket).write("a/b", [b"0123456789"])
    storage = Storage(web)
    assert storage.read("a/b") == b"0123456789"
    assert storage.read("a/b", 2, 5) == b"234"
    assert storage.info("a/b") == Storage(bucket).info("a/b")
    assert [bytes(data) for data in RemoteObjects(web).fetch([Request("a/b", -3)])] == [b"789"]
    assert not storage.exists("a/c")
    with pytest.raises(FileNotFoundError):
        storage.read("a/c")


@pytest.mark.parametrize(
    ("work", "what"),
    [
        (lambda storage: storage.write("a", [b"x"]), "written to"),
        (lambda storage: storage.create("a", b"x"), "written to"),
        (lambda storage: storage.replace("a", b"x", None), "written to"),
        (lambda storage: storage.delete(["a"]), "deleted from"),
        (lambda storage: storage.list(), "listed"),
    ],
)
def test_everything_else_is_refused(served: tuple[str, str], work: Callable[[Storage], object], what: str) -> None:
    with pytest.raises(StoreError, match=f"a web server cannot be {what}; a store at http.* can only be read"):
        work(Storage(served[1]))


def test_a_source_on_a_web_server_is_refused(served: tuple[str, str]) -> None:
    with pytest.raises(SourceError, match="cannot be listed: a web server cannot be listed"):
        SampleTree(KIND, served[1]).discover()


class _Careless(BaseHTTPRequestHandler):
    """Ignores ranges, as the server of Python's standard library does, and lets nobody see ``secret``."""

    def do_GET(self) -> None:
        self.send_response(403 if self.path.endswith("secret") else 200)
        self.send_header("Content-Length", "3")
        self.end_headers()
        self.wfile.write(b"all")

    def log_message(self, *_: object) -> None:
        """Nothing on stderr."""


@pytest.fixture
def careless() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), _Careless) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}/store"
        server.shutdown()


def test_a_server_without_byte_ranges_is_refused(careless: str) -> None:
    assert Storage(careless).read("a") == b"all"
    with pytest.raises(StoreError, match="serves no byte ranges"):
        Storage(careless).read("a", 0, 2)


def test_a_refusal_of_the_server_is_reported(careless: str) -> None:
    with pytest.raises(TransferError, match="secret was refused: ClientResponseError: 403"):
        Storage(careless).read("secret")
