"""Damaged byte ranges are fetched once more, and only once."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest

from zarr_core.errors import CorruptChunkError, StoreError
from zarr_core.storage import Storage
from zarr_core.storage.byte_ranges import Request
from zarr_core.storage.checked import fetch_checked, read_checked

REQUESTS = [Request("a", 0, 1), Request("b", 0, 1), Request("c", 0, 1)]


class Objects:
    """Each request returns the number of times that its key was fetched; logs what was fetched and discarded."""

    def __init__(self, remote: bool = True) -> None:
        self.remote = remote
        self.log: list[tuple[str, str]] = []

    def fetch(self, requests: Sequence[Request]) -> Iterator[np.ndarray | Exception]:
        for request in requests:
            self.log.append(("fetch", request.key))
            yield np.array([self.log.count(("fetch", request.key))], np.uint8)

    def discard(self, requests: Sequence[Request]) -> None:
        self.log += [("discard", request.key) for request in requests]


def damaged_until(attempt: int, used: list[int]) -> Callable[[int, np.ndarray | Exception], None]:
    def use(number: int, data: np.ndarray | Exception) -> None:
        assert isinstance(data, np.ndarray)
        if number == 1 and data[0] < attempt:
            raise CorruptChunkError(f"request {number}")
        used.append(number)

    return use


def test_a_damaged_range_is_discarded_and_fetched_once_more() -> None:
    objects, used = Objects(), list[int]()
    fetch_checked(objects, REQUESTS, damaged_until(2, used), lambda number: [Request(f"group of {number}")])
    assert used == [0, 2, 1]
    assert [key for what, key in objects.log if what == "fetch"] == ["a", "b", "c", "b"]
    assert [key for what, key in objects.log if what == "discard"] == ["b", "group of 1"]


def test_damage_that_comes_again_is_reported() -> None:
    objects = Objects()
    with pytest.raises(CorruptChunkError, match="request 1"):
        fetch_checked(objects, REQUESTS, damaged_until(3, []))
    assert [key for what, key in objects.log if what == "fetch"] == ["a", "b", "c", "b"]


def test_local_damage_and_other_errors_are_reported_at_once() -> None:
    objects = Objects(remote=False)
    with pytest.raises(CorruptChunkError):
        fetch_checked(objects, REQUESTS, damaged_until(2, []))
    assert objects.log == [("fetch", "a"), ("fetch", "b")]

    def use(number: int, data: np.ndarray | Exception) -> None:
        raise StoreError("gone")

    objects = Objects()
    with pytest.raises(StoreError, match="gone"):
        fetch_checked(objects, REQUESTS, use)
    assert objects.log == [("fetch", "a")]


@pytest.mark.parametrize(("where", "attempts"), [("local", 1), ("memory", 2)])
def test_a_single_read_has_a_second_attempt_over_a_network(
    where: str, attempts: int, tmp_path: Path, memory_root: str
) -> None:
    storage = Storage(tmp_path if where == "local" else memory_root)
    storage.write("a", [b"12345"])
    seen = []

    def decode(data: bytes) -> bytes:
        seen.append(data)
        raise CorruptChunkError("always")

    with pytest.raises(CorruptChunkError, match="always"):
        read_checked(storage, "a", 1, 3, decode)
    assert seen == [b"23"] * attempts
    assert read_checked(storage, "a", 1, 3, bytes.decode) == "23"
