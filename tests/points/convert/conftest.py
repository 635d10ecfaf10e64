"""The source of the tests of conversions, for those that need no other."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.helpers.small_source import write_source


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return write_source(tmp_path / "source")
