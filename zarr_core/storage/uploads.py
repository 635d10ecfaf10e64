"""Several objects uploaded at a time, in bounded memory."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from concurrent.futures import Future
from contextlib import suppress
from types import TracebackType

from zarr_core.storage.storage import Storage

# Bytes that wait for their uploads; a larger object is uploaded alone.
_MAX_BYTES = 64 << 20


class Uploads:
    """Writes whole objects. On a network, a write returns before its upload has ended; an error is raised later.

    The context ends when every upload has ended.

    Args:
        storage: where to write. Local files are written at once.
    """

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._running: deque[tuple[Future[None], int]] = deque()
        self._bytes = 0

    def __enter__(self) -> Uploads:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        try:
            if error is None:
                self.finish()
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

    def finish(self) -> None:
        """Return when everything is written; raises the error of an upload that failed."""
        while self._running:
            self._wait()

    def _wait(self) -> None:
        future, size = self._running.popleft()
        self._bytes -= size
        future.result()
