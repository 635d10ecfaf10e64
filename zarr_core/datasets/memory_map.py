"""A selection of a matrix as one memory-mapped ``.npy`` file, for libraries that want an array and not a loader."""

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
    """The array in a ``.npy`` file, which is written where it is not there yet.

    Beside the file lies ``<path>.json``, which says what the file holds and its checksum. A file that does not agree
    with it, because its writer was killed or the disk damaged it, is written anew; so is one that holds other cells.
    Any number of processes may ask at once; one of them writes, and what another has mapped stays as it is.

    Args:
        path: of the file, on a local disk.
        fingerprint: of what it shall hold.
        shape: (rows, columns).
        dtype: of the cells.
        fill: writes the rows from a number on into the array that it is given.

    Raises:
        ZarrCoreError: a file is there that was not written by this function.
    """
    file = Path(path)
    file.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(f"{file}.lock"):
        if not _holds(file, fingerprint):
            _write(file, fingerprint, shape, dtype, fill)
    mapped = np.load(file, mmap_mode="r", allow_pickle=False)
    assert isinstance(mapped, np.memmap)
    return mapped


def row_blocks(shape: tuple[int, int], itemsize: int) -> list[slice]:
    """Rows that are in memory together: some of them, however wide they are."""
    step = max(1, _BLOCK_BYTES // (itemsize * max(1, shape[1])))
    return [slice(start, min(start + step, shape[0])) for start in range(0, shape[0], step)]


def _holds(file: Path, fingerprint: str) -> bool:
    """Whether the file is whole and holds this; an error where it is somebody else's."""
    try:
        said = json.loads(_description(file).read_text())
        found, checksum = str(said["fingerprint"]), int(said["crc32c"])
    except FileNotFoundError:
        if not file.exists():
            return False
        # Ours always have a description: it is written first.
        raise ZarrCoreError(f"{file} is there and is no selection of a matrix; name another file") from None
    except (ValueError, KeyError, TypeError):
        return False
    return found == fingerprint and file.exists() and _checksum(file) == checksum


def _write(
    file: Path, fingerprint: str, shape: tuple[int, int], dtype: str, fill: Callable[[int, np.ndarray], None]
) -> None:
    temporary = file.with_name(f"{file.name}.tmp")
    array = np.lib.format.open_memmap(temporary, mode="w+", dtype=dtype, shape=shape)
    for rows in row_blocks(shape, array.itemsize):
        fill(rows.start, array[rows])
    array.flush()
    del array
    # First the description: a file that it does not fit is written anew.
    said = {"fingerprint": fingerprint, "shape": list(shape), "dtype": dtype, "crc32c": _checksum(temporary)}
    described = file.with_name(f"{file.name}.json.tmp")
    described.write_text(json.dumps(said, indent=1) + "\n")
    os.replace(described, _description(file))
    os.replace(temporary, file)


def _checksum(file: Path) -> int:
    checksum = 0
    with file.open("rb") as opened:
        while block := opened.read(1 << 22):
            checksum = google_crc32c.extend(checksum, block)
    return checksum


def _description(file: Path) -> Path:
    return file.with_name(f"{file.name}.json")
