"""Reads that are checked as they arrive. Damage that came over a network, or from a cache, is fetched once more.

A checksum that does not match may be the fault of the transfer or of a cached copy. So the bytes are discarded from
every cache and fetched again; what is damaged a second time is damaged where it is stored.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Protocol, TypeVar

import numpy as np

from zarr_core.errors import CorruptChunkError
from zarr_core.storage.byte_ranges import Objects, Request
from zarr_core.storage.storage import Storage

T = TypeVar("T")


def fetch_checked(
    objects: Objects,
    requests: Sequence[Request],
    use: Callable[[int, np.ndarray | Exception], None],
    also_discard: Callable[[int], Iterable[Request]] = lambda _: (),
) -> None:
    """Fetch byte ranges together and use each as it arrives; fetch those that are damaged once more.

    Args:
        objects, requests: where and what to fetch.
        use: takes the number of a request and its bytes (uint8, valid during the call), or the error that ``objects``
            reported. It raises CorruptChunkError where the bytes are damaged or missing and the request is worth a
            second attempt; any other error ends the fetch. The error should name everything that a person needs.
        also_discard: further requests whose cached bytes to forget when this one is damaged.

    Raises:
        CorruptChunkError: from ``use``, for a local file at once, otherwise for the second attempt.
    """
    damaged: list[int] = []
    for number, data in enumerate(objects.fetch(requests)):
        try:
            use(number, data)
        except CorruptChunkError:
            if not objects.remote:
                raise
            damaged.append(number)
    if not damaged:
        return
    again = [requests[number] for number in damaged]
    objects.discard([*again, *{other for number in damaged for other in also_discard(number)}])
    for number, data in zip(damaged, objects.fetch(again), strict=True):
        use(number, data)


class Part(Protocol):
    """A part of an object with a checksum of its own, such as a chunk."""

    @property
    def start(self) -> int:
        """Its first byte in the object."""

    @property
    def stop(self) -> int:
        """The first byte after it."""


P = TypeVar("P", bound=Part)


def check_parts(parts: Iterable[P], start: int, stop: int, check: Callable[[P, bytes], object], data: bytes) -> bytes:
    """Check the parts of bytes ``[start, stop)`` of an object; returns the bytes.

    Args:
        parts: lie in the range.
        start, stop: the range.
        check: takes a part and its bytes; raises CorruptChunkError, with the part and its place, if they are damaged.
        data: the bytes as they were read.

    Raises:
        CorruptChunkError: fewer bytes were read, or a part is damaged.
    """
    if len(data) != stop - start:
        raise CorruptChunkError(f"bytes {start} to {stop}: only {len(data)} bytes were read")
    for part in parts:
        check(part, data[part.start - start : part.stop - start])
    return data


def read_checked(storage: Storage, name: str, start: int, stop: int, decode: Callable[[bytes], T]) -> T:
    """Decode bytes ``[start, stop)`` of an object; read them once more if they are damaged and came over a network.

    Args:
        storage: where to read; it keeps no copies, so there is nothing to discard.
        name: of the object.
        start, stop: the range.
        decode: makes the result from the bytes, which may be fewer than requested; raises CorruptChunkError where they
            are damaged.

    Raises:
        CorruptChunkError: from ``decode``, as for :func:`fetch_checked`.
        OSError: the bytes cannot be read.
    """
    try:
        return decode(storage.read(name, start, stop))
    except CorruptChunkError:
        if storage.is_local:
            raise
    return decode(storage.read(name, start, stop))
