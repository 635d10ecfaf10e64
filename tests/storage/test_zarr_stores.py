"""Roots as stores of zarr-python."""

from __future__ import annotations

import numpy as np
import pytest
import zarr

from zarr_core.storage.zarr_stores import make_store


def test_a_store_is_read_only_unless_it_is_opened_for_writing(any_root: str) -> None:
    with pytest.raises(ValueError, match="read.only"):
        zarr.create_array(make_store(any_root), name="a", data=np.arange(5))
    zarr.create_array(make_store(any_root, read_only=False), name="a", data=np.arange(5))
    assert zarr.open_array(make_store(any_root), path="a", mode="r")[:].tolist() == [0, 1, 2, 3, 4]
