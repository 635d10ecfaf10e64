"""Reads packed samples by ``docs/packed_format.md`` alone: nothing here is taken from the library."""

import base64
import json
import struct
import zlib
from pathlib import Path
from typing import Any

import google_crc32c
import numpy as np
from numcodecs import Zstd


def read_packed(root: Path, sample_id: str) -> dict[str, np.ndarray]:
    """All fields of a packed sample by array name, (points, components) in stored order."""
    sample = json.loads((root / "manifest.json").read_bytes())["samples"][sample_id]
    with (root / sample["relpath"]).open("rb") as archive:
        head = archive.read(sample["head"])
        header = struct.unpack_from("<4sHHHHHIIIHH", head)
        assert (header[0], header[3], head[30:39]) == (b"PK\3\4", 0, b"zarr.json"), "not a packed sample"
        assert header[7:] == (len(head) - 39, len(head) - 39, 9, 0), "a head of another size"
        assert header[6] == zlib.crc32(head[39:]), "zarr.json is damaged"
        group = json.loads(head[39:])
        recorded = group["attributes"]["zarr_core"]
        assert recorded["sample_id"] == sample_id, "the archive of another sample"
        assert all(recorded[key] == sample[key] for key in ("fingerprint", "settings")), "of another conversion"
        arrays = {}
        for name, metadata in group["consolidated_metadata"]["metadata"].items():
            if metadata["node_type"] == "array":
                points = sample["domains"][name.split("/")[0]]["n_points"]
                assert metadata["shape"][0] == points, f"{name}: the manifest says {points} points"
                arrays[name] = _array(archive, len(head), name, metadata, recorded["packed"])
    return arrays


def _array(archive: Any, head: int, name: str, metadata: Any, packed: Any) -> np.ndarray:
    points, (rows, components) = metadata["shape"][0], metadata["chunk_grid"]["configuration"]["chunk_shape"]
    places = packed["chunks"][name]
    if isinstance(places, list):
        start, step, length, count = places
        assert count == -(-points // rows), f"{name}: {count} chunks"
        starts, lengths = [start + number * step for number in range(count)], [length] * count
    else:
        starts = np.frombuffer(base64.b64decode(places["starts"]), "<u8").tolist()
        lengths = np.frombuffer(base64.b64decode(places["lengths"]), "<u4").tolist()
        assert len(starts) == -(-points // rows), f"{name}: {len(starts)} chunks"
    values = np.empty((len(starts), rows, components), np.dtype(metadata["data_type"]).newbyteorder("<"))
    for number, (start, length) in enumerate(zip(starts, lengths, strict=True)):
        assert start + length <= packed["bytes"], f"{name}: a chunk outside of the archive"
        archive.seek(head + start)
        data = archive.read(length)
        assert google_crc32c.value(data[:-4]) == int.from_bytes(data[-4:], "little"), f"{name}: a damaged chunk"
        data = data[:-4] if len(metadata["codecs"]) == 2 else Zstd().decode(data[:-4])
        values[number] = np.frombuffer(data, values.dtype).reshape(rows, components)
    return values.reshape(-1, components)[:points]
