from __future__ import annotations

from pathlib import Path

import pytest

from tests.helpers.long_tables import write_long


@pytest.fixture
def long(tmp_path: Path) -> Path:
    """Folder of a small long table in Parquet files."""
    write_long(tmp_path / "long")
    return tmp_path / "long"
