"""Web servers: reading whole objects and byte ranges. They are neither listed nor written to."""

from __future__ import annotations

from email.utils import parsedate_to_datetime
from typing import Any

from zarr_core._util.redaction import redact
from zarr_core.errors import StoreError
from zarr_core.storage.backends import ObjectInfo
from zarr_core.storage.backends.generic import FsspecBackend
from zarr_core.storage.backends.s3 import byte_range, check_length


class HttpBackend(FsspecBackend):
    """Requests through the session of fsspec's HTTP filesystem.

    The filesystem itself takes any error for a missing file, and fetches the whole object where a range is refused.
    """

    async def get(self, path: str, start: int | None = None, stop: int | None = None) -> tuple[bytes, str]:
        span = byte_range(start, stop)
        async with await self._request("GET", path, {} if span is None else {"Range": span}) as response:
            if span is not None and response.status != 206:
                raise StoreError(
                    f"{redact(self.identity)}: this server serves no byte ranges, which a store is read by"
                )
            data = await response.read()
            check_length(len(data), response.content_length)
            return data, response.headers.get("ETag", "")

    async def head(self, path: str) -> ObjectInfo:
        async with await self._request("HEAD", path) as response:
            changed = response.headers.get("Last-Modified")
            return ObjectInfo(
                response.content_length or 0,
                (response.headers.get("ETag") or changed or "").strip('"'),
                parsedate_to_datetime(changed).timestamp() if changed else 0.0,
            )

    async def put(self, path: str, data: bytes | bytearray) -> None:
        raise self._read_only("written to")

    async def put_if(self, path: str, data: bytes, version: str | None) -> None:
        raise self._read_only("written to")

    async def delete(self, path: str) -> None:
        raise self._read_only("deleted from")

    async def list_page(
        self, prefix: str, token: str | None, recursive: bool = True
    ) -> tuple[dict[str, ObjectInfo], str | None]:
        raise self._read_only("listed")

    async def _request(self, method: str, path: str, headers: dict[str, str] | None = None) -> Any:
        """The response to a request; raises FileNotFoundError, or aiohttp's error of another status."""
        options = dict(self.fs.kwargs)
        # Without compression, so that lengths and ranges are those of the object.
        options["headers"] = {**options.get("headers", {}), "Accept-Encoding": "identity", **(headers or {})}
        session = await self.fs.set_session()
        response = await session.request(method, self.fs.encode_url(path), allow_redirects=True, **options)
        if response.status in (404, 410):
            response.release()
            raise FileNotFoundError(path)
        response.raise_for_status()
        return response

    def _read_only(self, what: str) -> StoreError:
        url = redact(self.identity)
        return StoreError(f"a web server cannot be {what}; a store at {url} can only be read, by readers and loaders")
