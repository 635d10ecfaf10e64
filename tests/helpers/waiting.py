"""Waiting for another thread or process, however slow the machine is."""

from __future__ import annotations

import time
from collections.abc import Callable

_LIMIT_SECONDS = 300.0


def wait_for(condition: Callable[[], object]) -> None:
    """Return when the condition holds; fail after a limit that only a hang exceeds."""
    deadline = time.monotonic() + _LIMIT_SECONDS
    while not condition():
        assert time.monotonic() < deadline, f"not within {_LIMIT_SECONDS:.0f} s"
        time.sleep(0.02)
