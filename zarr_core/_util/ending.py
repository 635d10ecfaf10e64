"""A command that is told to end keeps what is finished, and one whose standard error is lost goes on."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Iterator
from typing import Any


@contextlib.contextmanager
def interrupted_by_signals() -> Iterator[None]:
    """Raise KeyboardInterrupt for SIGTERM and SIGHUP, too: Slurm, Kubernetes and a lost connection send them."""
    with contextlib.ExitStack() as restored:
        if threading.current_thread() is threading.main_thread():
            for name in ("SIGTERM", "SIGHUP"):
                number = getattr(signal, name, None)  # Windows has no SIGHUP
                if number is not None and signal.getsignal(number) is signal.SIG_DFL:  # nohup ignores SIGHUP
                    signal.signal(number, signal.default_int_handler)
                    restored.callback(signal.signal, number, signal.SIG_DFL)
        yield


@contextlib.contextmanager
def lasting_stderr() -> Iterator[None]:
    """Write to nowhere what standard error does not take: it is closed, its disk is full, or its reader has gone."""
    with contextlib.ExitStack() as opened:
        lasting: Any = _Lasting(sys.stderr)
        if sys.stderr is None:
            lasting = opened.enter_context(open(os.devnull, "w"))
        opened.enter_context(contextlib.redirect_stderr(lasting))
        yield


class _Lasting:
    """A text stream whose writes never fail."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        try:
            return int(self._stream.write(text))
        except (OSError, ValueError):
            self._give_up()
            return len(text)

    def flush(self) -> None:
        try:
            self._stream.flush()
        except (OSError, ValueError):
            self._give_up()

    def _give_up(self) -> None:
        # The interpreter's own flush at its exit must not fail either.
        with contextlib.suppress(OSError, ValueError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), self._stream.fileno())

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)
