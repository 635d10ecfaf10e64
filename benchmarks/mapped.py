"""Memory-mapped files as objects, to compare with the ``pread`` that the library uses."""

from __future__ import annotations

import mmap
import os
from collections import OrderedDict
from collections.abc import Iterator, Sequence

import numpy as np

from zarr_core.errors import CorruptChunkError
from zarr_core.shootout.formats.stores import Reader
from zarr_core.storage import Storage, byte_ranges
from zarr_core.storage.byte_ranges import Request, check_size


class MappedObjects:
    """Files below a folder, mapped into memory: no copy of what the page cache holds, a sixth faster where it is warm.

    Not the default: a file that is cut, or a disk that fails, under a mapping ends the process (SIGBUS), where
    ``pread`` raises an error that names the sample. ``ZarrChunkReader(root, objects_factory=MappedObjects)``.

    Args:
        root: a local path.
    """

    remote = False

    def __init__(self, root: str) -> None:
        self._folder = Storage(root).location
        self._files: OrderedDict[str, np.ndarray] = OrderedDict()

    def fetch(self, requests: Sequence[Request]) -> Iterator[np.ndarray | Exception]:
        """See :class:`Objects`."""
        for request in requests:
            try:
                file = self._files.get(request.key)
                if file is None:
                    file = self._open(request.key)
                fetched: np.ndarray | Exception = check_size(request, file[request.start : request.stop])
            except (OSError, CorruptChunkError) as error:
                fetched = error
            yield fetched

    def discard(self, requests: Sequence[Request]) -> None:
        """Nothing is kept."""

    def _open(self, key: str) -> np.ndarray:
        with open(f"{self._folder}/{key}", "rb") as file:
            if os.fstat(file.fileno()).st_size == 0:
                return np.empty(0, np.uint8)  # nothing can be mapped
            mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        found = self._files[key] = np.frombuffer(mapped, np.uint8)  # unmapped when it is no longer referenced
        while len(self._files) > byte_ranges.OPEN_FILES:
            try:
                self._files.popitem(last=False)
            except KeyError:  # another thread opened it first
                break
        return found


class Mapped(Reader):
    """Our reader, with files mapped into memory."""

    def __init__(self) -> None:
        super().__init__(objects_factory=MappedObjects)
