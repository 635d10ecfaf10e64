"""Names of packages that are imported on first use."""

from __future__ import annotations

import pytest

import zarr_core
import zarr_core.exports
from zarr_core.errors import StoreError


def test_a_name_is_what_its_module_defines() -> None:
    assert zarr_core.StoreError is StoreError


@pytest.mark.parametrize("package", [zarr_core, zarr_core.exports])
def test_an_unknown_name_is_an_attribute_error_of_the_package(package: object) -> None:
    with pytest.raises(AttributeError, match=r"^module 'zarr_core(\.exports)?' has no attribute 'nothing'$"):
        package.nothing  # type: ignore[attr-defined]  # noqa: B018
