"""How many points a thin copy has."""

from __future__ import annotations

from typing import Any

import pytest

from zarr_core.errors import UnknownFieldError, ZarrCoreError
from zarr_core.points.stage.task import FirstPoints
from zarr_core.points.store.manifest import DomainGrid

DOMAINS = ("surface", "volume")


@pytest.mark.parametrize(
    ("given", "text", "surface", "volume"),
    [
        ("volume=16,surface=1", "surface=1,volume=16", 1, 1),
        ("volume=17", "volume=17", 7, 2),
        ({"surface": 10**6}, "surface=1000000", 7, 63),
        ("5%", "5%", 1, 4),
        ("0.1%", "0.1%", 1, 1),
        ("100%", "100%", 7, 63),
        (" volume = 32", "volume=32", 7, 2),
    ],
)
def test_points_are_rounded_up_to_whole_chunks(given: Any, text: str, surface: int, volume: int) -> None:
    points = FirstPoints.parse(given, DOMAINS)
    assert str(points) == text
    assert FirstPoints.parse(text, DOMAINS) == points
    assert points.n_chunks("surface", DomainGrid(100, 16, 16, 7)) == surface
    assert points.n_chunks("volume", DomainGrid(1000, 16, 16, 63)) == volume


@pytest.mark.parametrize("given", ["", "5", "0%", "101%", "%", "1/0%", "volume", "volume=", "volume=x", "volume=0", {}])
def test_other_points_are_refused(given: Any) -> None:
    with pytest.raises(ZarrCoreError, match="points"):
        FirstPoints.parse(given, DOMAINS)


def test_unknown_domains_are_refused() -> None:
    with pytest.raises(UnknownFieldError, match="no domain 'wake'; domains are surface, volume"):
        FirstPoints.parse("wake=5", DOMAINS)
