"""Numbers of points in reports."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence


def points_by_domain(domains: Iterable[str], surface: int, volume: int) -> dict[str, int]:
    """Points per draw by domain: those of a surface if its name starts so, else those of a volume."""
    return {domain: surface if domain.startswith("surface") else volume for domain in domains}


def describe_points(num_points: Mapping[str, int]) -> str:
    """``surface 4,096, volume 4,096``."""
    return ", ".join(f"{domain} {n:,}" for domain, n in num_points.items())


def describe_ranges(points: Mapping[str, Sequence[int]]) -> str:
    """``surface 200 to 214, volume 600 to 614``, of the smallest and the largest sample."""
    return ", ".join(f"{domain} {low:,} to {high:,}" for domain, (low, high) in points.items())
