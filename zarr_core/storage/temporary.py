"""Temporary files: of objects being written, ``.<name>.<32 hex digits>.tmp`` beside them, and of large uploads."""

from __future__ import annotations

import errno
import re
import uuid
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from mmap import ACCESS_READ, mmap
from tempfile import SpooledTemporaryFile, gettempdir

# Bytes of an object that are collected in memory; more are collected in a file.
_IN_MEMORY = 64 << 20
_TEMPORARY = re.compile(r"\.([^/]+)\.[0-9a-f]{32}\.tmp")


def add_temp_suffix(name: str) -> str:
    """A temporary name, new at each call, for the object that is to be called ``name`` in the end."""
    folder, slash, last = name.rpartition("/")
    return f"{folder}{slash}.{last}.{uuid.uuid4().hex}.tmp"


def strip_temp_suffix(name: str) -> tuple[str, bool]:
    """Split a temporary name: (final object name, True), or (name, False) for any other name."""
    folder, slash, last = name.rpartition("/")
    found = _TEMPORARY.fullmatch(last)
    return (f"{folder}{slash}{found[1]}", True) if found else (name, False)


@contextmanager
def scratch() -> Iterator[None]:
    """Name the folder of temporary files in the error of a full disk: the files have no names."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT) and error.filename is None:
            error.filename = gettempdir()
        raise


@contextmanager
def collected(pieces: Iterable[bytes]) -> Iterator[bytes | mmap]:
    """The bytes of an object in one piece. More than 64 MiB lie in a temporary file of this machine, not in memory."""
    with scratch(), SpooledTemporaryFile(_IN_MEMORY) as file:
        file.writelines(pieces)
        size = file.tell()
        file.seek(0)
        if size <= _IN_MEMORY:
            yield file.read()
            return
        with mmap(file.fileno(), size, access=ACCESS_READ) as data:
            yield data
