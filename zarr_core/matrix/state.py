"""What a matrix holds: ``HEAD.json``, its one object that is ever replaced."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from zarr_core._util.documents import parse_json
from zarr_core.errors import ManifestError, ZarrCoreError
from zarr_core.format.array_metadata import MAX_CHUNKS, VALUE_DTYPES
from zarr_core.format.codecs import Codec
from zarr_core.format.names import check_relative_path
from zarr_core.matrix.layout import GridLayout
from zarr_core.storage import Storage
from zarr_core.versioning.generations import Change, Head, Retention

FORMAT = "zarr_core.matrix"
FORMAT_VERSION = 1
HEAD_NAME = "HEAD.json"
AXIS = "cpg_ids"

# Beyond these a head is no matrix but an attack on the memory of who opens it. Positions are joined as 32-bit integers.
MAX_LENGTH = 2**31 - 1
MAX_CHUNK_BYTES = 1 << 30

_VALUE_NAME = re.compile(r"[a-z][a-z0-9_]*")
_COLUMNS = "_columns"
_OTHER = re.compile(rf"{AXIS}/[0-9a-f]{{16}}\.npy|[a-z][a-z0-9_]*\.zarr/zarr\.json")
#: Names of shards, of either copy.
SHARD = re.compile(r"[a-z][a-z0-9_]*\.zarr/c/\d+/\d+")


@dataclass(frozen=True, slots=True)
class Axis:
    """The object that holds the features' names.

    Attributes:
        path: of the object.
        length: features.
        sha256: of the object's bytes.
    """

    path: str
    length: int
    sha256: str


@dataclass(frozen=True, slots=True)
class Batch:
    """Samples that were appended together.

    Attributes:
        row: of the first sample, the first of a shard; the others follow it.
        sample_ids: in the order of their rows.
        digest: of samples and values, whatever their order.
        bytes: stored bytes by value.
    """

    row: int
    sample_ids: tuple[str, ...]
    digest: str
    bytes: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class ColumnBlock:
    """Batches whose cells the transposed copy holds together.

    Attributes:
        row: of their first sample along the copy's second axis; the others follow it, batch after batch.
        batches: their ids, in order.
        bytes: stored bytes by value.
    """

    row: int
    batches: tuple[str, ...]
    bytes: Mapping[str, int]


@dataclass(frozen=True)
class MatrixState:
    """One committed state of a matrix. Immutable; ``versioning.generations.commit`` derives the next one.

    Attributes:
        matrix_id: random, so that no cache takes a matrix for one that was at the same place before.
        created_at: UTC, ISO 8601.
        axis: the features.
        values: stored dtype by value table.
        codec: compressor of the row copy.
        column_codec: compressor of the transposed copy.
        chunk_features: features of a chunk of the row copy, which is one row high.
        shard_rows: rows of a shard of the row copy, which is as wide as the matrix.
        max_shards: how many shards the row copy has room for.
        column_chunk: (features, rows) of a chunk of the transposed copy.
        batches: by id, in the order of their rows.
        column_blocks: what the transposed copy holds.
        generation: 1 for the matrix as it was made, one more with each commit.
        retention: tags, and what is being removed; of the current state only.
    """

    matrix_id: str
    created_at: str
    axis: Axis
    values: Mapping[str, str]
    codec: str
    column_codec: str
    chunk_features: int
    shard_rows: int
    max_shards: int
    column_chunk: tuple[int, int]
    batches: Mapping[str, Batch] = field(default_factory=dict)
    column_blocks: tuple[ColumnBlock, ...] = ()
    generation: int = 0
    retention: Retention = field(default_factory=Retention)

    @cached_property
    def row_layout(self) -> Mapping[str, GridLayout]:
        """Layout of the row copy by value."""
        width = self.chunk_features * -(-self.axis.length // self.chunk_features)
        return {
            value: GridLayout(
                (self.shard_rows * self.max_shards, self.axis.length),
                (1, self.chunk_features),
                (self.shard_rows, width),
                dtype,
                Codec.parse(self.codec),
                ("sample", "feature"),
            )
            for value, dtype in self.values.items()
        }

    @cached_property
    def column_layout(self) -> Mapping[str, GridLayout]:
        """Layout of the transposed copy by value: a shard holds the features of a chunk of the row copy."""
        height, width = self.column_chunk
        return {
            value: GridLayout(
                (self.axis.length, width * self.max_shards),
                (height, width),
                (self.chunk_features, width),
                dtype,
                Codec.parse(self.column_codec),
                ("feature", "sample"),
            )
            for value, dtype in self.values.items()
        }

    @cached_property
    def column_rows(self) -> Mapping[str, int]:
        """Place of each sample along the second axis of the transposed copy, for those that it holds."""
        found: dict[str, int] = {}
        for block in self.column_blocks:
            members = [i for batch_id in block.batches for i in self.batches[batch_id].sample_ids]
            found |= {sample_id: block.row + n for n, sample_id in enumerate(members)}
        return found

    @cached_property
    def rows(self) -> Mapping[str, int]:
        """Row of each sample."""
        return {i: batch.row + n for batch in self.batches.values() for n, i in enumerate(batch.sample_ids)}

    @property
    def next_shard(self) -> int:
        """The first shard of the row copy behind all that is committed."""
        ends = [batch.row // self.shard_rows + self.shards_of(len(batch.sample_ids)) for batch in self.batches.values()]
        return max(ends, default=0)

    def shards_of(self, rows: int) -> int:
        """Shards of the row copy that so many rows take: a batch begins a new one."""
        return -(-rows // self.shard_rows)

    def widths_of(self, block: ColumnBlock) -> int:
        """Shards along the second axis of the transposed copy that a block takes."""
        return -(-sum(len(self.batches[batch_id].sample_ids) for batch_id in block.batches) // self.column_chunk[1])

    @property
    def next_column_shard(self) -> int:
        """The first shard along the second axis of the transposed copy behind all that is committed."""
        ends = [block.row // self.column_chunk[1] + self.widths_of(block) for block in self.column_blocks]
        return max(ends, default=0)

    def to_json(self) -> bytes:
        """The content of ``HEAD.json``: the same state gives the same bytes."""
        axis, columns = self.axis, self.column_chunk
        document = {
            "format": FORMAT,
            "format_version": FORMAT_VERSION,
            "generation": self.generation,
            "matrix_id": self.matrix_id,
            "created_at": self.created_at,
            AXIS: {"path": axis.path, "length": axis.length, "sha256": axis.sha256},
            "values": dict(self.values),
            "codec": self.codec,
            "column_codec": self.column_codec,
            "chunk_shape": [1, self.chunk_features],
            "shard_rows": self.shard_rows,
            "max_shards": self.max_shards,
            "column_chunk_shape": list(columns),
            "batches": {
                batch_id: {
                    "row": batch.row,
                    "sample_ids": list(batch.sample_ids),
                    "digest": batch.digest,
                    "bytes": dict(batch.bytes),
                }
                for batch_id, batch in self.batches.items()
            },
            "column_blocks": [
                {"row": block.row, "batches": list(block.batches), "bytes": dict(block.bytes)}
                for block in self.column_blocks
            ],
        }
        if retention := self.retention.to_document():
            document["retention"] = retention
        return (json.dumps(document, separators=(",", ":"), ensure_ascii=False) + "\n").encode()

    @classmethod
    def from_json(cls, data: bytes, where: str = HEAD_NAME) -> MatrixState:
        """Read what :meth:`to_json` wrote; raises ManifestError where it is not readable or contradicts itself."""
        try:
            document = parse_json(data)
            kind, version = document["format"], document["format_version"]
        except (ValueError, KeyError, TypeError) as error:
            raise ManifestError(f"{where} is not the head of a matrix: {error!r}") from error
        if (kind, version) != (FORMAT, FORMAT_VERSION):
            raise ManifestError(
                f"{where} is {kind!r} version {version!r}; this library reads {FORMAT} {FORMAT_VERSION}"
            )
        try:
            state = cls._from_document(document)
            state._check()
        except (KeyError, TypeError, ValueError, AttributeError, ZarrCoreError) as error:
            raise ManifestError(f"{where} is damaged: {error!r}") from error
        return state

    @classmethod
    def _from_document(cls, document: Mapping[str, Any]) -> MatrixState:
        axis = document[AXIS]
        height, chunk_features = document["chunk_shape"]
        if height != 1:
            raise ValueError("chunks of the row copy are one row high")
        features, rows = document["column_chunk_shape"]
        return cls(
            matrix_id=_text(document["matrix_id"]),
            created_at=_text(document["created_at"]),
            axis=Axis(check_relative_path(_text(axis["path"])), _length(axis["length"]), _text(axis["sha256"])),
            values={value: _text(dtype) for value, dtype in document["values"].items()},
            codec=_text(document["codec"]),
            column_codec=_text(document["column_codec"]),
            chunk_features=_length(chunk_features),
            shard_rows=_length(document["shard_rows"]),
            max_shards=_length(document["max_shards"]),
            column_chunk=(_length(features), _length(rows)),
            batches={
                batch_id: Batch(_count(b["row"]), _texts(b["sample_ids"]), _text(b["digest"]), _counts(b["bytes"]))
                for batch_id, b in document["batches"].items()
            },
            column_blocks=tuple(
                ColumnBlock(_count(b["row"]), _texts(b["batches"]), _counts(b["bytes"]))
                for b in document["column_blocks"]
            ),
            generation=_count(document["generation"]),
            retention=Retention.from_document(document.get("retention", {})),
        )

    def _check(self) -> None:
        Codec.parse(self.codec), Codec.parse(self.column_codec)
        check_values(self.values)
        if self.chunk_features % self.column_chunk[0]:
            raise ValueError("a chunk of the row copy is no whole number of chunks of the transposed copy")
        layouts = [*self.row_layout.values(), *self.column_layout.values()]
        if any(layout.flat.n_chunks > MAX_CHUNKS for layout in layouts):
            raise ValueError("a shard has more chunks than any matrix has")
        if any(layout.flat.chunk_points * np.dtype(layout.dtype).itemsize > MAX_CHUNK_BYTES for layout in layouts):
            raise ValueError("a chunk is larger than that of any matrix")
        end = 0
        for batch_id, batch in sorted(self.batches.items(), key=lambda item: item[1].row):
            if batch.row % self.shard_rows or batch.row < end or not batch.sample_ids:
                raise ValueError(f"batch {batch_id!r} does not begin at a shard of its own")
            end = batch.row + self.shard_rows * self.shards_of(len(batch.sample_ids))
        if end > self.shard_rows * self.max_shards:
            raise ValueError("there are more rows than the arrays have")
        if len(self.rows) != sum(len(batch.sample_ids) for batch in self.batches.values()):
            raise ValueError("a sample has two rows")
        held = [batch_id for block in self.column_blocks for batch_id in block.batches]
        if len(set(held)) != len(held) or not self.batches.keys() >= set(held):
            raise ValueError("the transposed copy names a batch twice, or one that is not there")
        end = across = 0
        for block in sorted(self.column_blocks, key=lambda block: block.row):
            if block.row % self.column_chunk[1] or block.row < end or not block.batches:
                raise ValueError("two blocks of the transposed copy overlap")
            end = block.row + self.column_chunk[1] * self.widths_of(block)
            across += self.widths_of(block)
        if end > self.column_chunk[1] * self.max_shards:
            raise ValueError("the transposed copy has more samples than its arrays")
        if across * -(-self.axis.length // self.chunk_features) > MAX_CHUNKS:
            raise ValueError("the transposed copy has more shards than that of any matrix")
        recorded = [batch.bytes for batch in self.batches.values()] + [block.bytes for block in self.column_blocks]
        if any(stored.keys() != self.values.keys() for stored in recorded):
            raise ValueError("bytes are recorded for other value tables")


def _count(value: Any) -> int:
    """A whole number as JSON has it; raises ValueError."""
    if type(value) is not int or not 0 <= value < 2**63:
        raise ValueError(f"{value!r:.100} is no count")
    return value


def _length(value: Any) -> int:
    """A number of features, rows or shards; raises ValueError."""
    if not 1 <= _count(value) <= MAX_LENGTH:
        raise ValueError(f"a length is not positive, or beyond any matrix: {value}")
    return int(value)


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{value!r:.100} is no text")
    return value


def _texts(values: Any) -> tuple[str, ...]:
    if not isinstance(values, list):
        raise ValueError(f"{values!r:.100} is no list of names")
    return tuple(map(_text, values))


def _counts(values: Any) -> dict[str, int]:
    return {name: _count(value) for name, value in values.items()}


def array_path(value: str) -> str:
    """The row copy of a value table."""
    return f"{value}.zarr"


def columns_path(value: str) -> str:
    """The transposed copy of a value table."""
    return f"{value}{_COLUMNS}.zarr"


def check_values(values: Mapping[str, str]) -> None:
    """Raise ValueError for value tables that a matrix cannot have."""
    if not values:
        raise ValueError("a matrix needs at least one value table")
    for value, dtype in values.items():
        if not _VALUE_NAME.fullmatch(value) or value.endswith(_COLUMNS) or value == AXIS:
            raise ValueError(f"value table {value!r}: use lower-case letters, digits and underscores, as in 'beta'")
        if dtype not in VALUE_DTYPES:
            raise ValueError(f"value table {value!r}: {dtype!r} is none of {', '.join(VALUE_DTYPES)}")


def named(state: MatrixState) -> Iterator[str]:
    """Every object that a state needs: shards, the names of the features, and the arrays' metadata."""
    yield state.axis.path
    yield from (f"{path(value)}/zarr.json" for value in state.values for path in (array_path, columns_path))
    for batch in state.batches.values():
        first = batch.row // state.shard_rows
        for value, layout in state.row_layout.items():
            for shard in range(first, first + state.shards_of(len(batch.sample_ids))):
                yield f"{array_path(value)}/{layout.shard_key(shard, 0)}"
    for block in state.column_blocks:
        first = block.row // state.column_chunk[1]
        for value, layout in state.column_layout.items():
            for along in range(first, first + state.widths_of(block)):
                for shard in range(-(-layout.shape[0] // layout.shard[0])):
                    yield f"{columns_path(value)}/{layout.shard_key(shard, along)}"


def _roots(state: MatrixState) -> Iterator[str]:
    yield AXIS
    yield from (path(value) for value in state.values for path in (array_path, columns_path))


def _owner(name: str) -> str | None:
    """Each object that a writer of matrices makes is kept or collected for itself; None for all others."""
    return name if SHARD.fullmatch(name) or _OTHER.fullmatch(name) else None


def _is_whole(storage: Storage, name: str) -> bool:
    """Whether a shard is there: it was created whole or not at all."""
    return storage.exists(name)


def changes(before: MatrixState | None, after: MatrixState) -> list[Change]:
    """What a commit did: which batches came."""
    if before is None:
        tables = ", ".join(f"{value} {dtype}" for value, dtype in after.values.items())
        return [Change("created", note=f"{after.axis.length:,} features; {tables}; {after.codec}")]
    added = [batch_id for batch_id in after.batches if batch_id not in before.batches]
    samples = sum(len(after.batches[batch_id].sample_ids) for batch_id in added)
    held = [batch_id for block in after.column_blocks for batch_id in block.batches]
    before_held = {batch_id for block in before.column_blocks for batch_id in block.batches}
    transposed = [batch_id for batch_id in held if batch_id not in before_held]
    found = [Change("added", tuple(added), f"{samples:,} samples")] if added else []
    return found + ([Change("transposed", tuple(transposed))] if transposed else [])


#: Where a matrix keeps its state, and what it says.
HEAD = Head(HEAD_NAME, MatrixState.from_json, _roots, named, _owner, _is_whole, changes)
