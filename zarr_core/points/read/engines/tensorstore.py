"""TensorStore engine: an independent implementation of Zarr, for comparison (extra ``tensorstore``).

TensorStore ends the process if it cannot allocate what metadata or a compressed chunk claims, or if the central
directory of an archive is damaged. So it gets only arrays whose sizes, and archives whose directories, were checked.
zarr-python, which raises an error, reads arrays in layouts that this library does not write.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from typing import Any

import numpy as np

from zarr_core._util.documents import parse_json
from zarr_core._util.redaction import redact
from zarr_core.errors import CorruptChunkError, StoreError
from zarr_core.format.array_metadata import CHECKSUM_BYTES, ArrayLayout
from zarr_core.format.packed import SUFFIX, check_directory, parse_head
from zarr_core.format.shards import ChunkRange, chunk_ranges
from zarr_core.points.read.engines import Engine, FieldRead, copied, missing_group
from zarr_core.points.read.engines.reference import ZarrEngine
from zarr_core.points.store.manifest import SampleEntry
from zarr_core.storage import Storage, is_local
from zarr_core.storage.archives import is_archive
from zarr_core.storage.filesystems import Access, access
from zarr_core.storage.retries import POLICY

_OPEN_ARRAYS = 4096
_CHECK_THREADS = 8
_HEADER_BYTES = 18  # of a compressed frame, which name its decoded size

# The retry policy as TensorStore options. Timeouts can only be set in the environment (TENSORSTORE_CURL_LOW_SPEED_*).
_RETRIES = {
    "max_retries": POLICY.attempts - 1,
    "initial_delay": f"{POLICY.first_wait_s}s",
    "max_delay": f"{POLICY.longest_wait_s}s",
}

# Its names for where botocore found credentials.
_CREDENTIALS = {
    "env": {"type": "environment"},
    "iam-role": {"type": "imds"},
    "container-role": {"type": "default"},
    "assume-role-with-web-identity": {"type": "default"},
}

# The process that first used TensorStore. Its threads do not survive a fork: a child would hang.
_used_by: int | None = None


class TensorStoreEngine(Engine):
    """Reads a local path or ``s3://`` URL through TensorStore, all fields in flight together.

    Raises:
        StoreError: TensorStore is not installed, or does not support the location.
    """

    def __init__(self, root: str) -> None:
        try:
            import tensorstore  # noqa: F401
        except ImportError as error:
            raise StoreError("engine 'tensorstore' needs the extra: pip install zarr-core[tensorstore]") from error
        self._storage = Storage(root)
        self._kvstore = kvstore(root, self._storage)
        self._others = ZarrEngine(self._storage.root)
        self._process: _Process | None = None

    def read(self, reads: Sequence[FieldRead], out: Sequence[np.ndarray] | None = None) -> list[np.ndarray]:
        """See :class:`zarr_core.points.read.engines.Engine`."""
        process = self._this_process
        checked = list(process.threads.map(process.frames.check, reads))
        started: list[Any] = []
        others: list[FieldRead] = []
        for read, known in zip(reads, checked, strict=True):
            started.append(self._start(process, read) if known else None)
            if not known:
                others.append(read)
        points_of_others = iter(self._others.read(others))
        results = []
        for read, future in zip(reads, started, strict=True):
            if future is None:
                results.append(next(points_of_others))
                continue
            try:
                points = np.asarray(future.result())
            except ValueError as error:
                raise read.unreadable(error) from error
            results.append(read.drawn_of(points))
        return copied(reads, results, out)

    def _start(self, process: _Process, read: FieldRead) -> Any:
        """The future of a read."""
        try:
            array = process.array(read.path, read.entry.is_ours)
        except ValueError as error:
            if "NOT_FOUND" not in str(error):
                raise CorruptChunkError(f"{read.where}: {error}; convert the sample again with --force") from error
            if not self._storage.exists(f"{read.entry.relpath}/zarr.json"):
                raise missing_group(read.where, read.entry) from error
            raise read.missing_array() from error
        read.check_array(tuple(array.shape), tuple(array.chunk_layout.read_chunk.shape), array.dtype.numpy_dtype)
        read.allocate(array.dtype.numpy_dtype, array.shape[1])  # TensorStore aborts the process if memory runs out
        start, stop = read.drawn.span
        return array[start:stop].read()

    def attributes(self, samples: Sequence[tuple[str, SampleEntry]]) -> list[dict[str, Any]]:
        """See :class:`zarr_core.points.read.engines.Engine`."""
        from zarr_core.points.read.engines.direct import DirectEngine

        return DirectEngine(self._storage.root).attributes(samples)

    @property
    def _this_process(self) -> _Process:
        global _used_by
        if _used_by not in (None, os.getpid()):
            raise StoreError(
                "TensorStore hangs in a process that was forked after its use; "
                "start workers by spawn or forkserver, or use engine='direct'"
            )
        _used_by = os.getpid()
        if self._process is None:
            self._process = _Process(self._storage, self._kvstore)
        return self._process

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_process": None}


class _Process:
    """What one process has open. The last arrays stay open."""

    def __init__(self, storage: Storage, kvstore: dict[str, Any]) -> None:
        self.frames = FrameSizes(storage)
        self.threads = ThreadPoolExecutor(_CHECK_THREADS, thread_name_prefix="zarr_core")
        self.array = lru_cache(_OPEN_ARRAYS)(self._open)
        self._kvstore = kvstore

    def _open(self, path: str, is_ours: bool) -> Any:
        import tensorstore

        spec = {
            "driver": "zarr3",
            "kvstore": below(self._kvstore, path),
            "recheck_cached_metadata": "open",
            "context": {"s3_request_retries": _RETRIES},
            # This library writes every chunk, and TensorStore reads a missing object as zeros.
            "fill_missing_data_reads": not is_ours,
        }
        return tensorstore.open(spec, read=True, open=True).result()


def kvstore(root: str, storage: Storage) -> dict[str, Any]:
    """TensorStore's key-value store for a root, which may be a bucket; raises StoreError for other locations."""
    if is_local(root):
        return {"driver": "file", "path": f"{storage.location}/"}
    if not root.startswith("s3://"):
        raise StoreError(f"engine 'tensorstore' reads local paths and s3://, not {redact(root)}")
    bucket, _, prefix = storage.location.partition("/")
    kvstore: dict[str, Any] = {"driver": "s3", "bucket": bucket, "path": f"{prefix}/" if prefix else ""}
    found = access("s3")
    if found.endpoint:
        region = found.config.get("region") or os.environ.get("AWS_DEFAULT_REGION", "us-east-1")
        kvstore |= {"endpoint": found.endpoint, "aws_region": region}
    if credentials := _credentials(found):
        kvstore["aws_credentials"] = credentials
    return kvstore


def below(kvstore: dict[str, Any], path: str) -> dict[str, Any]:
    """The key-value store of what lies at a path: in a folder, or in the archive of a packed sample."""
    archive, inside, rest = path.partition(f"{SUFFIX}/")
    if not (inside and is_archive(f"{archive}{SUFFIX}")):
        return {**kvstore, "path": f"{kvstore['path']}{path}/"}
    return {"driver": "zip", "base": {**kvstore, "path": f"{kvstore['path']}{archive}{SUFFIX}"}, "path": f"{rest}/"}


def _credentials(found: Access) -> dict[str, str]:
    """Where TensorStore finds the credentials: it cannot be told them. Without, it asks everywhere at every request."""
    if "skip_signature" in found.config:
        return {"type": "anonymous"}
    provider = found.provider
    if provider is None or provider.found is None:
        return {"type": "environment"} if "AWS_ACCESS_KEY_ID" in os.environ else {}
    method = provider.found.method
    if method in ("shared-credentials-file", "config-file"):
        return {"type": "profile", **provider.profile}
    if method not in _CREDENTIALS:
        raise StoreError(
            f"engine 'tensorstore' takes no credentials from {method}: name them in the environment or in "
            "~/.aws/credentials, or use engine='direct'"
        )
    return _CREDENTIALS[method]


class FrameSizes:
    """Compares the sizes that compressed chunks of a store claim with their layout, before TensorStore decodes them.

    A decoder allocates what the header of a frame claims, up to 2 GiB with Blosc. Keeps the shard indices of the arrays
    that were read last.
    """

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._known = lru_cache(_OPEN_ARRAYS)(self._open)
        self._check_archive = lru_cache(_OPEN_ARRAYS)(self._compare_directory)

    def check(self, read: FieldRead) -> bool:
        """Whether the layout of the array is one that this library writes: the others are not checked.

        Raises:
            CorruptChunkError: a chunk of the read claims another size than its layout has.
        """
        try:
            if read.entry.head:
                self._check_archive(read.entry.relpath, read.entry.head)
            known = self._known(read.path)
            if known is None:
                return False
            layout, chunks = known
            start, stop = read.drawn.span
            for number in range(start // layout.chunk_points, -(-stop // layout.chunk_points)):
                if number in chunks:
                    self._check_chunk(read.path, layout, chunks[number])
        except (ValueError, CorruptChunkError) as error:
            raise read.unreadable(error) from error
        except FileNotFoundError:
            pass  # the engine reports what is missing
        return True

    def _compare_directory(self, archive: str, head: int) -> None:
        group = parse_head(self._storage.read(archive, 0, head))
        check_directory(group, self._storage.read(archive, group.directory_start, group.size))

    def _open(self, path: str) -> tuple[ArrayLayout, dict[int, ChunkRange]] | None:
        try:
            layout = ArrayLayout.from_zarr_json(parse_json(self._storage.read(f"{path}/zarr.json")))
        except StoreError:
            return None
        if layout.codec.name == "pcodec" or layout.codec.scale is not None:  # TensorStore has no such codecs
            return None
        chunks = {}
        for shard in range(layout.n_shards):
            name = f"{path}/{layout.shard_key(shard)}"
            size = self._storage.size(name)
            end = size - layout.index_bytes
            found = chunk_ranges(layout, shard, self._storage.read(name, max(end, 0), size), end)
            chunks.update({chunk.number: chunk for chunk in found})
        return layout, chunks

    def _check_chunk(self, path: str, layout: ArrayLayout, chunk: ChunkRange) -> None:
        frame = chunk.stop - chunk.start - (CHECKSUM_BYTES if layout.checksum else 0)
        if frame <= 0:
            raise ValueError(f"chunk {chunk.number} is empty")
        header = self._storage.read(
            f"{path}/{layout.shard_key(chunk.shard)}", chunk.start, chunk.start + min(frame, _HEADER_BYTES)
        )
        claimed = layout.codec.decoded_bytes(header, frame)
        expected = layout.chunk_points * layout.dim * np.dtype(layout.dtype).itemsize
        if claimed != expected:
            raise ValueError(f"chunk {chunk.number} decodes to {claimed} bytes where {expected} belong")
