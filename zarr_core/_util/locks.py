"""A lock that can be used after a fork."""

from __future__ import annotations

import os
import threading


class ProcessLock:
    """A reentrant lock of a process; a child process begins with one of its own, which nobody holds.

    The lock that it inherits may be held by a thread that only the parent has. Reentrant, because a garbage collection
    can run code that takes it at any point.
    """

    def __init__(self) -> None:
        self._renew()
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._renew)

    def _renew(self) -> None:
        self._lock = threading.RLock()

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()
