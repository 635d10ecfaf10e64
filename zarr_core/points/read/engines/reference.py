"""The reference engine: zarr-python. Tests compare the other engines with it.

A sample's group is opened with one metadata request and kept open. A field costs the shard index and one range per
chunk of its draw.
"""

from __future__ import annotations

import math
import os
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, cast
from zipfile import BadZipFile

import numpy as np
import zarr
from zarr.abc.buffer import Buffer, BufferPrototype
from zarr.abc.codec import Codec as ZarrCodec
from zarr.abc.store import ByteRequest, Store
from zarr.codecs import GzipCodec, ShardingCodec, ZstdCodec
from zarr.storage import WrapperStore

from zarr_core._util.numcodecs import Zstd
from zarr_core.errors import CorruptChunkError, ManifestError
from zarr_core.format.array_metadata import MAX_CHUNKS
from zarr_core.format.codecs import Codec, decompress_pcodec
from zarr_core.format.object_names import ATTRIBUTES_KEY, ZARR_JSON
from zarr_core.points.read.engines import (
    Engine,
    FieldRead,
    check_origin,
    copied,
    damaged_group,
    fetch_failure,
    missing_group,
)
from zarr_core.points.store.manifest import SampleEntry
from zarr_core.storage.local_files import share_of_open_files
from zarr_core.storage.zarr_stores import group_place, make_store

# Samples that stay open; one of seven fields takes about 100 kB of memory, and an archive is an open file.
_OPEN_SAMPLES = 512
_SHARE_OF_OPEN_FILES = 1 / 16
# Errors that zarr-python and its codecs raise for damaged bytes and metadata. Network failures raise OSError or
# the errors of the client library.
_DAMAGE = (
    ValueError,
    LookupError,
    TypeError,
    AttributeError,
    RuntimeError,
    ArithmeticError,
    AssertionError,
    EOFError,
    BadZipFile,
    CorruptChunkError,
)
# Codecs that decode to any size, without a limit that could be set. Those of Blosc and LZ4 record it in four bytes.
_UNLIMITED = {f"numcodecs.{name}" for name in ("bz2", "gzip", "lzma", "zlib", "zstd")}
_ZSTD = Codec.parse("zstd")


class ZarrEngine(Engine):
    """Reads through zarr-python. See :class:`zarr_core.points.read.reader.ZarrChunkReader` for the arguments."""

    def __init__(
        self, root: str, store_factory: Callable[[str], Store] | None = None, read_concurrency: int = 1
    ) -> None:
        self.root = root
        self.read_concurrency = read_concurrency
        self._store_factory = store_factory or make_store
        self._opened: _Handles | None = None

    def read(self, reads: Sequence[FieldRead], out: Sequence[np.ndarray] | None = None) -> list[np.ndarray]:
        """See :class:`zarr_core.points.read.engines.Engine`."""
        if self.read_concurrency == 1 or len(reads) == 1:
            results = [self._read_field(read) for read in reads]
        else:
            for read in reads:
                self._open(read.where, read.entry)  # once, not in every thread
            results = list(self._handles.threads.map(self._read_field, reads))
        return copied(reads, results, out)

    def attributes(self, samples: Sequence[tuple[str, SampleEntry]]) -> list[dict[str, Any]]:
        """See :class:`zarr_core.points.read.engines.Engine`."""
        return [dict(self._open(where, entry).group.attrs) for where, entry in samples]

    def _read_field(self, read: FieldRead) -> np.ndarray:
        opened = self._open(read.where, read.entry)
        with _metadata_errors(read.where, read.entry):
            array = opened.array(read.column.array_name)
        if array is None:
            raise read.missing_array()
        read.check_array(array.shape, array.chunks, array.dtype)
        start, stop = read.drawn.span
        try:
            with _ungrouped():
                points = cast("np.ndarray", array[start:stop])
        except MemoryError as error:
            raise read.too_large() from error
        except _DAMAGE as error:
            raise read.unreadable(error) from error
        except Exception as error:
            raise fetch_failure(read.where, read.path, error) from error
        return read.drawn_of(points)

    def _open(self, where: str, entry: SampleEntry) -> _OpenSample:
        handles = self._handles
        with _metadata_errors(where, entry):
            opened = handles.sample(entry.relpath, entry.is_ours)
            recorded: Any = opened.group.attrs.get(ATTRIBUTES_KEY, {})
            check_origin(where, entry, recorded)
        return opened

    @property
    def _handles(self) -> _Handles:
        if self._opened is None or self._opened.pid != os.getpid():
            self._opened = _Handles(self.root, self._store_factory, self.read_concurrency)
        return self._opened

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_opened": None}


@contextmanager
def _metadata_errors(where: str, entry: SampleEntry) -> Iterator[None]:
    """Add store and sample to the errors of opening a group."""
    try:
        yield
    except ManifestError:
        raise
    except FileNotFoundError as error:
        raise missing_group(where, entry) from error
    except _DAMAGE as error:
        raise damaged_group(where, entry, error) from error
    except Exception as error:
        raise fetch_failure(where, f"{entry.relpath}/{ZARR_JSON}", error) from error


@contextmanager
def _ungrouped() -> Iterator[None]:
    """Raise the first error of a group by itself: zarr-python 3.4 fetches the chunks of a shard in a task group."""
    try:
        yield
    except ExceptionGroup as group:
        error: Exception = group
        while isinstance(error, ExceptionGroup):
            error = error.exceptions[0]
        raise error from group


class _Handles:
    """Open handles of one process. Sockets, locks and threads do not survive a fork.

    Attributes:
        sample: opens the sample with a group at a path, of this library or not; the last ones stay open.
    """

    def __init__(self, root: str, store_factory: Callable[[str], Store], threads: int) -> None:
        self.pid = os.getpid()
        self.threads = ThreadPoolExecutor(threads, thread_name_prefix="zarr_core")  # starts none until used
        self.sample = lru_cache(share_of_open_files(_SHARE_OF_OPEN_FILES, _OPEN_SAMPLES))(self._open)
        self._root, self._store_factory = root, store_factory
        self._store = store_factory(root)

    def _open(self, relpath: str, is_ours: bool) -> _OpenSample:
        root, path = group_place(self._root, relpath)
        base = self._store if root == self._root else self._store_factory(root)
        # This library writes every chunk; other writers may leave out chunks of zeros.
        store = _CompleteStore(base) if is_ours else _CheckedStore(base)
        return _OpenSample(zarr.open_group(store, path=path, mode="r", zarr_format=3))


class _OpenSample:
    """A sample's group and its arrays. Opening an array parses its codecs, so arrays are kept."""

    def __init__(self, group: zarr.Group) -> None:
        self.group = group
        # No functools.cache, which would keep a sample that is no longer used until a garbage collection.
        self._arrays: dict[str, zarr.Array[Any] | None] = {}

    def array(self, name: str) -> zarr.Array[Any] | None:
        """An array; None if there is none of this name."""
        if name not in self._arrays:
            found = self.group.get(name)
            array = found if isinstance(found, zarr.Array) else None
            if array is not None:
                _limit(array.metadata.codecs, array.shards or array.chunks, array.dtype)  # type: ignore[union-attr]
            self._arrays[name] = array
        return self._arrays[name]


class _CheckedStore(WrapperStore[Store]):
    """For stores of any writer. zarr-python reads an empty object like a missing one, as zeros."""

    # zarr-python 3.4 can also read by get_ranges and get_sync, which WrapperStore passes on: those reads would not be
    # checked. The get_ranges of Store calls get.
    get_ranges: Any = getattr(Store, "get_ranges", None)
    _supports_sync_io: Any = False

    async def get(self, key: str, prototype: BufferPrototype, byte_range: ByteRequest | None = None) -> Buffer | None:
        found = await super().get(key, prototype, byte_range)
        if found is not None and len(found) == 0:
            raise CorruptChunkError(f"{key} is empty")
        return found


class _CompleteStore(_CheckedStore):
    """For stores of this library, which writes every chunk. zarr-python reads a missing object as zeros."""

    async def get(self, key: str, prototype: BufferPrototype, byte_range: ByteRequest | None = None) -> Buffer | None:
        found = await super().get(key, prototype, byte_range)
        if found is None and not key.endswith("zarr.json"):
            raise CorruptChunkError(f"{key} is missing")
        return found


def _limit(codecs: Iterable[ZarrCodec], chunk_shape: Sequence[int], dtype: np.dtype[Any]) -> None:
    """Limit the memory that decoders take to that of a chunk: a few bytes of zstd or gzip can hold terabytes of zeros.

    Raises:
        ValueError: one of the codecs cannot be limited.
    """
    limit = math.prod(chunk_shape) * dtype.itemsize * 101 // 100 + 4096  # what another codec may have added
    for codec in codecs:
        name = codec.to_dict().get("name")
        if name in _UNLIMITED:
            raise ValueError(f"the codec {name} decodes to any size and is not read")
        if name == "numcodecs.fixedscaleoffset":
            configuration: Any = codec.to_dict()["configuration"]
            dtype = np.dtype(configuration["astype"])
        if name == "numcodecs.pcodec":
            vars(codec)["_codec"] = _LimitedPcodec(math.prod(chunk_shape), dtype)
        # zarr-python keeps the decoders as attributes that are made on first use.
        if isinstance(codec, ZstdCodec):
            vars(codec)["_zstd_codec"] = _LimitedZstd(limit)
        elif isinstance(codec, GzipCodec):
            vars(codec)["_gzip_codec"] = _LimitedGzip(limit)
        elif isinstance(codec, ShardingCodec):
            _limit(codec.codecs, codec.chunk_shape, dtype)
            _limit(codec.index_codecs, (MAX_CHUNKS, 2), np.dtype("u8"))


@dataclass(frozen=True)
class _LimitedZstd:
    """Decodes Zstandard frames that record their size, as all that this library reads."""

    limit: int

    def decode(self, data: np.ndarray) -> Any:
        if (size := _ZSTD.decoded_bytes(data, len(data))) > self.limit:
            raise ValueError(f"the frame decodes to {size} bytes, which are more than a chunk has")
        return Zstd().decode(data)


@dataclass(frozen=True)
class _LimitedPcodec:
    """Decodes frames of the values of a chunk, which may claim to have more."""

    count: int
    dtype: np.dtype[Any]

    def decode(self, data: bytes | np.ndarray) -> np.ndarray:
        values = np.empty(self.count, self.dtype)
        decompress_pcodec(data, values)
        return values


@dataclass(frozen=True)
class _LimitedGzip:
    """Decodes gzip members one after another."""

    limit: int

    def decode(self, data: np.ndarray) -> bytes:
        decoded, rest = b"", data.tobytes()
        while rest and len(decoded) <= self.limit:
            member = zlib.decompressobj(wbits=31)
            try:
                decoded += member.decompress(rest, self.limit + 1 - len(decoded))
            except zlib.error as error:
                raise ValueError(str(error)) from error
            if not member.eof:
                raise ValueError("gzip: the chunk is truncated, or decodes to more than it has")
            rest = member.unused_data
        return decoded
