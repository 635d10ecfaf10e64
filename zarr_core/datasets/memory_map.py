"""Writes an array once to a memory-mapped ``.npy`` file, for libraries that need an array instead of a loader."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import google_crc32c
import numpy as np
from filelock import FileLock

from zarr_core.errors import ZarrCoreError

_BLOCK_BYTES = 64 << 20


def memory_mapped(
    path: str | os.PathLike[str],
    fingerprint: str,
    shape: tuple[int, int],
    dtype: str,
    fill: Callable[[int, np.ndarray], None],
) -> np.memmap[Any, Any]:
    """The array in a ``.npy`` file. Writes the file if it does not exist.

    ``<path>.json`` beside the file records fingerprint and checksum. A file that does not match it (its writer was
    killed, the disk damaged it, or it contains other cells) is written again. Any number of processes may call this
    at once: one of them writes, and maps that others have open stay valid.

    ``fill`` is called with the number of the first row and an array (rows, columns) to write the rows into.

    Raises:
        ZarrCoreError: the file exists and was not written by this function.
        OSError: the disk has no room for the file.
    """
    file = Path(path)
    mapped = _complete(file, fingerprint)  # a complete file needs no lock, so its folder may be read-only
    if mapped is None:
        file.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(f"{file}.lock"):
            mapped = _complete(file, fingerprint)
            if mapped is None:
                _write(file, fingerprint, shape, dtype, fill)
                mapped = _map(file)
    return mapped


def row_blocks(shape: tuple[int, int], itemsize: int) -> list[slice]:
    """Slices of rows that divide an array into blocks of about 64 MiB, of one row at least."""
    step = max(1, _BLOCK_BYTES // (itemsize * max(1, shape[1])))
    return [slice(start, min(start + step, shape[0])) for start in range(0, shape[0], step)]


def _complete(file: Path, fingerprint: str) -> np.memmap[Any, Any] | None:
    """The map of the file; None unless it is complete and matches the fingerprint."""
    # The description is written first, so a file without one is not ours.
    if file.exists() and not description(file).exists():
        raise ZarrCoreError(f"{file} exists and was not written by zarr_core; choose another path")
    try:
        recorded = json.loads(description(file).read_text())
        mapped = _map(file)
        # That of the map: another process may have put a file with other cells into its place since.
        is_complete = recorded["fingerprint"] == fingerprint and recorded["crc32c"] == _checksum(mapped)
    except (FileNotFoundError, ValueError, TypeError, KeyError):
        return None
    return mapped if is_complete else None


def _map(file: Path) -> np.memmap[Any, Any]:
    mapped = np.load(file, mmap_mode="r", allow_pickle=False)
    assert isinstance(mapped, np.memmap)
    return mapped


def _write(
    file: Path, fingerprint: str, shape: tuple[int, int], dtype: str, fill: Callable[[int, np.ndarray], None]
) -> None:
    temporary = file.with_name(f"{file.name}.tmp")
    try:
        array = np.lib.format.open_memmap(temporary, mode="w+", dtype=dtype, shape=shape)
        reserve(temporary)
        for rows in row_blocks(shape, array.itemsize):
            fill(rows.start, array[rows])
        array.flush()
        del array
        checksum = _checksum(_map(temporary))
        # The description first: a file that does not match it is written again.
        record = {"fingerprint": fingerprint, "shape": list(shape), "dtype": dtype, "crc32c": checksum}
        described = file.with_name(f"{file.name}.json.tmp")
        described.write_text(json.dumps(record, indent=1) + "\n")
        os.replace(described, description(file))
        os.replace(temporary, file)
    finally:
        temporary.unlink(missing_ok=True)


def reserve(file: Path) -> None:
    """Reserve the blocks of a sparse file: on a full disk, a write to its map would kill the process (SIGBUS)."""
    if hasattr(os, "posix_fallocate"):
        with file.open("r+b") as opened:
            try:
                os.posix_fallocate(opened.fileno(), 0, file.stat().st_size)
            except OSError as error:
                raise OSError(error.errno, error.strerror, str(file)) from None


def _checksum(mapped: np.memmap[Any, Any]) -> int:
    """Of the file, from its beginning."""
    data: Any = mapped.base
    checksum = 0
    for start in range(0, len(data), 1 << 22):
        checksum = google_crc32c.extend(checksum, data[start : start + (1 << 22)])
    return checksum


def description(file: Path) -> Path:
    """The file that describes a ``.npy`` file of this library."""
    return file.with_name(f"{file.name}.json")
