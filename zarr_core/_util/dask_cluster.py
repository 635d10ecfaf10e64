"""Executors that work on the machines of a Dask cluster."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError, Executor, Future, InvalidStateError
from contextlib import contextmanager, suppress
from functools import partial
from threading import Event, Thread
from typing import Any

from zarr_core._util.redaction import refuse_credentials
from zarr_core.errors import ZarrCoreError

# How long to wait for a scheduler.
_PATIENCE = "30s"
# Time after which a cluster without workers is reported. Queues of Slurm take longer, so the wait goes on.
_WORKER_PATIENCE_SECONDS = 60.0
# Pause between two looks at the connection.
_PAUSE_SECONDS = 1.0
_LOST = "the connection to the Dask scheduler is lost; run again"


@contextmanager
def dask_executor(address: str | None, warn: Callable[[str], object] = warnings.warn) -> Iterator[Executor | None]:
    """Connect to a Dask cluster for the duration of a block. Its workers need this package and access to the stores.

    The block begins when the cluster has a worker.

    Args:
        address: of the scheduler, such as tcp://10.0.0.5:8786; None for no cluster.
        warn: called with a warning if the cluster has no worker for a minute. The wait goes on.

    Raises:
        ZarrCoreError: ``dask.distributed`` is not installed, or no scheduler answers.
    """
    if address is None:
        yield None
        return
    refuse_credentials(address)
    try:
        from distributed import Client
    except ImportError as error:
        raise ZarrCoreError("a Dask cluster needs dask.distributed: pip install 'zarr-core[dask]'") from error
    try:
        client = Client(address, timeout=_PATIENCE, set_as_default=False)
    except (OSError, ValueError) as error:
        raise ZarrCoreError(f"no Dask scheduler answers at {address}: {error}") from error
    with client:
        _wait_for_a_worker(client, address, warn)
        with _DaskExecutor(client) as executor:
            yield executor


def _wait_for_a_worker(client: Any, address: str, warn: Callable[[str], object]) -> None:
    try:
        try:
            client.wait_for_workers(1, timeout=_WORKER_PATIENCE_SECONDS)
        except TimeoutError:
            warn(
                f"the Dask scheduler at {address} has had no worker for {_WORKER_PATIENCE_SECONDS:.0f} s. The wait "
                "goes on: do the jobs or pods of the workers start, and can they reach this address?"
            )
            client.wait_for_workers(1)
    except OSError as error:
        raise ZarrCoreError(_LOST) from error


class _DaskExecutor(Executor):
    """Submits calls to a cluster. When the scheduler is lost, all calls fail: Dask leaves some of them open."""

    def __init__(self, client: Any) -> None:
        self._client = client
        # Equal calls are not the same call: one may repeat another.
        self._executor = client.get_executor(pure=False)
        self._open: set[Future[Any]] = set()
        self._closed = Event()
        self._watch = Thread(target=self._fail_when_lost, daemon=True)
        self._watch.start()

    def submit(self, function: Callable[..., Any], /, *arguments: Any, **options: Any) -> Future[Any]:
        """See :class:`concurrent.futures.Executor`; raises ZarrCoreError if the scheduler is gone."""
        if self._is_lost():  # Dask would wait for another scheduler, without end
            raise ZarrCoreError(_LOST)
        inner: Future[Any] = self._executor.submit(function, *arguments, **options)
        future: Future[Any] = Future()
        self._open.add(future)
        future.add_done_callback(self._open.discard)
        future.add_done_callback(lambda done: inner.cancel() if done.cancelled() else None)
        inner.add_done_callback(partial(_copy_result, future))
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """End the watch over the scheduler. Calls go on until their futures are cancelled or the client closes."""
        self._closed.set()
        self._watch.join()

    def _is_lost(self) -> bool:
        return bool(self._client.status != "running")

    def _fail_when_lost(self) -> None:
        while not self._closed.wait(_PAUSE_SECONDS):
            if self._is_lost():
                for future in list(self._open):
                    with suppress(InvalidStateError):
                        future.set_exception(ZarrCoreError(_LOST))


def _copy_result(future: Future[Any], done: Future[Any]) -> None:
    with suppress(InvalidStateError):  # it was cancelled, or has failed because the scheduler was lost
        error = CancelledError() if done.cancelled() else done.exception()
        if error is None:
            future.set_result(done.result())
        else:
            future.set_exception(error)
