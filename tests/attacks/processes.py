"""The processes that attacks run and kill, each in a process group of its own."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import subprocess
import sys
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from tests.attacks.tally import Tally
from tests.helpers import fork_server
from zarr_core._util import processes

PROJECT = Path(__file__).resolve().parents[2]
# Limit for one process, ten times what any takes here. A process that exceeds it hangs.
PATIENCE = 300.0


class _Process(ABC):
    pid: int

    @property
    @abstractmethod
    def running(self) -> bool:
        """Whether it has not ended."""

    @abstractmethod
    def _wait(self, seconds: float | None) -> tuple[int, str] | None:
        """Exit status (negative: the signal) and error output; None if it has not ended by then."""

    def kill_and_look(self, tally: Tally, what: str) -> bool:
        """``kill -9`` of the process group; whether it was still at work. What had ended badly before is counted."""
        at_work = self.running
        status, errors = self._kill()
        if not at_work and status != 0:
            tally.add("tracebacks", 1, f"{what}: ended by itself, status {status}: {errors[-500:]}")
        return at_work

    def finish(self, tally: Tally, what: str, seconds: float = PATIENCE) -> tuple[int, str]:
        """Exit status and error output at its end. A traceback, a death by signal and a hang are counted."""
        ended = self._wait(seconds)
        if ended is None:
            status, errors = self._kill()
            tally.add("tracebacks", 1, f"{what}: no end after {seconds:.0f} s: {errors[-300:]}")
            return status, errors
        status, errors = ended
        if status < 0 or "Traceback (most recent call last)" in errors:
            tally.add("tracebacks", 1, f"{what}: status {status}: {errors[-500:]}")
        return status, errors

    def _kill(self) -> tuple[int, str]:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        ended = self._wait(None)
        assert ended is not None
        return ended


class Command(_Process):
    """A new Python process, which imports this checkout and its tests.

    Args:
        arguments: of Python.
        variables: of the environment, besides those of this process.
    """

    def __init__(self, arguments: Sequence[str | Path], **variables: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, *map(str, arguments)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
            env=environment() | variables,
        )
        self.pid = self._process.pid

    @property
    def running(self) -> bool:
        return self._process.poll() is None

    def _wait(self, seconds: float | None) -> tuple[int, str] | None:
        try:
            _, errors = self._process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            return None
        return self._process.returncode, errors


class Forked(_Process):
    """A function in a process forked from a server that has imported the library, so that it begins at once.

    A command spends seconds of CPU on imports before it does what an attack wants to interrupt, and so does each fork
    server of its workers. Here the workers are forked from the process, which has not started threads yet.

    Args:
        function: importable, with picklable arguments. What it returns is the exit status.
    """

    def __init__(self, function: Callable[..., int | None], *arguments: Any) -> None:
        ready, begun = fork_server.context().Pipe(duplex=False)
        handle, errors = tempfile.mkstemp(prefix="zarr_core_attack_")
        os.close(handle)
        self._errors = Path(errors)
        self._process = fork_server.start(_run, begun, errors, function, arguments)
        assert self._process.pid is not None
        self.pid = self._process.pid
        begun.close()
        ready.recv()  # from here on the process has a group of its own
        ready.close()

    @property
    def running(self) -> bool:
        return self._process.exitcode is None

    def _wait(self, seconds: float | None) -> tuple[int, str] | None:
        self._process.join(seconds)
        if self._process.exitcode is None:
            return None
        errors = self._errors.read_text()
        self._errors.unlink()
        return self._process.exitcode, errors


def _run(begun: Connection, errors: str, function: Callable[..., int | None], arguments: tuple[Any, ...]) -> None:
    os.setsid()
    os.dup2(os.open(errors, os.O_WRONLY), 2)
    context = multiprocessing.get_context("fork")
    processes._process_pool = lambda workers: ProcessPoolExecutor(workers, mp_context=context)
    begun.send(None)
    begun.close()
    sys.exit(function(*arguments))


def environment() -> dict[str, str]:
    """Environment of a child process, which imports this checkout and its tests."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(PROJECT), os.environ.get("PYTHONPATH", "")])}
