"""Tar members with the same bytes on every machine, as the ``webdataset`` library reads them."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Iterator, Sequence
from urllib.parse import quote

import numpy as np

from zarr_core.errors import CorruptChunkError

# Tar files end with two empty blocks, and are padded to whole records.
_BLOCK, _RECORD = tarfile.BLOCKSIZE, tarfile.RECORDSIZE
_NPY = ".npy"
# More than the header that NumPy writes for two axes.
_NPY_HEADER = 256


def item_key(sample_id: str, draw: int | None) -> str:
    """Key of an item, from which the names of its members begin.

    webdataset ends a key at the first ".", and takes what is before a "/" for a folder: both are percent-encoded, as is
    everything but letters of ASCII, digits, "_", "-" and "~". The number of a draw follows after a comma.
    """
    key = quote(sample_id, safe="").replace(".", "%2E")
    return key if draw is None else f"{key},{draw:06d}"


def npy(values: np.ndarray) -> list[bytes]:
    """The content of a ``.npy`` file: the header, and the values."""
    head = io.BytesIO()
    header = {"descr": np.lib.format.dtype_to_descr(values.dtype), "fortran_order": False, "shape": values.shape}
    np.lib.format.write_array_header_1_0(head, header)
    return [head.getvalue(), values.tobytes()]  # write_array copies in small pieces


def member(name: str, content: Sequence[bytes]) -> Iterator[bytes]:
    """One file in a tar: header, pieces of the content, and padding. Owner and time are 0."""
    info = tarfile.TarInfo(name)
    info.size = sum(map(len, content))
    yield info.tobuf(tarfile.GNU_FORMAT, "utf-8", "strict")
    yield from content
    yield bytes(-info.size % _BLOCK)


def end(size: int) -> bytes:
    """The end of a tar whose members total ``size`` bytes."""
    return bytes(2 * _BLOCK + -(size + 2 * _BLOCK) % _RECORD)


def arrays_of(data: np.ndarray) -> dict[str, np.ndarray]:
    """The ``.npy`` members of one item, by their name after the key and without ``.npy``.

    Args:
        data: uint8, the bytes of the item's members.

    Raises:
        CorruptChunkError: the bytes are not those of tar members with arrays.
    """
    found = {}
    try:
        for name, content in _members(data):
            field = name.partition(".")[2]
            if field.endswith(_NPY):
                found[field.removesuffix(_NPY)] = _array(content)
    except (tarfile.TarError, ValueError) as error:
        raise CorruptChunkError(f"not the members of an item: {error}") from error
    return found


def _members(data: np.ndarray) -> Iterator[tuple[str, np.ndarray]]:
    """Name and content of each file; unlike ``tarfile``, without a copy of the content."""
    offset, long_name = 0, ""
    while offset < len(data):
        info = tarfile.TarInfo.frombuf(data[offset : offset + _BLOCK].tobytes(), "utf-8", "strict")
        content = data[offset + _BLOCK : offset + _BLOCK + info.size]
        offset += _BLOCK + info.size + -info.size % _BLOCK
        if info.type == tarfile.GNUTYPE_LONGNAME:
            long_name = content.tobytes().rstrip(b"\0").decode()
        else:
            yield long_name or info.name, content
            long_name = ""


def _array(content: np.ndarray) -> np.ndarray:
    """The array of a ``.npy`` file; raises ValueError."""
    head = io.BytesIO(content[:_NPY_HEADER].tobytes())
    np.lib.format.read_magic(head)
    shape, _, dtype = np.lib.format.read_array_header_1_0(head)
    if dtype.hasobject:
        raise ValueError("it holds Python objects")
    return np.frombuffer(content[head.tell() :], dtype).reshape(shape).copy()
