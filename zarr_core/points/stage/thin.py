"""Copies with fewer points: the first chunks of each sample.

The points of a sample are stored in random order, so its first chunks are a uniform subset of them.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from fractions import Fraction

from zarr_core._util.arguments import whole_number
from zarr_core.errors import UnknownFieldError, ZarrCoreError
from zarr_core.format.array_metadata import ArrayLayout
from zarr_core.points.store.manifest import DomainGrid

_EXAMPLES = "volume=65536,surface=16384 or 5%"


@dataclass(frozen=True)
class FirstPoints:
    """How many points of each sample are copied.

    Attributes:
        counts: by domain; all points of a domain that is missing.
        share: of the points of every domain; 0 if ``counts`` are given.
    """

    counts: Mapping[str, int]
    share: Fraction = Fraction(0)

    @classmethod
    def parse(cls, given: str | Mapping[str, int], domains: Collection[str]) -> FirstPoints:
        """From counts by domain, or from text such as "volume=65536,surface=16384" or "5%".

        Args:
            given: what to parse.
            domains: of the store.

        Raises:
            ZarrCoreError: it is neither.
            UnknownFieldError: the store has no such domain.
        """
        if isinstance(given, str) and given.endswith("%"):
            try:
                share = Fraction(given[:-1]) / 100
            except (ValueError, ZeroDivisionError):
                share = Fraction(0)
            if not 0 < share <= 1:
                raise ZarrCoreError(f"points {given!r} is not a share of more than 0% and at most 100%")
            return cls({}, share)
        if isinstance(given, str):
            given = _counts(given)
        counts = {}
        for domain, count in sorted(given.items()):
            if domain not in domains:
                raise UnknownFieldError(f"points: no domain {domain!r}; domains are {', '.join(sorted(domains))}")
            counts[domain] = whole_number(f"points of {domain}", count, 1)
        if not counts:
            raise ZarrCoreError(f"points: give them as {_EXAMPLES}")
        return cls(counts)

    def __str__(self) -> str:
        if self.share:
            return f"{float(100 * self.share):g}%"
        return ",".join(f"{domain}={count}" for domain, count in self.counts.items())

    def n_chunks(self, domain: str, grid: DomainGrid | ArrayLayout) -> int:
        """Chunks of a domain, or of an array in it, that are copied."""
        points = grid.n_points
        if self.share:
            points = math.ceil(points * self.share)
        elif domain in self.counts:
            points = min(points, self.counts[domain])
        return -(-points // grid.chunk_points)


def _counts(text: str) -> dict[str, int]:
    counts = {}
    for part in text.split(","):
        domain, _, count = part.partition("=")
        try:
            counts[domain.strip()] = int(count)
        except ValueError:
            raise ZarrCoreError(f"points {text!r} cannot be read: give them as {_EXAMPLES}") from None
    return counts
