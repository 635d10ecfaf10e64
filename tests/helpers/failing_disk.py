"""A disk that fails while a file is read."""

from __future__ import annotations

import errno
import io
from pathlib import Path
from typing import Any

import pytest


def fail_reads(monkeypatch: pytest.MonkeyPatch, path: Path, first: int, size: int | None = None) -> None:
    """Make reads of a file fail after the first ones, each of which gives at most ``size`` bytes."""
    real = open
    reads = 0

    class Failing(io.FileIO):
        def readinto(self, buffer: Any) -> int | None:
            nonlocal reads
            reads += 1
            if reads > first:
                raise OSError(errno.EIO, "Input/output error")
            return super().readinto(memoryview(buffer)[:size])

        def readall(self) -> bytes:
            raise OSError(errno.EIO, "Input/output error")

    def opened(file: Any, *arguments: Any, **options: Any) -> Any:
        if str(file) == str(path):
            return io.BufferedReader(Failing(file), 64)
        return real(file, *arguments, **options)

    monkeypatch.setattr("builtins.open", opened)
