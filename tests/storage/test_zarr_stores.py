"""Roots as stores of zarr-python."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import zarr

from zarr_core.storage import Storage
from zarr_core.storage.zarr_stores import make_store


def test_a_store_is_read_only_unless_it_is_opened_for_writing(any_root: str) -> None:
    with pytest.raises(ValueError, match="read.only"):
        zarr.create_array(make_store(any_root), name="a", data=np.arange(5))
    zarr.create_array(make_store(any_root, read_only=False), name="a", data=np.arange(5))
    assert zarr.open_array(make_store(any_root), path="a", mode="r")[:].tolist() == [0, 1, 2, 3, 4]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["run#1", "a%20b", "a?b"])
def test_a_zarr_store_is_where_its_root_is(any_root: str, name: str) -> None:
    """Roots are names, of which nothing is decoded or cut off as of the URLs of web pages."""
    root = f"{any_root}/{name}/x"
    zarr.create_array(make_store(root, read_only=False), name="a", data=np.arange(5))
    assert Storage(root).exists("a/zarr.json")


def test_a_folder_whose_name_ends_like_an_archive_is_a_folder(tmp_path: Path) -> None:
    place = tmp_path / "store.zip"
    zarr.create_array(make_store(place, read_only=False), name="a", data=np.arange(3))
    assert zarr.open_array(make_store(place), path="a", mode="r")[...].tolist() == [0, 1, 2]
