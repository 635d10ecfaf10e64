"""Files as the libraries need them: streams where they read streams, otherwise a path, if need be of a scratch copy."""

from __future__ import annotations

import io
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any

from zarr_core.format.names import check_relative_path
from zarr_core.sources.arrays import suffix_of
from zarr_core.sources.sample import FileInfo
from zarr_core.storage import Storage, is_local
from zarr_core.storage.reading import RemoteFile, read_pieces

# Bytes of a file that are in memory while it is copied or hashed.
_PIECE_BYTES = 32 * 2**20


def path_of(folder: str, name: str) -> str:
    """Path below the root of a file in a sample's folder."""
    return f"{folder}/{name}" if folder else name


@dataclass(frozen=True)
class SourceFile:
    """A file of a sample, whose folder lies below the root of a source. Its parts are read as their concatenation."""

    storage: Storage
    folder: str
    info: FileInfo

    @property
    def suffix(self) -> str:
        """The suffix that decides the format."""
        return suffix_of(self.info.name)

    @property
    def path(self) -> str:
        """Path below the root."""
        return path_of(self.folder, self.info.name)

    @contextmanager
    def stream(self) -> Iterator[IO[bytes]]:
        """The file as a seekable stream; a remote one is read in pieces, without a copy on a disk."""
        if self.info.parts or is_local(self.storage.root):
            with self.local_path() as path, open(path, "rb") as opened:
                yield opened
        else:
            raw: Any = RemoteFile(self.storage, self.path, self.info.size, self.info.version)
            try:
                yield io.BufferedReader(raw, 2**20)
            except Exception:
                if raw.error is not None:  # libraries replace it by one of their own
                    raise raw.error from None
                raise

    @contextmanager
    def local_path(self) -> Iterator[Path]:
        """Path on a local disk. A remote file, and one in parts, is copied to scratch (TMPDIR) meanwhile."""
        if is_local(self.storage.root) and not self.info.parts:
            yield Path(self.storage.path(self.path))
            return
        with tempfile.TemporaryDirectory(prefix="zarr_core-") as scratch:
            path = Path(scratch) / self.info.name.rpartition("/")[2]
            self._copy(path)
            yield path

    @contextmanager
    def local_tree(self) -> Iterator[Path]:
        """A scratch folder with the parts of a case: links to local files, copies of remote ones."""
        with tempfile.TemporaryDirectory(prefix="zarr_core-") as scratch:
            for part in self.info.parts:
                below = part.name.removeprefix(self.info.name.removeprefix("./"))
                path = Path(scratch) / check_relative_path(below)
                path.parent.mkdir(parents=True, exist_ok=True)
                file = replace(self, info=part)
                if is_local(self.storage.root):
                    path.symlink_to(os.path.abspath(self.storage.path(file.path)))
                else:
                    file._copy(path)
            yield Path(scratch)

    def pieces(self) -> Iterator[bytes]:
        """The content of the file, of all its parts in order."""
        for part in self.info.stored:
            name = path_of(self.folder, part.name)
            if not is_local(self.storage.root):
                yield from read_pieces(self.storage, name, part.version, 0, part.size)
                continue
            for start in range(0, part.size, _PIECE_BYTES):
                yield self.storage.read(name, start, min(start + _PIECE_BYTES, part.size))

    def _copy(self, target: Path) -> None:
        with open(target, "wb") as opened:
            opened.writelines(self.pieces())
