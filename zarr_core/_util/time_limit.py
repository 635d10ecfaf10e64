"""A limit on the time of any call: one with an endless loop, on a file that never answers, in C code."""

from __future__ import annotations

import contextvars
import faulthandler
import multiprocessing
import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, wait
from typing import TypeVar

from zarr_core.errors import SourceError

#: Environment variable with the most seconds that one sample may take.
SAMPLE_SECONDS = "ZARR_CORE_SAMPLE_SECONDS"
# A sample of a terabyte at 50 MB/s.
_DEFAULT_SECONDS = 6 * 3600.0
# A worker process ends this long after the limit if the call has still not ended.
_GRACE_SECONDS = 30.0

_Result = TypeVar("_Result")

_lock = threading.Lock()
_ends: dict[object, float] = {}


class TimeLimitError(Exception):
    """A call took longer than its limit.

    Args:
        seconds: the limit.
        instead: what else may have happened, if that is not known.
    """

    def __init__(self, seconds: float, instead: str = "") -> None:
        super().__init__(seconds, instead)
        self.seconds, self.instead = seconds, instead

    def __str__(self) -> str:
        otherwise = f"{self.instead}, or it " if self.instead else ""
        return (
            f"{otherwise}took longer than {self.seconds:g} s, the limit of one sample; if it needs more, set "
            f"{SAMPLE_SECONDS} to a larger number of seconds and run again"
        )


def sample_seconds() -> float:
    """The limit of one sample that the environment sets, or six hours; raises SourceError if it is not a number."""
    text = os.environ.get(SAMPLE_SECONDS, str(_DEFAULT_SECONDS))
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds <= threading.TIMEOUT_MAX / 2:
        raise SourceError(f"{SAMPLE_SECONDS} must be a positive number of seconds, not {text!r:.80}")
    return seconds


def call_within(seconds: float, function: Callable[[], _Result]) -> _Result:
    """The result of a function, which is called in a thread of its own.

    A thread cannot be stopped: over the limit it goes on, and its result is dropped. A worker process ends shortly
    afterwards, with the thread, even if its code never releases Python's lock.

    Raises:
        TimeLimitError: the function has not ended within the limit.
    """
    key = object()
    if multiprocessing.parent_process() is not None:  # a worker, of a pool or of Dask's nanny, which is replaced
        _end_process_at(key, time.monotonic() + seconds + min(seconds, _GRACE_SECONDS))
    outcome = call_in_thread(function, "zarr_core.sample")
    outcome.add_done_callback(lambda _: _end_process_at(key, None))
    if wait([outcome], seconds).not_done:
        raise TimeLimitError(seconds)
    return outcome.result()


def call_in_thread(function: Callable[[], _Result], name: str) -> Future[_Result]:
    """Start to call a function in a thread of its own, for which a process that ends does not wait."""
    outcome: Future[_Result] = Future()
    context = contextvars.copy_context()

    def call() -> None:
        try:
            outcome.set_result(context.run(function))
        except BaseException as error:
            outcome.set_exception(error)

    threading.Thread(target=call, name=name, daemon=True).start()
    return outcome


def _end_process_at(key: object, end: float | None) -> None:
    """End this process at a time, unless this is called with the same key and None before."""
    with _lock:
        if end is not None:
            _ends[key] = end
        elif _ends.pop(key, None) is None:
            return
        if _ends:
            # Its timer needs no lock of Python's. The second descriptor is standard error.
            faulthandler.dump_traceback_later(max(min(_ends.values()) - time.monotonic(), 0.001), exit=True, file=2)
        else:
            faulthandler.cancel_dump_traceback_later()
