"""Worker processes, calls on any executor of which one never stops another, a limit on the time of any call."""

from __future__ import annotations

import asyncio
import contextvars
import faulthandler
import multiprocessing
import os
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import (
    FIRST_COMPLETED,
    BrokenExecutor,
    CancelledError,
    Executor,
    Future,
    ProcessPoolExecutor,
    wait,
)
from contextlib import ExitStack, suppress
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

from zarr_core.errors import SourceError

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")

#: Calls in flight on an executor whose number of workers is not known.
EXECUTOR_IN_FLIGHT = 1_024
#: Environment variable with the most seconds that one sample may take.
SAMPLE_SECONDS = "ZARR_CORE_SAMPLE_SECONDS"
# A sample of a terabyte at 50 MB/s.
_DEFAULT_SECONDS = 6 * 3600.0
# A worker process ends this long after the limit if the call has still not ended.
_GRACE_SECONDS = 30.0

_lock = threading.Lock()
_ends: dict[object, float] = {}


class WorkerDiedError(Exception):
    """The process that executed a call ended before the call did.

    Attributes:
        seconds: time since the call was submitted.
        deaths: number of processes that ended with the call; a cluster repeats it.
        last: address of the last one in a cluster, where the call may have waited for a worker; "" in a pool.
    """

    def __init__(self, seconds: float = 0.0, deaths: int = 1, last: str = "") -> None:
        what = f"its worker process died {deaths} times, the last one at {last}" if last else "its worker process died"
        super().__init__(f"{what} (out of memory?)")
        self.seconds, self.deaths, self.last = seconds, deaths, last


def start_ticks(pid: int) -> str | None:
    """When a process began, in clock ticks since the host did; None if the system does not tell.

    It distinguishes the process from a later one with the same number.

    Raises:
        ProcessLookupError: there is no such process, or it has ended and waits for its parent.
    """
    with suppress(PermissionError):  # it is another user's
        os.kill(pid, 0)  # sends no signal
    try:
        state, *fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (OSError, ValueError):  # not Linux
        return None
    if state in "ZX":
        raise ProcessLookupError(f"process {pid} has ended")
    return fields[18]  # starttime, the 22nd field of proc_pid_stat(5)


class WorkerPool(Executor):
    """A pool of processes that inherit no threads or locks of this one.

    A plain fork hangs after torch or a remote filesystem was used. A fork server imports the modules of the workers
    once instead of once per worker; where there is none, workers are spawned. If a worker dies, all submitted calls
    fail with BrokenExecutor, and the next call starts new workers.

    Attributes:
        workers: number of processes; they start with the first call.
    """

    def __init__(self, workers: int) -> None:
        self.workers = workers
        self._pool: ProcessPoolExecutor | None = None

    def submit(self, function: Callable[..., Any], /, *arguments: Any, **options: Any) -> Future[Any]:
        if self._pool is not None:
            try:
                return self._pool.submit(function, *arguments, **options)
            except BrokenExecutor:
                self._pool.shutdown(wait=False)
        self._pool = _process_pool(self.workers)
        return self._pool.submit(function, *arguments, **options)

    def terminate(self) -> None:
        """End the processes at once; their calls fail."""
        if self._pool is not None:
            # Private until Python 3.14, which has terminate_workers().
            for process in list((self._pool._processes or {}).values()):
                process.terminate()

    def renew(self) -> None:
        """End the processes and the calls that still run in them; the next call starts new ones."""
        self.terminate()
        self.shutdown(wait=False)
        self._pool = None

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        if self._pool is not None:
            self._pool.shutdown(wait, cancel_futures=cancel_futures)


def _process_pool(workers: int) -> ProcessPoolExecutor:
    forkserver = "forkserver" in multiprocessing.get_all_start_methods()
    context = multiprocessing.get_context("forkserver" if forkserver else "spawn")
    if forkserver:
        context.set_forkserver_preload(["torch", "zarr_core.points.convert.sample", "zarr_core.sources.tensors"])
    return ProcessPoolExecutor(workers, mp_context=context, initializer=_prepare_worker)


def _prepare_worker() -> None:
    """In a new worker process: let SIGTERM end it, and use one thread, since the processes already share the cores.

    A pool ends its other workers by SIGTERM when one dies, and waits for them. A process whose parent ignores SIGTERM
    inherits that; Dagster ignores it after an interrupt, and whenever a shell started it in the background.
    """
    import torch

    threading.Thread(target=_end_with_parent, name="zarr_core.parent", daemon=True).start()
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    torch.set_num_threads(1)


def _end_with_parent() -> None:
    """End this process when the one that owns its pool has ended, even by SIGKILL.

    A worker holds both ends of the pipe that brings its calls, so it would wait for the next one for ever, and its fork
    server with it.
    """
    owner = multiprocessing.parent_process()
    assert owner is not None
    owner.join()
    os._exit(1)


def calls_in_flight(workers: int) -> int:
    """How many calls to submit at a time: enough that no worker waits for the next one."""
    return 2 * workers + 2


def each_result(
    executor: Executor, calls: Iterable[tuple[_Item, Callable[[], _Result]]], in_flight: int
) -> Iterator[tuple[_Item, _Result | Exception]]:
    """Execute calls on an executor, and yield each item with its call's result or exception when it is done.

    A dead worker breaks an executor: every submitted call fails, and nothing tells which of them ended the worker.
    These calls are repeated one at a time, and one that breaks the executor again gets a WorkerDiedError. If the
    executor accepts no further calls, each remaining call gets the error of its submission.

    Args:
        executor: not shut down. Any exception that one of its futures raises is the result of that call alone, for
            example the ``KilledWorker`` of dask.distributed; only KeyboardInterrupt and SystemExit are raised.
        calls: items and their calls, which are picklable. Consumed as they are submitted.
        in_flight: maximum number of submitted calls.
    """
    remaining = iter(calls)
    suspects: deque[tuple[_Item, Callable[[], _Result]]] = deque()
    running: dict[Future[_Result], tuple[_Item, Callable[[], _Result]]] = {}
    try:
        while True:
            alone = bool(suspects) and not running
            # While there are suspects, calls that are still running end first.
            batch = (
                [suspects.popleft()] if alone else list(islice(remaining, 0 if suspects else in_flight - len(running)))
            )
            if alone and isinstance(executor, WorkerPool):
                executor.renew()  # a call over its time limit goes on until it takes its process with it
            submitted = time.monotonic()
            for call in batch:
                try:
                    running[executor.submit(call[1])] = call
                except Exception as error:  # the executor is broken or shut down
                    yield call[0], error
            if not running:
                if not batch:
                    return
                continue
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                call = running.pop(future)
                outcome: _Result | Exception
                try:
                    outcome = future.result()
                except BrokenExecutor:
                    if not alone:
                        suspects.append(call)
                        continue
                    outcome = WorkerDiedError(time.monotonic() - submitted)
                except asyncio.CancelledError:  # a BaseException, which an executor of coroutines may raise
                    outcome = CancelledError("it was cancelled")
                except Exception as error:
                    outcome = error
                yield call[0], outcome
    finally:
        for future in running:
            future.cancel()


def map_in_processes(
    function: Callable[[_Item], _Result],
    items: Iterable[_Item],
    workers: int,
    failed: Callable[[_Item, Exception], _Result],
    executor: Executor | None = None,
) -> Iterator[_Result]:
    """``map(function, items)``, in order, in worker processes; in this process for one worker.

    Args:
        function, items: picklable.
        workers: number of processes.
        failed: returns the result of an item for which ``function`` raised an exception or its worker process died;
            may raise, which ends the map.
        executor: calls the function instead of ``workers`` processes; not shut down.
    """
    if executor is None and workers == 1:
        for item in items:
            try:
                result = function(item)
            except Exception as error:
                result = failed(item, error)
            yield result
        return
    finished: dict[int, _Result] = {}
    due = 0
    with ExitStack() as cleanup:
        in_flight = EXECUTOR_IN_FLIGHT if executor else calls_in_flight(workers)
        executor = executor or cleanup.enter_context(WorkerPool(workers))
        calls = (((number, item), partial(function, item)) for number, item in enumerate(items))
        for (number, item), outcome in each_result(executor, calls, in_flight):
            finished[number] = failed(item, outcome) if isinstance(outcome, Exception) else outcome
            while due in finished:
                yield finished.pop(due)
                due += 1


class TimeLimitError(Exception):
    """A call took longer than its limit.

    Args:
        seconds: the limit.
        instead: what else may have happened, if that is not known.
    """

    def __init__(self, seconds: float, instead: str = "") -> None:
        super().__init__(seconds, instead)

    def __str__(self) -> str:
        seconds, instead = self.args
        otherwise = f"{instead}, or it " if instead else ""
        return (
            f"{otherwise}took longer than {seconds:g} s, the limit of one sample; if it needs more, set "
            f"{SAMPLE_SECONDS} to a larger number of seconds and run again"
        )


def sample_seconds() -> float:
    """The limit of one sample that the environment sets, or six hours; raises SourceError if it is not a number."""
    text = os.environ.get(SAMPLE_SECONDS, str(_DEFAULT_SECONDS))
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds <= threading.TIMEOUT_MAX / 2:
        raise SourceError(f"{SAMPLE_SECONDS} must be a positive number of seconds, not {text!r:.80}")
    return seconds


def call_within(seconds: float, function: Callable[[], _Result]) -> _Result:
    """The result of a function, which is called in a thread of its own.

    A thread cannot be stopped: over the limit it goes on, and its result is dropped. A worker process ends shortly
    afterwards, with the thread, even if its code never releases Python's lock.

    Raises:
        TimeLimitError: the function has not ended within the limit.
    """
    key = object()
    if multiprocessing.parent_process() is not None:  # a worker, of a pool or of Dask's nanny, which is replaced
        _end_process_at(key, time.monotonic() + seconds + min(seconds, _GRACE_SECONDS))
    outcome = call_in_thread(function, "zarr_core.sample")
    outcome.add_done_callback(lambda _: _end_process_at(key, None))
    if wait([outcome], seconds).not_done:
        raise TimeLimitError(seconds)
    return outcome.result()


def call_in_thread(function: Callable[[], _Result], name: str) -> Future[_Result]:
    """Start to call a function in a thread of its own, for which a process that ends does not wait."""
    outcome: Future[_Result] = Future()
    context = contextvars.copy_context()

    def call() -> None:
        try:
            outcome.set_result(context.run(function))
        except BaseException as error:
            outcome.set_exception(error)

    threading.Thread(target=call, name=name, daemon=True).start()
    return outcome


def _end_process_at(key: object, end: float | None) -> None:
    """End this process at a time, unless this is called with the same key and None before."""
    with _lock:
        if end is not None:
            _ends[key] = end
        elif _ends.pop(key, None) is None:
            return
        if _ends:
            # Its timer needs no lock of Python's. The second descriptor is standard error.
            faulthandler.dump_traceback_later(max(min(_ends.values()) - time.monotonic(), 0.001), exit=True, file=2)
        else:
            faulthandler.cancel_dump_traceback_later()
