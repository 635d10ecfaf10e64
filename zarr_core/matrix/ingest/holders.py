"""Identity of the process that holds a lease, and whether it has ended, as far as this host can tell."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from zarr_core._util.processes import start_ticks


def identity() -> dict[str, Any]:
    """Identity of this process, for :func:`has_ended` in another process.

    ``processes`` names the process table that ``pid`` belongs to: containers of one host have tables of their own.
    ``started`` distinguishes the process from a later one with the same number.
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


def describe(holder: Mapping[str, Any]) -> str:
    """The process for a message."""
    return f"process {holder.get('pid')} on {holder.get('host')}"


@cache
def _process_table() -> str:
    """This host since it was started, and this container."""
    parts = [socket.gethostname()]
    with contextlib.suppress(OSError):  # not Linux
        parts += [Path("/proc/sys/kernel/random/boot_id").read_text().strip(), os.readlink("/proc/self/ns/pid")]
    return " ".join(parts)
