"""A limit on what threads use at a time."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager


class Budget:
    """An amount that threads share. An oversized request waits for the whole budget.

    Args:
        total: the amount, for example bytes.
    """

    def __init__(self, total: int) -> None:
        self._total = self._left = total
        self._changed = threading.Condition()

    @contextmanager
    def taking(self, amount: int) -> Iterator[None]:
        """Wait until this amount is left, and hold it for the duration of a block."""
        amount = min(amount, self._total)
        with self._changed:
            self._changed.wait_for(lambda: self._left >= amount)
            self._left -= amount
        try:
            yield
        finally:
            with self._changed:
                self._left += amount
                self._changed.notify_all()
