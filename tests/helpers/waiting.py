"""Waiting for another thread or process, however slow the machine is."""

from __future__ import annotations

import time
from collections.abc import Callable

#: Only what hangs takes longer.
LIMIT_SECONDS = 600


def wait_for(condition: Callable[[], object], pause_seconds: float = 0.02) -> None:
    """Return when the condition holds; fail after a limit that only a hang exceeds."""
    deadline = time.monotonic() + LIMIT_SECONDS
    while not condition():
        assert time.monotonic() < deadline, f"not within {LIMIT_SECONDS} s"
        time.sleep(pause_seconds)
