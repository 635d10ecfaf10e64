"""Worker processes of this machine that convert samples."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Executor
from contextlib import contextmanager

import dagster as dg

from zarr_core._util.processes import WorkerPool


class ConversionPool(dg.ConfigurableResource):
    """Provides executors. Any other ``concurrent.futures.Executor``, such as that of a cluster, can replace it."""

    @contextmanager
    def executor(self, workers: int) -> Iterator[Executor]:
        """A pool of processes for the duration of a block.

        If the block fails, samples not yet started are cancelled. If it is interrupted, because the run is terminated,
        the processes are killed: what they have written is not visible, and the next conversion continues it.

        Args:
            workers: number of processes.
        """
        pool = WorkerPool(workers)
        try:
            yield pool
        except BaseException as error:
            if not isinstance(error, Exception):
                pool.terminate()
            raise
        finally:
            pool.shutdown(wait=True, cancel_futures=True)
