"""Versions and machine of a measurement."""

from __future__ import annotations

import importlib.metadata
import os
import platform
from pathlib import Path


def environment() -> dict[str, str]:
    """CPU, cores, system, and versions of Python and the packages that affect speed, by name."""
    versions = {name: importlib.metadata.version(name) for name in ("zarr-core", "zarr", "torch", "numpy", "numcodecs")}
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return {
        "CPU": _cpu_model(),
        "cores": str(cores),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "Python": platform.python_version(),
        **versions,
    }


def _cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, platform.processor() or platform.machine())
