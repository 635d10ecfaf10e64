"""A source and its store, to be damaged."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.helpers.small_source import KIND, write_source
from zarr_core.points.convert.conversion import convert


@pytest.fixture(scope="module")
def pristine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Source and store that belong together; tests work on copies."""
    root = tmp_path_factory.mktemp("pristine")
    write_source(root / "source")
    convert(
        KIND, root / "store", source_url=str(root / "source"), chunk_points=16, shard_points=64, values_dtype="float32"
    )
    return root


@pytest.fixture
def place(pristine: Path, tmp_path: Path) -> Path:
    shutil.copytree(pristine, tmp_path / "copy", copy_function=shutil.copy2)
    return tmp_path / "copy"
