"""State of a matrix: the content of ``HEAD.json``, which names every object of the matrix."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from itertools import chain
from operator import attrgetter
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import AfterValidator, Field, TypeAdapter

from zarr_core._util.cached import cached_property
from zarr_core._util.documents import parse_model
from zarr_core.errors import ManifestError, ZarrCoreError
from zarr_core.format.array_metadata import MAX_CHUNKS, VALUE_DTYPES
from zarr_core.format.codecs import Codec
from zarr_core.format.names import check_relative_path
from zarr_core.matrix.store.copies import COLUMNS, Block, ChunkLayout, Copy
from zarr_core.versioning.generations import Retention

FORMAT = "zarr_core.matrix"
HEAD_NAME = "HEAD.json"
AXIS = "cpg_ids"
METADATA = "metadata"

# Upper limits that protect the reader's memory against hostile metadata. Warehouses join positions as 32-bit integers.
MAX_LENGTH = 2**31 - 1
MAX_CHUNK_BYTES = 1 << 30

_VALUE_NAME = re.compile(r"[a-z][a-z0-9_]*")
_Count = Annotated[int, Field(ge=0, lt=2**63)]
_Length = Annotated[int, Field(ge=1, le=MAX_LENGTH)]


@dataclass(frozen=True, slots=True)
class _Kind:
    """What a head says of its own format.

    Version 2 has the key "retired", version 3 "metadata" or "origin". They are written only where a matrix has these
    keys, so that a library that does not know them refuses the matrix, instead of loading retired samples again,
    dropping the metadata, or appending to a staged copy.
    """

    format: Literal["zarr_core.matrix"]
    format_version: Literal[1, 2, 3]


@dataclass(frozen=True, slots=True)
class Axis:
    """The object that holds the names of the features: its name, their number, and the digest of its bytes."""

    path: Annotated[str, AfterValidator(check_relative_path)]
    length: _Length
    sha256: str


@dataclass(frozen=True, slots=True)
class MatrixBatch:
    """Samples that were appended together.

    Attributes:
        row: row of the first sample, which is the first row of a shard; the other samples follow it.
        sample_ids: samples in the order of their rows.
        digest: digest of samples and values, independent of their order.
        bytes: stored bytes by value.
        source: state of the warehouse that the batch was loaded from: kind, table or files, snapshot; for people.
    """

    row: _Count
    sample_ids: tuple[str, ...]
    digest: str
    bytes: Mapping[str, _Count]
    source: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ColumnBlock:
    """Batches that the column-major copy holds together, in order, and their stored bytes by value.

    ``row`` is the position of their first sample along the copy's second axis; the others follow it.
    """

    row: _Count
    batches: tuple[str, ...]
    bytes: Mapping[str, _Count]


@dataclass(frozen=True, slots=True)
class MetadataTable:
    """A table beside the matrix, a Parquet file that is written once: one row per sample, or per batch.

    ``columns`` has the Arrow type by column, without the column of the ids.
    """

    path: Annotated[str, AfterValidator(check_relative_path)]
    sha256: str
    rows: _Count
    columns: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Origin:
    """The matrix that a staged copy was made from: its location without credentials, and the copied generation."""

    store: str
    generation: _Count


@dataclass(frozen=True, slots=True)
class Retired:
    """What was retired from a matrix and must not be appended again.

    Attributes:
        batches: samples by retired batch. Samples that join such a batch in the warehouse are not loaded either.
        samples: samples that were retired by name.
        next_shard: the first row-major shard after all that were ever committed, because a claim begins where another
            one ends.
    """

    batches: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    samples: tuple[str, ...] = ()
    next_shard: _Count = 0

    @property
    def sample_ids(self) -> set[str]:
        """Every retired sample."""
        return set(self.samples).union(*self.batches.values())


@dataclass(frozen=True, kw_only=True)
class MatrixState:
    """One committed state of a matrix. Immutable; ``versioning.generations.commit`` derives the next one.

    Its fields are the keys of ``HEAD.json``, in this order.

    Attributes:
        generation: 1 for the new matrix, one more with each commit.
        matrix_id: random id. A cache can tell the matrix from an earlier one at the same location.
        created_at: time of creation, UTC, ISO 8601.
        axis: the object that holds the names of the features.
        values: stored dtype by value table.
        codec: compressor of the row-major copy.
        column_codec: compressor of the column-major copy.
        chunk_shape: (1, features) of a chunk of the row-major copy.
        shard_rows: rows of a shard of the row-major copy, which is as wide as the matrix.
        max_shards: largest number of shards of the row-major copy.
        column_chunk: (features, rows) of a chunk of the column-major copy.
        batches: batches by id, in the order of their rows.
        column_blocks: content of the column-major copy.
        retired: batches and samples that must not be appended again.
        metadata: tables about the samples: "samples", by sample id, and "batches", by batch id.
        origin: of a staged copy, which is never written otherwise.
        retention: tags and pending deletions; recorded in the current state only.
    """

    generation: _Count
    matrix_id: str
    created_at: str
    axis: Annotated[Axis, Field(alias=AXIS)]
    values: Mapping[str, str]
    codec: str
    column_codec: str
    chunk_shape: tuple[Literal[1], _Length]
    shard_rows: _Length
    max_shards: _Length
    column_chunk: Annotated[tuple[_Length, _Length], Field(alias="column_chunk_shape")]
    batches: Mapping[str, MatrixBatch]
    column_blocks: tuple[ColumnBlock, ...]
    retired: Retired = field(default_factory=Retired)
    metadata: Mapping[Literal["samples", "batches"], MetadataTable] = field(default_factory=dict)
    origin: Origin | None = None
    retention: Retention = field(default_factory=Retention)

    @property
    def chunk_features(self) -> int:
        """Features of a chunk of the row-major copy, which is one row high."""
        return self.chunk_shape[1]

    @cached_property
    def row_copy(self) -> Copy:
        """The row-major copy."""
        n_features = self.axis.length
        width = self.chunk_features * -(-n_features // self.chunk_features)
        shape, shard = (self.shard_rows * self.max_shards, n_features), (self.shard_rows, width)
        layout = ChunkLayout(shape, self.chunk_shape, shard, "", Codec.parse(self.codec), sample_axis=0)
        blocks = [Block(batch.row, batch.sample_ids, batch.bytes) for batch in self.batches.values()]
        return Copy("row-major", self._layouts(layout), blocks)

    @cached_property
    def column_copy(self) -> Copy:
        """The column-major copy. A shard holds the features of one row-major chunk."""
        width = self.column_chunk[1]
        shape, shard = (self.axis.length, width * self.max_shards), (self.chunk_features, width)
        layout = ChunkLayout(shape, self.column_chunk, shard, "", Codec.parse(self.column_codec), sample_axis=1)
        blocks = [Block(block.row, self.samples_of(block.batches), block.bytes) for block in self.column_blocks]
        return Copy("column-major", self._layouts(layout), blocks)

    def _layouts(self, layout: ChunkLayout) -> dict[str, ChunkLayout]:
        return {value: replace(layout, dtype=dtype) for value, dtype in self.values.items()}

    @property
    def rows(self) -> Mapping[str, int]:
        """Row by sample."""
        return self.row_copy.positions

    @cached_property
    def batch_of(self) -> Mapping[str, str]:
        """Batch by sample."""
        return {sample_id: name for name, batch in self.batches.items() for sample_id in batch.sample_ids}

    @cached_property
    def transposed(self) -> Mapping[str, ColumnBlock]:
        """Batches that the column-major copy holds, in the order of its blocks."""
        return {batch_id: block for block in self.column_blocks for batch_id in block.batches}

    @property
    def next_shard(self) -> int:
        """The first shard of the row-major copy after all that were ever committed."""
        return max(self.row_copy.shards_of(self.row_copy.end), self.retired.next_shard)

    def samples_of(self, batches: Iterable[str]) -> list[str]:
        """Samples of batches, batch after batch."""
        return list(chain.from_iterable(self.batches[batch_id].sample_ids for batch_id in batches))

    def to_json(self) -> bytes:
        """The content of ``HEAD.json``. Equal states give equal bytes."""
        document: dict[str, Any] = {"format": FORMAT, "format_version": 1}
        document |= _STATE.dump_python(self, by_alias=True, exclude={"retention"})
        for batch in document["batches"].values():
            if not batch["source"]:
                del batch["source"]
        for key, version, is_empty in (
            ("retired", 2, self.retired == Retired()),
            (METADATA, 3, not self.metadata),
            ("origin", 3, self.origin is None),
        ):
            if is_empty:
                del document[key]
            else:
                document["format_version"] = version
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
            parse_model(_KIND, data)
        except ValueError as error:
            raise ManifestError(f"{where} is not the head of a matrix that this library reads: {error}") from error
        try:
            state = parse_model(_STATE, data)
            state._check()
        except (ValueError, ZarrCoreError) as error:
            raise ManifestError(f"{where} is damaged: {error}") from error
        return state

    def _check(self) -> None:
        """Raise ValueError or ZarrCoreError if the state contradicts itself."""
        check_values(self.values)
        if self.chunk_features % self.column_chunk[0]:
            raise ValueError("a row-major chunk is not a whole number of column-major chunks")
        n_held = sum(len(block.batches) for block in self.column_blocks)
        if len(self.transposed) != n_held or not self.transposed.keys() <= self.batches.keys():
            raise ValueError("the column-major copy names a batch twice, or an unknown batch")
        for copy in (self.row_copy, self.column_copy):
            for layout in copy.layouts.values():
                if layout.flat.n_chunks > MAX_CHUNKS:
                    raise ValueError(f"a shard has more than {MAX_CHUNKS} chunks")
                if layout.flat.chunk_points * np.dtype(layout.dtype).itemsize > MAX_CHUNK_BYTES:
                    raise ValueError(f"a chunk is larger than {MAX_CHUNK_BYTES} bytes")
            end = 0
            for block in sorted(copy.blocks, key=attrgetter("first")):
                if block.first % copy.shard_samples or block.first < end or not block.sample_ids:
                    text = f"{copy.name} copy: a batch does not begin at a shard of its own, or has no samples"
                    raise ValueError(text)
                if block.bytes.keys() != self.values.keys():
                    raise ValueError("stored bytes are recorded for other value tables")
                end = block.first + copy.shard_samples * copy.shards_of(len(block.sample_ids))
            if end > copy.shard_samples * self.max_shards:
                raise ValueError(f"{copy.name} copy: the batches have more rows than the arrays")
        if not self.rows.keys().isdisjoint(self.retired.sample_ids):
            raise ValueError("a retired sample has a row")
        if len(self.rows) != len(self.samples_of(self.batches)):
            raise ValueError("a sample has two rows")
        shards = sum(self.column_copy.shards_of(len(block.sample_ids)) for block in self.column_copy.blocks)
        if shards * -(-self.axis.length // self.chunk_features) > MAX_CHUNKS:
            raise ValueError(f"the column-major copy has more than {MAX_CHUNKS} shards")


def in_order(batches: Mapping[str, MatrixBatch]) -> dict[str, MatrixBatch]:
    """Batches in the order of their rows."""
    return dict(sorted(batches.items(), key=lambda item: item[1].row))


_KIND = TypeAdapter(_Kind)
_STATE = TypeAdapter(MatrixState)


#: Tensors of the items of ``MatrixDataset``, whose other names are those of value tables and metadata.
ITEM_NAMES = ("missing", "sample", "covered")
#: Columns of the matrix as a table or a dataset of xarray, besides "sample" and value tables.
COLUMN_NAMES = ("batch", "feature")


def check_values(values: Mapping[str, str]) -> None:
    """Raise ValueError for invalid names or dtypes of value tables."""
    if not values:
        raise ValueError("a matrix needs at least one value table")
    for value, dtype in values.items():
        if not isinstance(value, str) or not _VALUE_NAME.fullmatch(value) or value.endswith(COLUMNS) or value == AXIS:
            raise ValueError(f"value table {value!r}: use lower-case letters, digits and underscores, as in 'beta'")
        if dtype not in VALUE_DTYPES:
            raise ValueError(f"value table {value!r}: {dtype!r} is not one of {', '.join(VALUE_DTYPES)}")
