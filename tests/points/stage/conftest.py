"""A store that is to be copied."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest


@pytest.fixture
def source(pristine: Path, tmp_path: Path) -> Path:
    shutil.copytree(pristine / "store", tmp_path / "source_store")
    return tmp_path / "source_store"
