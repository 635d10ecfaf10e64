"""Executors that work on the machines of a Dask cluster."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future
from contextlib import contextmanager
from typing import Any

from zarr_core.errors import ZarrCoreError

# How long to wait for a scheduler.
_PATIENCE = "30s"


@contextmanager
def dask_executor(address: str | None) -> Iterator[Executor | None]:
    """Connect to a Dask cluster for the duration of a block. Its workers need this package and access to the stores.

    Args:
        address: of the scheduler, such as tcp://10.0.0.5:8786; None for no cluster.

    Raises:
        ZarrCoreError: ``dask.distributed`` is not installed, or no scheduler answers.
    """
    if address is None:
        yield None
        return
    try:
        from distributed import Client
    except ImportError as error:
        raise ZarrCoreError("a Dask cluster needs dask.distributed: pip install 'zarr-core[dask]'") from error
    try:
        client = Client(address, timeout=_PATIENCE, set_as_default=False)
    except (OSError, ValueError) as error:
        raise ZarrCoreError(f"no Dask scheduler answers at {address}: {error}") from error
    with client:
        yield _DaskExecutor(client)


class _DaskExecutor(Executor):
    """Submits calls to a cluster. Cancel the futures that are no longer wanted; there is nothing to shut down."""

    def __init__(self, client: Any) -> None:
        self._client = client
        # Equal calls are not the same call: one may repeat another.
        self._executor = client.get_executor(pure=False)

    def submit(self, function: Callable[..., Any], /, *arguments: Any, **options: Any) -> Future[Any]:
        """See :class:`concurrent.futures.Executor`; raises ZarrCoreError if the scheduler is gone."""
        if self._client.status != "running":  # submit would wait for another scheduler, without end
            raise ZarrCoreError("the connection to the Dask scheduler is lost; run again")
        future: Future[Any] = self._executor.submit(function, *arguments, **options)
        return future
