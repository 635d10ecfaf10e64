"""Counts of an attack, and the processes that it runs."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from zarr_core.errors import ZarrCoreError

PROJECT = Path(__file__).resolve().parents[2]
# Limit for one command, ten times what any takes here. A command that exceeds it hangs.
PATIENCE = 300.0


@dataclass
class Tally:
    """Results of an attack.

    Attributes:
        rounds: how often it was carried out.
        faults: things that were done to the library: processes killed, bytes changed, requests refused.
        lost: samples that a commit had named and a later reader could not have.
        wrong: samples that were returned with other bytes than the source's.
        tracebacks: exceptions that are none of ours, processes that died or hung by themselves.
        refused: outcomes that were one of our own errors, where that is a right answer.
        notes: what went wrong, for people.
    """

    rounds: int = 0
    faults: int = 0
    lost: int = 0
    wrong: int = 0
    tracebacks: int = 0
    refused: int = 0
    notes: list[str] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    @property
    def held(self) -> bool:
        """Whether nothing was lost, wrong or a traceback."""
        return not (self.lost or self.wrong or self.tracebacks)

    def add(self, name: str, count: int = 1, note: str = "") -> None:
        """Count; from any thread."""
        with self._lock:
            setattr(self, name, getattr(self, name) + count)
            if note and len(self.notes) < 20:
                self.notes.append(f"{name}: {note}")

    @contextlib.contextmanager
    def ours(self, what: str) -> Iterator[None]:
        """Accept errors of the library; count any other exception."""
        try:
            yield
        except ZarrCoreError:
            self.add("refused")
        except Exception as error:
            self.add("tracebacks", 1, f"{what}: {type(error).__name__}: {error}")


@dataclass(frozen=True)
class Run:
    """A finished command: exit status (negative: the signal) and output."""

    status: int
    output: str
    errors: str


Attack = Callable[[int, Path, Tally, random.Random], None]


def environment(**more: str) -> dict[str, str]:
    """Environment of a child process, which imports this checkout and its tests."""
    path = os.pathsep.join([str(PROJECT), os.environ.get("PYTHONPATH", "")])
    return {**os.environ, "PYTHONPATH": path, **more}


def start(arguments: Sequence[str | Path], **more: str) -> subprocess.Popen[str]:
    """A Python process with its own process group."""
    return subprocess.Popen(
        [sys.executable, *map(str, arguments)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env=environment(**more),
    )


def finish(process: subprocess.Popen[str], tally: Tally, what: str, seconds: float = PATIENCE) -> Run:
    """Wait for a process; a traceback, a death by signal and a hang are counted."""
    try:
        output, errors = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        kill(process)
        output, errors = process.communicate()
        tally.add("tracebacks", 1, f"{what}: no end after {seconds:.0f} s: {errors[-300:]}")
        return Run(-signal.SIGKILL, output, errors)
    if process.returncode < 0 or "Traceback (most recent call last)" in errors:
        tally.add("tracebacks", 1, f"{what}: status {process.returncode}: {errors[-500:]}")
    return Run(process.returncode, output, errors)


def kill(process: subprocess.Popen[str]) -> None:
    """``kill -9`` of a process and its children."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def kill_and_look(process: subprocess.Popen[str], tally: Tally, what: str) -> bool:
    """``kill -9`` of a process group; whether the process was still at work. What had ended badly before is counted."""
    at_work = process.poll() is None
    kill(process)
    _, errors = process.communicate()
    if not at_work and process.returncode != 0:
        tally.add("tracebacks", 1, f"{what}: ended by itself, status {process.returncode}: {errors[-500:]}")
    return at_work
