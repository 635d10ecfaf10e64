"""No store ends the process that reads it: metadata and chunks that claim any size are errors in every engine."""

from __future__ import annotations

import copy
import json
import resource
import struct
import zlib
from functools import cache
from pathlib import Path
from typing import Any

import google_crc32c
import numpy as np
import pytest
from numcodecs import Blosc

from tests.helpers import fork_server
from tests.helpers.small_source import KIND, write_source
from zarr_core.errors import ZarrCoreError
from zarr_core.points.convert.conversion import convert
from zarr_core.points.read.engines import ENGINES
from zarr_core.points.read.reader import ZarrChunkReader

POINTS = 70
HUGE = 10**12
FIELD, ARRAY = "surface_pressure", "surface/pressure"
BYTES: dict[str, Any] = {"name": "bytes", "configuration": {"endian": "little"}}
BLOSC: dict[str, Any] = {
    "name": "blosc",
    "configuration": {"typesize": 2, "cname": "lz4", "clevel": 5, "shuffle": "shuffle", "blocksize": 0},
}
GZIP: dict[str, Any] = {"name": "gzip", "configuration": {"level": 5}}
ZLIB: dict[str, Any] = {"name": "numcodecs.zlib", "configuration": {"level": 5}}
ZSTD: dict[str, Any] = {"name": "zstd", "configuration": {"level": 3, "checksum": False}}
CRC: dict[str, Any] = {"name": "crc32c"}


def signed(data: bytes) -> bytes:
    return data + int(google_crc32c.value(data)).to_bytes(4, "little")


def shard(chunk: bytes) -> bytes:
    """A shard of one chunk, with its index at the end."""
    return signed(chunk) + signed(np.array([[0, len(chunk) + 4]], "<u8").tobytes())


def blosc() -> bytes:
    """A frame of Blosc whose header claims 2 GiB."""
    frame = bytearray(Blosc("lz4", 5, 1).encode(np.arange(POINTS, dtype="f2")))
    frame[4:8] = struct.pack("<I", 2**31 - 17)
    return bytes(frame)


def zstd(claimed: int | None, blocks: int = 1) -> bytes:
    """A Zstandard frame of blocks that are 128 KiB when they are decoded, whose header claims any size, or none."""
    head = b"\x00\x88" if claimed is None else b"\xc0\x88" + struct.pack("<Q", claimed)
    block, last = (struct.pack("<I", end | 1 << 1 | 2**17 << 3)[:3] + b"\x01" for end in (0, 1))
    return b"\x28\xb5\x2f\xfd" + head + block * (blocks - 1) + last


def sharded(chunk: tuple[int, int] = (POINTS, 1), *codecs: dict[str, Any], **other: Any) -> dict[str, Any]:
    """Metadata of an array of one shard with one chunk."""
    chain = [BYTES, *(codecs or (BLOSC,)), CRC]
    sharding = {"chunk_shape": [*chunk], "codecs": chain, "index_codecs": [BYTES, CRC], "index_location": "end"}
    return plain(chunk, {"name": "sharding_indexed", "configuration": sharding}) | other


def plain(chunk: tuple[int, int], *codecs: dict[str, Any], **other: Any) -> dict[str, Any]:
    """Metadata of an array without shards."""
    return {
        "shape": [POINTS, 1],
        "data_type": "float16",
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [*chunk]}},
        "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
        "fill_value": 0.0,
        "codecs": [*codecs],
        "attributes": {},
        "zarr_format": 3,
        "node_type": "array",
        "storage_transformers": [],
    } | other


def index_first(metadata: dict[str, Any]) -> dict[str, Any]:
    changed = copy.deepcopy(metadata)
    changed["codecs"][0]["configuration"]["index_location"] = "start"
    return changed


FIRST_INDEX = signed(np.array([[20, len(blosc()) + 4]], "<u8").tobytes()) + signed(blosc())
VALUES = np.arange(POINTS, dtype="f2").tobytes()
TEXT = {"name": "null_terminated_bytes", "configuration": {"length_bytes": 10**8}}

# Metadata and the object c/0/0. Those with a fill value, without shards or with the index first are in layouts that
# this library does not write.
CASES: dict[str, tuple[dict[str, Any], bytes]] = {
    "frame of 2 GiB": (sharded(), shard(blosc())),
    "chunk and frame of 2 TB": (sharded((HUGE, 1), ZSTD), shard(zstd(2 * HUGE))),
    "chunk and frame of 4 GB": (sharded((2 * 10**9, 1), ZSTD), shard(zstd(4 * 10**9))),
    "frame of 2 GiB, fill value": (sharded(fill_value=1.0), shard(blosc())),
    "frame of 2 TB, fill value": (sharded((HUGE, 1), ZSTD, fill_value=1.0), shard(zstd(2 * HUGE))),
    "frame of 2 GiB, index first": (index_first(sharded()), FIRST_INDEX),
    "frame of 2 GiB, no shards": (plain((POINTS, 1), BYTES, BLOSC), blosc()),
    "frame of 2 TB, no shards": (plain((HUGE, 1), BYTES, ZSTD), zstd(2 * HUGE)),
    "long chunk": (plain((HUGE, 1), BYTES), VALUES),
    "wide chunk": (plain((POINTS, HUGE), BYTES), VALUES),
    "empty chunk": (plain((0, 1), BYTES), VALUES),
    "index of 16 TB": (sharded((POINTS, 1)) | {"chunk_grid": plain((POINTS * HUGE, 1))["chunk_grid"]}, shard(VALUES)),
    "index of 16 TB, first": (
        index_first(sharded((POINTS, 1))) | {"chunk_grid": plain((POINTS * HUGE, 1))["chunk_grid"]},
        FIRST_INDEX,
    ),
    "texts of 100 MB": (plain((POINTS, 1), BYTES, data_type=TEXT, fill_value=""), b""),
    "5,000 codecs": (plain((POINTS, 1), BYTES, *[CRC] * 5_000), VALUES),
    "codecs in codecs": (plain((POINTS, 1), BYTES, *[BLOSC] * 20), blosc()),
}


@cache
def expanding() -> dict[str, tuple[dict[str, Any], bytes]]:
    """Chunks of a few kilobytes that decode to 200 MB, where 140 bytes belong."""
    deflated = {}
    for wbits in (31, 15):
        compressor = zlib.compressobj(1, wbits=wbits)
        deflated[wbits] = b"".join(compressor.compress(bytes(10**7)) for _ in range(20)) + compressor.flush()
    return {
        "zstd": (plain((POINTS, 1), BYTES, ZSTD), zstd(1600 * 2**17, 1600)),
        "zstd without size": (plain((POINTS, 1), BYTES, ZSTD), zstd(None, 1600)),
        "gzip": (plain((POINTS, 1), BYTES, GZIP), deflated[31]),
        "zlib": (plain((POINTS, 1), BYTES, ZLIB), deflated[15]),
    }


def _read_all(
    root: Path, relpath: str, engine: str, result: Path, cases: dict[str, tuple[dict[str, Any], bytes]]
) -> None:
    """Read every case in a process with little memory."""
    if engine == "tensorstore":
        import tensorstore  # noqa: F401
    ZarrChunkReader(root, engine=engine).read_sample("run_1", fields=["surface_position"])  # imports what it needs
    size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize() + (1 << 30)
    resource.setrlimit(resource.RLIMIT_AS, (size, size))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    group = root / relpath / "zarr.json"
    document = json.loads(group.read_text())
    found = {}
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for name, (metadata, data) in cases.items():
        document["consolidated_metadata"]["metadata"][ARRAY] = metadata
        document["attributes"]["zarr_core"]["chunk_bytes"].pop(ARRAY, None)
        group.write_text(json.dumps(document))
        (root / relpath / ARRAY / "zarr.json").write_text(json.dumps(metadata))
        (root / relpath / ARRAY / "c/0/0").write_bytes(data)
        try:
            ZarrChunkReader(root, engine=engine).read_sample("run_1", {"surface": 20}, fields=[FIELD])
            found[name] = "read"
        except ZarrCoreError:
            found[name] = "refused"
        except Exception as error:
            found[name] = f"{type(error).__name__}: {error}"
        if resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before > 100_000:
            found[name] += ", and took more than 100 MB"
        result.write_text(json.dumps(found))  # after each, so that the last one tells what ended the process


@pytest.mark.parametrize("engine", ENGINES)
def test_what_claims_any_size_is_refused(tmp_path: Path, engine: str) -> None:
    if engine == "tensorstore":
        pytest.importorskip("tensorstore", reason="needs the tensorstore extra")
    source = write_source(tmp_path / "source", ("run_1",), surface=POINTS)
    relpath = convert(KIND, tmp_path / "store", root=source, chunk_points=128).manifest.samples["run_1"].relpath
    cases = CASES | expanding()
    child = fork_server.start(_read_all, tmp_path / "store", relpath, engine, tmp_path / "result.json", cases)
    child.join()
    found = json.loads((tmp_path / "result.json").read_text())
    assert found == dict.fromkeys(cases, "refused")
    assert child.exitcode == 0
