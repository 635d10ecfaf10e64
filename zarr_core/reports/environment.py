"""Versions and machine of a measurement."""

from __future__ import annotations

import importlib.metadata
import os
import platform
from pathlib import Path


def environment() -> dict[str, str]:
    """CPU, cores, system, and versions of Python and the packages that affect speed, by name."""
    found = {
        "CPU": _cpu_model(),
        "cores": str(cores()),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "Python": platform.python_version(),
    }
    for name in ("zarr-core", "zarr", "torch", "numpy", "numcodecs"):
        found[name] = importlib.metadata.version(name)
    return found


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def memory_bytes() -> int | None:
    """Memory of this machine; None if the system does not tell."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError, AttributeError):
        return None


def _cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    for line in lines:
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
