"""Memory of arrays that are gone is used again, and never that of an array that something still refers to."""

from __future__ import annotations

import errno
import gc
import os
import pickle
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.helpers.examples import examples
from zarr_core._util import reused_memory
from zarr_core._util.reused_memory import _MOST_KEPT, empty

ROWS = 1 << 16  # of (rows, 3) arrays of float32, which are larger than what the C library keeps


def address(array: np.ndarray) -> int:
    return int(array.ctypes.data)


def kept() -> int:
    """Bytes that no array uses."""
    blocks = reused_memory._kept._by_size.values()
    counted = sum(len(block) for found in blocks for block in found)
    assert counted == reused_memory._kept._bytes
    return counted


@pytest.fixture(autouse=True)
def nothing_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    reused_memory._kept._by_size.clear()
    reused_memory._kept._bytes = 0


def test_the_memory_of_an_array_that_is_gone_is_used_again() -> None:
    first = empty((ROWS, 3), "f4")
    place = address(first)
    del first
    assert kept() >= ROWS * 3 * 4  # the C library may also return the same address
    again = empty((ROWS - 7, 3), np.float32)  # of nearly the same size
    assert address(again) == place
    assert again.shape == (ROWS - 7, 3)
    assert again.dtype == np.float32
    assert again.flags.c_contiguous
    assert again.flags.writeable


def cycle(array: np.ndarray) -> object:
    """Something that only a garbage collection frees."""
    held: list[object] = [array]
    held.append(held)
    return held


HOLDERS: dict[str, Callable[[np.ndarray], object]] = {
    "slice": lambda array: array[5:9, 1],
    "tensor": torch.from_numpy,
    "view of a tensor": lambda array: torch.from_numpy(array)[3].unbind()[1],
    "memoryview": memoryview,
    "cycle": cycle,
}


@pytest.mark.parametrize("holder", HOLDERS)
def test_memory_that_something_refers_to_is_not_used_again(holder: str) -> None:
    array = empty((ROWS, 3), "f4")
    held = HOLDERS[holder](array)
    place = address(array)
    del array
    others = [empty((ROWS, 3), "f4") for _ in range(3)]
    assert place not in map(address, others)
    del held
    gc.collect(1)  # young objects, as the cycle is; all of them take a quarter of a second
    assert address(empty((ROWS, 3), "f4")) == place


@settings(max_examples=examples(60))
@given(steps=st.lists(st.tuples(st.integers(1, 4), st.booleans()), max_size=40))
def test_arrays_keep_their_content_while_they_are_used(steps: list[tuple[int, bool]]) -> None:
    live: list[tuple[int, np.ndarray]] = []
    for number, (size, drop) in enumerate(steps):
        array = empty((size, ROWS), "i4")
        array[:] = number
        live.append((number, array[:, 1:]))
        if drop:
            del live[0]
        for content, held in live:
            assert (held == content).all()
    assert kept() <= _MOST_KEPT


def test_kept_memory_is_bounded_and_the_size_used_last_stays() -> None:
    arrays = [empty((1 << 24,), "u1") for _ in range(12)]
    other = empty((1 << 22,), "u1")
    place = address(other)
    arrays.clear()
    del other
    assert kept() <= _MOST_KEPT
    assert address(empty((1 << 22,), "u1")) == place


def test_memory_begins_at_a_page() -> None:
    """Copies to a few bytes behind the begin of a page are several times slower on processors of AMD."""
    for rows in (ROWS, ROWS + 1, 3 * ROWS):
        assert address(empty((rows, 3), np.float32)) % 4096 == 0


def test_small_and_huge_arrays_are_not_kept() -> None:
    arrays = [empty((10,), "f4"), empty((_MOST_KEPT + 1,), "u1")]
    arrays.clear()
    assert kept() == 0


def test_too_much_memory_is_the_error_of_numpy() -> None:
    with pytest.raises((MemoryError, ValueError)):
        empty((1 << 62,), "f8")


def test_a_pickled_array_has_its_content() -> None:
    array = empty((ROWS, 3), "f4")
    array[:] = 3
    assert (pickle.loads(pickle.dumps(array)) == 3).all()


def test_a_child_process_writes_into_memory_of_its_own() -> None:
    empty((ROWS, 3), "f4")
    array = empty((ROWS, 3), "f4")
    array[:] = 3
    if not (child := os.fork()):
        array[:] = 4
        os._exit(0)
    os.waitpid(child, 0)
    assert (array == 3).all()


@pytest.mark.parametrize("size", [1 << 17, 1 << 20])
def test_memory_that_the_system_does_not_give_is_the_error_of_numpy(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.ENOMEM, "Cannot allocate memory")

    monkeypatch.setattr(reused_memory.mmap, "mmap", refuse)
    with pytest.raises(MemoryError, match="Cannot allocate memory"):
        empty((size,), "u1")


def test_threads_never_share_memory() -> None:
    wrong: list[int] = []

    def work(number: int) -> None:
        for _ in range(200):
            array = empty((ROWS,), "i4")
            array[:] = number
            if not (array == number).all():
                wrong.append(number)

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(work, range(4)))
    assert not wrong


_LEFT = """
import posix
from zarr_core._util import reused_memory
posix.kept = reused_memory.empty((1 << 20,), "u1")  # dropped after the modules are emptied
"""


def test_memory_that_is_in_use_at_exit_is_no_error() -> None:
    ended = subprocess.run([sys.executable, "-c", _LEFT], capture_output=True, text=True)
    assert (ended.returncode, ended.stderr) == (0, "")
