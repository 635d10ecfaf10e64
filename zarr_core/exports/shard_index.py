"""``index.json`` of exported tar shards: what they hold, where in each tar an item lies, and digests."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import Field, TypeAdapter

from zarr_core._util.documents import DocumentError, parse_model, to_json
from zarr_core.errors import StoreError
from zarr_core.format.names import check_relative_path
from zarr_core.storage import Storage

INDEX = "index.json"

_Count = Annotated[int, Field(ge=0, le=2**63 - 1)]


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

    name: str
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
    where = f"{out.url}/{INDEX}"
    try:
        index = parse_model(_INDEX, out.read(INDEX))
        for shard in index.shards.values():
            check_relative_path(shard.name)
    except FileNotFoundError:
        return None
    except DocumentError as error:
        raise StoreError(f"{where} is not an index of tar shards: {error}") from error
    return index
