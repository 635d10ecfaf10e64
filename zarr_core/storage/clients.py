"""Which client serves a URL, for reads, writes and Zarr stores alike.

s3fs serves ``s3://`` where a process may fork, because it survives that, and commits, because it can on all tested S3
services. obstore takes half the processor's time: it serves data (chunks, files of samples, Zarr stores) where it is
installed. It is the only client that can commit to ``gs://`` and ``az://``, and does not survive a fork.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

from fsspec.spec import AbstractFileSystem

from zarr_core._util.redaction import redact
from zarr_core.errors import StoreError
from zarr_core.storage.backends import RemoteBackend, obstore
from zarr_core.storage.backends.generic import FsspecBackend, MemoryBackend
from zarr_core.storage.backends.http import HttpBackend, HubBackend
from zarr_core.storage.backends.oci import OciBackend
from zarr_core.storage.backends.s3 import S3Backend

# Backends on fsspec by scheme; any other scheme has FsspecBackend.
_ON_FSSPEC: dict[str, Callable[..., RemoteBackend]] = {
    "memory": MemoryBackend,
    "oci": OciBackend,
    "http": HttpBackend,
    "https": HttpBackend,
    "hf": HubBackend,
    "s3": S3Backend,
    "s3a": S3Backend,
}


def open_backend(url: str, *, for_data: bool = False, client: Any = None) -> RemoteBackend:
    """The backend for the objects at a URL.

    Args:
        url: of a remote location.
        for_data: for many bytes, in a process whose forks need not use it.
        client: the caller's own, which then serves everything: a store of obstore for the bucket of the URL, a
            filesystem of fsspec, or a function that makes the backend of a URL.

    Raises:
        StoreError: no installed client supports the URL, or the given one does not.
    """
    scheme = url.partition("://")[0]
    on_fsspec = _ON_FSSPEC.get(scheme, FsspecBackend)
    if isinstance(client, AbstractFileSystem):
        return on_fsspec(url, client)
    if type(client).__module__.startswith("obstore"):
        return _on_obstore(url, client)
    if client is not None:
        return client(url)  # type: ignore[no-any-return]
    if scheme not in obstore.BACKENDS:
        return on_fsspec(url)
    has_s3fs = scheme in ("s3", "s3a") and find_spec("s3fs") is not None
    if (for_data or not has_s3fs) and obstore.supports(scheme):
        return _on_obstore(url)
    if has_s3fs:
        return S3Backend(url)
    if on_fsspec is S3Backend:
        raise StoreError(f"{redact(url)} needs s3fs: pip install 'zarr-core[s3]'")
    try:
        return FsspecBackend(url)
    except StoreError:
        return _on_obstore(url)  # raises the reason


def _on_obstore(url: str, store: Any = None) -> RemoteBackend:
    scheme = url.partition("://")[0]
    if scheme not in obstore.BACKENDS:
        raise StoreError(
            f"{redact(url)}: obstore serves {', '.join(obstore.BACKENDS)} here; pass a filesystem of fsspec"
        )
    return obstore.BACKENDS[scheme](url, store)
