from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import docstring_parser
import pytest

from tests.helpers.small_source import KIND, write_source
from zarr_core.errors import SourceError
from zarr_core.points.convert.conversion import convert, iter_convert
from zarr_core.points.convert.publish import publish
from zarr_core.sources.parts import Part


@pytest.mark.parametrize("function", [convert, iter_convert, publish])
def test_help_describes_every_argument_and_no_other(function: Callable[..., Any]) -> None:
    described = [each.arg_name for each in docstring_parser.parse(inspect.getdoc(function) or "").params]
    assert sorted(described) == sorted(inspect.signature(function).parameters)


def test_a_part_may_be_text(tmp_path: Path) -> None:
    source = write_source(tmp_path / "source")
    reports = [convert(KIND, tmp_path / "store", root=source, part=part) for part in ("0/2", Part(1, 2))]
    assert len(reports[1].manifest.samples) == 3
    with pytest.raises(SourceError, match=r"part '\(0, 2\)' is not NUMBER/COUNT"):
        convert(KIND, tmp_path / "store", root=source, part=(0, 2))
