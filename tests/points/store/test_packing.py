"""The objects of a group on their way into and out of an archive."""

from __future__ import annotations

import random

import pytest

from tests.helpers.counting_store import Requests
from zarr_core.points.store import packing
from zarr_core.points.store.packing import is_stored, on_this_machine, was_cut_off
from zarr_core.storage import Storage

NAME = "samples/a/0123456789abcdef.zip"
LIMIT = 1000


@pytest.fixture
def small_ranges(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packing, "MAX_READ_BYTES", LIMIT)


def pieces_of(data: bytes) -> list[bytes]:
    """The bytes in pieces of up to half a range."""
    chance, pieces = random.Random(len(data)), []
    while data:
        size = chance.randint(1, LIMIT // 2)
        pieces.append(data[:size])
        data = data[size:]
    return pieces


@pytest.mark.usefixtures("small_ranges")
@pytest.mark.parametrize("size", [0, 1, LIMIT - 1, LIMIT, LIMIT + 1, 10 * LIMIT, 12_345])
def test_an_object_is_fetched_by_large_ranges(size: int, memory_root: str, monkeypatch: pytest.MonkeyPatch) -> None:
    data = random.Random(0).randbytes(size)
    storage = Storage(memory_root)
    storage.write(NAME, [data])
    requests = Requests(memory_root, monkeypatch)
    with on_this_machine(storage, NAME) as place:
        assert place.is_local
        assert place.read(NAME) == data
    assert requests.counts == {"read": size // LIMIT + 1}


@pytest.mark.usefixtures("small_ranges")
@pytest.mark.parametrize("start", [0, 1, 999, 1000, 5432, 12_344, 12_345])
def test_an_object_is_compared_by_large_ranges(start: int, memory_root: str, monkeypatch: pytest.MonkeyPatch) -> None:
    data = random.Random(0).randbytes(12_345)
    storage = Storage(memory_root)
    storage.write(NAME, [data])
    requests = Requests(memory_root, monkeypatch)
    assert is_stored(storage, NAME, start, pieces_of(data))
    assert requests.counts["read"] <= -(-len(data) // (LIMIT // 2))
    assert max(requests.sizes, default=0) <= LIMIT
    for at in {start - 1, start, len(data) - 1} - {-1, len(data)}:
        changed = bytearray(data)
        changed[at] ^= 1
        assert is_stored(storage, NAME, start, pieces_of(bytes(changed))) == (at < start)
    assert not is_stored(storage, NAME, start, pieces_of(data + b"?"))
    assert not is_stored(storage, NAME, start, pieces_of(data[:-1]))
    assert not is_stored(storage, "samples/b", start, pieces_of(data))


@pytest.mark.usefixtures("small_ranges")
@pytest.mark.parametrize("size", [0, 1, 999, 1000, 5432, 12_344, 12_345])
def test_a_power_cut_leaves_the_beginning(size: int, memory_root: str) -> None:
    data = random.Random(1).randbytes(12_345).replace(b"\0", b"\1")
    storage = Storage(memory_root)
    for rest in (b"", bytes(7), bytes(len(data) - size)):
        storage.write(NAME, [data[:size], rest[: len(data) - size]])
        assert was_cut_off(storage, NAME, pieces_of(data))
    storage.write(NAME, [data[:size], bytes(len(data) + 1 - size)])
    assert not was_cut_off(storage, NAME, pieces_of(data))
    for at in {0, size - 1, size, len(data) - 1} - {-1, len(data)}:
        changed = bytearray(data[:size].ljust(len(data), b"\0"))
        changed[at] ^= 255
        if changed[at]:
            storage.write(NAME, [bytes(changed)])
            assert not was_cut_off(storage, NAME, pieces_of(data))
