"""Waiting for something that another thread or process does, however slow the machine is."""

from __future__ import annotations

import time
from collections.abc import Callable

_LIMIT_SECONDS = 300.0


def wait_for(condition: Callable[[], object]) -> None:
    """Return when the condition holds; fail when that takes so long that it never will."""
    deadline = time.monotonic() + _LIMIT_SECONDS
    while not condition():
        assert time.monotonic() < deadline, f"not within {_LIMIT_SECONDS:.0f} s"
        time.sleep(0.02)
