"""What converts and verifies samples: worker processes of this machine, or a Dask cluster."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Executor
from contextlib import contextmanager
from typing import Any, Literal, Self

import dagster as dg
import pydantic
from pydantic import Field

from zarr_core._util.dask_cluster import dask_executor
from zarr_core._util.processes import WorkerPool
from zarr_core.sources.resolve import import_dotted


class PoolDeclaration(dg.Model, dg.Resolvable):
    """What converts the samples of a dataset."""

    kind: Literal["processes", "dask"] = Field(default="processes", description="processes or dask")
    address: str | None = Field(default=None, description="Address of a Dask scheduler, such as tcp://10.0.0.5:8786.")
    cluster: str | None = Field(
        default=None,
        description="Class of a Dask cluster to start for each run, such as dask_jobqueue.SLURMCluster, instead of an "
        "address.",
    )
    options: dict[str, Any] = Field(default={}, repr=False, description="Keyword arguments of the class.")
    scale: int = Field(default=1, description="Number of workers of a cluster that is started.")

    @pydantic.model_validator(mode="after")
    def _check(self) -> Self:
        if self.kind == "dask" and (self.address is None) == (self.cluster is None):
            raise ValueError("pool: a pool of the kind dask needs either an address or a cluster")
        if self.kind == "processes" and (self.address or self.cluster):
            raise ValueError("pool: an address or a cluster needs kind: dask")
        return self


class ConversionPool(dg.ConfigurableResource):
    """Provides executors. Any other ``concurrent.futures.Executor`` can replace them."""

    @contextmanager
    def executor(self, workers: int, pool: PoolDeclaration | None = None) -> Iterator[Executor]:
        """An executor for the duration of a block.

        If the block fails, samples not yet started are cancelled. If it is interrupted, because the run is terminated,
        processes are killed; a Dask cluster that was started ends with the block, one that was connected to finishes
        the samples that it has begun. What was written is not visible, and the next conversion continues it.

        Calls wait until a cluster has a worker.

        Args:
            workers: number of processes, if the pool is not a cluster.
            pool: as declared; processes if None.
        """
        if pool is None or pool.kind == "processes":
            with _processes(workers) as processes:
                yield processes
        else:
            with (
                _scheduler(pool) as address,
                dask_executor(address, dg.get_dagster_logger().warning) as executor,
            ):
                assert executor is not None
                yield executor


@contextmanager
def _scheduler(pool: PoolDeclaration) -> Iterator[str]:
    """The address of the declared scheduler; a cluster that is declared instead is started for the block."""
    if pool.cluster is None:
        assert pool.address is not None
        yield pool.address
    else:
        with import_dotted(pool.cluster)(**pool.options) as cluster:
            cluster.scale(pool.scale)
            yield cluster.scheduler_address


@contextmanager
def _processes(workers: int) -> Iterator[Executor]:
    pool = WorkerPool(workers)
    try:
        yield pool
    except BaseException as error:
        if not isinstance(error, Exception):
            pool.terminate()
        raise
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
