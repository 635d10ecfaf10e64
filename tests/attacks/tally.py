"""Counts of an attack."""

from __future__ import annotations

import contextlib
import json
import random
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from zarr_core.errors import ZarrCoreError


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

    def add_counts(self, file: Path) -> None:
        """Add what another process has counted and written as JSON."""
        counts = json.loads(file.read_text())
        self.notes += counts.pop("notes")
        for name, count in counts.items():
            self.add(name, count)

    @contextlib.contextmanager
    def ours(self, what: str) -> Iterator[None]:
        """Accept errors of the library; count any other exception."""
        try:
            yield
        except ZarrCoreError:
            self.add("refused")
        except Exception as error:
            self.add("tracebacks", 1, f"{what}: {type(error).__name__}: {error}")


Attack = Callable[[int, Path, Tally, random.Random], None]
