"""What the direct engine knows of a sample: array layouts and chunk ranges, from the group's ``zarr.json``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from zarr_core._util.cached import cached_property
from zarr_core._util.documents import DocumentError, expect, parse_json
from zarr_core._util.redaction import printable_cause
from zarr_core.errors import CorruptChunkError, SourceError, StoreError
from zarr_core.format.array_metadata import CHECKSUM_BYTES, ArrayLayout
from zarr_core.format.names import check_relative_path
from zarr_core.format.object_names import ZARR_JSON
from zarr_core.format.packed import PackedGroup, parse_head
from zarr_core.format.shards import ChunkIndex, unpack_lengths
from zarr_core.points.read.engines import check_origin, damaged_group, fetch_failure, missing_group
from zarr_core.points.store.group import recorded_attributes
from zarr_core.points.store.manifest import SampleEntry
from zarr_core.storage.byte_ranges import Request
from zarr_core.storage.local_files import Identity

# Linux reads at most 2 GiB by one system call.
_ONE_READ = 1 << 30
_ARRAY_BYTES = 1000  # memory of an array without its index


class KnownArray:
    """An array for which reads can be planned.

    Attributes:
        layout: of the array.
        index: byte ranges of its chunks; None until the shard indices are read.
        dtype: stored dtype, little-endian.
        row_bytes, chunk_bytes: stored bytes of a point, and of an uncompressed chunk with its checksum.
        accepted: the manifest entry that it was compared with; None before.
    """

    def __init__(self, path: str, layout: ArrayLayout, index: ChunkIndex | None, archive: str = "") -> None:
        if archive:  # one object holds all chunks
            layout = replace(layout, shard_points=layout.n_chunks * layout.chunk_points)
        self.layout, self.index = layout, index
        self.dtype = np.dtype(layout.dtype).newbyteorder("<")
        self.row_bytes = layout.dim * self.dtype.itemsize
        self.chunk_bytes = layout.chunk_points * self.row_bytes + CHECKSUM_BYTES
        self._verified = bytearray(layout.n_chunks if layout.is_straight else 0)
        self._verified_in: dict[int, Identity] = {}  # the file of each shard
        self.accepted: SampleEntry | None = None
        self._path = path
        self._first_shard = archive or f"{path}/{layout.shard_key(0)}"

    @cached_property
    def is_straight(self) -> bool:
        """Whether each chunk is its rows and its checksum. Other writers may leave out chunks."""
        assert self.index is not None
        if not self.layout.is_straight or self.chunk_bytes > _ONE_READ:
            return False
        return set(self.index.lengths) == {self.chunk_bytes}

    def verified(self, shard: int, file: Identity) -> bytearray:
        """By chunk number, whether this process has compared the chunk with its checksum; for arrays without codec.

        Args:
            shard, file: number of a shard, and the file that it is read from. What was verified in another file does
                not count.
        """
        if self._verified_in.setdefault(shard, file) != file:
            self._verified_in[shard] = file
            # A copy: a map of the other file goes on with what was verified in it.
            self._verified = self._verified[:]
            first = shard * self.layout.chunks_per_shard
            last = min(first + self.layout.chunks_per_shard, len(self._verified))
            self._verified[first:last] = bytes(last - first)
        return self._verified

    def shard_name(self, shard: int) -> str:
        """Object name of a shard. Not a list of names: metadata of a few bytes can claim millions of shards."""
        return f"{self._path}/{self.layout.shard_key(shard)}" if shard else self._first_shard


class KnownSample(NamedTuple):
    """Metadata of one sample.

    Attributes:
        arrays: by name; None if this library does not write such a layout.
        sample_id: as the group records it; None if it does not.
        unlisted: whether the group does not list its arrays, so that the fallback engine has to read it.
        size: memory in bytes, approximately.
    """

    arrays: dict[str, KnownArray | None]
    sample_id: str | None
    unlisted: bool
    size: int

    @classmethod
    def of(cls, where: str, entry: SampleEntry, group: Mapping[str, Any]) -> KnownSample:
        """From a group that :func:`parse_group` returned; raises CorruptChunkError, ManifestError."""
        try:
            if "consolidated_metadata" not in group:
                return cls({}, None, True, _ARRAY_BYTES)
            recorded = recorded_attributes(group) or {}
            check_origin(where, entry, recorded)
            lengths = expect(dict, recorded.get("chunk_bytes", {}), "chunk_bytes")
            consolidated = expect(dict, group["consolidated_metadata"], "consolidated_metadata")
            packed = PackedGroup(group, entry.head)
            arrays: dict[str, KnownArray | None] = {}
            for name, metadata in expect(dict, consolidated.get("metadata"), "metadata").items():
                if expect(dict, metadata, f"metadata of {name!r}").get("node_type") != "array":
                    continue
                path = f"{entry.relpath}/{check_relative_path(name)}"
                arrays[name] = None
                try:
                    layout = ArrayLayout.from_zarr_json(metadata)
                except StoreError:
                    continue
                if entry.head:
                    index = _packed_index(layout, packed, entry, name)
                    if index is not None:
                        arrays[name] = KnownArray(path, layout, index, entry.relpath)
                elif layout.sharded:
                    arrays[name] = KnownArray(path, layout, _recorded_index(layout, lengths.get(name)))
        except (ValueError, SourceError) as error:
            raise damaged_group(where, entry, error) from error
        known = [each for each in arrays.values() if each is not None]
        size = sum(_ARRAY_BYTES + 17 * each.layout.n_chunks for each in known)
        return cls(arrays, recorded.get("sample_id"), False, size)


def group_request(entry: SampleEntry, whole: bool = False) -> Request:
    """Fetches what :func:`parse_group` takes: a group's ``zarr.json``, or the head of an archive, or all of it."""
    if entry.head:
        return Request(entry.relpath, 0, entry.size if whole else entry.head)
    return Request(f"{entry.relpath}/{ZARR_JSON}")


def _packed_index(layout: ArrayLayout, packed: PackedGroup, entry: SampleEntry, name: str) -> ChunkIndex | None:
    """Byte ranges of the chunks of a packed array; None if the manifest knows no such array."""
    grid = entry.domains.get(name.partition("/")[0])
    if grid is None or grid.n_chunks != layout.n_chunks:
        return None  # a few bytes of metadata can claim millions of chunks
    return packed.chunks_of(name, layout.n_chunks)


def _recorded_index(layout: ArrayLayout, packed: Any) -> ChunkIndex | None:
    if not isinstance(packed, str) or not layout.checksum:
        return None  # without checksums, wrong lengths might not be detected
    try:
        return ChunkIndex.from_lengths(layout, unpack_lengths(packed))
    except ValueError:
        return None


def parse_group(where: str, entry: SampleEntry, request: Request, data: np.ndarray | Exception) -> dict[str, Any]:
    """The content of a sample group's ``zarr.json``, from the result of :func:`group_request`.

    An archive may have been fetched whole.

    Raises:
        ManifestError: the object is missing.
        CorruptChunkError: it is not the metadata of a group.
        StoreError: it could not be fetched.
    """
    if isinstance(data, FileNotFoundError):
        raise missing_group(where, entry) from data
    if isinstance(data, CorruptChunkError):
        raise damaged_group(where, entry, data) from data
    if isinstance(data, Exception):
        raise fetch_failure(where, str(request), data) from printable_cause(data)
    try:
        group: Any = _head_document(entry, data) if entry.head else parse_json(data.tobytes())
        recorded_attributes(group)
    except ValueError as error:
        raise damaged_group(where, entry, error) from error
    return dict(group)


def _head_document(entry: SampleEntry, data: np.ndarray) -> Mapping[str, Any]:
    packed = parse_head(data[: entry.head].tobytes())
    if packed.head != entry.head:
        raise DocumentError(f"its head has {packed.head:,} bytes, the manifest says {entry.head:,}")
    if entry.size and packed.size != entry.size:
        raise DocumentError(f"its head says {packed.size:,} bytes, the manifest {entry.size:,}")
    return packed.document
