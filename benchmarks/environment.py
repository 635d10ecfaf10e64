"""Machine and versions of a measurement; every benchmark prints them."""

from __future__ import annotations

import os
import platform
from importlib.metadata import version


def describe() -> str:
    """One line: processor, cores, Python and the packages that affect speed."""
    packages = ", ".join(f"{name} {version(name)}" for name in ("numpy", "torch", "zarr", "numcodecs", "fsspec"))
    return f"{_processor()}, {os.cpu_count()} cores; Python {platform.python_version()}, {packages}"


def _processor() -> str:
    try:
        with open("/proc/cpuinfo") as lines:
            return next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()
