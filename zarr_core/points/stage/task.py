"""What all workers of a staging run need, how many points they copy, and the result of one sample."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from fractions import Fraction

from zarr_core._util.arguments import whole_number
from zarr_core.errors import UnknownFieldError, ZarrCoreError
from zarr_core.format.array_metadata import ArrayLayout
from zarr_core.format.object_names import spelled_alike
from zarr_core.format.packed import SUFFIX
from zarr_core.points.store.manifest import DomainGrid, SampleEntry
from zarr_core.points.store.settings import GROUP_NAMES, ConversionSettings, Layout, group_name
from zarr_core.storage import Storage

_EXAMPLES = "volume=65536,surface=16384 or 5%"

#: Id of a sample, its entry in the source, and the path of its group in the copy (None if the copy does not have it).
Item = tuple[str, SampleEntry, str | None]


@dataclass(frozen=True)
class StagedSample:
    """Result of staging one sample.

    Attributes:
        sample_id: id of the sample.
        entry: its entry in the manifest of the copy; None if it could not be copied.
        copied: bytes of shards, or of a packed sample, that were copied.
        kept: those that the copy already had.
        problem: why the sample could not be copied, or "".
    """

    sample_id: str
    entry: SampleEntry | None
    copied: int = 0
    kept: int = 0
    problem: str = ""


@dataclass(frozen=True)
class FirstPoints:
    """How many points of each sample are copied: its first chunks, a uniform subset because their order is random.

    Attributes:
        counts: by domain; all points of a domain that is missing.
        share: of the points of every domain; 0 if ``counts`` are given.
    """

    counts: Mapping[str, int]
    share: Fraction = Fraction(0)

    @classmethod
    def parse(cls, given: str | Mapping[str, int], domains: Collection[str]) -> FirstPoints:
        """From counts by domain, or from text such as "volume=65536,surface=16384" or "5%".

        Raises ZarrCoreError if it is neither, UnknownFieldError if the store has no such domain.
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


@dataclass(frozen=True)
class StageTask:
    """The part of a staging run that every worker needs.

    Attributes:
        source, target: the stores.
        arrays: canonical field names by array name, of the chosen fields.
        check: read what a manifest of the copy already names, instead of comparing sizes.
        tombstoned: groups of the target that are pending deletion, as :func:`spelled_alike`.
        layout: of the samples in the copy; as in the source if None.
        points: how many points of each sample are copied; all if None.
        repacked: if the store is repacked in place, the settings with its new layout by the digest of the former ones.
    """

    source: Storage
    target: Storage
    arrays: Mapping[str, str]
    check: bool
    tombstoned: frozenset[str] = frozenset()
    layout: Layout | None = None
    points: FirstPoints | None = None
    repacked: Mapping[str, ConversionSettings] | None = None

    def packs(self, entry: SampleEntry) -> bool:
        """Whether a sample is packed in the copy."""
        return entry.head > 0 if self.layout is None else self.layout == "packed"

    def cuts(self, entry: SampleEntry) -> bool:
        """Whether the copy of a sample has fewer points."""
        if self.points is None:
            return False
        return any(self.points.n_chunks(name, grid) < grid.n_chunks for name, grid in entry.domains.items())

    def choose_name(self, item: Item, relpath: str, is_another: Callable[[str], bool]) -> str:
        """Path of a group in the copy: its present one, or the first that is neither tombstoned nor another group's.

        A suspended garbage collector may still delete objects below a tombstoned name, so nothing is written there.
        ``relpath`` tells the group's content.
        """
        sample_id, _, known = item
        is_packed = relpath.endswith(SUFFIX)
        names = [relpath]
        for again in range(1, GROUP_NAMES):
            names.append(group_name(sample_id, [relpath, again], is_packed=is_packed))
        names.sort(key=lambda name: name != known)
        for name in names:
            if (name == known or spelled_alike(name) not in self.tombstoned) and not is_another(name):
                return name
        return relpath
