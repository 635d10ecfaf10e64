"""The same function for many samples, in worker processes, with the results in the samples' order."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import BrokenExecutor, ProcessPoolExecutor
from typing import TypeVar

from zarr_core.errors import ZarrCoreError

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")


def map_in_processes(function: Callable[[_Item], _Result], items: Iterable[_Item], workers: int) -> Iterator[_Result]:
    """``map(function, items)``, in this process for one worker.

    Raises:
        ZarrCoreError: a worker process died.
    """
    if workers == 1:
        yield from map(function, items)
        return
    # Spawned, not forked: a filesystem that was used in this process has threads that a fork would leave behind.
    with ProcessPoolExecutor(workers, mp_context=multiprocessing.get_context("spawn")) as pool:
        try:
            yield from pool.map(function, items)
        except BrokenExecutor as error:
            raise ZarrCoreError("a worker process died (out of memory?); run again with fewer workers") from error
