"""S3, Google Cloud Storage and Azure Blob Storage through obstore.

A fork of a process that has used obstore cannot use it, because its threads do not survive the fork.
"""

from __future__ import annotations

import os
from datetime import timedelta
from functools import cache
from mmap import mmap
from pathlib import Path
from typing import Any, ClassVar

from zarr_core._util.redaction import printable_cause, redact
from zarr_core.errors import StoreError
from zarr_core.storage import retries
from zarr_core.storage.backends import ConditionFailed, ObjectInfo, Page
from zarr_core.storage.backends.s3 import ConditionalPut, check_response, upload_in_parts, with_endpoint
from zarr_core.storage.filesystems import Access, access, settings

# The process that first used obstore. In a fork of it every request would hang.
_used_by: int | None = None
# Listings of which further pages may be requested.
_OPEN_LISTINGS = 64


def may_be_used() -> bool:
    """Whether obstore is installed and works in this process."""
    if _used_by not in (None, os.getpid()):
        return False
    try:
        import obstore.store  # noqa: F401
    except ImportError:
        return False
    return True


def supports(scheme: str) -> bool:
    """Whether obstore works in this process and can get at the URLs of one of :data:`BACKENDS`."""
    return may_be_used() and access(BACKENDS[scheme].SERVICE).suffices


@cache  # a store keeps its connections, and each sample of a conversion opens its own
def _open(url: str, attempts: int, found: Access, policy: retries.RetryPolicy, prefix: str) -> Any:
    """A store for the bucket of a URL, or for a prefix in it: in a URL, obstore decodes it, and cuts it off at "#"."""
    import obstore.store

    # Our own timeout depends on the number of bytes; this one ends requests that ours has abandoned.
    options: Any = {"timeout": timedelta(seconds=policy.timeout_for(5 << 30)), "connect_timeout": timedelta(seconds=10)}
    if found.endpoint.startswith("http://"):
        options["allow_http"] = True
    elif found.certificates:
        options["root_certificate"] = Path(found.certificates).read_bytes()
    config: Any = dict(found.config)
    if "@" in url:  # the URL names the account
        config.pop("account_name", None)
    provider: Any = found.provider
    store = obstore.store.from_url(
        url,
        config=config,
        client_options=options,
        retry_config={"max_retries": attempts - 1, "retry_timeout": timedelta(seconds=policy.deadline_s)},
        credential_provider=provider,
    )
    return _below(store, prefix) if prefix else store


def _below(store: Any, prefix: str) -> Any:
    """A store like another one, for a prefix in its bucket."""
    return type(store)(
        prefix=prefix,
        config=store.config,
        client_options=store.client_options,
        retry_config=store.retry_config,
        credential_provider=store.credential_provider,
    )


class ObstoreBackend(ConditionalPut):
    """Requests to S3 through obstore: by the caller's store of it, if that is given."""

    #: Name of the service in :mod:`zarr_core.storage.filesystems`.
    SERVICE: ClassVar[str] = "s3"

    def __init__(self, url: str, given: Any = None) -> None:
        global _used_by
        if not may_be_used():
            raise StoreError(
                f"{redact(url)} needs obstore (pip install 'zarr-core[obstore]'), which does not work in a fork of a "
                "process that has used it: start such processes by 'forkserver' or 'spawn'"
            )
        if given is None and not access(self.SERVICE).suffices:
            raise StoreError(
                f"{redact(url)}: obstore cannot use what fsspec's configuration or ~/.aws says of "
                f"{self.SERVICE}:// ({', '.join(settings(self.SERVICE)) or 'profiles need s3fs'}): name endpoint and "
                "credentials in the environment"
            )
        scheme, _, location = url.partition("://")
        self.location = location.rstrip("/")
        if not {"", ".", ".."}.isdisjoint(self.location.split("/")):  # obstore leaves some out, and refuses others
            raise StoreError(f"{redact(url)}: remove the empty part, . or .. between slashes: obstore cannot use it")
        self._scheme = scheme.replace("s3a", "s3")
        self._bucket = self.location.partition("/")[0]
        if given is not None and (given.prefix or self._bucket not in given.config.values()):
            raise StoreError(f"{redact(url)}: pass an obstore store of the bucket {self._bucket!r}, without a prefix")
        import obstore.exceptions

        _used_by = os.getpid()
        self._api: Any = obstore
        self._given = given
        try:
            self._store = given if given is not None else self._open()
        except obstore.exceptions.BaseError as error:  # no account, or a form of URL that obstore does not know
            raise StoreError(f"{redact(url)}: {retries.describe(error)} (docs/clouds.md)") from printable_cause(error)
        self._listings: dict[tuple[str, str | None], Any] = {}

    @property
    def identity(self) -> str:
        """URL and endpoint."""
        endpoint = "" if self._given is None else self._given.config.get("endpoint", "")
        return with_endpoint(f"{self._scheme}://{self.location}", endpoint or access(self.SERVICE).endpoint)

    def _open(self, attempts: int = 1, prefix: str = "") -> Any:
        return _open(f"{self._scheme}://{self._bucket}", attempts, access(self.SERVICE), retries.POLICY, prefix)

    def at_root(self) -> Any:
        """A store of obstore for the root, which repeats requests by itself."""
        prefix = self._key(self.location)
        return self._open(retries.POLICY.attempts, prefix) if self._given is None else _below(self._given, prefix)

    async def get(self, path: str, start: int | None = None, stop: int | None = None) -> tuple[Any, str]:
        options: Any = {}
        if start is not None and start < 0:
            options["range"] = {"suffix": -start}
        elif stop is not None:
            options["range"] = (start or 0, stop)
        elif start:
            options["range"] = {"offset": start}
        result = await self._api.get_async(self._store, self._key(path), options=options)
        first, last = result.range
        data = await result.bytes_async()
        check_response(None, None, len(data), last - first)
        return data, self._version(result.meta)

    async def head(self, path: str) -> ObjectInfo:
        return _info(await self._api.head_async(self._store, self._key(path)))

    async def put(self, path: str, data: bytes | bytearray | mmap) -> None:
        with upload_in_parts():
            await self._api.put_async(
                self._store,
                self._key(path),
                data,
                use_multipart=isinstance(data, mmap) or len(data) > self.single_put_bytes,
                chunk_size=self.part_bytes,
                max_concurrency=self.parts_in_flight,
            )

    async def delete(self, path: str) -> None:
        await self._api.delete_async(self._store, self._key(path))

    async def list_page(self, prefix: str, token: str | None, recursive: bool = True) -> Page:
        from obstore.exceptions import GenericError

        try:
            if recursive:
                page = await self._next_page(prefix, token)
            else:
                folder = self._key(prefix).rstrip("/")
                page = (await self._api.list_with_delimiter_async(self._store, prefix=folder))["objects"]
        except GenericError as error:
            if retries.status_of(error) == 404:  # there is no such bucket
                raise FileNotFoundError(prefix) from error
            raise
        found = {f"{self._bucket}/{meta['path']}": _info(meta) for meta in page}
        last = max(found, default=None)
        # An object that stands for a folder is listed without the slash that its name ends with.
        folders = {path.rpartition("/")[0] for path in found}
        for path in [path for path, info in found.items() if not info.size]:
            if path in folders or not await self._exists(path):
                del found[path]
        return found, last if recursive else None

    async def _exists(self, path: str) -> bool:
        try:
            await self.head(path)
        except FileNotFoundError:
            return False
        return True

    async def _next_page(self, prefix: str, token: str | None) -> Any:
        """A page of the objects that follow the one that a token names.

        Azure cannot begin a listing in the middle. So an open listing is continued, and a new one is begun only after
        an error.
        """
        key = self._key(prefix).rstrip("/")
        listing = self._listings.pop((prefix, token), None)
        if listing is None:
            listing = self._api.list(self._store, prefix=key, offset=token and self._key(token), chunk_size=1000)
        try:
            page = await anext(listing)
        except StopAsyncIteration:
            return ()
        last = max(f"{self._bucket}/{meta['path']}" for meta in page)
        self._listings[prefix, last] = listing
        if len(self._listings) > _OPEN_LISTINGS:  # the oldest one's next page was not requested
            del self._listings[next(iter(self._listings))]
        return page

    async def _put_on_condition(self, path: str, data: bytes, etag: str | None) -> None:
        from obstore.exceptions import AlreadyExistsError, PreconditionError

        mode: Any = "create" if etag is None else {"e_tag": etag, "version": etag}
        try:
            await self._api.put_async(self._store, self._key(path), data, mode=mode)
        except (AlreadyExistsError, PreconditionError) as error:
            raise ConditionFailed from error
        except FileNotFoundError as error:
            if etag is None:
                raise
            raise ConditionFailed from error

    @staticmethod
    def _version(meta: Any) -> str:
        """The version that a conditional write compares."""
        return str(meta.get("e_tag") or "")

    def _key(self, path: str) -> str:
        return path.partition("/")[2]


class GoogleBackend(ObstoreBackend):
    """Requests to Google Cloud Storage, which compares generations of objects, not etags."""

    SERVICE = "gs"
    impossible_version = "1"  # generations are times in microseconds
    gets_listed_versions = False  # listings report etags
    _bare_etags = False

    @staticmethod
    def _version(meta: Any) -> str:
        return str(meta.get("version") or "")


class AzureBackend(ObstoreBackend):
    """Requests to Azure Blob Storage."""

    SERVICE = "az"
    impossible_version = '"0x0"'
    _bare_etags = False

    async def get(self, path: str, start: int | None = None, stop: int | None = None) -> tuple[Any, str]:
        if start is not None and start < 0:  # Azure has no ranges that count from the end
            start = max(0, (await self.head(path)).size + start)
        return await super().get(path, start, stop)


#: Backends by scheme.
BACKENDS: dict[str, type[ObstoreBackend]] = {
    "s3": ObstoreBackend,
    "s3a": ObstoreBackend,
    "gs": GoogleBackend,
    "az": AzureBackend,
    "abfs": AzureBackend,
    "abfss": AzureBackend,
}


def _info(meta: Any) -> ObjectInfo:
    return ObjectInfo(int(meta["size"]), (meta.get("e_tag") or "").strip('"'), meta["last_modified"].timestamp() // 1)
