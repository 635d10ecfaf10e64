"""Files of a folder or below a URL, for libraries that open paths and file objects."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any


class Files:
    """Files of one format.

    Args:
        place: a folder, or a URL.

    Attributes:
        requests: files fetched from the URL so far.
    """

    def __init__(self, place: str | Path) -> None:
        self._remote = "://" in str(place)
        self._place = str(place)
        self.requests = 0
        if self._remote:
            from zarr_core.storage import Storage

            self._storage = Storage(self._place)

    def open(self, name: str) -> Path | io.BytesIO:
        """The path of a local file; else its content, fetched whole."""
        if not self._remote:
            return Path(self._place, name)
        self.requests += 1
        return io.BytesIO(self._storage.read(name))

    def names(self, suffix: str) -> list[str]:
        """Paths of the files with a suffix, relative and sorted."""
        if self._remote:
            return [name for name in self._storage.list() if name.endswith(suffix)]
        return sorted(str(path.relative_to(self._place)) for path in Path(self._place).rglob(f"*{suffix}"))


def counting(place: str | Path) -> tuple[Callable[[str], Any] | None, list[Any]]:
    """An ``objects_factory`` whose ``CountingObjects`` are in the list; None for local files, which are not counted."""
    from zarr_core.storage.byte_ranges import CountingObjects, open_objects

    counts: list[Any] = []

    def factory(root: str) -> Any:
        counts.append(CountingObjects(open_objects(root)))
        return counts[-1]

    return (factory if "://" in str(place) else None), counts
