"""Web servers and the Hugging Face Hub: reading whole objects and byte ranges. Only the Hub is listed."""

from __future__ import annotations

import os
from email.utils import parsedate_to_datetime
from typing import Any

from zarr_core._util.redaction import redact
from zarr_core.errors import StoreError
from zarr_core.storage.backends import ObjectInfo, Page
from zarr_core.storage.backends.generic import FsspecBackend
from zarr_core.storage.backends.s3 import byte_range, check_response


class HttpBackend(FsspecBackend):
    """Requests through the session of fsspec's HTTP filesystem.

    The filesystem itself takes any error for a missing file, and fetches the whole object where a range is refused.
    """

    _place = "a web server"

    async def get(self, path: str, start: int | None = None, stop: int | None = None) -> tuple[bytes, str]:
        span = byte_range(start, stop)
        async with await self._request("GET", path, {} if span is None else {"Range": span}) as response:
            if span is not None and response.status != 206:
                raise StoreError(
                    f"{redact(self.identity)}: this server serves no byte ranges, which a store is read by"
                )
            data = await response.read()
            headers = response.headers
            check_response(start, stop, len(data), response.content_length, headers.get("Content-Range"))
            return data, headers.get("ETag", "")

    async def head(self, path: str) -> ObjectInfo:
        async with await self._request("HEAD", path) as response:
            changed = response.headers.get("Last-Modified")
            return ObjectInfo(
                response.content_length or 0,
                (response.headers.get("ETag") or changed or "").strip('"'),
                parsedate_to_datetime(changed).timestamp() if changed else 0.0,
            )

    async def _refuse(self, *_: Any, **__: Any) -> None:
        raise self._read_only("changed")

    put = put_if = delete = _refuse

    async def list_page(self, prefix: str, token: str | None, recursive: bool = True) -> Page:
        raise self._read_only("listed")

    async def _request(
        self, method: str, path: str, headers: dict[str, str] | None = None, *, allow_redirects: bool = True
    ) -> Any:
        """The response to a request; raises FileNotFoundError, or aiohttp's error of another status."""
        options = dict(self.fs.kwargs)
        # Without compression, so that lengths and ranges are those of the object.
        options["headers"] = {**options.get("headers", {}), "Accept-Encoding": "identity", **(headers or {})}
        session = await self.fs.set_session()
        response = await session.request(method, self.fs.encode_url(path), allow_redirects=allow_redirects, **options)
        if response.status in (404, 410):
            response.release()
            raise FileNotFoundError(redact(path))
        response.raise_for_status()
        return response

    def _read_only(self, what: str) -> StoreError:
        url = redact(self.identity)
        return StoreError(f"{self._place} cannot be {what}; a store at {url} can only be read, by readers and loaders")


class HubBackend(HttpBackend):
    """Files of a repository on the Hugging Face Hub, which serves them over https.

    A token in ``HF_TOKEN`` opens private ones, and ``HF_ENDPOINT`` names another Hub, as for Hugging Face's own client.
    """

    _place = "the Hugging Face Hub"

    def __init__(self, url: str, given: Any = None) -> None:
        endpoint, repository, revision, folder = _parts_of(url)
        self._files = f"{endpoint}/{repository}/resolve/{revision}"
        kind = "" if repository.startswith(("datasets/", "spaces/")) else "models/"
        self._tree = f"{endpoint}/api/{kind}{repository}/tree/{revision}"
        super().__init__("/".join([self._files, *folder]), given)

    async def head(self, path: str) -> ObjectInfo:
        """Size and version as in listings. The Hub tells them before it redirects to the host of large files."""
        async with await self._request("HEAD", path, allow_redirects=False) as response:
            size, version = (response.headers.get(f"X-Linked-{name}") for name in ("Size", "Etag"))
            if response.status < 300 or size is not None:
                version = version or response.headers.get("ETag", "")
                return ObjectInfo(int(size or response.content_length or 0), version.removeprefix("W/").strip('"'), 0.0)
        return await super().head(path)

    async def list_page(self, prefix: str, token: str | None, recursive: bool = True) -> Page:
        folder = prefix[len(self._files) :].rstrip("/")
        async with await self._request("GET", token or f"{self._tree}{folder}?recursive={recursive}") as response:
            entries = await response.json()
            further = response.links.get("next")
        found = {
            f"{self._files}/{entry['path']}": ObjectInfo(entry["size"], (entry.get("lfs") or entry)["oid"], 0.0)
            for entry in entries
            if entry["type"] == "file"
        }
        return found, None if further is None else str(further["url"])

    async def _request(
        self, method: str, path: str, headers: dict[str, str] | None = None, *, allow_redirects: bool = True
    ) -> Any:
        token = os.environ.get("HF_TOKEN")
        # The client leaves the token out where the Hub redirects to another host.
        allowed = {"Authorization": f"Bearer {token}"} if token else {}
        return await super()._request(method, path, allowed | (headers or {}), allow_redirects=allow_redirects)


def _parts_of(url: str) -> tuple[str, str, str, list[str]]:
    """Hub, repository, revision and folder of "hf://datasets/user/name@revision/path"; raises StoreError."""
    kind, *parts = url.removeprefix("hf://").rstrip("/").split("/")
    if kind not in ("datasets", "spaces"):
        kind, parts = "", [kind, *parts]
    if len(parts) < 2 or not all(parts):
        raise StoreError(f"{redact(url)} names no repository; expected hf://datasets/USER/NAME/PATH")
    name, _, revision = parts[1].partition("@")
    repository = f"{kind}/{parts[0]}/{name}".lstrip("/")
    endpoint = os.environ.get("HF_ENDPOINT", "https://huggingface.co").rstrip("/")
    return endpoint, repository, revision or "main", parts[2:]
