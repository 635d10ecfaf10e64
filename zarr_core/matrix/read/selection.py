"""Selects features of an axis by name, by the stem of a probe's name, or by region of the genome.

EPICv2 arrays measure some loci with several probes, whose names have suffixes: ``cg00000029_TC21`` is the probe of the
locus ``cg00000029`` for the top strand (T or B), converted strand (C or O), of design type 2, replicate 1 (Illumina,
Infinium MethylationEPIC v2.0 manifest). The stem is the name without the suffix.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import compress
from typing import Any, Literal, NamedTuple

import numpy as np

from zarr_core._util.arguments import check_names
from zarr_core.errors import MatrixError, UnknownFieldError
from zarr_core.matrix.store.axis import FeatureAxis
from zarr_core.matrix.store.axis_file import read_manifest

Duplicates = Literal["error", "first", "mean"]
Unknown = Literal["error", "skip"]

_BLOCK = 1 << 18  # names that are handled together
_REGION = re.compile(r"(.+?)(?::(\d[\d,]*)(?:-(\d[\d,]*))?)?")

logger = logging.getLogger(__name__)


@dataclass(frozen=True, eq=False)
class FeatureSelection:
    """Features to read, each from one column of the matrix or as the mean of several.

    Attributes:
        positions: (columns,) positions on the axis, feature after feature.
        names: (features,) names as requested, or as on the axis: bytes (UTF-8) or int64.
        columns: (columns,) names of the positions on the axis, bytes (UTF-8) or int64, by which cells are read.
        starts: (features,) index of each feature's first column; None if each feature has one column.
        unknown: requested names that are not on the axis, and were left out.
    """

    positions: np.ndarray
    names: np.ndarray
    columns: np.ndarray
    starts: np.ndarray | None = None
    unknown: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.names)

    @property
    def feature_ids(self) -> np.ndarray:
        """(features,) names as strings or int64."""
        return np.char.decode(self.names, "utf-8") if self.names.dtype.kind == "S" else self.names

    @property
    def is_plain(self) -> bool:
        """Whether each feature is the column of the same name."""
        return self.starts is None and np.array_equal(self.names, self.columns)

    def combine(self, cells: np.ndarray) -> np.ndarray:
        """Cells of features, (samples, features), from those of columns, (samples, columns): means without NaN."""
        if self.starts is None:
            return cells
        present = ~np.isnan(cells)
        total = np.add.reduceat(np.where(present, cells, 0), self.starts, axis=1, dtype=np.float64)
        count = np.add.reduceat(present, self.starts, axis=1, dtype=np.int64)
        means = np.full(total.shape, np.nan)
        np.divide(total, count, out=means, where=count > 0)
        return means.astype(cells.dtype)

    def part(self, chosen: np.ndarray) -> FeatureSelection:
        """The features for which ``chosen``, (features,) bool, is true."""
        return self._taken(np.flatnonzero(chosen))

    def in_order_of_axis(self) -> FeatureSelection:
        """The features in the order of their first columns."""
        firsts = self.positions if self.starts is None else np.minimum.reduceat(self.positions, self.starts)
        return self._taken(np.argsort(firsts, kind="stable"))

    def _taken(self, order: np.ndarray) -> FeatureSelection:
        """The features with these numbers, in this order."""
        starts, columns = None, order
        if self.starts is not None:
            starts, columns = _spread(self.starts[order], np.diff(self.starts, append=len(self.positions))[order])
        return FeatureSelection(self.positions[columns], self.names[order], self.columns[columns], starts, self.unknown)

    def any(self, cells: np.ndarray) -> np.ndarray:
        """Whether any column of a feature is true, (samples, features) bool."""
        return cells if self.starts is None else np.logical_or.reduceat(cells, self.starts, axis=1)


class Region(NamedTuple):
    """A part of a chromosome: positions from ``start`` to ``end``, both included, counted from 1."""

    chromosome: str
    start: int
    end: int

    @classmethod
    def parse(cls, text: str) -> Region:
        """Parse "chr1:1,000-2,000", "chr1:1,000" for one position, or "chr1" for all of it; raises MatrixError."""
        match = _REGION.fullmatch(text) if isinstance(text, str) else None
        if match is None or (match[2] is None and "-" in text.rpartition(":")[2] and ":" in text):
            raise MatrixError(f"{text!r} is not a region such as chr1:1000-2000, chr1:1000 or chr1")
        if match[2] is None:
            return cls(text, 1, np.iinfo(np.int64).max)
        start = int(match[2].replace(",", ""))
        end = int(match[3].replace(",", "")) if match[3] else start
        if not 1 <= start <= end:
            raise MatrixError(f"region {text}: positions are counted from 1, and the first is at most the last")
        return cls(match[1], start, end)


def select_names(
    axis: FeatureAxis,
    names: Sequence[str] | Sequence[int] | np.ndarray,
    *,
    stem: bool = False,
    duplicates: Duplicates = "error",
    unknown: Unknown = "error",
) -> FeatureSelection:
    """Features by name, in the given order; see ``WideMatrix.select``."""
    check_names("names", names, error=UnknownFieldError)
    for option, value, allowed in (
        ("duplicates", duplicates, ("error", "first", "mean")),
        ("unknown", unknown, ("error", "skip")),
    ):
        if value not in allowed:
            raise MatrixError(f"{option} must be one of {', '.join(allowed)}, not {value!r:.80}")
    wanted = FeatureAxis(names)  # refuses a name that is requested twice
    axis.check_kind(wanted.is_text or stem, wanted[0])
    if stem:
        order, first, last = _columns_by_stem(axis, wanted)
    else:
        order = axis.locate(wanted.ids)
        first = np.arange(len(order))
        last = first + (order >= 0)
    known = last > first
    absent = tuple(map(str, wanted[np.flatnonzero(~known)]))
    if absent and (unknown == "error" or not known.any()):
        few = ", ".join((*absent[:5], "...") if len(absent) > 5 else absent)
        count = f"{len(absent):,} of {len(wanted):,} features"
        raise UnknownFieldError(f"{count} are not on the axis of this matrix ({len(axis):,} features): {few}")
    first, last, chosen = first[known], last[known], wanted.ids[known]
    counts = last - first
    if duplicates == "error" and (counts > 1).any():
        number = int(np.argmax(counts > 1))
        columns = ", ".join(map(str, axis[np.sort(order[first[number] : last[number]])]))
        raise MatrixError(
            f"{int((counts > 1).sum()):,} of {len(chosen):,} names have several columns, such as {columns}; "
            "choose duplicates='mean' or 'first'"
        )
    if duplicates != "mean" or (counts == 1).all():
        positions = order[first].astype(np.int64)
        return FeatureSelection(positions, chosen, axis.ids[positions], None, absent)
    starts, places = _spread(first, counts)
    positions = order[places].astype(np.int64)
    return FeatureSelection(positions, chosen, axis.ids[positions], starts, absent)


def _spread(first: np.ndarray, counts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Numbers of runs that begin at ``first``, one run after another, and where each run begins among them."""
    starts = np.cumsum(counts) - counts
    return starts, np.repeat(first - starts, counts) + np.arange(counts.sum())


def _columns_by_stem(axis: FeatureAxis, wanted: FeatureAxis) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Columns of names, or of the loci that they name: positions on the axis, and where each name's begin and end.

    Raises:
        MatrixError: two names stand for the same column.
    """
    on_axis, keys = stems(axis.ids), stems(wanted.ids)
    order = np.argsort(on_axis, kind="stable")
    in_order, cut = on_axis[order], keys.astype(on_axis.dtype)
    first, last = np.searchsorted(in_order, cut, "left"), np.searchsorted(in_order, cut, "right")
    last = np.where(cut == keys, last, first)  # a key that is longer than all names of the axis was cut off
    # A full name is its own column, not one of its twins; on an axis without suffixes, that of its stem.
    full = np.flatnonzero(keys != wanted.ids)
    own = axis.locate(wanted.ids[full])
    own = np.where(own >= 0, own, axis.locate(keys[full]))
    found = own[own >= 0]
    if len(np.unique(found)) < len(found):
        raise MatrixError("two of the names have the same stem, which is one column here; request it once")
    first[full] = len(order) + np.arange(len(full))
    last[full] = first[full] + (own >= 0)
    return np.concatenate([order, own]), first, last


def select_regions(
    axis: FeatureAxis,
    regions: Sequence[str],
    manifest: Any = None,
    *,
    stem: bool = False,
    duplicates: Duplicates = "error",
) -> FeatureSelection:
    """Features in any of the regions, in the order of the axis; see ``WideMatrix.select``."""
    check_names("regions", regions, error=MatrixError)
    parsed = list(map(Region.parse, regions))
    if manifest is None:
        if not axis.is_text:
            raise MatrixError("features that are integers have no positions; pass a manifest")
        places = np.flatnonzero(_search(len(axis), _loci(axis.ids), parsed, regions, "the names of the features"))
        return FeatureSelection(places, axis.ids[places], axis.ids[places])
    names, *loci = read_manifest(manifest)
    chosen = names[_search(len(names), iter([(loci[0], loci[1])]), parsed, regions, "the manifest")]
    if stem:
        chosen = np.unique(stems(chosen))
    selection = select_names(axis, chosen, stem=stem, duplicates=duplicates, unknown="skip")
    return selection.in_order_of_axis()


def stems(names: np.ndarray) -> np.ndarray:
    """Names of probes, (n,) bytes, without the suffix of EPICv2: ``_``, T or B, C or O, 1 or 2, and a number."""
    found = names.copy()
    for start in range(0, len(names), _BLOCK):
        block = names[start : start + _BLOCK]
        heads, _, tails = np.strings.rpartition(block, b"_")
        letters = tails.astype("S5").view(np.uint8).reshape(-1, 5)
        is_suffix = (heads != b"") & (np.strings.str_len(tails) <= 5)
        for place, allowed in enumerate((b"TB", b"CO", b"12", b"0123456789", b"0123456789\0")):
            is_suffix &= np.isin(letters[:, place], list(allowed))
        found[start : start + _BLOCK] = np.where(is_suffix, heads, block)
    return found


#: Chromosome (bytes) and position (int64) of names; position 0: the name is not a locus.
_Loci = tuple[np.ndarray, np.ndarray]


def _loci(names: np.ndarray) -> Iterator[_Loci]:
    """Loci that names of the form ``chromosome:position`` state, block by block."""
    for start in range(0, len(names), _BLOCK):
        chromosomes, colons, digits = np.strings.rpartition(names[start : start + _BLOCK], b":")
        is_locus = (colons == b":") & np.strings.isdigit(digits) & (np.strings.str_len(digits) < 19)
        positions = np.zeros(len(digits), np.int64)
        positions[is_locus] = digits[is_locus].astype(np.int64)
        yield chromosomes, positions


def _search(
    n_names: int, loci: Iterator[_Loci], parsed: Sequence[Region], regions: Sequence[str], where: str
) -> np.ndarray:
    """Whether each name is in a region; raises UnknownFieldError for unknown chromosomes, or if none is."""
    hits = np.zeros(n_names, bool)
    found = np.zeros(len(parsed), np.int64)
    chromosomes: set[str] = set()
    start = 0
    for names_of, positions in loci:
        end = start + len(positions)
        kinds, codes = np.unique(names_of, return_inverse=True)
        present = list(map(bytes.decode, kinds))
        used = np.bincount(codes[positions > 0], minlength=len(kinds)) > 0
        chromosomes.update(compress(present, used))
        for number, region in enumerate(parsed):
            same = [n for n, kind in enumerate(present) if _bare(kind) == _bare(region.chromosome)]
            inside = (positions >= region.start) & (positions <= region.end) & np.isin(codes, same)
            found[number] += np.count_nonzero(inside)
            hits[start:end] |= inside
        start = end
    known = set(map(_bare, chromosomes))
    for text, region in zip(regions, parsed, strict=True):
        if _bare(region.chromosome) not in known:
            there = ", ".join(sorted(chromosomes)[:30]) or "none"
            raise UnknownFieldError(f"region {text}: {where} have no chromosome {region.chromosome}; there are {there}")
    empty = list(compress(regions, found == 0))
    if len(empty) == len(regions):
        raise UnknownFieldError(f"no feature is in any of the regions {', '.join(empty[:5]) or '(none was given)'}")
    if empty:
        logger.warning("no feature is in %d of %d regions, such as %s", len(empty), len(regions), ", ".join(empty[:5]))
    return hits


def _bare(chromosome: str) -> str:
    """A chromosome without the prefix that some manifests omit, in lower case: chr1 and CHR1 are 1."""
    return chromosome.lower().removeprefix("chr")
