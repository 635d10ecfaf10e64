"""List the files that a glob pattern matches, on a disk or in a bucket."""

from __future__ import annotations

import glob
import os
import stat
from pathlib import PurePath
from typing import NamedTuple

from fsspec.core import url_to_fs

from zarr_core._util.redaction import redact
from zarr_core.errors import WarehouseError
from zarr_core.storage import is_local


class ListedFile(NamedTuple):
    """A file of a warehouse.

    Attributes:
        name: path, or full URL.
        size: bytes.
        version: changes with the content: etag, or time of the last modification; "" if unknown.
    """

    name: str
    size: int
    version: str


def check_unchanged(file: ListedFile) -> None:
    """Raise WarehouseError if a file is not the one that was listed; call it after its rows were read."""
    found = list_files(glob.escape(file.name))
    if found != [file]:
        what = "was replaced" if found else "was removed"
        raise WarehouseError(f"{redact(file.name)} {what} while its rows were read; load the batch again")


def list_files(pattern: str) -> list[ListedFile]:
    """Files by name, sorted. Links on a disk are followed: to files, and to folders.

    Raises:
        WarehouseError: a link has no target, or a folder on the way cannot be read.
    """
    if is_local(pattern):
        return _local_files(str(url_to_fs(pattern)[1]))
    fs, path = url_to_fs(pattern)
    fs.invalidate_cache()
    found = fs.glob(path, detail=True)
    listed = []
    for name, info in found.items():
        version = info.get("ETag") or info.get("etag") or info.get("mtime") or info.get("LastModified") or ""
        listed.append(ListedFile(fs.unstrip_protocol(name), int(info["size"]), str(version)))
    return listed


def _local_files(pattern: str) -> list[ListedFile]:
    # fsspec's glob does not enter folders that are links. Python's does, but skips what it cannot enter.
    for parent in PurePath(pattern).parents:
        if glob.has_magic(str(parent)):
            for path in glob.iglob(str(parent), recursive=True, include_hidden=True):
                _check_folder(path)
    found = []
    for path in sorted(glob.glob(pattern, recursive=True, include_hidden=True)):
        try:
            info = os.stat(path)
        except OSError as error:
            if not os.path.lexists(path):
                continue
            raise WarehouseError(f"{path} matches {pattern}, but cannot be read: {error.strerror}") from error
        found.append(ListedFile(path, info.st_size, str(info.st_mtime)))
    return found


def _check_folder(path: str) -> None:
    """Raise WarehouseError for a link without a target, or a folder that cannot be listed."""
    try:
        if stat.S_ISDIR(os.stat(path).st_mode):
            os.scandir(path).close()
    except OSError as error:
        if not os.path.lexists(path):
            return  # it was removed just now
        raise WarehouseError(f"{path} cannot be read, so its files would be missing: {error.strerror}") from error
