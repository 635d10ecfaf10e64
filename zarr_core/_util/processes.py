"""Worker processes, and an ordered parallel map."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import BrokenExecutor, ProcessPoolExecutor
from typing import TypeVar

from zarr_core.errors import ZarrCoreError

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")


def worker_pool(workers: int) -> ProcessPoolExecutor:
    """A pool of processes that inherit no threads or locks of this one.

    A plain fork hangs after torch or a remote filesystem was used. A fork server imports the modules of the workers
    once instead of once per worker; where there is none, workers are spawned.
    """
    forkserver = "forkserver" in multiprocessing.get_all_start_methods()
    context = multiprocessing.get_context("forkserver" if forkserver else "spawn")
    if forkserver:
        context.set_forkserver_preload(["torch", "zarr_core.points.convert_sample", "zarr_core.sources.tensors"])
    return ProcessPoolExecutor(workers, mp_context=context, initializer=_use_one_thread)


def _use_one_thread() -> None:
    """The processes already share the cores."""
    import torch

    torch.set_num_threads(1)


def map_in_processes(function: Callable[[_Item], _Result], items: Iterable[_Item], workers: int) -> Iterator[_Result]:
    """``map(function, items)`` in worker processes; in this process for one worker.

    Raises:
        ZarrCoreError: a worker process died.
    """
    if workers == 1:
        yield from map(function, items)
        return
    with worker_pool(workers) as pool:
        try:
            yield from pool.map(function, items)
        except BrokenExecutor as error:
            raise ZarrCoreError("a worker process died (out of memory?); run again with fewer workers") from error
