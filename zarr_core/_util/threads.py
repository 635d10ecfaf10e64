"""Computes results ahead of their consumer, in threads of its process.

Reading, checking, decoding and casting release Python's lock, so threads overlap with each other and with the consumer.
Unlike worker processes they start at once, copy no result, and share open files, metadata and caches.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from typing import TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")


def map_in_threads(
    function: Callable[[Item], Result], items: Iterable[Item], num_threads: int, ahead: int
) -> Iterator[Result]:
    """``map`` in threads. An error is raised where its result would be yielded.

    Args:
        function: called in threads.
        items: taken by the calling thread.
        num_threads: calls at the same time, at most.
        ahead: results that are computed, or being computed, when one is yielded, at most.
    """
    pending: deque[Future[Result]] = deque()
    failed = threading.Event()

    def call(item: Item) -> Result:
        if failed.is_set():  # nobody asks for results after that of an error, and the executor waits for them
            raise CancelledError
        try:
            return function(item)
        except BaseException:
            failed.set()
            raise

    with ThreadPoolExecutor(num_threads, thread_name_prefix="zarr_core.ahead") as threads:
        try:
            for item in items:
                pending.append(threads.submit(call, item))
                if len(pending) > ahead:
                    yield pending.popleft().result()
            while pending:
                yield pending.popleft().result()
        finally:
            for future in pending:
                future.cancel()
