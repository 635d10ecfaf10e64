"""HTML pages of reports: their templates and how figures get onto them. Needs the ``report`` extra."""

from __future__ import annotations

import importlib.metadata
import os
import platform
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from zarr_core.errors import ZarrCoreError


@contextmanager
def report_imports() -> Iterator[None]:
    """Wraps the import of a page; raises ZarrCoreError with the command to run where its packages are missing."""
    try:
        yield
    except ImportError as error:
        package = (error.name or "").partition(".")[0]
        if package not in ("jinja2", "markupsafe", "matplotlib"):
            raise
        raise ZarrCoreError(f"reports need {package}: pip install 'zarr-core[report]'") from error


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


def points_by_domain(domains: Iterable[str], surface: int, volume: int) -> dict[str, int]:
    """Points per draw by domain: those of a surface if its name starts so, else those of a volume."""
    return {domain: surface if domain.startswith("surface") else volume for domain in domains}


def describe_points(num_points: Mapping[str, int]) -> str:
    """``surface 4,096, volume 4,096``."""
    return ", ".join(f"{domain} {n:,}" for domain, n in num_points.items())


def describe_ranges(points: Mapping[str, Sequence[int]]) -> str:
    """``surface 200 to 214, volume 600 to 614``, of the smallest and the largest sample."""
    return ", ".join(f"{domain} {low:,} to {high:,}" for domain, (low, high) in points.items())
