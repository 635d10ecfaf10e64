"""S3 through obstore, which reads about twice as fast as s3fs; chunks are read through it where it is installed.

Writes and commits use it where s3fs is not installed. A fork of a process that has used obstore cannot use it, because
its threads do not survive the fork.
"""

from __future__ import annotations

import os
from datetime import timedelta
from typing import Any

from zarr_core.errors import StoreError
from zarr_core.storage import retries
from zarr_core.storage.backends import ConditionFailed, ObjectInfo
from zarr_core.storage.backends.s3 import ConditionalPut, check_length, with_endpoint

# The process that first used obstore. In a fork of it every request would hang.
_used_by: int | None = None


def may_be_used() -> bool:
    """Whether obstore is installed and works in this process."""
    if _used_by not in (None, os.getpid()):
        return False
    try:
        import obstore.store  # noqa: F401
    except ImportError:
        return False
    return True


def open_obstore(url: str, attempts: int = 1) -> Any:
    """An obstore store for an ``s3://`` URL.

    Args:
        url: the root.
        attempts: per request, by obstore itself.
    """
    global _used_by
    import obstore.store

    _used_by = os.getpid()
    plain_http = os.environ.get("AWS_ENDPOINT_URL", "").startswith("http://")
    # Our own timeout depends on the number of bytes; this one ends requests that ours has abandoned.
    timeout = timedelta(seconds=retries.POLICY.timeout_for(5 << 30))
    return obstore.store.from_url(
        url,
        client_options={"allow_http": plain_http, "timeout": timeout, "connect_timeout": timedelta(seconds=10)},
        retry_config={"max_retries": attempts - 1, "retry_timeout": timedelta(seconds=retries.POLICY.deadline_s)},
    )


class ObstoreBackend(ConditionalPut):
    """Requests through obstore."""

    def __init__(self, url: str) -> None:
        if not may_be_used():
            raise StoreError("obstore is not installed, or this process is a fork of one that has used it")
        self.location = url.partition("://")[2].rstrip("/")
        self._bucket = self.location.partition("/")[0]
        self._store = open_obstore(f"s3://{self._bucket}")

    @property
    def identity(self) -> str:
        """URL and endpoint."""
        return with_endpoint(f"s3://{self.location}")

    async def get(self, path: str, start: int | None = None, stop: int | None = None) -> tuple[Any, str]:
        import obstore

        options: Any = {}
        if start is not None and start < 0:
            options["range"] = {"suffix": -start}
        elif stop is not None:
            options["range"] = (start or 0, stop)
        elif start:
            options["range"] = {"offset": start}
        result = await obstore.get_async(self._store, self._key(path), options=options)
        first, last = result.range
        data = await result.bytes_async()
        check_length(len(data), last - first)
        return data, str(result.meta.get("e_tag") or "")

    async def head(self, path: str) -> ObjectInfo:
        import obstore

        return _info(await obstore.head_async(self._store, self._key(path)))

    async def put(self, path: str, data: bytes | bytearray) -> None:
        import obstore

        await obstore.put_async(self._store, self._key(path), data, use_multipart=False)

    async def delete(self, path: str) -> None:
        import obstore

        await obstore.delete_async(self._store, self._key(path))

    async def list_page(
        self, prefix: str, token: str | None, recursive: bool = True
    ) -> tuple[dict[str, ObjectInfo], str | None]:
        import obstore

        if not recursive:
            listing = await obstore.list_with_delimiter_async(self._store, prefix=self._key(prefix).rstrip("/"))
            return {f"{self._bucket}/{meta['path']}": _info(meta) for meta in listing["objects"]}, None
        after = self._key(token) if token else None
        stream = obstore.list(self._store, prefix=self._key(prefix).rstrip("/"), offset=after, chunk_size=1000)
        async for page in stream:
            found = {f"{self._bucket}/{meta['path']}": _info(meta) for meta in page}
            return found, max(found, default=None)
        return {}, None

    async def _put_on_condition(self, path: str, data: bytes, etag: str | None) -> None:
        import obstore
        from obstore.exceptions import AlreadyExistsError, NotFoundError, PreconditionError

        mode: Any = "create" if etag is None else {"e_tag": etag}
        try:
            await obstore.put_async(self._store, self._key(path), data, mode=mode)
        except (AlreadyExistsError, PreconditionError) as error:
            raise ConditionFailed from error
        except NotFoundError as error:
            if etag is None:
                raise
            raise ConditionFailed from error

    def _key(self, path: str) -> str:
        return path.partition("/")[2]


def _info(meta: Any) -> ObjectInfo:
    return ObjectInfo(int(meta["size"]), (meta.get("e_tag") or "").strip('"'), meta["last_modified"].timestamp())
