"""Threads for clients without an event loop: one pool per process."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import TypeVar

T = TypeVar("T")

_THREADS = 64


async def in_thread(work: Callable[[], T]) -> T:
    """Call a function in a thread of the pool."""
    return await asyncio.get_running_loop().run_in_executor(_pool(os.getpid()), work)


@cache
def _pool(process: int) -> ThreadPoolExecutor:  # threads do not survive a fork
    return ThreadPoolExecutor(_THREADS, thread_name_prefix="zarr_core.storage.backends")
