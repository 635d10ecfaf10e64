"""Looks into the objects of a point store, and damages them."""

from __future__ import annotations

import json
import os
import struct
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import zarr

from zarr_core import write_sample
from zarr_core.format.packed import head_bytes, parse_head
from zarr_core.points.read.reader import ZarrChunkReader
from zarr_core.points.store.head import load_manifest
from zarr_core.points.verify.store import verify_store
from zarr_core.storage import Storage
from zarr_core.storage.zarr_stores import group_place, make_store
from zarr_core.stores.summary import StoreInfo, store_info


def objects(root: str | Path) -> dict[str, bytes]:
    """Every object of a store, without the locks that only local disks have."""
    storage = Storage(root)
    return {name: storage.read(name) for name in storage.list() if not name.endswith(".lock")}


def stored_values(root: str | Path, sample_id: str, array: str) -> np.ndarray:
    """All values of an array of a sample, (points, dim)."""
    place, path = group_place(str(root), load_manifest(root).samples[sample_id].relpath)
    return zarr.open_group(make_store(place), path=path, mode="r", zarr_format=3)[array][:]


def assert_reads_equal(
    copy: Path | str, original: Path | str, sample_ids: list[str], fields: list[str] | None = None
) -> None:
    """A copy holds these samples and fields, reads like its original, and is intact."""
    one, other = ZarrChunkReader(copy), ZarrChunkReader(original)
    assert one.sample_ids == sample_ids
    assert set(one.fields) == set(other.fields if fields is None else fields)
    for sample_id in sample_ids:
        for points in (None, dict.fromkeys(one.manifest.domains, 20)):
            read = one.read_sample(sample_id, points)
            expected = other.read_sample(sample_id, points, fields)
            assert set(read) == set(expected)
            for name in read:
                np.testing.assert_array_equal(read[name], expected[name])
    assert verify_store(str(copy)).problems == []


def shards(root: Path) -> list[Path]:
    """First shards of the arrays of a local store, by path."""
    return sorted(path for path in (root / "samples").rglob("c/*/0"))


def object_place(root: Path, sample_id: str, name: str) -> tuple[Path, int, int]:
    """Where an object of a sample's group lies, in a folder or an archive: the file, its first byte, and its size."""
    entry = load_manifest(root).samples[sample_id]
    if not entry.head:
        path = root / entry.relpath / name
        return path, 0, path.stat().st_size
    path = root / entry.relpath
    start, size = parse_head(path.read_bytes()).entries[name]
    return path, start, size


def flip(path: Path, at: int = 10) -> None:
    """Change one bit of a file and not its size."""
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


def forge_head(archive: Path, change: Callable[[Any], None]) -> int:
    """Change the document of an archive, with its checksum; returns the size of the new head."""
    data = archive.read_bytes()
    head = head_bytes(data)
    document = json.loads(data[39:head])
    change(document)
    content = json.dumps(document, separators=(",", ":")).encode().ljust(head - 39)
    header = struct.pack("<III", zlib.crc32(content), len(content), len(content))
    archive.write_bytes(data[:14] + header + data[26:39] + content + data[head:])
    return 39 + len(content)


def damage(root: Path, sample_id: str) -> Path:
    """Change one bit of the first chunk of a sample's pressure on its surface; returns the path of its file."""
    path, start, _ = object_place(root, sample_id, "surface/pressure/c/0/0")
    flip(path, start + 10)
    return path


def write_broken(source: Path, sample_id: str, filename: str, tensor: torch.Tensor) -> None:
    """Replace a file of a source."""
    torch.save(tensor, source / sample_id / filename)


def replace_unnoticed(path: Path, tensor: torch.Tensor) -> None:
    """Replace a file by a tensor of the same shape and dtype. Size and modification time stay the same."""
    before = path.stat()
    torch.save(tensor, path)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert path.stat().st_size == before.st_size


def nan(n: int) -> torch.Tensor:
    """Zeros and one NaN, (n,)."""
    values = torch.zeros(n)
    values[3] = float("nan")
    return values


def info_before_a_commit(store: Path) -> Callable[..., StoreInfo]:
    """``store_info`` of a new store with the sample "a", after which another process commits the sample "b"."""

    def add(sample_id: str) -> None:
        write_sample(store, sample_id, {"surface_position": np.zeros((5, 3))})

    def racing(*arguments: Any, **options: Any) -> StoreInfo:
        info = store_info(*arguments, **options)
        add("b")
        return info

    add("a")
    return racing
