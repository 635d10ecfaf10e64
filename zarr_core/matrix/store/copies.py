"""The two copies of a matrix, and where the samples lie in the arrays of each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from typing import NamedTuple

from zarr_core._util.cached import cached_property
from zarr_core.matrix.store.layout import ChunkLayout

#: Ending of the column-major arrays' names.
COLUMNS = "_columns"


class Block(NamedTuple):
    """Samples that were written together and lie one after another, from the first position of a shard on.

    Attributes:
        first: position of the first sample.
        sample_ids: samples in the order of their positions.
        bytes: stored bytes by value.
    """

    first: int
    sample_ids: Sequence[str]
    bytes: Mapping[str, int]


@dataclass(frozen=True)
class Copy:
    """One copy of a matrix: an array for each value table, with the samples along one of the two axes.

    Attributes:
        name: "row-major" or "column-major".
        layouts: chunk layout by value.
        blocks: the samples that the copy holds.
    """

    name: str
    layouts: Mapping[str, ChunkLayout]
    blocks: Sequence[Block]

    @cached_property
    def positions(self) -> Mapping[str, int]:
        """Position of each sample along the axis of the samples."""
        found: dict[str, int] = {}
        for block in self.blocks:
            found.update(zip(block.sample_ids, count(block.first), strict=False))
        return found

    @property
    def end(self) -> int:
        """The first position after all samples."""
        return max((block.first + len(block.sample_ids) for block in self.blocks), default=0)

    @property
    def next_shard(self) -> int:
        """The first shard after all samples."""
        return self.shards_of(self.end)

    @property
    def shard_samples(self) -> int:
        """Samples of a shard."""
        layout = next(iter(self.layouts.values()))
        return layout.shard[layout.sample_axis]

    def shards_of(self, samples: int) -> int:
        """Number of shards that a block of ``samples`` samples takes. Each block begins a new shard."""
        return -(-samples // self.shard_samples)

    def path(self, value: str) -> str:
        """Path of the array of a value."""
        return f"{value}{COLUMNS if self.name == 'column-major' else ''}.zarr"

    def shard_name(self, value: str, along: int, across: int = 0) -> str:
        """Full name of a shard, by its numbers along the samples and across them."""
        first, second = (along, across) if self.layouts[value].sample_axis == 0 else (across, along)
        return f"{self.path(value)}/c/{first}/{second}"

    def shard_names(self, value: str) -> Iterator[str]:
        """Every shard of a value that holds samples."""
        for block in self.blocks:
            start = block.first // self.shard_samples
            for along in range(start, start + self.shards_of(len(block.sample_ids))):
                for across in range(self.layouts[value].shards_across):
                    yield self.shard_name(value, along, across)
