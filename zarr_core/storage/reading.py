"""Reads remote files, in the version that was listed: whole, in pieces, or as files in which one can seek."""

from __future__ import annotations

import io
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future
from itertools import islice
from typing import Any

from zarr_core.errors import SourceError
from zarr_core.storage.storage import Storage, result_of

# Objects up to this size are fetched in one request, larger ones in pieces, _IN_FLIGHT of them at a time.
# In memory are the result, and pieces of this size in all.
WHOLE_BYTES = 32 * 2**20
_IN_FLIGHT = 2
_PIECE_BYTES = WHOLE_BYTES // _IN_FLIGHT
# First and last bytes of a larger object, which are fetched once: torch's archives have all but the values there.
_EDGE_BYTES = 64 * 2**10


def read_listed(storage: Storage, name: str, version: str) -> bytes:
    """The bytes of a file, remote or not.

    Raises:
        FileNotFoundError: there is no such file.
        SourceError: it is not the version that was listed. Only services that tell the version in each response.
    """
    if storage.is_local:
        return storage.read(name)
    return bytes(_checked(storage, name, version, storage.begin_read(name)))


def read_pieces(storage: Storage, name: str, version: str, start: int, stop: int) -> Iterator[Any]:
    """Bytes ``[start, stop)`` of a remote file in pieces, two of which are fetched at a time.

    Raises:
        FileNotFoundError: there is no such file.
        SourceError: it is not the version that was listed, as for :func:`read_listed`, or it ends before ``stop``.
    """
    spans = [(at, min(at + _PIECE_BYTES, stop)) for at in range(start, stop, _PIECE_BYTES)]
    begun = ((storage.begin_read(name, *span), span[1] - span[0]) for span in spans)
    coming = deque(islice(begun, _IN_FLIGHT))
    try:
        while coming:
            reading, size = coming.popleft()
            yield _checked(storage, name, version, reading, size)
            coming.extend(islice(begun, 1))
    finally:
        for reading, _ in coming:
            reading.cancel()


def _checked(
    storage: Storage, name: str, listed: str, reading: Future[tuple[Any, str]], size: int | None = None
) -> Any:
    """The bytes of a read, of this size if it is known."""
    data, version = result_of(reading)
    is_other = storage.reads_versions and version and listed and version != listed
    # Not every service tells the version. One that has become shorter would leave memory as it was.
    if is_other or (size is not None and len(data) != size):
        raise SourceError(f"{storage.url}/{name}: it changed after the source was listed; run again")
    return data


class RemoteFile(io.RawIOBase):
    """A seekable view of an object; reads fetch large pieces, except near its beginning and its end.

    The object has the size and the version that were listed; any version if that is "".

    Attributes:
        error: of the first read that failed; None if none did. torch replaces it by one of its own, and reads on with
            the exception set, so that further reads fail with SystemError.
    """

    error: Exception | None = None

    def __init__(self, storage: Storage, name: str, size: int, version: str = "") -> None:
        self._storage, self._name, self._size, self._version, self._position = storage, name, size, version, 0
        self._edges: dict[int, Any] = {}

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._position = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._size}[whence]
        return self._position

    def readinto(self, buffer: Any) -> int:
        try:
            return self._fill(buffer)
        except Exception as error:
            self.error = self.error or error
            raise

    def _fill(self, buffer: Any) -> int:
        target = memoryview(buffer).cast("B")[: max(self._size - self._position, 0)]
        if not target:  # some services refuse empty ranges
            return 0
        start, stop = self._position, self._position + len(target)
        last = max(self._size - _EDGE_BYTES, 0)
        edge = last if start >= last else 0
        if stop <= edge + _EDGE_BYTES:
            target[:] = memoryview(self._edge(edge))[start - edge : stop - edge]
        else:
            done = 0
            for piece in read_pieces(self._storage, self._name, self._version, start, stop):
                target[done : done + len(piece)] = piece
                done += len(piece)
        self._position = stop
        return len(target)

    def _edge(self, start: int) -> Any:
        """The object's first or last bytes. Both are fetched at once: who reads one reads the other."""
        if not self._edges:
            begun = {}
            size = min(_EDGE_BYTES, self._size)
            for at in (0, self._size - size):
                begun[at] = self._storage.begin_read(self._name, at, at + size)
            for at, reading in begun.items():
                self._edges[at] = _checked(self._storage, self._name, self._version, reading, size)
        return self._edges[start]
