"""Memory maps of files that need not stay open, made by the C library.

Python's own ``mmap`` keeps a file open per map; before Python 3.13, in every case.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import weakref
from collections.abc import Callable
from functools import cache
from typing import Any


def map_closed(handle: int, size: int, on_end: Callable[[], Any]) -> memoryview:
    """The first ``size`` bytes of an open file, read-only; the file may be closed afterwards.

    Args:
        handle: of the file.
        size: in bytes, at least 1.
        on_end: called when the map ends, as soon as nothing refers to the bytes.

    Raises:
        OSError: the file cannot be mapped.
    """
    map_file, unmap = _c_functions()
    address = map_file(None, size, mmap.PROT_READ, mmap.MAP_SHARED, handle, 0)
    if address is None or address == ctypes.c_void_p(-1).value:
        code = ctypes.get_errno()
        raise OSError(code, f"the file cannot be mapped: {os.strerror(code)}")
    content = (ctypes.c_ubyte * size).from_address(address)
    # Of this object: an array of a memoryview keeps only what that is a view of.
    weakref.finalize(content, _end, unmap, address, size, on_end).atexit = False
    return memoryview(content).cast("B").toreadonly()


def _end(unmap: Callable[..., int], address: int, size: int, on_end: Callable[[], Any]) -> None:
    unmap(address, size)
    on_end()


@cache
def _c_functions() -> tuple[Callable[..., int | None], Callable[..., int]]:
    """``mmap`` and ``munmap``."""
    library = ctypes.CDLL(None, use_errno=True)
    map_file, unmap = library.mmap, library.munmap
    map_file.restype = ctypes.c_void_p
    map_file.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
    unmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    return map_file, unmap
