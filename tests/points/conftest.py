"""Fixtures of the tests of point stores."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.helpers.small_source import KIND, write_source
from zarr_core.points.convert.conversion import convert
from zarr_core.statistics import main as statistics


@pytest.fixture(scope="session")
def pristine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A source, and its store with statistics of two splits; tests change copies of it."""
    root = tmp_path_factory.mktemp("pristine")
    write_source(root / "source")
    convert(KIND, root / "store", source_url=str(root / "source"), chunk_points=16, shard_points=64)
    for options in (["--split", "train"], []):
        assert statistics([str(root / "store"), "--quiet", *options]) == 0
    return root
