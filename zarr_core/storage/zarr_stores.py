"""Zarr stores: how zarr-python gets at the bytes below a root."""

from __future__ import annotations

import io
import os
import re
from typing import Any

import zarr_core._util.numcodecs  # noqa: F401  # before zarr

# isort: split
from fsspec.implementations.asyn_wrapper import AsyncFileSystemWrapper
from fsspec.implementations.zip import ZipFileSystem
from fsspec.spec import AbstractFileSystem
from zarr.abc.store import Store
from zarr.storage import FsspecStore, LocalStore, ObjectStore, ZipStore

from zarr_core.format.packed import SUFFIX
from zarr_core.storage.archives import is_archive
from zarr_core.storage.backends.obstore import ObstoreBackend
from zarr_core.storage.clients import open_backend
from zarr_core.storage.filesystems import filesystem_of, filesystem_options
from zarr_core.storage.places import absolute, is_local
from zarr_core.storage.reading import RemoteFile
from zarr_core.storage.storage import Storage

# Attempts per request by the client itself, because zarr-python does not retry. s3fs squares them when it reads a body.
_ATTEMPTS = 4
# Ends the URL of the archive of a packed sample. Other folders may end in ".zip".
_ARCHIVE = re.compile(rf"/[0-9a-f]{{16}}{re.escape(SUFFIX)}$")
# Bytes that are fetched together from archives, whose headers and directories are read piece by piece.
_READ_AHEAD = 1 << 16


def make_store(root: str | os.PathLike[str], *, read_only: bool = True, client: Any = None) -> Store:
    """A Zarr store for a root: a local path or any fsspec URL, for zarr-python and what builds on it.

    Groups of samples are immutable and a manifest commits them: open a store for writing only for data of your own.

    Args:
        root: where the Zarr hierarchy is: a folder, or the archive of a packed sample (``.zip``), which is read only.
        read_only: refuse writes.
        client: the caller's own, for a remote root: a store of obstore for its bucket, or a filesystem of fsspec. If
            None, :mod:`zarr_core.storage.clients` chooses one.

    Examples:
        >>> import zarr
        >>> relpath = load_manifest("store").samples["case_0"].relpath
        >>> zarr.open_group(make_store(f"store/{relpath}"), mode="r")["surface/pressure"].shape
        (200, 1)
    """
    url = absolute(root)
    is_packed = _ARCHIVE.search(url) is not None
    if is_local(url):
        return ZipStore(url, mode="r") if is_packed else LocalStore(Storage(url).location, read_only=read_only)
    if is_packed:
        folder, _, name = url.rpartition("/")
        storage = Storage(folder, client=client)
        archive: Any = RemoteFile(storage, name, storage.size(name))
        file = io.BufferedReader(archive, _READ_AHEAD)
        return FsspecStore(AsyncFileSystemWrapper(ZipFileSystem(file), asynchronous=True), read_only=True, path="")
    backend = open_backend(url, for_data=True, client=client)
    if isinstance(backend, ObstoreBackend):
        return ObjectStore(backend.at_root(), read_only=read_only)
    if isinstance(client, AbstractFileSystem):
        return FsspecStore.from_mapper(client.get_mapper(backend.location), read_only=read_only)
    fs, location = filesystem_of(url, {"asynchronous": True, **filesystem_options(url, _ATTEMPTS)})
    if not fs.async_impl:
        fs = AsyncFileSystemWrapper(fs, asynchronous=True)
    fs.retries = _ATTEMPTS  # read by s3fs only
    return FsspecStore(fs, read_only=read_only, path=location)


def group_place(root: str, relpath: str) -> tuple[str, str]:
    """Where :func:`make_store` finds a group below a store's root, and the path of the group there."""
    if is_archive(relpath):
        return f"{root.rstrip('/')}/{relpath}", ""
    return root, relpath
