"""Numbers of things, sizes and durations with units."""

from __future__ import annotations

import re

from zarr_core._util.arguments import whole_number
from zarr_core.errors import ZarrCoreError

_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12, "ki": 2**10, "mi": 2**20, "gi": 2**30, "ti": 2**40}
_SECONDS = {"s": 1, "m": 60, "min": 60, "h": 3600, "d": 86_400}
_DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*(s|min|m|h|d)")
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgt]i?)?b?", re.IGNORECASE)


def parse_size(size: int | str) -> int:
    """Bytes of "200GB", "1.5 TiB" (decimal and binary units), "4096" or a whole number; raises ZarrCoreError."""
    if isinstance(size, str):
        found = _SIZE.fullmatch(size.strip())
        if found is None:
            raise ZarrCoreError(f"size {size!r}: expected a number with a unit, as in 200GB, 512MiB or 1.5TB")
        size = int(float(found[1]) * _UNITS[(found[2] or "").lower()])
    return whole_number("size", size, 1)


def parse_duration(text: str) -> float:
    """Seconds of "24h", "90min", "90m", "7d", "1.5h" or "30s"; raises ZarrCoreError."""
    found = _DURATION.fullmatch(text.strip())
    if found is None:
        raise ZarrCoreError(f"duration {text!r}: expected a number and a unit (s, min, h or d), as in 90min, 24h or 7d")
    return float(found[1]) * _SECONDS[found[2]]


def format_count(count: int, noun: str) -> str:
    """A number of things, whose plural ends with "s" or "ches": "1 sample", "1 batch", "2,000 samples"."""
    if count == 1:
        noun = noun.removesuffix("es") if noun.endswith("ches") else noun.removesuffix("s")
    return f"{count:,} {noun}"


def format_size(n_bytes: float) -> str:
    """A size with up to three digits and a decimal unit: "184 kB", "2.11 MB"."""
    for unit in ("B", "kB", "MB", "GB"):
        if n_bytes < 999.5:
            return f"{n_bytes:.3g} {unit}"
        n_bytes /= 1000
    return f"{n_bytes:.3g} TB" if n_bytes < 999.5 else f"{n_bytes:,.0f} TB"


def format_duration(seconds: float) -> str:
    """A duration in its two largest units: "0.35 s", "12.3 s", "4 min 10 s", "2 h 5 min", "3 d 4 h"."""
    if seconds < 59.95:
        return f"{seconds:.3g} s"
    whole = round(seconds)
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    if whole < 86_400:
        return f"{whole // 3600} h {whole % 3600 // 60} min"
    return f"{whole // 86_400} d {whole % 86_400 // 3600} h"
