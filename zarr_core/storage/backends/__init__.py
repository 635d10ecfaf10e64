"""How each kind of location keeps objects: what ``zarr_core.storage`` needs of it, and nothing more."""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol


class ObjectInfo(NamedTuple):
    """An object without its content.

    Attributes:
        size: bytes.
        version: etag, or time of last change where the location has no etags; "" where it reports neither.
        modified: time of last change in seconds since 1970; 0 where the location does not report it.
        changed: of a local file, when the system last noted a change, and which file it was, by inode.
    """

    size: int
    version: str
    modified: float
    changed: str = ""


class ConditionFailed(Exception):
    """A conditional write was refused, for the condition did not hold."""


class RemoteBackend(Protocol):
    """Objects of one kind of service. A method makes one try of one request: retries are the caller's.

    Paths are those of the service: bucket and key, say. All methods raise FileNotFoundError where nothing is there.
    They run on fsspec's event loop.
    """

    #: The root in the service.
    location: str
    #: What :meth:`put` compares, of an object that nobody has ever written; "" where versions are digests.
    impossible_version: str

    @property
    def identity(self) -> str:
        """What tells the root from every other, endpoint included."""
        ...

    async def get(self, path: str, start: int | None = None, stop: int | None = None) -> tuple[Any, str]:
        """Bytes ``[start, stop)`` (the last ones where start is negative) and the version that they are of.

        The bytes are whatever supports Python's buffer protocol.

        Raises:
            TruncatedError: fewer came than the service announced.
        """
        ...

    async def head(self, path: str) -> ObjectInfo:
        """Size, version and time of an object."""
        ...

    async def put(self, path: str, data: bytes | bytearray) -> None:
        """Write an object whole."""
        ...

    async def put_if(self, path: str, data: bytes, version: str | None) -> None:
        """Write an object if it still has this version (None: if there is none).

        Raises:
            ConditionFailed: it has another.
            StoreError: this kind of location cannot do it safely.
        """
        ...

    async def delete(self, path: str) -> None:
        """Remove an object."""
        ...

    async def list_page(
        self, prefix: str, token: str | None, recursive: bool = True
    ) -> tuple[dict[str, ObjectInfo], str | None]:
        """Some of the objects below a path (ending in "/"), and what brings the next ones; None where these are all.

        ``recursive=False`` leaves out the objects in folders below the path.
        """
        ...
