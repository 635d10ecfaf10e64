"""Tar shards of an export: their bytes, the same on every machine, and ``index.json``, which tells what they hold."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, NamedTuple
from urllib.parse import quote

import numpy as np
from pydantic import Field, TypeAdapter

from zarr_core._util.documents import DocumentError, checked_by, parse_model, to_json
from zarr_core.errors import CorruptChunkError, StoreError
from zarr_core.format.names import check_relative_path
from zarr_core.storage import Storage

INDEX = "index.json"

_Count = Annotated[int, Field(ge=0, le=2**63 - 1)]
# Tar files end with two empty blocks, and are padded to whole records.
_BLOCK, _RECORD = tarfile.BLOCKSIZE, tarfile.RECORDSIZE
_NPY = ".npy"
# More than the header that NumPy writes for two axes.
_NPY_HEADER = 256


class Item(NamedTuple):
    """One training item in a tar.

    Attributes:
        sample_id: of its sample.
        draw: number of the draw, the epoch of ``ZarrChunkReader.read_sample``; None for a whole sample.
        offset: of its first tar header in the shard, in bytes.
        size: bytes of its tar members, with their headers.
        crc32c: of these bytes.
    """

    sample_id: str
    draw: _Count | None
    offset: _Count
    size: _Count
    crc32c: _Count


@dataclass(frozen=True)
class Shard:
    """One finished tar.

    Attributes:
        name: of the object beside the index.
        inputs: digest of everything that its bytes depend on. A later export with equal inputs keeps the object.
        sha256: of the object.
        bytes: of the object.
        items: in the order in which they lie in it.
    """

    name: Annotated[str, checked_by(check_relative_path)]
    inputs: str
    sha256: str
    bytes: _Count
    items: tuple[Item, ...]


@dataclass(frozen=True)
class ShardIndex:
    """An export of a store to tar shards. Its fields are the keys of ``index.json``.

    Attributes:
        store: identity of the store, without secrets.
        dataset: name of the store's dataset.
        generation: of the store; 0 for a store that another program wrote.
        split: that was exported; None for all samples.
        fields: exported fields by canonical name.
        num_points: points of a draw by domain; empty for whole samples.
        draws_per_sample: 0 for whole samples.
        seed: of the draws, and of the order in the shards.
        plan: digest of the inputs of all shards.
        planned: number of shards of the finished export.
        shards: finished shards, by number.
    """

    store: str
    dataset: str
    generation: _Count
    split: str | None
    fields: tuple[str, ...]
    num_points: Mapping[str, int | None]
    draws_per_sample: _Count
    seed: int
    plan: str
    planned: _Count
    shards: Mapping[str, Shard] = field(default_factory=dict)
    format: Literal["zarr_core shards"] = "zarr_core shards"
    format_version: Literal[1] = 1

    @property
    def complete(self) -> bool:
        """Whether all planned shards are there."""
        return len(self.shards) == self.planned

    @property
    def items(self) -> int:
        """Number of items in the finished shards."""
        return sum(len(shard.items) for shard in self.shards.values())

    @property
    def evenness(self) -> dict[str, tuple[int, int]]:
        """Least and greatest number of items and of bytes of a finished shard."""
        counts = [(len(shard.items), shard.bytes) for shard in self.shards.values()] or [(0, 0)]
        items, sizes = zip(*counts, strict=True)
        return {"items": (min(items), max(items)), "bytes": (min(sizes), max(sizes))}

    def to_json(self) -> bytes:
        """The content of ``index.json``. Equal exports give equal bytes."""
        document: dict[str, Any] = _INDEX.dump_python(self, mode="json")
        document |= {"items": self.items, "evenness": self.evenness, "complete": self.complete}
        return to_json(document)


_INDEX = TypeAdapter(ShardIndex)


def read_index(out: Storage) -> ShardIndex | None:
    """The index of an export; None if there is none.

    Raises:
        StoreError: it cannot be read.
    """
    try:
        return parse_model(_INDEX, out.read(INDEX))
    except FileNotFoundError:
        return None
    except DocumentError as error:
        raise StoreError(f"{out.url}/{INDEX} is not an index of tar shards: {error}") from error


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
