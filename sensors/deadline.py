"""Ends what a sensor waits for before Dagster ends its tick, so that the error names the service.

Dagster ends a tick after a minute with ``DEADLINE_EXCEEDED``, whatever it was waiting for.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

import dagster as dg

T = TypeVar("T")

# Dagster's own variable, and its default: seconds of a tick. A part of them is left for the rest of the tick.
TICK_SECONDS = "DAGSTER_SENSOR_GRPC_TIMEOUT_SECONDS"
_DEFAULT_SECONDS, _SHARE = 60.0, 0.7
# What earlier ticks of this process still wait for.
_waiting: dict[str, Future[object]] = {}


def within_the_tick(what: str, work: Callable[[], T]) -> T:
    """The result of work that waits for a service.

    Work that takes too long goes on in a thread, because nothing can interrupt it. No further thread is started for the
    same service until it ends.

    Args:
        what: what is waited for, with the service's URL without secrets.
        work: reads a source or a store.

    Raises:
        Failure: the work takes too long.
    """
    end = time.monotonic() + _limit()
    earlier = _waiting.get(what)
    if earlier is not None:
        _wait(what, earlier, end)
    future: Future[T] = Future()
    _waiting[what] = future  # type: ignore[assignment]
    threading.Thread(target=_run, args=(future, work), name=what, daemon=True).start()
    _wait(what, future, end)
    return future.result()


def _limit() -> float:
    try:
        seconds = float(os.environ.get(TICK_SECONDS, _DEFAULT_SECONDS))
    except ValueError:
        seconds = _DEFAULT_SECONDS
    return _SHARE * seconds


def _wait(what: str, future: Future[T], end: float) -> None:
    try:
        future.exception(max(0.0, end - time.monotonic()))
    except TimeoutError:
        raise dg.Failure(
            f"{what} has not ended within {_limit():.0f} seconds: does the service answer? If it takes longer, set "
            f"{TICK_SECONDS} in the environment of the daemon and of the code location"
        ) from None
    _waiting.pop(what, None)


def _run(future: Future[T], work: Callable[[], T]) -> None:
    try:
        result = work()
    except BaseException as error:  # raised in the sensor's thread
        future.set_exception(error)
    else:
        future.set_result(result)
