"""Compression ratio and speed of each codec on shuffled CFD fields: the table in ``docs/format.md``.

``python -m benchmarks.codecs [FOLDER ...]`` takes sample folders in the AhmedML layout (default: the bundled ones), one
core, chunks of 4,096 points as stored (positions float32, the rest float16).
"""

from __future__ import annotations

import argparse
from functools import partial
from pathlib import Path

import numpy as np
import torch

from benchmarks.result import Result, Value, parse
from benchmarks.timing import best_of
from zarr_core.format.codecs import Codec
from zarr_core.format.shuffle import shuffle_permutation
from zarr_core.sources import resolve_kind

CHUNK_POINTS = 4096
CODECS = ("none", "blosc-lz4:1", "blosc-lz4:5", "blosc-lz4:9", "blosc-zstd:1", "blosc-zstd:5", "zstd:1", "zstd:3")


def stored_chunks(folder: Path) -> list[np.ndarray]:
    """Every chunk of a sample as stored, before compression."""
    chunks = []
    for file in resolve_kind("ahmedml").required_fields.values():
        values = torch.load(folder / file.filename, weights_only=True)
        points = values.reshape(len(values), -1).numpy()[shuffle_permutation(0, folder.name, file.domain, len(values))]
        stored = points if file.field.is_position else points.astype(np.float16)
        chunks += [np.ascontiguousarray(stored[i : i + CHUNK_POINTS]) for i in range(0, len(stored), CHUNK_POINTS)]
    return chunks


def encode_all(codec: Codec, chunks: list[np.ndarray]) -> list[bytes]:
    return [codec.encode(chunk) for chunk in chunks]


def decode_all(codec: Codec, encoded: list[bytes], buffers: list[np.ndarray]) -> None:
    for data, buffer in zip(encoded, buffers, strict=True):
        codec.decode(data, buffer)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    bundled = Path(__file__).parents[1] / "examples" / "data" / "ahmed_rans"
    parser.add_argument("folders", nargs="*", type=Path, default=sorted(bundled.glob("run_*")))
    arguments = parse(parser)
    chunks = [chunk for folder in arguments.folders for chunk in stored_chunks(folder)]
    size = sum(chunk.nbytes for chunk in chunks)
    result = Result("codecs", "Codecs on shuffled CFD fields", arguments)
    result.describe(f"{len(chunks)} chunks of up to {CHUNK_POINTS:,} points, {size / 1e6:.1f} MB, one core.")
    rows: list[list[Value]] = []
    for codec in map(Codec.parse, CODECS):
        encoded = encode_all(codec, chunks)
        buffers = [np.empty_like(chunk) for chunk in chunks]
        encode = best_of(5, partial(encode_all, codec, chunks))
        decode = best_of(5, partial(decode_all, codec, encoded, buffers))
        ratio = sum(map(len, encoded)) / size
        rows.append([str(codec), ratio, size / encode / 1e9, size / decode / 1e9])
    result.add_table("Size and speed", ("codec", "stored / raw", "encode GB/s", "decode GB/s"), rows)
    result.save()


if __name__ == "__main__":
    main()
