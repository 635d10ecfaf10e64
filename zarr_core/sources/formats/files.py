"""Files as the libraries need them: streams where they read streams, otherwise a path, if need be of a scratch copy."""

from __future__ import annotations

import io
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from zarr_core.format.names import check_relative_path
from zarr_core.sources.reading import RemoteFile, read_pieces
from zarr_core.sources.sample import FileInfo
from zarr_core.storage import Storage, is_local

# Bytes of a file that are in memory while it is copied.
_PIECE_BYTES = 32 * 2**20


def path_of(folder: str, name: str) -> str:
    """Path below the root of a file in a sample's folder."""
    return f"{folder}/{name}" if folder else name


@contextmanager
def stream(storage: Storage, folder: str, info: FileInfo) -> Iterator[IO[bytes]]:
    """The file as a seekable stream; a remote one is read in pieces, without a copy on a disk."""
    name = path_of(folder, info.name)
    if info.parts:
        with local_path(storage, folder, info) as path, open(path, "rb") as opened:
            yield opened
    elif is_local(storage.root):
        with open(storage.path(name), "rb") as opened:
            yield opened
    else:
        raw: Any = RemoteFile(storage, name, info)
        yield io.BufferedReader(raw, 2**20)


@contextmanager
def local_path(storage: Storage, folder: str, info: FileInfo) -> Iterator[Path]:
    """Path of the file on a local disk. A remote file, and one in parts, is copied to scratch (TMPDIR) meanwhile."""
    if is_local(storage.root) and not info.parts:
        yield Path(storage.path(path_of(folder, info.name)))
        return
    with tempfile.TemporaryDirectory(prefix="zarr_core-") as scratch:
        path = Path(scratch) / info.name.rpartition("/")[2]
        with open(path, "wb") as target:
            target.writelines(pieces(storage, folder, info))
        yield path


@contextmanager
def local_tree(storage: Storage, folder: str, info: FileInfo) -> Iterator[Path]:
    """A scratch folder with the parts of a case: links to local files, copies of remote ones."""
    with tempfile.TemporaryDirectory(prefix="zarr_core-") as scratch:
        for part in info.parts:
            path = Path(scratch) / check_relative_path(part.name.removeprefix(info.name.removeprefix("./")))
            path.parent.mkdir(parents=True, exist_ok=True)
            if is_local(storage.root):
                path.symlink_to(os.path.abspath(storage.path(path_of(folder, part.name))))
            else:
                with open(path, "wb") as target:
                    target.writelines(pieces(storage, folder, part))
        yield Path(scratch)


def pieces(storage: Storage, folder: str, info: FileInfo) -> Iterator[bytes]:
    """The content of the file, of all its parts in order."""
    for part in info.stored:
        name = path_of(folder, part.name)
        if is_local(storage.root):
            for start in range(0, part.size, _PIECE_BYTES):
                yield storage.read(name, start, min(start + _PIECE_BYTES, part.size))
        else:
            yield from read_pieces(storage, name, part)
