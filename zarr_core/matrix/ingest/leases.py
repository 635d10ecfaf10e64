"""Leases of loaders on batches, so that other loaders wait for the result instead of loading the same batch.

A lease only saves work; it is not a lock. What a matrix holds is decided by the compare-and-swap of an append, so a
lost lease costs a second load and nothing else. Leases are kept in one small object beside the matrix. The holder
renews them. A lease that was not renewed for some time, by the clock of a waiting loader, is taken over; at once if its
holder was a process of the same host that has ended.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import socket
import threading
import time
import uuid
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from zarr_core._util.processes import start_ticks
from zarr_core.matrix.store.claims import update_object
from zarr_core.storage import Storage

LEASES = "leases.json"

logger = logging.getLogger(__name__)

Holders = dict[str, dict[str, Any]]
_HOLDERS = TypeAdapter(Holders)


class Leases:
    """Leases on batches of one matrix; safe between threads, processes and hosts.

    Args:
        storage: root of the matrix.
        seconds: time without renewal after which another loader may take a lease over.

    Attributes:
        holders: for each lease that the last :meth:`take` did not get, its holder in words.
    """

    def __init__(self, storage: Storage, seconds: float = 60.0) -> None:
        self.storage = storage
        self.seconds = seconds
        self.holders: dict[str, str] = {}
        self._owner = uuid.uuid4().hex
        self._beat = 0
        self._seen: dict[str, tuple[Any, float]] = {}

    def take(self, names: Collection[str]) -> list[str]:
        """Take those of the leases that are free, expired or taken by this object; returns their names."""
        now = time.monotonic()
        got: list[str] = []

        def change(current: Holders) -> None:
            got.clear()
            self.holders = {}
            for name in names:
                holder = current.get(name)
                # An own one is from a write whose response was lost.
                if holder is not None and holder.get("owner") != self._owner:
                    process = f"process {holder.get('pid')} on {holder.get('host')}"
                    reason = self._takeover_reason(name, holder, now)
                    if reason is None:
                        self.holders[name] = process
                        continue
                    text = "%s: takes over batch %s from %s, which %s"
                    logger.warning(text, self.storage.url, name, process, reason)
                current[name] = self._mark()
                got.append(name)

        self._change(change)
        return got

    def _takeover_reason(self, name: str, holder: Mapping[str, Any], now: float) -> str | None:
        """Why a lease that another loader took may be taken over; None if it may not."""
        mark = holder.get("owner"), holder.get("beat")
        if self._seen.get(name, (None, 0.0))[0] != mark:
            self._seen[name] = mark, now
        if has_ended(holder):
            return "has ended"
        return "no longer renews its lease" if now - self._seen[name][1] > self.seconds else None

    def release(self, names: Collection[str]) -> None:
        """Give leases back. Leases that others have taken over are left alone."""

        def change(holders: Holders) -> None:
            for name in names:
                if holders.get(name, {}).get("owner") == self._owner:
                    del holders[name]

        self._change(change)

    @contextmanager
    def renewing(self) -> Iterator[None]:
        """While open, a thread renews all leases of this object."""
        done = threading.Event()

        def renew() -> None:
            while not done.wait(self.seconds / 4):
                self._beat += 1
                try:
                    self._change(self._renew)
                except Exception:  # without renewal others may repeat the work, but nothing is lost
                    logger.warning("%s: leases could not be renewed", self.storage.url, exc_info=True)

        thread = threading.Thread(target=renew, name="lease-renewal", daemon=True)
        thread.start()
        try:
            yield
        finally:
            done.set()
            thread.join()

    def _renew(self, holders: Holders) -> None:
        for name, holder in holders.items():
            if holder.get("owner") == self._owner:
                holders[name] = self._mark()

    def _mark(self) -> dict[str, Any]:
        return {"owner": self._owner, "beat": self._beat, **identity()}

    def _change(self, change: Callable[[Holders], None]) -> None:
        def update(data: bytes) -> bytes | None:
            try:
                before = _HOLDERS.validate_json(data)
            except ValueError:  # a damaged object holds no lease, because nothing depends on leases
                before = {}
            after = dict(before)
            change(after)
            return None if after == before else json.dumps(after, indent=1).encode()

        update_object(self.storage, LEASES, update)


def identity() -> dict[str, Any]:
    """Identity of this process, for :func:`has_ended` in another process.

    ``processes`` names the table that ``pid`` belongs to, ``started`` tells a later process with this number apart.
    """
    pid = os.getpid()
    return {"host": socket.gethostname(), "processes": _process_table(), "pid": pid, "started": start_ticks(pid)}


def has_ended(holder: Mapping[str, Any]) -> bool:
    """Whether a process has certainly ended. False if it may run: on another host, or in another container."""
    pid = holder.get("pid")
    if os.name != "posix" or holder.get("processes") != _process_table() or type(pid) is not int or pid < 1:
        return False
    try:
        started = start_ticks(pid)
    except (ProcessLookupError, OverflowError):
        return True
    return started is not None and holder.get("started") not in (None, started)


@cache
def _process_table() -> str:
    """This host since it was started, and this container."""
    parts = [socket.gethostname()]
    with contextlib.suppress(OSError):  # not Linux
        parts += [Path("/proc/sys/kernel/random/boot_id").read_text().strip(), os.readlink("/proc/self/ns/pid")]
    return " ".join(parts)
