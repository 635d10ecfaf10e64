"""Backends: single requests to each kind of location, without retries."""

from __future__ import annotations

from mmap import mmap
from typing import Any, NamedTuple, Protocol


class ObjectInfo(NamedTuple):
    """An object without its content.

    Attributes:
        size: bytes.
        version: etag, or modification time if the location has no etags; "" if it reports neither.
        modified: modification time in seconds since 1970; 0 if the location does not report it.
        changed: inode and ctime of a local file.
    """

    size: int
    version: str
    modified: float
    changed: str = ""


class StoredObject(NamedTuple):
    """An entry of a listing: name relative to the root, bytes, seconds since 1970 by the store's clock."""

    name: str
    size: int
    modified: float


class UnfinishedUpload(NamedTuple):
    """An upload in parts that has not ended: it runs, or its process was killed. Its parts are invisible, and paid for.

    Attributes:
        path: of the object that it would become.
        upload_id: as the service calls it.
        started: seconds since 1970.
    """

    path: str
    upload_id: str
    started: float


#: Objects by path, and the token of the next page; None after the last.
Page = tuple[dict[str, ObjectInfo], str | None]


class ConditionFailed(Exception):
    """The condition of a conditional write did not hold."""


class RemoteBackend(Protocol):
    """Interface to the objects of one kind of service. A method makes one attempt; the caller retries.

    Paths are those of the service, for example bucket and key. Methods raise FileNotFoundError if the object does not
    exist. They run on fsspec's event loop.
    """

    #: The root in the service.
    location: str
    #: A version that no object has, to test conditional writes; "" where they need no test.
    impossible_version: str
    #: Whether :meth:`get` returns the version of :meth:`list_page` and :meth:`head`, apart from quotes.
    gets_listed_versions: bool

    @property
    def identity(self) -> str:
        """Unique name of the root, endpoint included."""

    async def get(self, path: str, start: int | None = None, stop: int | None = None) -> tuple[Any, str]:
        """Bytes ``[start, stop)`` (the last ones if start is negative) and their version.

        The bytes are any object with Python's buffer protocol.

        Raises:
            TruncatedError: fewer bytes came than the service announced.
        """

    async def head(self, path: str) -> ObjectInfo:
        """Size, version and time of an object."""

    async def put(self, path: str, data: bytes | bytearray | mmap) -> None:
        """Write a whole object."""

    async def put_if(self, path: str, data: bytes, version: str | None) -> None:
        """Write an object if it has this version (None: if it does not exist).

        Raises:
            ConditionFailed: it has another version.
            StoreError: this kind of location cannot do that safely.
        """

    async def delete(self, path: str) -> None:
        """Remove an object."""

    async def list_page(self, prefix: str, token: str | None, recursive: bool = True) -> Page:
        """A page of the objects below a path (ending in "/"), or of those directly below it."""

    async def unfinished_uploads(self, prefix: str) -> list[UnfinishedUpload]:
        """Uploads in parts below a path (ending in "/"); none where the client cannot list them."""
        return []

    async def abort_upload(self, upload: UnfinishedUpload) -> None:
        """Delete the parts of an upload; raises FileNotFoundError if it has ended."""
        return
