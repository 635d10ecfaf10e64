"""Stores on web servers, which can only be read."""

from __future__ import annotations

import json
import os
import re
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from torch.utils.data import DataLoader

from tests.helpers.servers.clouds import GoogleServer
from tests.helpers.small_source import KIND, write_source
from zarr_core import ShardStream, write_sample
from zarr_core.errors import SourceError, StoreError, TransferError
from zarr_core.exports import export_huggingface
from zarr_core.points.convert.conversion import convert
from zarr_core.points.read.reader import ZarrChunkReader
from zarr_core.sources import SampleTree
from zarr_core.storage import Storage, retries
from zarr_core.storage.byte_ranges import RemoteObjects, Request
from zarr_core.storage.retries import RetryPolicy


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
    assert [bytes(data) for data in RemoteObjects(Storage(web)).fetch([Request("a/b", -3)])] == [b"789"]
    assert not storage.exists("a/c")
    with pytest.raises(FileNotFoundError):
        storage.read("a/c")


@pytest.mark.parametrize(
    ("work", "what"),
    [
        (lambda storage: storage.write("a", [b"x"]), "changed"),
        (lambda storage: storage.create("a", b"x"), "changed"),
        (lambda storage: storage.replace("a", b"x", None), "changed"),
        (lambda storage: storage.delete(["a"]), "changed"),
        (lambda storage: storage.list(), "listed"),
    ],
)
def test_everything_else_is_refused(served: tuple[str, str], work: Callable[[Storage], object], what: str) -> None:
    with pytest.raises(StoreError, match=f"a web server cannot be {what}; a store at http.* can only be read"):
        work(Storage(served[1]))


def test_a_source_on_a_web_server_is_refused(served: tuple[str, str]) -> None:
    with pytest.raises(SourceError, match="cannot be listed: a web server cannot be listed"):
        SampleTree(KIND, served[1]).discover()


class _Hub(BaseHTTPRequestHandler):
    """A Hub with one private repository, which keeps its files on another host."""

    bucket, cdn = "", ""
    tokens: ClassVar[list[str | None]] = []

    def do_GET(self) -> None:
        self.tokens.append(self.headers["Authorization"])
        files, tree = "/datasets/user/cars/resolve/v1/", "/api/datasets/user/cars/tree/v1/"
        body = b""
        if self.headers["Authorization"] != "Bearer secret":
            self.send_response(401)
        elif self.path.startswith(files):
            name = self.path.removeprefix(files)
            self.send_response(302)
            self.send_header("Location", f"{self.cdn}/{name}")
            if Storage(self.bucket).exists(name):
                info = Storage(self.bucket).info(name)
                self.send_header("X-Linked-Size", str(info.size))
                self.send_header("X-Linked-Etag", f'"{info.version}"')
        else:
            folder, _, page = self.path.removeprefix(tree).partition("?recursive=True")
            listed = sorted(Storage(self.bucket).infos(folder).items())
            first = 5 * int(page.removeprefix("&cursor=") or 0)
            entries = [{"type": "directory", "path": folder, "size": 0, "oid": ""}]
            entries += [
                {"type": "file", "path": name, "size": 1, "oid": "", "lfs": {"size": 1, "oid": info.version}}
                | {"size": info.size}
                for name, info in listed[first : first + 5]
            ]
            body = json.dumps(entries).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            if first + 5 < len(listed):
                url = f"{os.environ['HF_ENDPOINT']}{tree}{folder}?recursive=True&cursor={first // 5 + 1}"
                self.send_header("Link", f'<{url}>; rel="next"')
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_HEAD = do_GET

    def log_message(self, *_: object) -> None:
        """Nothing."""


@pytest.fixture
def hub(served: tuple[str, str], monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The bucket as a repository of a Hub on loopback."""
    _Hub.bucket, _Hub.cdn = served
    _Hub.tokens.clear()
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Hub)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{server.server_port}")
    monkeypatch.setenv("HF_TOKEN", "secret")
    yield "hf://datasets/user/cars@v1"
    server.shutdown()
    thread.join()
    server.server_close()


def test_a_store_on_the_hugging_face_hub(
    served: tuple[str, str], hub: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    convert(KIND, f"{served[0]}/store", root=write_source(tmp_path / "source", ("run_1",)), chunk_points=16)
    store = f"{hub}/store"
    read = ZarrChunkReader(store).read_sample("run_1", {"surface": 9, "volume": 40}, seed=3)
    expected = ZarrChunkReader(f"{served[0]}/store").read_sample("run_1", {"surface": 9, "volume": 40}, seed=3)
    for name, values in expected.items():
        np.testing.assert_array_equal(read[name], values)
    assert Storage(store).size("manifest.json") == Storage(f"{served[0]}/store").size("manifest.json")
    with pytest.raises(StoreError, match="the Hugging Face Hub cannot be changed; a store at http.* can only be"):
        Storage(store).write("a", [b"x"])
    monkeypatch.delenv("HF_TOKEN")
    with pytest.raises(TransferError, match="401"):
        Storage(store).read("manifest.json")
    assert set(_Hub.tokens) == {"Bearer secret", None}


def test_the_stream_that_a_dataset_card_advises(served: tuple[str, str], hub: str, tmp_path: Path) -> None:
    for number in range(3):
        write_sample(tmp_path, f"run/{number}", {"surface_position": np.full((5, 3), number)}, split="train")
    export_huggingface(tmp_path, served[0])
    (code,) = re.findall(r"^stream = .*$", Storage(served[0]).read("README.md").decode(), re.MULTILINE)
    names: dict[str, Any] = {"ShardStream": ShardStream}
    exec(code.replace("hf://datasets/OWNER/NAME", hub).replace("batch_size=8", "batch_size=3"), names)
    (batch,) = DataLoader(names["stream"], batch_size=3)
    assert sorted(batch["surface_position"][:, 0, 0].tolist()) == [0, 1, 2]


def test_samples_on_the_hugging_face_hub_are_converted(
    served: tuple[str, str], hub: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = write_source(tmp_path / "source", ("run_1", "run_2"))
    for path in source.rglob("*.pt"):
        Storage(served[0]).write(f"raw/{path.relative_to(source)}", [path.read_bytes()])
    assert convert(KIND, tmp_path / "store", source_url=f"{hub}/raw", chunk_points=16).ok
    tree = SampleTree(KIND, f"{hub}/raw")
    sample = tree.discover()["run_2"]
    name = "raw/run_2/surface_pressure.pt"
    assert sample.files["surface_pressure"].version == Storage(hub).info(name).version
    Storage(served[0]).write(name, [b"other"])
    assert not tree.is_unchanged(sample)


@pytest.mark.parametrize("url", ["hf://", "hf://datasets/user", "hf://datasets//name"])
def test_a_url_that_names_no_repository_of_a_hub(url: str) -> None:
    with pytest.raises(StoreError, match="names no repository; expected hf://datasets/USER/NAME/PATH"):
        Storage(url)


class _Careless(BaseHTTPRequestHandler):
    """Ignores ranges, as the server of Python's standard library does, and lets nobody see ``secret``.

    It has the first bytes of ``part`` only.
    """

    def do_GET(self) -> None:
        self.send_response(206 if self.path.endswith("part") else 403 if self.path.endswith("secret") else 200)
        self.send_header("Content-Range", "bytes 0-2/10")
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


def test_a_part_of_a_requested_range_is_not_taken_for_the_range(careless: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retries, "POLICY", RetryPolicy(attempts=2, first_wait_s=0))
    assert Storage(careless).read("part", 0, 3) == b"all"
    with pytest.raises(TransferError, match="asked for bytes=0-5 and sent 3 bytes, bytes 0-2/10"):
        Storage(careless).read("part", 0, 6)


def test_a_refusal_of_the_server_is_reported(careless: str) -> None:
    with pytest.raises(TransferError, match="secret was refused: ClientResponseError: 403"):
        Storage(careless).read("secret")
