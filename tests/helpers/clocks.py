"""Clocks that run ahead, so that tests of ages need not wait."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from unittest.mock import patch

from zarr_core.storage import Storage


@contextmanager
def clocks_ahead(seconds: float) -> Iterator[None]:
    """Set the clocks of this machine and of every store ahead by an interval, for garbage collection.

    Object stores report times in whole seconds, so objects that were written in this second have no age yet.
    """
    now_of = Storage.now
    with (
        patch.object(Storage, "now", lambda storage: now_of(storage) + seconds),
        patch(
            "zarr_core.versioning.gc.time",
            SimpleNamespace(time=lambda: time.time() + seconds, monotonic=time.monotonic),
        ),
    ):
        yield
