"""Where each client finds endpoint and credentials: fsspec's configuration, the environment, and the files of AWS."""

from __future__ import annotations

import json
import os
import pickle
import sys
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import fsspec.config
import numpy as np
import pytest

from tests.helpers.servers.clouds import AzureServer, GoogleServer
from tests.helpers.servers.s3 import s3_server as own_s3_server
from tests.helpers.small_source import KIND, write_source
from zarr_core import ZarrChunkReader, make_store, open_store
from zarr_core.errors import StoreError
from zarr_core.first_step import train
from zarr_core.points.convert.conversion import convert
from zarr_core.storage import Storage
from zarr_core.storage.backends.obstore import ObstoreBackend
from zarr_core.storage.backends.s3 import S3Backend
from zarr_core.storage.byte_ranges import RemoteObjects, Request
from zarr_core.storage.clients import open_backend
from zarr_core.storage.filesystems import access


class _Metadata(BaseHTTPRequestHandler):
    """The address at which a machine in a cloud asks for credentials."""

    def do_PUT(self) -> None:
        self.server.asked.append(self.path)  # type: ignore[attr-defined]
        self.send_error(404)

    do_GET = do_PUT

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def metadata(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Requests that came to the metadata address."""
    server = HTTPServer(("127.0.0.1", 0), _Metadata)
    server.asked = []  # type: ignore[attr-defined]
    threading.Thread(target=server.serve_forever, daemon=True).start()
    url = f"http://127.0.0.1:{server.server_port}"
    monkeypatch.setenv("AWS_METADATA_ENDPOINT", url)  # of obstore
    monkeypatch.setenv("AWS_EC2_METADATA_SERVICE_ENDPOINT", url)  # of botocore
    yield server.asked  # type: ignore[attr-defined]
    server.shutdown()
    server.server_close()


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, metadata: list[str]) -> Iterator[pytest.MonkeyPatch]:
    """An environment that names no service, and an empty home."""
    import s3fs

    for name in os.environ:
        if name.startswith(("AWS_", "AZURE_", "GOOGLE_", "FSSPEC_")) and "METADATA" not in name:
            monkeypatch.delenv(name)
    for protocol in ("s3", "gs", "gcs", "az", "abfs"):
        monkeypatch.delitem(fsspec.config.conf, protocol, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    s3fs.S3FileSystem.clear_instance_cache()
    yield monkeypatch
    s3fs.S3FileSystem.clear_instance_cache()


@pytest.fixture(scope="module")
def s3_url() -> Iterator[str]:
    """An S3 server that nothing in the environment names."""
    with own_s3_server() as url:
        yield url


def new_bucket(url: str) -> str:
    import botocore.session

    name = f"bucket-{os.urandom(4).hex()}"
    keys = {"aws_access_key_id": "a", "aws_secret_access_key": "b"}
    botocore.session.Session().create_client("s3", "us-east-1", endpoint_url=url, **keys).create_bucket(Bucket=name)
    return name


def in_profile(patch: pytest.MonkeyPatch, folder: Path, url: str) -> None:
    """Keys in ~/.aws/credentials, the endpoint in ~/.aws/config, the profile in the environment."""
    patch.setenv("AWS_PROFILE", "lab")
    (folder / "credentials").write_text("[lab]\naws_access_key_id = lab\naws_secret_access_key = s\n")
    (folder / "config").write_text(f"[profile lab]\nregion = eu-west-1\nendpoint_url = {url}\n")


def by_program(patch: pytest.MonkeyPatch, folder: Path, url: str) -> None:
    """As with SSO: a program makes keys that expire; the endpoint is in a section of services."""
    made = {"Version": 1, "AccessKeyId": "made", "SecretAccessKey": "s", "Expiration": "2999-01-01T00:00:00Z"}
    (folder / "keys.json").write_text(json.dumps(made))
    (folder / "config").write_text(
        f"[default]\nregion = eu-west-1\nservices = lab\ncredential_process = cat {folder}/keys.json\n"
        f"[services lab]\ns3 =\n  endpoint_url = {url}\n"
    )


def in_variables_of_fsspec(patch: pytest.MonkeyPatch, folder: Path, url: str) -> None:
    """FSSPEC_S3_..."""
    names = {"FSSPEC_S3_KEY": "fsspec", "FSSPEC_S3_SECRET": "s", "FSSPEC_S3_ENDPOINT_URL": url}
    fresh: dict[str, Any] = {}
    fsspec.config.set_conf_env(fresh, names)
    patch.setitem(fsspec.config.conf, "s3", fresh["s3"])


def in_files_of_fsspec(patch: pytest.MonkeyPatch, folder: Path, url: str) -> None:
    """~/.config/fsspec/*.json, with a profile of ~/.aws and a setting that concerns fsspec alone."""
    in_profile(patch, folder, "http://127.0.0.1:9")
    patch.delenv("AWS_PROFILE")
    settings = {"s3": {"profile": "lab", "client_kwargs": {"endpoint_url": url}, "default_block_size": 1 << 20}}
    (folder / "conf").mkdir()
    (folder / "conf" / "lab.json").write_text(json.dumps(settings))
    fresh: dict[str, Any] = {}
    fsspec.config.set_conf_files(str(folder / "conf"), fresh)
    patch.setitem(fsspec.config.conf, "s3", fresh["s3"])


def in_variables(patch: pytest.MonkeyPatch, folder: Path, url: str) -> None:
    """The endpoint of S3 alone, beside one of all services that is another."""
    for name, value in {"ACCESS_KEY_ID": "variable", "SECRET_ACCESS_KEY": "s", "REGION": "us-east-1"}.items():
        patch.setenv(f"AWS_{name}", value)
    patch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    patch.setenv("AWS_ENDPOINT_URL_S3", url)


def against_variables(patch: pytest.MonkeyPatch, folder: Path, url: str) -> None:
    """fsspec's configuration names another endpoint than the variable that obstore takes first."""
    in_variables(patch, folder, "http://127.0.0.1:9")
    patch.setitem(fsspec.config.conf, "s3", {"endpoint_url": url})


Place = Callable[[pytest.MonkeyPatch, Path, str], None]
PLACES = [in_profile, by_program, in_variables_of_fsspec, in_files_of_fsspec, in_variables, against_variables]


def without_obstore(patch: pytest.MonkeyPatch) -> None:
    patch.setitem(sys.modules, "obstore.store", None)


@pytest.mark.slow
@pytest.mark.parametrize("installed", [True, False], ids=["obstore", "without obstore"])
@pytest.mark.parametrize("place", PLACES)
def test_a_store_on_s3_is_written_and_read_with_one_account(
    place: Place, installed: bool, s3_url: str, bare: pytest.MonkeyPatch, metadata: list[str], tmp_path: Path
) -> None:
    """By every reader, and with every client, wherever s3fs finds it. A machine's own account is not asked for."""
    if installed:
        pytest.importorskip("obstore", reason="needs the obstore extra")
    else:
        without_obstore(bare)
    place(bare, tmp_path, s3_url)
    root = f"s3://{new_bucket(s3_url)}/store"
    source = write_source(tmp_path / "source", sample_ids=("run_1",))
    convert(KIND, root, root=source, chunk_points=64)
    expected = ZarrChunkReader(root).read_sample("run_1", seed=1)
    engines = ["zarr"]
    refused = place in (by_program, in_variables_of_fsspec)  # TensorStore cannot be told keys
    if not refused:
        engines.append("tensorstore")
    for engine in engines:
        found = ZarrChunkReader(root, engine=engine).read_sample("run_1", seed=1)
        assert all(np.array_equal(found[name], expected[name]) for name in expected), engine
    if refused:
        with pytest.raises(StoreError, match="takes no credentials from .*use engine='direct'"):
            ZarrChunkReader(root, engine="tensorstore").read_sample("run_1", seed=1)
    assert len(train(root, steps=1)[2]) == 1
    assert "run_1" in open_store(root)
    assert metadata == []
    by_obstore = installed and place is not against_variables
    assert type(open_backend(root, for_data=True)) is (ObstoreBackend if by_obstore else S3Backend)
    assert Storage(root).identity == open_backend(root, for_data=True).identity == f"{root} at {s3_url}"


def test_a_missing_profile_is_named(bare: pytest.MonkeyPatch) -> None:
    bare.setenv("AWS_PROFILE", "nobody")
    with pytest.raises(StoreError, match=r"ProfileNotFound.*nobody"):
        open_backend("s3://bucket/store", for_data=True)


def test_credentials_that_expire_are_asked_for_again(bare: pytest.MonkeyPatch, s3_url: str, tmp_path: Path) -> None:
    by_program(bare, tmp_path, s3_url)
    provider = access("s3").provider
    assert provider is not None
    assert provider()["access_key_id"] == "made"
    assert (provider()["expires_at"] - provider()["expires_at"]).total_seconds() < 1
    packed = pickle.dumps(provider)
    assert b"made" not in packed
    assert pickle.loads(packed)()["access_key_id"] == "made"


def test_without_s3fs_obstore_is_used_only_where_it_looks(
    bare: pytest.MonkeyPatch, s3_url: str, tmp_path: Path
) -> None:
    """It reads neither ~/.aws nor fsspec's configuration, and would ask the machine for its account."""
    pytest.importorskip("obstore", reason="needs the obstore extra")
    bare.setitem(sys.modules, "s3fs", None)
    assert isinstance(open_backend("s3://bucket/store"), ObstoreBackend)  # perhaps the machine has an account
    in_profile(bare, tmp_path, s3_url)
    for url in ("s3://bucket/store", "s3a://bucket/store"):
        with pytest.raises(StoreError, match="needs s3fs"):
            open_backend(url)
    in_variables(bare, tmp_path, s3_url)
    assert isinstance(open_backend("s3://bucket/store"), ObstoreBackend)


def test_a_public_bucket_needs_no_credentials(bare: pytest.MonkeyPatch, s3_url: str, metadata: list[str]) -> None:
    pytest.importorskip("obstore", reason="needs the obstore extra")
    bare.setitem(fsspec.config.conf, "s3", {"anon": True, "endpoint_url": s3_url})
    assert isinstance(open_backend("s3://bucket/store", for_data=True), ObstoreBackend)
    make_store("s3://bucket/store")
    assert metadata == []


def test_settings_that_obstore_does_not_know_leave_s3_to_s3fs(bare: pytest.MonkeyPatch, s3_url: str) -> None:
    settings = {"key": "a", "secret": "b", "endpoint_url": s3_url}
    for further in ({"requester_pays": True}, {"config_kwargs": {"s3": {"addressing_style": "virtual"}}}):
        bare.setitem(fsspec.config.conf, "s3", settings | further)
        assert isinstance(open_backend("s3://bucket/store", for_data=True), S3Backend)


def test_google_and_azure_take_what_fsspec_is_configured_with(bare: pytest.MonkeyPatch, metadata: list[str]) -> None:
    pytest.importorskip("obstore", reason="needs the obstore extra")
    with GoogleServer() as google, AzureServer() as azure:
        google.buckets["bucket"] = azure.buckets["bucket"] = {}
        bare.setenv("GOOGLE_BEARER_TOKEN", "bearer")
        bare.setitem(fsspec.config.conf, "gs", {"endpoint_url": google.url, "project": "lab"})
        bare.setenv("AZURE_STORAGE_ENDPOINT", azure.environment()["AZURE_STORAGE_ENDPOINT"])
        key = {name: azure.environment()[f"AZURE_STORAGE_{name.upper()}"] for name in ("account_name", "account_key")}
        bare.setitem(fsspec.config.conf, "abfs", key)
        for scheme in ("gs", "az"):
            root = f"{scheme}://bucket/store"
            storage = Storage(root)
            storage.replace("a", b"1", None)
            assert storage.read("a") == b"1"
            assert [bytes(data) for data in RemoteObjects(Storage(root)).fetch([Request("a", 0, 1)])] == [b"1"]
            assert "http" in storage.identity
        bare.delenv("GOOGLE_BEARER_TOKEN")
        bare.setitem(fsspec.config.conf, "gcs", {"token": "anon"})
        assert Storage("gs://bucket/store").read("a") == b"1"  # a public bucket
    bare.setitem(fsspec.config.conf, "az", {"connection_string": "x"})
    with pytest.raises(StoreError, match=r"connection_string.*in the environment"):
        Storage("az://bucket/store")
    assert metadata == []
