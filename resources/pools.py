"""Where samples are converted: worker processes of this machine."""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator
from concurrent.futures import Executor, ProcessPoolExecutor
from contextlib import contextmanager

import dagster as dg
from pydantic import Field


class ConversionPool(dg.ConfigurableResource):
    """Gives out executors; anything that speaks ``concurrent.futures.Executor`` can stand in for it."""

    start_method: str = Field(
        default="forkserver",
        description="How worker processes start: forkserver or spawn. Never fork: filesystems hold threads.",
    )

    @contextmanager
    def executor(self, workers: int) -> Iterator[Executor]:
        """A pool of so many processes, gone at the end of the block.

        When the block fails, samples not yet begun are given up rather than waited for.
        """
        context = multiprocessing.get_context(self.start_method)
        if self.start_method == "forkserver":
            # Imported once, by the server, instead of once a worker.
            context.set_forkserver_preload(["torch", "zarr_core.convert"])
        pool = ProcessPoolExecutor(workers, mp_context=context)
        try:
            yield pool
        finally:
            pool.shutdown(wait=True, cancel_futures=True)
