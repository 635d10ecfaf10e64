"""Calls on executors of every kind: one that fails, or whose worker dies, stops no other."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable
from concurrent.futures import BrokenExecutor, CancelledError, Executor, Future
from functools import partial
from multiprocessing.connection import Connection, wait
from typing import Any
from unittest.mock import patch

import pytest

from tests.helpers.fork_server import start
from tests.helpers.waiting import LIMIT_SECONDS
from zarr_core._util.processes import WorkerDiedError, WorkerPool, each_result, map_in_processes


class Fake(Executor):
    """Executes nothing before ``in_flight`` calls are submitted, and breaks as a process pool does.

    Args:
        in_flight: what the caller keeps in flight.
        replaced: whether calls are accepted again after it broke.
    """

    def __init__(self, in_flight: int, replaced: bool = True) -> None:
        self.in_flight, self.replaced = in_flight, replaced
        self.waiting: list[tuple[Future[Any], Callable[[], Any]]] = []
        self.most = 0
        self.broken = False

    def submit(self, function: Callable[..., Any], /, *_: Any, **__: Any) -> Future[Any]:
        if self.broken and not self.replaced:
            raise BrokenExecutor("it is broken")
        future: Future[Any] = Future()
        self.waiting = [(f, call) for f, call in self.waiting if not f.done()]
        self.waiting.append((future, function))
        self.most = max(self.most, len(self.waiting))
        if self.broken or len(self.waiting) == self.in_flight:
            self.run()
        return future

    def run(self) -> None:
        for future, function in self.waiting:
            try:
                future.set_result(function())
            except BrokenExecutor as error:
                self.broken = True
                for other, _ in self.waiting:
                    if not other.done():
                        other.set_exception(error)
                return
            except BaseException as error:
                future.set_exception(error)


def _call(number: int, raised: dict[int, BaseException]) -> int:
    if number in raised:
        raise raised[number]
    return number


def _outcomes(executor: Fake, count: int, raised: dict[int, BaseException]) -> dict[int, Any]:
    calls = ((number, partial(_call, number, raised)) for number in range(count))
    return dict(each_result(executor, calls, executor.in_flight))


class KilledWorker(Exception):
    """As dask.distributed raises it for a task during which several workers died."""


@pytest.mark.parametrize("error", [KilledWorker("died"), CancelledError(), ValueError("x"), asyncio.CancelledError()])
def test_an_exception_is_the_result_of_its_call_alone(error: BaseException) -> None:
    found = _outcomes(Fake(3), 9, {4: error})
    assert isinstance(found.pop(4), CancelledError if isinstance(error, asyncio.CancelledError) else type(error))
    assert found == {number: number for number in range(9) if number != 4}


def test_the_calls_of_a_broken_executor_are_repeated_one_at_a_time() -> None:
    executor = Fake(4)
    found = _outcomes(executor, 10, {1: BrokenExecutor("terminated"), 8: BrokenExecutor("terminated")})
    assert {number for number, outcome in found.items() if isinstance(outcome, WorkerDiedError)} == {1, 8}
    assert len(found) == 10
    assert executor.most == 4


def test_an_executor_that_stays_broken_is_reported_for_each_call() -> None:
    found = _outcomes(Fake(4, replaced=False), 6, {2: BrokenExecutor("terminated")})
    assert {number for number, outcome in found.items() if isinstance(outcome, BrokenExecutor)} == {2, 3, 4, 5}
    assert (found[0], found[1]) == (0, 1)


def test_an_interrupt_is_raised() -> None:
    with pytest.raises(KeyboardInterrupt):
        _outcomes(Fake(2), 4, {1: KeyboardInterrupt()})


def test_a_map_in_this_process_keeps_the_order_and_reports_failures() -> None:
    found = map_in_processes(lambda item: 10 // item, [5, 0, 2], 1, lambda item, error: repr((item, error)))
    assert list(found) == [2, "(0, ZeroDivisionError('integer division or modulo by zero'))", 5]


def test_sigterm_ends_a_worker_whose_parent_ignores_it() -> None:
    """Otherwise a pool of which one worker died waits for the others for ever."""
    with WorkerPool(1) as pool:
        assert pool.submit(signal.signal, signal.SIGTERM, signal.SIG_IGN).result() is signal.SIG_DFL
        assert pool._pool is not None
        prepare = pool._pool._initializer
        pool.submit(prepare).result()
        assert pool.submit(signal.getsignal, signal.SIGTERM).result() is signal.SIG_DFL


def _die() -> int:
    os.kill(os.getpid(), signal.SIGKILL)
    return 0


def test_a_call_that_is_repeated_alone_has_a_process_of_its_own() -> None:
    """An earlier one that was given up may still go on in the others, and end them."""
    with WorkerPool(1) as pool:
        calls = [(0, _die), (1, os.getpid), (2, os.getpid), (3, os.getpid)]
        found = dict(each_result(pool, calls, in_flight=4))
    assert isinstance(found.pop(0), WorkerDiedError)
    assert len({*found.values()}) == 3


def _own_and_parent() -> tuple[int, int]:
    return os.getpid(), os.getppid()


def _wait_with_an_idle_worker(methods: list[str], answer: Connection) -> None:
    with patch.object(multiprocessing, "get_all_start_methods", lambda: methods):
        pool = WorkerPool(1)
        answer.send(pool.submit(_own_and_parent).result())
        threading.Event().wait()


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="waits for processes that are no children, as Linux does")
@pytest.mark.parametrize("method", ["forkserver", "spawn"])
def test_idle_workers_and_their_fork_server_end_with_a_process_that_is_killed(method: str) -> None:
    """They hold the pipe of their own calls, and the one by which the server sees that nobody needs it any more."""
    answers, answer = multiprocessing.Pipe(duplex=False)
    killed = start(_wait_with_an_idle_worker, [method], answer)
    handles = [os.pidfd_open(pid) for pid in answers.recv()]  # of a spawned worker, the parent is the killed process
    killed.kill()
    killed.join()
    ended = [bool(wait([handle], LIMIT_SECONDS)) for handle in handles]
    for handle, has_ended in zip(handles, ended, strict=True):
        if not has_ended:
            signal.pidfd_send_signal(handle, signal.SIGKILL)
        os.close(handle)
    assert all(ended)
