"""Zarr stores: how zarr-python gets at the bytes below a root."""

from __future__ import annotations

import os

import zarr_core._util.numcodecs  # noqa: F401  # before zarr

# isort: split
from zarr.abc.store import Store
from zarr.storage import FsspecStore, LocalStore, ObjectStore

from zarr_core._util.redaction import refuse_credentials
from zarr_core.storage.backends import obstore
from zarr_core.storage.clients import open_backend
from zarr_core.storage.filesystems import filesystem_options
from zarr_core.storage.retries import POLICY
from zarr_core.storage.storage import Storage, is_local

# Attempts per request by the client itself, because zarr-python does not retry. s3fs squares them when it reads a body.
_ATTEMPTS = 4


def make_store(root: str | os.PathLike[str], *, read_only: bool = True) -> Store:
    """A Zarr store for a root: a local path or any fsspec URL, for zarr-python and what builds on it.

    Groups of samples are immutable and a manifest commits them: open a store for writing only for data of your own.
    obstore or a filesystem of fsspec serves a remote root, as chosen by :mod:`zarr_core.storage.clients`.
    """
    url = os.fspath(root)
    refuse_credentials(url)
    if is_local(url):
        return LocalStore(Storage(url).location, read_only=read_only)
    if isinstance(open_backend(url, for_data=True), obstore.ObstoreBackend):
        return ObjectStore(obstore.open_obstore(url, attempts=POLICY.attempts), read_only=read_only)
    store = FsspecStore.from_url(url, storage_options=filesystem_options(url, _ATTEMPTS), read_only=read_only)
    store.fs.retries = _ATTEMPTS  # read by s3fs only
    return store
