"""Fetches the next batches in threads of the trainer's process.

Reading, checking, decoding and casting release Python's lock, so threads overlap with each other and with the trainer.
Unlike worker processes they start at once, copy no batch, and share open files, metadata and caches.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

T = TypeVar("T")


def fetch_items(dataset: Any, indices: list[int]) -> Any:
    """The items at some indices of a dataset, read together if it can do that."""
    return dataset.__getitems__(indices) if hasattr(dataset, "__getitems__") else [dataset[i] for i in indices]


def map_in_threads(
    fetch: Callable[[list[int]], T], batches: Iterator[list[int]], num_threads: int, prefetch_factor: int
) -> Iterator[T]:
    """Fetch batches in threads and yield them in order. An error is raised where its batch would be yielded.

    Args:
        fetch: reads a batch.
        batches: indices of the samples of each batch, taken by the calling thread.
        num_threads: batches that are read at the same time.
        prefetch_factor: batches per thread that are read ahead of the trainer, at most.
    """
    ahead = num_threads * prefetch_factor
    pending: deque[Future[T]] = deque()
    with ThreadPoolExecutor(num_threads, thread_name_prefix="zarr_core.loader") as threads:
        try:
            for indices in batches:
                pending.append(threads.submit(fetch, indices))
                if len(pending) > ahead:
                    yield pending.popleft().result()
            while pending:
                yield pending.popleft().result()
        finally:
            for future in pending:
                future.cancel()
