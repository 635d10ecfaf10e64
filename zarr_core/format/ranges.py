"""Byte ranges that one request fetches together."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, TypeVar

#: Limit of one request for several chunks: few round trips, little memory, and large fields by several requests.
MAX_READ_BYTES = 8 << 20

_Range = TypeVar("_Range", bound=tuple[Any, ...])


def coalesce(ranges: Iterable[_Range], max_gap: float = 0, max_bytes: float = math.inf) -> list[list[_Range]]:
    """Group byte ranges that follow one another in the same object.

    Args:
        ranges: tuples that begin with (object, start, stop); what else they hold is passed on. A range with a negative
            start, or with None for its stop (the end of the object), forms a group of its own.
        max_gap: unwanted bytes between two ranges of a group, at most.
        max_bytes: from the first to the last byte of a group of more than one range, at most.

    Returns:
        The ranges in the given order. A group covers the bytes from the start of its first range to the stop of its
        last. Ranges that overlap, or are not in ascending order, are never in one group.
    """
    groups: list[list[_Range]] = []
    name = first = end = None
    for each in ranges:
        start, stop = each[1], each[2]
        if (
            end is not None
            and stop is not None
            and name == each[0]
            and 0 <= start - end <= max_gap
            and stop - first <= max_bytes
        ):
            groups[-1].append(each)
        else:
            groups.append([each])
            name, first = each[0], start
        end = stop
    return groups
