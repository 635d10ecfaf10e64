"""Notices that the store of an open handle was deleted, or replaced by another one at the same place."""

from __future__ import annotations

import os
from typing import Generic

from zarr_core.storage import Storage
from zarr_core.storage.byte_ranges import Objects, RemoteObjects
from zarr_core.versioning.generations import Head, S, load_same


class ReplacementCheck(Generic[S]):
    """The check of one handle. The head's size and times are looked at; only a changed head is read again."""

    def __init__(self, storage: Storage, head: Head[S]) -> None:
        self._storage, self._head = storage, head
        self._path = storage.path(head.name) if storage.is_local else ""
        self._seen: object = None

    def check(self, known: S, objects: Objects | None) -> None:
        """Raise StoreError if objects that were just read may be those of another store. Call it after the read.

        Args:
            known: the state that the handle has opened.
            objects: what was read from, below all caches; None if that is not known. Remote objects are checked where
                new ones were met; any others at each read, which costs a system call for local files.
        """
        # An instance check of a class that is derived from a protocol takes microseconds.
        remote = objects if objects is not None and objects.remote and isinstance(objects, RemoteObjects) else None
        met = 0 if remote is None else remote.met
        if remote is not None and met == remote.checked:
            return
        found = self._look()
        if found is None or found != self._seen:
            load_same(self._storage, self._head, known)
            self._seen = found
        if remote is not None:
            remote.checked = met

    def _look(self) -> object:
        """Size and times of the head now; None if there is none."""
        if not self._path:
            return self._storage.find(self._head.name)
        try:
            stat = os.stat(self._path)  # all that a read from memory can afford
        except FileNotFoundError:
            return None
        return stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns, stat.st_ino
