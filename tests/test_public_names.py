"""The names that ``zarr_core`` exports."""

from __future__ import annotations

import pytest

import zarr_core
from zarr_core import errors

ERRORS = [name for name, value in vars(errors).items() if isinstance(value, type) and issubclass(value, Exception)]


@pytest.mark.parametrize("name", zarr_core.__all__)
def test_every_name_can_be_imported(name: str) -> None:
    assert getattr(zarr_core, name).__name__ == name


def test_every_error_is_exported() -> None:
    assert set(ERRORS) <= set(zarr_core.__all__)


def test_dir_lists_every_name() -> None:
    assert {*zarr_core.__all__, "__doc__"} <= set(dir(zarr_core))
    assert not hasattr(zarr_core, "no_such_name")
