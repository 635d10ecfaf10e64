"""Executors that work on the machines of a Dask cluster."""

from __future__ import annotations

import hashlib
import logging
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError, Executor, Future, InvalidStateError
from contextlib import contextmanager, suppress
from functools import cache, partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from threading import Event, Thread
from typing import Any

from zarr_core._util.extras import extra
from zarr_core._util.processes import WorkerDiedError
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

    Calls wait until the cluster has a worker.

    Args:
        address: of the scheduler, such as tcp://10.0.0.5:8786; None for no cluster.
        warn: called with a warning, from another thread, whenever calls wait and the cluster has had no worker for a
            minute. The wait goes on.

    Raises:
        ZarrCoreError: ``dask.distributed`` is not installed, or no scheduler answers.
    """
    if address is None:
        yield None
        return
    refuse_credentials(address)
    with extra("dask", "a Dask cluster needs dask.distributed"):
        from distributed import Client
        from distributed.comm import get_address_host
    try:
        get_address_host(address)  # a client of an unknown scheme waits for a minute when the process ends
        client = Client(address, timeout=_PATIENCE, set_as_default=False)
    except (OSError, ValueError) as error:
        raise ZarrCoreError(f"no Dask scheduler answers at {address}: {error}") from error
    try:
        with _DaskExecutor(client, address, warn) as executor:
            yield executor
    finally:
        log = logging.getLogger("distributed.client")
        # Otherwise it logs the traceback of an attempt to connect again, which the end interrupts.
        log.disabled = client.status == "connecting"
        client.close()
        log.disabled = False


class _Call:
    """A call that is unpickled, and executed, inside the task of a worker.

    Dask unpickles a task before it starts it. If that fails, because the worker lacks an extra or has another version
    of this package, the worker loses its connection and starts again, and the client is told nothing. So the task is
    to unpickle bytes: what fails then is an exception of this call alone.
    """

    def __init__(self, function: Callable[[], Any]) -> None:
        self._function = function

    def __reduce__(self) -> tuple[Callable[[str, bytes], Any], tuple[str, bytes]]:
        from distributed.protocol.pickle import dumps

        return _execute, (_software(), dumps(self._function))


def _execute(software: str, pickled: bytes) -> Any:
    """Execute a call on a worker, whose software must be that of the client."""
    from distributed import get_worker
    from distributed.protocol.pickle import loads

    if software != _software():
        raise ZarrCoreError(
            f"the Dask worker {get_worker().address} has {_software()}, and its client has {software}: they must have "
            "the same"
        )
    return loads(pickled)()


@cache
def _software() -> str:
    """What workers and clients must share. Checkouts of one version may differ, so their files are compared as well."""
    package = Path(__file__).parents[1]
    code = hashlib.sha256(b"".join(file.read_bytes() for file in sorted(package.rglob("*.py")))).hexdigest()
    try:
        release = version("zarr-core")
    except PackageNotFoundError:  # a checkout that is not installed
        release = "of a checkout"
    return f"zarr_core {release} (code {code[:8]}) on Python {sys.version_info.major}.{sys.version_info.minor}"


class _DaskExecutor(Executor):
    """Submits calls to a cluster. When the scheduler is lost, all calls fail: Dask leaves some of them open."""

    def __init__(self, client: Any, address: str, warn: Callable[[str], object]) -> None:
        self._client = client
        self._address = address
        self._warn = warn
        # Equal calls are not the same call: one may repeat another.
        self._executor = client.get_executor(pure=False)
        self._open: set[Future[Any]] = set()
        self._closed = Event()
        self._watch = Thread(target=self._watch_cluster, daemon=True)
        self._watch.start()

    def submit(self, function: Callable[..., Any], /, *arguments: Any, **options: Any) -> Future[Any]:
        """See :class:`concurrent.futures.Executor`; raises ZarrCoreError if the scheduler is gone."""
        from distributed.protocol.pickle import dumps, loads

        if self._is_lost():  # Dask would wait for another scheduler, without end
            raise ZarrCoreError(_LOST)
        call = dumps(_Call(partial(function, *arguments, **options)))
        inner: Future[Any] = self._executor.submit(loads, call)
        future: Future[Any] = Future()
        self._open.add(future)
        future.add_done_callback(self._open.discard)
        future.add_done_callback(lambda done: inner.cancel() if done.cancelled() else None)
        inner.add_done_callback(partial(self._copy_result, future, time.monotonic()))
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """End the watch over the scheduler. Calls go on until their futures are cancelled or the client closes."""
        self._closed.set()
        self._watch.join()

    def _is_lost(self) -> bool:
        return bool(self._client.status != "running")

    def _watch_cluster(self) -> None:
        """Fail the open calls when the scheduler is lost; warn when they wait and no worker is left."""
        waits_since, warned = time.monotonic(), False
        while not self._closed.wait(_PAUSE_SECONDS):
            if self._is_lost():
                for future in list(self._open):
                    with suppress(InvalidStateError):
                        future.set_exception(ZarrCoreError(_LOST))
            elif not self._open or self._has_a_worker():
                waits_since, warned = time.monotonic(), False
            elif not warned and time.monotonic() - waits_since >= _WORKER_PATIENCE_SECONDS:
                self._warn(
                    f"the Dask scheduler at {self._address} has had no worker for {_WORKER_PATIENCE_SECONDS:.0f} s. "
                    "The wait goes on: do the jobs or pods of the workers start, and can they reach this address?"
                )
                warned = True

    def _has_a_worker(self) -> bool:
        with suppress(OSError, RuntimeError):  # the connection is being lost
            return bool(self._client.scheduler_info(n_workers=1)["workers"])
        return False

    def _copy_result(self, future: Future[Any], submitted: float, done: Future[Any]) -> None:
        from distributed.scheduler import KilledWorker

        error: BaseException | None
        if done.cancelled():  # by this executor's user, or because the scheduler was lost
            error = ZarrCoreError(_LOST) if self._is_lost() else CancelledError("the Dask scheduler cancelled the call")
        else:
            error = done.exception()
        if isinstance(error, ImportError | AttributeError) and "zarr_core" in str(error):
            error = ZarrCoreError(f"a Dask worker cannot run {_software()}: {error}")
        if isinstance(error, KilledWorker):
            seconds, address = time.monotonic() - submitted, error.last_worker.address
            error = WorkerDiedError(seconds, error.allowed_failures + 1, address)
        with suppress(InvalidStateError):  # it was cancelled, or has failed because the scheduler was lost
            if error is None:
                future.set_result(done.result())
            else:
                future.set_exception(error)
