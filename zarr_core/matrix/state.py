"""State of a matrix: the content of ``HEAD.json``, which names every object of the matrix."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from zarr_core._util.documents import expect, parse_json
from zarr_core.errors import ManifestError, ZarrCoreError
from zarr_core.format.array_metadata import MAX_CHUNKS, VALUE_DTYPES
from zarr_core.format.codecs import Codec
from zarr_core.format.names import check_relative_path
from zarr_core.format.object_names import ZARR_JSON
from zarr_core.matrix.layout import ChunkLayout
from zarr_core.storage import Storage
from zarr_core.versioning.generations import Change, Head, Retention

FORMAT = "zarr_core.matrix"
FORMAT_VERSION = 1
HEAD_NAME = "HEAD.json"
AXIS = "cpg_ids"

# Upper limits that protect the reader's memory against hostile metadata. Warehouses join positions as 32-bit integers.
MAX_LENGTH = 2**31 - 1
MAX_CHUNK_BYTES = 1 << 30

_VALUE_NAME = re.compile(r"[a-z][a-z0-9_]*")
_COLUMNS = "_columns"
_OTHER = re.compile(rf"({AXIS}/[0-9a-f]{{16}}\.npy|[a-z][a-z0-9_]*\.zarr/zarr\.json)(\.lock)?")
#: Pattern of the names of shards, of both copies.
SHARD = re.compile(r"[a-z][a-z0-9_]*\.zarr/c/\d+/\d+")


@dataclass(frozen=True, slots=True)
class Axis:
    """The object that holds the names of the features.

    Attributes:
        path: name of the object.
        length: number of features.
        sha256: digest of the object's bytes.
    """

    path: str
    length: int
    sha256: str


@dataclass(frozen=True, slots=True)
class MatrixBatch:
    """Samples that were appended together.

    Attributes:
        row: row of the first sample, which is the first row of a shard; the other samples follow it.
        sample_ids: samples in the order of their rows.
        digest: digest of samples and values, independent of their order.
        bytes: stored bytes by value.
    """

    row: int
    sample_ids: tuple[str, ...]
    digest: str
    bytes: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class ColumnBlock:
    """Batches that the column-major copy holds together.

    Attributes:
        row: position of their first sample along the copy's second axis; the others follow it, batch after batch.
        batches: ids of the batches, in order.
        bytes: stored bytes by value.
    """

    row: int
    batches: tuple[str, ...]
    bytes: Mapping[str, int]


@dataclass(frozen=True)
class MatrixState:
    """One committed state of a matrix. Immutable; ``versioning.generations.commit`` derives the next one.

    Attributes:
        matrix_id: random id. A cache can tell the matrix from an earlier one at the same location.
        created_at: time of creation, UTC, ISO 8601.
        axis: the object that holds the names of the features.
        values: stored dtype by value table.
        codec: compressor of the row-major copy.
        column_codec: compressor of the column-major copy.
        chunk_features: features of a chunk of the row-major copy, which is one row high.
        shard_rows: rows of a shard of the row-major copy, which is as wide as the matrix.
        max_shards: largest number of shards of the row-major copy.
        column_chunk: (features, rows) of a chunk of the column-major copy.
        batches: batches by id, in the order of their rows.
        column_blocks: content of the column-major copy.
        generation: 1 for the new matrix, one more with each commit.
        retention: tags and pending deletions; recorded in the current state only.
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
    batches: Mapping[str, MatrixBatch] = field(default_factory=dict)
    column_blocks: tuple[ColumnBlock, ...] = ()
    generation: int = 0
    retention: Retention = field(default_factory=Retention)

    @cached_property
    def row_layout(self) -> Mapping[str, ChunkLayout]:
        """Chunk layout of the row-major copy by value."""
        width = self.chunk_features * -(-self.axis.length // self.chunk_features)
        return {
            value: ChunkLayout(
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
    def column_layout(self) -> Mapping[str, ChunkLayout]:
        """Chunk layout of the column-major copy by value. A shard holds the features of one row-major chunk."""
        height, width = self.column_chunk
        return {
            value: ChunkLayout(
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
        """Position along the second axis of the column-major copy, by sample, for the samples that it holds."""
        found: dict[str, int] = {}
        for block in self.column_blocks:
            members = [i for batch_id in block.batches for i in self.batches[batch_id].sample_ids]
            found |= {sample_id: block.row + n for n, sample_id in enumerate(members)}
        return found

    @cached_property
    def rows(self) -> Mapping[str, int]:
        """Row by sample."""
        return {i: batch.row + n for batch in self.batches.values() for n, i in enumerate(batch.sample_ids)}

    @property
    def next_shard(self) -> int:
        """The first shard of the row-major copy after all committed ones."""
        ends = [batch.row // self.shard_rows + self.shards_of(len(batch.sample_ids)) for batch in self.batches.values()]
        return max(ends, default=0)

    @property
    def row_end(self) -> int:
        """The first row of the row-major copy after all committed ones."""
        return max((batch.row + len(batch.sample_ids) for batch in self.batches.values()), default=0)

    @property
    def column_end(self) -> int:
        """The first position along the second axis of the column-major copy after all committed ones."""
        ends = (
            block.row + sum(len(self.batches[batch_id].sample_ids) for batch_id in block.batches)
            for block in self.column_blocks
        )
        return max(ends, default=0)

    def shards_of(self, rows: int) -> int:
        """Number of row-major shards that a batch of so many rows takes. Each batch begins a new shard."""
        return -(-rows // self.shard_rows)

    def widths_of(self, block: ColumnBlock) -> int:
        """Number of shards that a block takes along the second axis of the column-major copy."""
        return -(-sum(len(self.batches[batch_id].sample_ids) for batch_id in block.batches) // self.column_chunk[1])

    @property
    def next_column_shard(self) -> int:
        """The first shard along the second axis of the column-major copy after all committed ones."""
        ends = [block.row // self.column_chunk[1] + self.widths_of(block) for block in self.column_blocks]
        return max(ends, default=0)

    def to_json(self) -> bytes:
        """The content of ``HEAD.json``. Equal states give equal bytes."""
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
        """Parse what :meth:`to_json` wrote. The document is untrusted: types are checked and counts are bounded.

        Raises:
            ManifestError: the document is unreadable, of another format version, or inconsistent.
        """
        try:
            document = expect(dict, parse_json(data), "the document")
        except ValueError as error:
            raise ManifestError(f"{where} is not the head of a matrix: {error}") from error
        kind, version = document.get("format"), document.get("format_version")
        if (kind, version) != (FORMAT, FORMAT_VERSION):
            raise ManifestError(
                f"{where} is {kind!r:.100} version {version!r:.100}; this library reads {FORMAT} {FORMAT_VERSION}"
            )
        try:
            state = cls._from_document(document)
            state._check()
        except (ValueError, ZarrCoreError) as error:
            raise ManifestError(f"{where} is damaged: {error}") from error
        return state

    @classmethod
    def _from_document(cls, document: Mapping[str, Any]) -> MatrixState:
        axis = expect(dict, document.get(AXIS), AXIS)
        height, chunk_features = _pair(document, "chunk_shape")
        if height != 1:
            raise ValueError("chunks of the row-major copy must be one row high")
        values = expect(dict, document.get("values"), "values")
        batches = expect(dict, document.get("batches"), "batches")
        return cls(
            matrix_id=_text(document, "matrix_id"),
            created_at=_text(document, "created_at"),
            axis=Axis(check_relative_path(_text(axis, "path")), _length(axis, "length"), _text(axis, "sha256")),
            values={value: _text(values, value) for value in values},
            codec=_text(document, "codec"),
            column_codec=_text(document, "column_codec"),
            chunk_features=chunk_features,
            shard_rows=_length(document, "shard_rows"),
            max_shards=_length(document, "max_shards"),
            column_chunk=_pair(document, "column_chunk_shape"),
            batches={
                batch_id: MatrixBatch(
                    _count(batch, "row"), _texts(batch, "sample_ids"), _text(batch, "digest"), _counts(batch, "bytes")
                )
                for batch_id, entry in batches.items()
                for batch in [expect(dict, entry, f"batch {batch_id!r}")]
            },
            column_blocks=tuple(
                ColumnBlock(_count(block, "row"), _texts(block, "batches"), _counts(block, "bytes"))
                for entry in expect(list, document.get("column_blocks"), "column_blocks")
                for block in [expect(dict, entry, "a column block")]
            ),
            generation=_count(document, "generation"),
            retention=Retention.from_document(expect(dict, document.get("retention", {}), "retention")),
        )

    def _check(self) -> None:
        Codec.parse(self.codec), Codec.parse(self.column_codec)
        check_values(self.values)
        if self.chunk_features % self.column_chunk[0]:
            raise ValueError("a row-major chunk is not a whole number of column-major chunks")
        layouts = [*self.row_layout.values(), *self.column_layout.values()]
        if any(layout.flat.n_chunks > MAX_CHUNKS for layout in layouts):
            raise ValueError(f"a shard has more than {MAX_CHUNKS} chunks")
        if any(layout.flat.chunk_points * np.dtype(layout.dtype).itemsize > MAX_CHUNK_BYTES for layout in layouts):
            raise ValueError(f"a chunk is larger than {MAX_CHUNK_BYTES} bytes")
        end = 0
        for batch_id, batch in sorted(self.batches.items(), key=lambda item: item[1].row):
            if batch.row % self.shard_rows or batch.row < end or not batch.sample_ids:
                raise ValueError(f"batch {batch_id!r} does not begin at a shard of its own, or has no samples")
            end = batch.row + self.shard_rows * self.shards_of(len(batch.sample_ids))
        if end > self.shard_rows * self.max_shards:
            raise ValueError("the batches have more rows than the arrays")
        if len(self.rows) != sum(len(batch.sample_ids) for batch in self.batches.values()):
            raise ValueError("a sample has two rows")
        held = [batch_id for block in self.column_blocks for batch_id in block.batches]
        if len(set(held)) != len(held) or not self.batches.keys() >= set(held):
            raise ValueError("the column-major copy names a batch twice, or an unknown batch")
        end = across = 0
        for block in sorted(self.column_blocks, key=lambda block: block.row):
            if block.row % self.column_chunk[1] or block.row < end or not block.batches:
                raise ValueError("two blocks of the column-major copy overlap")
            end = block.row + self.column_chunk[1] * self.widths_of(block)
            across += self.widths_of(block)
        if end > self.column_chunk[1] * self.max_shards:
            raise ValueError("the column-major copy has more samples than its arrays")
        if across * -(-self.axis.length // self.chunk_features) > MAX_CHUNKS:
            raise ValueError(f"the column-major copy has more than {MAX_CHUNKS} shards")
        recorded = [batch.bytes for batch in self.batches.values()] + [block.bytes for block in self.column_blocks]
        if any(stored.keys() != self.values.keys() for stored in recorded):
            raise ValueError("stored bytes are recorded for other value tables")


# Values of a document by key. All raise ValueError if the value is missing, of another type, or out of bounds.


def _count(document: Mapping[str, Any], key: str) -> int:
    value = expect(int, document.get(key), key)
    if not 0 <= value < 2**63:
        raise ValueError(f"{key} is {value}, expected a count")
    return value


def _length(document: Mapping[str, Any], key: str) -> int:
    return _bounded(document.get(key), key)


def _bounded(value: Any, name: str) -> int:
    number = expect(int, value, name)
    if not 1 <= number <= MAX_LENGTH:
        raise ValueError(f"{name} is {number}, expected 1 to {MAX_LENGTH}")
    return number


def _pair(document: Mapping[str, Any], key: str) -> tuple[int, int]:
    values = expect(list, document.get(key), key)
    if len(values) != 2:
        raise ValueError(f"{key} has {len(values)} values, expected 2")
    return _bounded(values[0], key), _bounded(values[1], key)


def _text(document: Mapping[str, Any], key: str) -> str:
    return expect(str, document.get(key), key)


def _texts(document: Mapping[str, Any], key: str) -> tuple[str, ...]:
    return tuple(expect(str, value, key) for value in expect(list, document.get(key), key))


def _counts(document: Mapping[str, Any], key: str) -> dict[str, int]:
    values = expect(dict, document.get(key), key)
    return {name: _count(values, name) for name in values}


def array_path(value: str) -> str:
    """Array path of the row-major copy of a value table."""
    return f"{value}.zarr"


def columns_path(value: str) -> str:
    """Array path of the column-major copy of a value table."""
    return f"{value}{_COLUMNS}.zarr"


def check_values(values: Mapping[str, str]) -> None:
    """Raise ValueError for invalid names or dtypes of value tables."""
    if not values:
        raise ValueError("a matrix needs at least one value table")
    for value, dtype in values.items():
        if not _VALUE_NAME.fullmatch(value) or value.endswith(_COLUMNS) or value == AXIS:
            raise ValueError(f"value table {value!r}: use lower-case letters, digits and underscores, as in 'beta'")
        if dtype not in VALUE_DTYPES:
            raise ValueError(f"value table {value!r}: {dtype!r} is not one of {', '.join(VALUE_DTYPES)}")


def is_name(text: object) -> bool:
    """Whether a batch or sample can have this name: a string that JSON can hold in UTF-8, and not empty."""
    if not isinstance(text, str) or not text:
        return False
    try:
        text.encode()
    except UnicodeEncodeError:  # half of a surrogate pair
        return False
    return True


def named(state: MatrixState) -> Iterator[str]:
    """Every object that a state needs: shards, the names of the features, metadata of the arrays."""
    yield state.axis.path
    yield from (f"{path(value)}/{ZARR_JSON}" for value in state.values for path in (array_path, columns_path))
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
    """Unit of garbage collection: the object itself, or None for objects that no writer of matrices creates."""
    if SHARD.fullmatch(name):
        return name
    other = _OTHER.fullmatch(name)
    return other[1] if other else None  # the lock of an object on a local disk belongs to the object


def _is_whole(storage: Storage, name: str) -> bool:
    """Whether a shard exists. A shard is created whole or not at all."""
    return storage.exists(name)


def changes(before: MatrixState | None, after: MatrixState) -> list[Change]:
    """Batches that a commit added to each copy."""
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


#: How a matrix keeps its state, for the code that is shared by all kinds of stores.
HEAD = Head(HEAD_NAME, MatrixState.from_json, _roots, named, _owner, _is_whole, changes)
