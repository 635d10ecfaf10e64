"""Which client serves a URL.

s3fs serves ``s3://`` where a process may fork, because it survives that, and commits, because it can on all tested S3
services. obstore takes half the processor's time: it serves data (chunks, files of samples, Zarr stores) where it is
installed. It is the only client that can commit to ``gs://`` and ``az://``, and does not survive a fork.
"""

from __future__ import annotations

from collections.abc import Callable

from zarr_core._util.redaction import redact
from zarr_core.errors import StoreError
from zarr_core.storage.backends import RemoteBackend, obstore
from zarr_core.storage.backends.generic import FsspecBackend, MemoryBackend
from zarr_core.storage.backends.http import HttpBackend, HubBackend
from zarr_core.storage.backends.oci import OciBackend
from zarr_core.storage.backends.s3 import S3Backend

# Schemes with one client.
_BACKENDS: dict[str, Callable[[str], RemoteBackend]] = {
    "memory": MemoryBackend,
    "oci": OciBackend,
    "http": HttpBackend,
    "https": HttpBackend,
    "hf": HubBackend,
}


def open_backend(url: str, *, for_data: bool = False) -> RemoteBackend:
    """The backend for the objects at a URL.

    Args:
        url: of a remote location.
        for_data: for many bytes, in a process whose forks need not use it.

    Raises:
        StoreError: no installed client supports the URL.
    """
    scheme = url.partition("://")[0]
    if scheme in _BACKENDS:
        return _BACKENDS[scheme](url)
    s3 = scheme in ("s3", "s3a")
    if obstore.supports(url) and (for_data or not s3 or not _has_s3fs()):
        return obstore.BACKENDS[scheme](url)
    if s3:
        if not _has_s3fs():
            raise StoreError(f"{redact(url)} needs s3fs: pip install 'zarr-core[s3]'")
        return S3Backend(url)
    try:
        return FsspecBackend(url)
    except StoreError:
        if scheme in obstore.BACKENDS:
            return obstore.BACKENDS[scheme](url)  # raises the reason
        raise


def _has_s3fs() -> bool:
    try:
        import s3fs  # noqa: F401
    except ImportError:
        return False
    return True
