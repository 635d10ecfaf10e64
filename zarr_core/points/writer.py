"""One sample to one Zarr group: shuffled, chunked, sharded, checksummed, with what is worth knowing about it.

Nothing is committed here: a group that no manifest names does not exist for readers, and ``zarr.json`` of the group is
written last, so that a group that has one is whole.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from zarr_core._util.documents import parse_json
from zarr_core.errors import SampleError, SourceError, StoreError
from zarr_core.format.array_metadata import (
    COORDS_DTYPE,
    EMPTY_GROUP,
    VALUE_DTYPES,
    ArrayLayout,
    group_arrays,
    group_zarr_json,
)
from zarr_core.format.codecs import DEFAULT_CODEC, Codec
from zarr_core.format.moments import FieldMoments, MomentsAccumulator
from zarr_core.format.names import FieldName, check_sample_id
from zarr_core.format.shards import encode_shard, pack_lengths
from zarr_core.format.shuffle import shuffle_permutation
from zarr_core.points.group import ATTRIBUTES_KEY, SAMPLES, is_whole
from zarr_core.points.manifest import ArrayColumn, DomainGrid, DomainLayout, Quarantine, SampleEntry
from zarr_core.sources.description import FieldFile
from zarr_core.storage import Storage
from zarr_core.versioning.generations import Retention

if TYPE_CHECKING:
    import torch

GROUP_FORMAT = 1

# Points that are rounded, summed and encoded at a time: a few MB.
_BLOCK_POINTS = 131_072
# Names that a group may have, of which all but the first are for those that were collected a short time ago.
_NAMES = 4
# Bytes that are gathered at a time: part of the fixed memory that a worker needs beside tensor and permutation.
_SLAB_BYTES = 32 * 2**20
_SOURCE_DTYPES = ("float16", "bfloat16", "float32", "float64", "uint8", "int8", "int16", "int32", "int64")
# What metadata that a crash or a disk has damaged may lead to; the sample is then converted anew.
_OF_DAMAGE = (ValueError, LookupError, TypeError, AttributeError, ArithmeticError, StoreError)


@dataclass(frozen=True)
class ConversionSettings:
    """How samples are written. Two samples written with equal settings from equal files are equal byte for byte.

    Attributes:
        chunk_points: points in a chunk; choose it close to the number of points that a training step draws.
        shard_points: cap on the points in a shard, rounded down to whole chunks; None: one shard an array.
        values_dtype: stored dtype of everything but positions, which are float32.
        field_dtypes: stored dtype of single fields, by canonical name.
        codec: compressor of the chunks, ``name`` or ``name:level``.
        shuffle_seed: seed of the order of points.

    Raises:
        SourceError: a value makes no sense.
    """

    chunk_points: int = 16_384
    shard_points: int | None = None
    values_dtype: str = "float16"
    field_dtypes: Mapping[str, str] = field(default_factory=dict)
    codec: str = DEFAULT_CODEC
    shuffle_seed: int = 0

    def __post_init__(self) -> None:
        if self.chunk_points < 1:
            raise SourceError(f"chunk_points must be at least 1, not {self.chunk_points}")
        if self.shard_points is not None and self.shard_points < self.chunk_points:
            raise SourceError(f"shard_points {self.shard_points} is less than one chunk of {self.chunk_points} points")
        for name, dtype in {"values_dtype": self.values_dtype, **self.field_dtypes}.items():
            if dtype not in VALUE_DTYPES:
                raise SourceError(f"{name}: dtype {dtype!r} cannot be stored; use one of {', '.join(VALUE_DTYPES)}")
        # One spelling for one meaning, so that "zstd" and "zstd:3" do not look like different settings.
        object.__setattr__(self, "codec", str(Codec.parse(self.codec)))
        object.__setattr__(self, "field_dtypes", dict(sorted(self.field_dtypes.items())))

    def check_fields(self, canonical_names: Collection[str]) -> None:
        """Raise SourceError if a field that is given a dtype is none of these."""
        unknown = [name for name in self.field_dtypes if name not in canonical_names]
        if unknown:
            raise SourceError(f"no field {unknown[0]!r} to give a dtype; there are: {', '.join(canonical_names)}")

    @cached_property
    def digest(self) -> str:
        """16 hex digits that differ where the settings would write other bytes."""
        values = [getattr(self, name) for name in self.__dataclass_fields__]
        return _digest([GROUP_FORMAT, *values])

    def dtype_of(self, name: FieldName) -> str:
        """Stored dtype of a field."""
        return self.field_dtypes.get(name.canonical, COORDS_DTYPE if name.is_position else self.values_dtype)

    def layout(self, name: FieldName, n_points: int, dim: int) -> ArrayLayout:
        """Layout of an array of ``n_points`` rows."""
        chunk_points = min(self.chunk_points, n_points)
        chunks = -(-n_points // chunk_points)
        if self.shard_points is not None:
            chunks = min(chunks, self.shard_points // chunk_points)
        codec = Codec.parse(self.codec)
        return ArrayLayout(n_points, dim, chunk_points, chunks * chunk_points, self.dtype_of(name), codec)


@dataclass(frozen=True)
class WrittenSample:
    """A finished group: its manifest entry, and the columns that it brings."""

    entry: SampleEntry
    domains: Mapping[str, DomainLayout]


class ZarrStoreWriter:
    """Writes sample groups below a store root. Light, picklable, safe to use from many processes at once.

    Args:
        root: the store, a local path or fsspec URL.
        settings: how to write.
        retention: of the store as it is now: groups that are being collected are neither found nor written.
    """

    def __init__(
        self,
        root: str | os.PathLike[str],
        settings: ConversionSettings | None = None,
        retention: Retention | None = None,
    ) -> None:
        self.storage = Storage(root)
        self.settings = settings or ConversionSettings()
        self.retention = retention or Retention()

    def heeding(self, retention: Retention, sample_id: str = "", fingerprint: str = "") -> ZarrStoreWriter:
        """The same writer for a store in that state; with no more of it than is about a sample, if one is given."""
        if sample_id:
            mine = {
                path: retention.tombstones[path]
                for path in self._relpaths(sample_id, fingerprint)
                if path in retention.tombstones
            }
            retention = Retention({}, mine, retention.collections)
        return ZarrStoreWriter(self.storage.root, self.settings, retention)

    def relpath(self, sample_id: str, fingerprint: str) -> str:
        """Where the group of a sample made from these source files belongs: the same on every try.

        Unless the group was there before and has lately been collected: a collector that hangs may still delete what is
        under that name, so that another one takes its place.

        Raises:
            StoreError: all names for it are being collected.
        """
        for path in self._relpaths(sample_id, fingerprint):
            if path not in self.retention.tombstones:
                return path
        reason = f"its groups have been collected {_NAMES} times within a day; give gc a longer grace period"
        raise StoreError(f"{self.storage.url}, {sample_id}: {reason}")

    def _relpaths(self, sample_id: str, fingerprint: str) -> list[str]:
        made_from = [GROUP_FORMAT, sample_id, fingerprint, self.settings.digest]
        outcomes = [_digest(made_from + [again] * bool(again)) for again in range(_NAMES)]
        return [f"{SAMPLES}/{check_sample_id(sample_id)}/{outcome}" for outcome in outcomes]

    def write_sample(
        self,
        sample_id: str,
        fields: Sequence[FieldFile],
        load: Callable[[str], torch.Tensor],
        *,
        fingerprint: str,
        source: Mapping[str, Any] | None = None,
        parameters: Mapping[str, Any] | None = None,
    ) -> WrittenSample:
        """Write one sample.

        Memory: one source tensor, the permutation of its domain, one encoded shard and a few blocks of points.

        Args:
            sample_id: its id.
            fields: the fields to write, each domain's position first.
            load: the tensor of a field by canonical name, (n_points,) or (n_points, dim).
            fingerprint: of the source files.
            source: what ``verify`` needs to find them again.
            parameters: scalars of the sample as a whole.

        Raises:
            SampleError: a field is empty, misaligned, too wide, not finite, or does not fit its stored dtype.
        """
        relpath = self.relpath(sample_id, fingerprint)
        arrays: dict[str, ArrayLayout] = {}
        moments: dict[str, Any] = {}
        stored: dict[str, int] = {}
        chunk_bytes: dict[str, str] = {}
        permutation, domain = np.empty(0, np.int64), ""
        for file in fields:
            name = file.field
            values = _as_points(sample_id, name, load(name.canonical))
            if name.domain != domain:
                domain = name.domain
                permutation = shuffle_permutation(self.settings.shuffle_seed, sample_id, domain, len(values))
            if len(values) != len(permutation):
                reason = f"{len(values)} points where {domain}_position has {len(permutation)}"
                way_out = "every field of a domain must describe the same points in the same order"
                raise SampleError(sample_id, name.canonical, reason, way_out)
            layout = self.settings.layout(name, len(values), values.shape[1])
            arrays[name.array_name] = layout
            lengths: list[int] = []
            field_moments, size = self._write_array(sample_id, name, layout, values, permutation, relpath, lengths)
            moments[name.canonical], stored[name.canonical] = field_moments.to_json(), size
            if max(lengths) < 2**32:  # else readers ask the shards
                chunk_bytes[name.array_name] = pack_lengths(lengths)
            del values
        attributes = {
            "format": GROUP_FORMAT,
            "sample_id": sample_id,
            "fingerprint": fingerprint,
            "settings": self.settings.digest,
            "shuffle_seed": self.settings.shuffle_seed,
            "source": dict(source or {}),
            "parameters": dict(parameters or {}),
            "moments": moments,
            "stored_bytes": stored,
            "chunk_bytes": chunk_bytes,
        }
        group = group_zarr_json({ATTRIBUTES_KEY: attributes}, arrays)
        for domain in sorted({name.partition("/")[0] for name in arrays}):
            self._write_json(f"{relpath}/{domain}/zarr.json", EMPTY_GROUP)
        for array_name, layout in arrays.items():
            self._write_json(f"{relpath}/{array_name}/zarr.json", layout.to_zarr_json())
        self._write_json(f"{relpath}/zarr.json", group)
        return written_sample(relpath, group)

    def write_quarantine(self, sample_id: str, fingerprint: str, error: SampleError) -> Quarantine:
        """Record where the group would be why there is none, for whoever commits."""
        quarantine = Quarantine(fingerprint, self.settings.digest, error.field, error.explanation)
        record = {name: getattr(quarantine, name) for name in quarantine.__slots__}
        self._write_json(f"{self.relpath(sample_id, fingerprint)}/quarantine.json", record)
        return quarantine

    def find(self, sample_id: str, fingerprint: str) -> WrittenSample | Quarantine | None:
        """What an earlier try left behind: a whole group, a refusal, or nothing that can be used."""
        # In a store that was never collected, every group has the first of its names.
        names = self._relpaths(sample_id, fingerprint)[: _NAMES if self.retention.collections else 1]
        tries = (self._find(path, fingerprint) for path in names if path not in self.retention.tombstones)
        return next((found for found in tries if found is not None), None)

    def _find(self, relpath: str, fingerprint: str) -> WrittenSample | Quarantine | None:
        made_from = (fingerprint, self.settings.digest)
        try:
            group = parse_json(self.storage.read(f"{relpath}/zarr.json"))
            found = written_sample(relpath, group) if is_whole(self.storage, relpath, group) else None
            return found if found and (found.entry.fingerprint, found.entry.settings) == made_from else None
        except (FileNotFoundError, *_OF_DAMAGE):
            pass
        try:
            refusal = Quarantine(**parse_json(self.storage.read(f"{relpath}/quarantine.json")))
        except (FileNotFoundError, *_OF_DAMAGE):
            return None
        texts = all(isinstance(getattr(refusal, name), str) for name in refusal.__slots__)
        return refusal if texts and (refusal.fingerprint, refusal.settings) == made_from else None

    def _write_array(
        self,
        sample_id: str,
        name: FieldName,
        layout: ArrayLayout,
        values: torch.Tensor,
        permutation: np.ndarray,
        relpath: str,
        lengths: list[int],
    ) -> tuple[FieldMoments, int]:
        """Gather, round, encode and write one array; its moments and stored bytes, and of each chunk its length."""
        moments = MomentsAccumulator()
        size = 0

        def chunks(rows: np.ndarray) -> Iterator[np.ndarray]:
            for points in _gather_blocks(values, rows, layout):
                moments.add(points)
                for start in range(0, len(points), layout.chunk_points):
                    yield points[start : start + layout.chunk_points]

        for shard in range(layout.n_shards):
            rows = permutation[shard * layout.shard_points : (shard + 1) * layout.shard_points]
            pieces = encode_shard(layout, chunks(rows), lengths)
            size += self.storage.write(f"{relpath}/{name.array_name}/{layout.shard_key(shard)}", pieces)
        result = moments.result()
        if not np.isfinite([result.min, result.max]).all():
            raise _not_finite(sample_id, name, layout, values)
        return result, size

    def _write_json(self, name: str, document: Mapping[str, Any]) -> None:
        self.storage.write(name, [(json.dumps(document, separators=(",", ":"), allow_nan=False) + "\n").encode()])


def written_sample(relpath: str, group: Mapping[str, Any]) -> WrittenSample:
    """The manifest's view of a finished group, from its ``zarr.json``."""
    attributes = group["attributes"][ATTRIBUTES_KEY]
    grids: dict[str, DomainGrid] = {}
    columns: dict[str, dict[str, ArrayColumn]] = {}
    for array_name, layout in group_arrays(group).items():
        domain, _, name = array_name.partition("/")
        canonical = FieldName(domain, name).canonical
        grids[domain] = DomainGrid(layout.n_points, layout.chunk_points, layout.shard_points, layout.n_chunks)
        columns.setdefault(domain, {})[canonical] = ArrayColumn(array_name, canonical, layout.dtype, layout.dim)
    domains = {domain: DomainLayout(f"{domain}_position", arrays) for domain, arrays in columns.items()}
    size = sum(attributes["stored_bytes"].values())
    return WrittenSample(SampleEntry(relpath, grids, attributes["fingerprint"], attributes["settings"], size), domains)


def _gather_blocks(values: torch.Tensor, rows: np.ndarray, layout: ArrayLayout) -> Iterator[np.ndarray]:
    """The given source rows in order, in the stored dtype, in blocks of whole chunks; the next overwrites each.

    Rows are gathered a slab at a time, for a gather jumps about in its source and wants the cache to itself; then
    rounded block by block, for what follows wants to find them there.
    """
    import torch

    slab = max(_SLAB_BYTES // (layout.dim * values.element_size()), 1)
    block = min(max(_BLOCK_POINTS // layout.chunk_points, 1) * layout.chunk_points, len(rows))
    slab = max(slab // block, 1) * block
    dtype = getattr(torch, layout.dtype)
    stored = torch.empty((block, layout.dim), dtype=dtype)
    for start in range(0, len(rows), slab):
        gathered = values.index_select(0, torch.from_numpy(rows[start : start + slab]))
        for first in range(0, len(gathered), block):
            source = gathered[first : first + block]
            if source.dtype is dtype:
                yield source.numpy()
                continue
            points = stored[: len(source)].numpy()
            if source.dtype is torch.float64:
                # Torch would round float64 to float16 by way of float32, twice, and so not always to the nearest.
                with np.errstate(over="ignore"):
                    np.copyto(points, source.numpy(), casting="same_kind")
            else:
                stored[: len(source)].copy_(source)
            yield points


def _as_points(sample_id: str, name: FieldName, values: torch.Tensor) -> torch.Tensor:
    """The tensor as (n_points, dim) real numbers, or a SampleError that says why it is none."""

    def refuse(reason: str) -> SampleError:
        return SampleError(sample_id, name.canonical, reason)

    if str(values.dtype).removeprefix("torch.") not in _SOURCE_DTYPES:
        raise refuse(f"holds {values.dtype} where real numbers belong")
    if values.ndim not in (1, 2):
        raise refuse(f"has shape {tuple(values.shape)} where (points,) or (points, components) belongs")
    if values.numel() == 0:
        raise refuse("holds no points")
    points = values[:, None] if values.ndim == 1 else values
    if name.dim is not None and points.shape[1] != name.dim:
        raise refuse(f"has {points.shape[1]} components a point where {name.name} has {name.dim}")
    return points


def _not_finite(sample_id: str, name: FieldName, layout: ArrayLayout, values: torch.Tensor) -> SampleError:
    """Why some stored values are not finite: the source's are not, or they do not fit the stored dtype."""
    bad = int((~values.isfinite()).sum())
    if bad:
        reason = f"{bad} of {values.numel()} values are NaN or infinite"
        return SampleError(sample_id, name.canonical, reason, "repair the source, or leave the sample out")
    largest = float(values.abs().max())
    reason = f"largest value {largest:.6g} does not fit {layout.dtype}, which ends at {np.finfo(layout.dtype).max:.6g}"
    return SampleError(sample_id, name.canonical, reason, f"use --field-dtype {name.canonical}=float32")


def _digest(values: list[Any]) -> str:
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()[:16]
