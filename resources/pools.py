"""Where samples are converted: worker processes of this machine."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Executor
from contextlib import contextmanager

import dagster as dg

from zarr_core._util.processes import worker_pool


class ConversionPool(dg.ConfigurableResource):
    """Gives out executors; a cluster's, or anything else that speaks ``concurrent.futures``, can take its place."""

    @contextmanager
    def executor(self, workers: int) -> Iterator[Executor]:
        """A pool of so many processes, gone at the end of the block.

        When the block fails, samples not yet begun are given up rather than waited for.
        """
        pool = worker_pool(workers)
        try:
            yield pool
        finally:
            pool.shutdown(wait=True, cancel_futures=True)
