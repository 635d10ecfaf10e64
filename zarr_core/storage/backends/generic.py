"""Any other fsspec location, through its filesystem; only memory supports commits."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from functools import cache
from mmap import mmap
from typing import Any, TypeVar, cast

from zarr_core.errors import StoreError
from zarr_core.storage.backends import ConditionFailed, ObjectInfo, Page, RemoteBackend
from zarr_core.storage.backends.local import digest
from zarr_core.storage.filesystems import open_filesystem

T = TypeVar("T")
_THREADS = 64


class FsspecBackend(RemoteBackend):
    """Requests through an fsspec filesystem.

    If the filesystem is not async, an attempt that times out is abandoned, but its thread keeps waiting.
    """

    impossible_version = ""
    gets_listed_versions = False

    def __init__(self, url: str, given: Any = None) -> None:
        self.fs, self.location = open_filesystem(url, given)

    @property
    def identity(self) -> str:
        """URL."""
        return str(self.fs.unstrip_protocol(self.location))

    async def get(self, path: str, start: int | None = None, stop: int | None = None) -> tuple[bytes, str]:
        return bytes(await self._do("cat_file", path, start=start, end=stop)), ""

    async def head(self, path: str) -> ObjectInfo:
        self.fs.invalidate_cache(self.fs._parent(path))
        described = await self._do("info", path)
        if described["type"] == "directory":
            raise FileNotFoundError(path)
        return _info(described)

    async def put(self, path: str, data: bytes | bytearray | mmap) -> None:
        await self._do("pipe_file", path, bytes(data))

    async def put_if(self, path: str, data: bytes, version: str | None) -> None:
        protocol = self.fs.protocol if isinstance(self.fs.protocol, str) else self.fs.protocol[0]
        raise StoreError(
            f"{protocol!r} locations have no compare-and-swap, so commits to them would not be safe; write the "
            "store to a local path, s3://, gs://, az:// or oci:// and copy it"
        )

    async def delete(self, path: str) -> None:
        await self._do("rm_file", path)

    async def list_page(self, prefix: str, token: str | None, recursive: bool = True) -> Page:
        self.fs.invalidate_cache()
        found = await self._do("find", prefix.rstrip("/"), maxdepth=None if recursive else 1, detail=True)
        return {path: _info(described) for path, described in found.items() if path.startswith(prefix)}, None

    async def _do(self, method: str, *args: Any, **options: Any) -> Any:
        loop = asyncio.get_running_loop()
        if self.fs.async_impl and self.fs.loop is loop:
            return await getattr(self.fs, f"_{method}")(*args, **options)
        return await in_thread(lambda: getattr(self.fs, method)(*args, **options))


class MemoryBackend(FsspecBackend):
    """Memory of this process. The event loop serialises conditional writes; the version is a digest of the content."""

    async def get(self, path: str, start: int | None = None, stop: int | None = None) -> tuple[bytes, str]:
        data = cast("bytes", self.fs.cat_file(path, start=start, end=stop))
        return data, digest(data) if start is None and stop is None else ""

    async def put_if(self, path: str, data: bytes, version: str | None) -> None:
        current = digest(self.fs.cat_file(path)) if self.fs.isfile(path) else None
        if current != version:
            raise ConditionFailed
        self.fs.pipe_file(path, data)


def _info(described: dict[str, Any]) -> ObjectInfo:
    changed = _first(described, "LastModified", "timeModified", "mtime", "created")
    modified = changed.timestamp() if isinstance(changed, datetime) else changed
    version = str(_first(described, "ETag", "etag", "mtime", "LastModified", "timeModified", "created")).strip('"')
    return ObjectInfo(int(described["size"] or 0), version, float(modified) if isinstance(modified, int | float) else 0)


def _first(described: dict[str, Any], *keys: str) -> Any:
    """The value of the first of the keys that has one; "" if none does."""
    return next(filter(None, map(described.get, keys)), "")


async def in_thread(work: Callable[[], T]) -> T:
    """Call a function in a thread of the pool."""
    return await asyncio.get_running_loop().run_in_executor(_pool(os.getpid()), work)


@cache
def _pool(process: int) -> ThreadPoolExecutor:  # threads do not survive a fork
    return ThreadPoolExecutor(_THREADS, thread_name_prefix="zarr_core.storage.backends")
