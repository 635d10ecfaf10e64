"""Clients of the caller's own."""

from __future__ import annotations

import os
import pickle
import re
import sys
from typing import Any

import fsspec
import numpy as np
import pytest
import zarr

from zarr_core.errors import StoreError
from zarr_core.storage import Storage
from zarr_core.storage.backends.obstore import ObstoreBackend
from zarr_core.storage.backends.s3 import S3Backend
from zarr_core.storage.byte_ranges import Request, open_objects
from zarr_core.storage.clients import open_backend
from zarr_core.storage.zarr_stores import make_store

_VARIABLES = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_ENDPOINT_URL")


@pytest.fixture(params=["obstore", "s3fs"])
def own(request: pytest.FixtureRequest, s3_root: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A client with everything that the environment tells, which tells it to nobody else from now on."""
    key, secret, endpoint = (os.environ[name] for name in _VARIABLES)
    for name in _VARIABLES:
        monkeypatch.delenv(name)
    if request.param == "s3fs":
        return fsspec.filesystem("s3", key=key, secret=secret, endpoint_url=endpoint, skip_instance_cache=True)
    from obstore.store import S3Store

    return S3Store(
        s3_root.split("/")[2],
        endpoint=endpoint,
        access_key_id=key,
        secret_access_key=secret,
        region="us-east-1",
        client_options={"allow_http": True},
    )


@pytest.mark.slow
def test_a_client_of_the_caller_serves_reads_writes_commits_and_zarr_stores(s3_root: str, own: Any) -> None:
    storage = pickle.loads(pickle.dumps(Storage(s3_root, client=own)))
    storage.write("a/b", [b"0123", b"456789"])
    assert storage.create("head", b"1")
    data, version = storage.read_versioned("head")
    storage.replace("head", b"2", version)
    assert (data, storage.read("head")) == (b"1", b"2")
    assert storage.list() == {"a/b": 10, "head": 1}
    assert " at http" in storage.identity
    assert [bytes(each) for each in open_objects(storage).fetch([Request("a/b", -3)])] == [b"789"]
    zarr.create_array(make_store(f"{s3_root}/z", read_only=False, client=own), name="a", data=np.arange(5))
    assert zarr.open_array(make_store(f"{s3_root}/z", client=own), path="a", mode="r")[:].tolist() == [0, 1, 2, 3, 4]
    assert "z/a/zarr.json" in storage.list()


def test_a_function_may_make_the_backend() -> None:
    assert type(open_backend("s3://bucket/store", for_data=True, client=S3Backend)) is S3Backend


def test_a_store_of_obstore_for_something_else_is_refused() -> None:
    from obstore.store import MemoryStore, S3Store

    for store in (S3Store("other", region="x"), S3Store("bucket", prefix="folder", region="x")):
        with pytest.raises(StoreError, match="pass an obstore store of the bucket 'bucket', without a prefix"):
            Storage("s3://bucket/store", client=store)
    with pytest.raises(StoreError, match="obstore serves s3, .*pass a filesystem of fsspec"):
        Storage("memory://store", client=MemoryStore())
    assert type(open_backend("s3://bucket/store", client=S3Store("bucket", region="x"))) is ObstoreBackend


@pytest.mark.parametrize("path", ["/store", "a//store", "a/./store", "a/../store"])
def test_a_path_that_obstore_would_change_is_refused(path: str) -> None:
    from obstore.store import S3Store

    with pytest.raises(StoreError, match="remove the empty part"):
        Storage(f"s3://bucket/{path}", client=S3Store("bucket", region="x"))


def test_without_ocifs_an_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ocifs", None)
    with pytest.raises(StoreError, match=re.escape("oci://b@n/store needs ocifs: pip install 'zarr-core[oci]'")):
        open_backend("oci://b@n/store")


def test_another_thread_may_find_a_fork_at_the_same_time() -> None:
    storage = Storage("memory://clients")
    storage.list()

    class Replaced(dict[bool, Any]):
        def __setitem__(self, for_data: bool, client: Any) -> None:
            super().__setitem__(for_data, client)
            storage._clients = {}  # as the other thread does

    storage._clients = Replaced()
    assert storage.list() == {}
