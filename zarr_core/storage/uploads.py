"""Several objects uploaded at a time, in bounded memory; uploads of killed processes."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterable
from concurrent.futures import Future
from contextlib import suppress

from zarr_core.errors import TransferError
from zarr_core.storage.backends import UnfinishedUpload
from zarr_core.storage.storage import Storage

logger = logging.getLogger(__name__)

# Bytes that wait for their uploads; a larger object is uploaded alone.
_MAX_BYTES = 64 << 20


class Uploads:
    """Writes whole objects. On a network, a write returns before its upload has ended; an error is raised later.

    The context ends when every upload has ended. Local files are written at once.
    """

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._running: deque[tuple[Future[None], int]] = deque()
        self._bytes = 0

    def __enter__(self) -> Uploads:
        return self

    def __exit__(self, _: object, error: object, __: object) -> None:
        try:
            while self._running and error is None:
                self._wait()
        finally:
            for future, _ in self._running:  # none may write after its group was given up
                with suppress(Exception):
                    future.result()

    def write(self, name: str, pieces: Iterable[bytes]) -> int:
        """Write an object; see :meth:`zarr_core.storage.Storage.write`. Raises errors of earlier uploads too."""
        if self._storage.is_local:
            return self._storage.write(name, pieces)
        data = b"".join(pieces)
        self._bytes += len(data)
        while self._running and self._bytes > _MAX_BYTES:
            self._wait()
        self._running.append((self._storage.begin_write(name, data), len(data)))
        return len(data)

    def _wait(self) -> None:
        future, size = self._running.popleft()
        self._bytes -= size
        future.result()


def unfinished_uploads(storage: Storage) -> list[UnfinishedUpload]:
    """Uploads in parts below the root that have not ended; none where the client or the service does not list them."""
    if storage.is_local:
        return []
    try:
        return storage.request("", lambda backend: backend.unfinished_uploads(f"{storage.location}/"))
    except (OSError, TransferError) as error:
        way_out = "let a lifecycle rule of the bucket abort incomplete uploads"
        logger.warning("%s: uploads that were never finished cannot be listed (%s): %s", storage.url, error, way_out)
        return []


def abort_uploads(storage: Storage, uploads: Iterable[UnfinishedUpload]) -> None:
    """Delete the parts of uploads; one that has ended meanwhile keeps its object."""
    for upload in uploads:
        with suppress(FileNotFoundError):
            name = upload.path.removeprefix(f"{storage.location}/")
            storage.request(name, lambda backend, upload=upload: backend.abort_upload(upload))  # type: ignore[misc]
