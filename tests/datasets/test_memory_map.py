"""Memory maps of a selection of a matrix."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.helpers.beta_matrix import FEATURES
from zarr_core import MatrixDataset
from zarr_core.datasets import memory_map
from zarr_core.errors import ZarrCoreError


def test_a_full_disk_is_an_error_before_a_cell_is_written(
    written: tuple[str, np.ndarray], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reserved = []

    def full(file: int, start: int, size: int) -> None:
        reserved.append((start, size))
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    dataset = MatrixDataset(written[0])
    with pytest.raises(OSError, match=r"No space left on device: .*all\.npy\.tmp"):
        dataset.to_memmap(tmp_path / "maps" / "all.npy")
    assert reserved == [(0, 128 + 4 * len(dataset) * dataset.n_features)], "the header and all cells"
    assert [path.name for path in (tmp_path / "maps").iterdir() if path.suffix != ".lock"] == []


def test_a_memory_map_is_written_once(written: tuple[str, np.ndarray], tmp_path: Path) -> None:
    url, beta = written
    path = tmp_path / "maps" / "all.npy"
    mapped = MatrixDataset(url).to_memmap(path)
    assert isinstance(mapped, np.memmap)
    np.testing.assert_array_equal(mapped, beta)
    np.testing.assert_array_equal(np.load(path), beta, "any reader of .npy reads it")
    made = path.stat().st_mtime_ns, path.stat().st_ino
    MatrixDataset(url).to_memmap(path)
    assert (path.stat().st_mtime_ns, path.stat().st_ino) == made
    few = MatrixDataset(url, ["b2s0"], FEATURES[:3])
    np.testing.assert_array_equal(few.to_memmap(path), beta[8:9, :3])
    np.testing.assert_array_equal(mapped, beta, "who has the old one mapped keeps it")


def test_a_complete_memory_map_is_read_from_a_folder_without_write_permission(
    written: tuple[str, np.ndarray], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url, beta = written
    MatrixDataset(url).to_memmap(tmp_path / "maps" / "all.npy")

    def refused(path: str) -> None:
        raise PermissionError(13, "Permission denied", path)

    monkeypatch.setattr("zarr_core.datasets.memory_map.FileLock", refused)
    np.testing.assert_array_equal(MatrixDataset(url).to_memmap(tmp_path / "maps" / "all.npy"), beta)
    with pytest.raises(PermissionError, match=r"other\.npy\.lock"):
        MatrixDataset(url).to_memmap(tmp_path / "maps" / "other.npy")


@pytest.mark.parametrize("harm", ["flip", "cut", "no description", "description of nothing"])
def test_a_damaged_memory_map_is_never_returned(written: tuple[str, np.ndarray], tmp_path: Path, harm: str) -> None:
    url, beta = written
    path = tmp_path / "all.npy"
    MatrixDataset(url).to_memmap(path)
    data = bytearray(path.read_bytes())
    if harm == "flip":
        data[-5] ^= 1
        path.write_bytes(data)
    elif harm == "cut":
        path.write_bytes(data[:-8])
    elif harm == "description of nothing":
        path.with_name("all.npy.json").write_text("{")
    else:
        path.with_name("all.npy.json").unlink()
        with pytest.raises(ZarrCoreError, match="choose another path"):
            MatrixDataset(url).to_memmap(path)
        return
    np.testing.assert_array_equal(MatrixDataset(url).to_memmap(path), beta)


def test_large_selections_are_written_block_by_block(
    written: tuple[str, np.ndarray], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url, beta = written
    monkeypatch.setattr("zarr_core.datasets.memory_map._BLOCK_BYTES", 2 * 50 * 4)
    dataset = MatrixDataset(url)
    np.testing.assert_array_equal(dataset.to_memmap(tmp_path / "all.npy"), beta)
    np.testing.assert_allclose(np.delete(dataset.feature_means(), 7), np.nanmean(np.delete(beta, 7, 1), 0), rtol=1e-5)


def test_a_file_that_another_process_replaces_during_the_check_is_not_returned(
    written: tuple[str, np.ndarray], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url, beta = written
    path = tmp_path / "all.npy"
    MatrixDataset(url).to_memmap(path)
    check = memory_map._checksum

    def replaced(mapped: np.memmap[Any, Any]) -> int:
        monkeypatch.setattr(memory_map, "_checksum", check)
        MatrixDataset(url, ["b2s0"], FEATURES[:3]).to_memmap(path)
        return check(mapped)

    monkeypatch.setattr(memory_map, "_checksum", replaced)
    np.testing.assert_array_equal(MatrixDataset(url).to_memmap(path), beta)
    assert np.load(path).shape == (1, 3)
