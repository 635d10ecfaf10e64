from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import docstring_parser
import pytest

from zarr_core.points.convert.conversion import convert, iter_convert
from zarr_core.points.convert.publish import publish


@pytest.mark.parametrize("function", [convert, iter_convert, publish])
def test_help_describes_every_argument_and_no_other(function: Callable[..., Any]) -> None:
    described = [each.arg_name for each in docstring_parser.parse(inspect.getdoc(function) or "").params]
    assert sorted(described) == sorted(inspect.signature(function).parameters)
