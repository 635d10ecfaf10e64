"""Parsing and writing of numbers with units."""

from __future__ import annotations

import pytest

from zarr_core._util.units import format_count, format_duration, parse_duration
from zarr_core.errors import ZarrCoreError


@pytest.mark.parametrize(
    ("text", "seconds"), [("24h", 86400), ("90m", 5400), ("90min", 5400), ("1.5h", 5400), ("7d", 604800), ("0s", 0)]
)
def test_durations(text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize(
    ("count", "noun", "text"),
    [
        (0, "samples", "0 samples"),
        (1, "complete samples", "1 complete sample"),
        (1, "batches", "1 batch"),
        (1, "hours", "1 hour"),
        (2000, "batches", "2,000 batches"),
    ],
)
def test_counts(count: int, noun: str, text: str) -> None:
    assert format_count(count, noun) == text


def test_a_duration_without_a_unit_is_refused() -> None:
    with pytest.raises(ZarrCoreError, match="24h"):
        parse_duration("24")


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.3512, "0.351 s"),
        (59.94, "59.9 s"),
        (59.96, "1 min 0 s"),
        (250, "4 min 10 s"),
        (7530, "2 h 5 min"),
        (273_600, "3 d 4 h"),
    ],
)
def test_durations_are_shown_in_two_units(seconds: float, text: str) -> None:
    assert format_duration(seconds) == text
