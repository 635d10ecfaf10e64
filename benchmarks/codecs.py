"""Compression ratio, error and speed of codecs on shuffled CFD fields: without loss, and with error bounds.

``python -m benchmarks.codecs [FOLDER ...]`` takes sample folders in the AhmedML layout (default: the samples of
``../shared/data/ahmed_rans_fine``, or the bundled ones), one core, minima of processor time. The first table has chunks
of 4,096 points as stored by default (positions float32, the rest float16). The second one has the seven values of the
volume, chunks of 16,384 points: as float16, and as multiples of a step that keep an error bound; speeds count the bytes
of float32, and with bounds include the scale.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from time import thread_time

import numpy as np
import torch

from benchmarks.result import Result, Value, parse
from benchmarks.timing import best_of
from zarr_core.format.bounds import ErrorBound
from zarr_core.format.codecs import BOUNDED_CODEC, Codec
from zarr_core.format.shuffle import shuffle_permutation
from zarr_core.points.convert.savings import TRIED
from zarr_core.points.convert.stored_values import as_points, bounded, stored_blocks
from zarr_core.points.store.settings import ConversionSettings
from zarr_core.sources import resolve_kind

FINE = Path(__file__).parents[1] / "../shared/data/ahmed_rans_fine"
BUNDLED = Path(__file__).parents[1] / "examples" / "data" / "ahmed_rans"
CHUNK_POINTS = 4096
CODECS = (
    "none",
    "blosc-lz4:1",
    "blosc-lz4:5",
    "blosc-lz4:9",
    "blosc-zstd:1",
    "blosc-zstd:5",
    "zstd:1",
    "zstd:3",
    "bitshuffle-lz4:5",
    "bitshuffle-zstd:3",
    "pcodec:8",
)
WITH_BOUNDS = ("pcodec:8", "pcodec:4", "bitshuffle-zstd:3", "bitshuffle-lz4:5", "zstd:3")
VALUES = ("volume_pressure", "volume_velocity", "volume_vorticity")


def default_folders() -> list[Path]:
    return sorted((FINE if FINE.is_dir() else BUNDLED).resolve().glob("run_*"))


def stored_chunks(folder: Path) -> list[np.ndarray]:
    """Every chunk of a sample as stored, before compression."""
    chunks = []
    for file in resolve_kind("ahmedml").required_fields.values():
        values = torch.load(folder / file.filename, weights_only=True)
        points = values.reshape(len(values), -1).numpy()[shuffle_permutation(0, folder.name, file.domain, len(values))]
        stored = points if file.field.is_position else points.astype(np.float16)
        chunks += [np.ascontiguousarray(stored[i : i + CHUNK_POINTS]) for i in range(0, len(stored), CHUNK_POINTS)]
    return chunks


def encode_all(codec: Codec, chunks: Sequence[np.ndarray]) -> list[bytes]:
    return [codec.encode(chunk) for chunk in chunks]


def decode_all(codec: Codec, encoded: Sequence[bytes], buffers: Sequence[np.ndarray]) -> None:
    for data, buffer in zip(encoded, buffers, strict=True):
        codec.decode(data, buffer)


class Measured:
    """Sums over the fields of samples.

    Attributes:
        points: of one field of each sample.
        stored: bytes.
        decoded: bytes of the values as float32.
        encode, decode: seconds.
        error: largest one, in standard deviations of the field.
        of_bound, of_float16: largest one, as a multiple of the field's bound and of the largest error of float16.
    """

    def __init__(self) -> None:
        self.points = self.stored = self.decoded = 0
        self.encode = self.decode = self.error = self.of_bound = self.of_float16 = 0.0

    def row(self, name: str) -> list[Value]:
        """Of the table."""
        speeds = [self.decoded / seconds / 1e9 for seconds in (self.encode, self.decode)]
        return [name, self.stored / self.points, self.error, self.of_bound or None, self.of_float16, *speeds]


def measure_values(folders: Sequence[Path], bound: str | None, codec: str) -> Measured:
    """Encode and decode the seven values of the volume of samples, whole chunks only, with a bound or as float16."""
    found = Measured()
    fields = resolve_kind("ahmedml").required_fields
    for folder in folders:
        points = 0
        for canonical in VALUES:
            name = fields[canonical].field
            values = as_points(folder.name, name, torch.load(folder / fields[canonical].filename, weights_only=True))
            rows = shuffle_permutation(0, folder.name, name.domain, len(values))
            settings = ConversionSettings(codec=codec, max_errors={canonical: bound} if bound else {})
            rows = rows[: len(rows) // settings.chunk_points * settings.chunk_points]
            layout = settings.array_layout(name, len(rows), values.shape[1])
            if bound:
                layout = bounded(layout, ErrorBound.parse(bound), values)
            chunks: list[np.ndarray] = []
            for block in stored_blocks(values, rows, layout):
                chunks += np.split(block.copy(), range(layout.chunk_points, len(block), layout.chunk_points))
            buffers = [np.empty_like(chunk) for chunk in chunks]
            encoded = encode_all(layout.codec, chunks)
            found.encode += best_of(3, partial(encode_all, layout.codec, chunks), thread_time)
            found.decode += best_of(9, partial(decode_all, layout.codec, encoded, buffers), thread_time)
            source = values.numpy()[rows].astype(np.float64)
            error = np.abs(np.concatenate(buffers) - source).max()
            found.error = max(found.error, error / values.double().std(correction=0).item())
            found.of_float16 = max(found.of_float16, error / np.abs(source.astype(np.float16) - source).max())
            if layout.max_error:
                found.of_bound = max(found.of_bound, error / layout.max_error)
            found.stored += sum(map(len, encoded))
            found.decoded += source.size * 4
            points = len(rows)
        found.points += points
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folders", nargs="*", type=Path, default=default_folders())
    arguments = parse(parser)
    chunks = [chunk for folder in arguments.folders for chunk in stored_chunks(folder)]
    size = sum(chunk.nbytes for chunk in chunks)
    result = Result("codecs", "Codecs on shuffled CFD fields", arguments)
    names = ", ".join(f"{folder.parent.name}/{folder.name}" for folder in arguments.folders)
    result.describe(f"{names}: {len(chunks)} chunks of up to {CHUNK_POINTS:,} points, {size / 1e6:.1f} MB, one core.")
    rows: list[list[Value]] = []
    for codec in map(Codec.parse, CODECS):
        encoded = encode_all(codec, chunks)
        buffers = [np.empty_like(chunk) for chunk in chunks]
        encode = best_of(5, partial(encode_all, codec, chunks), thread_time)
        decode = best_of(5, partial(decode_all, codec, encoded, buffers), thread_time)
        ratio = sum(map(len, encoded)) / size
        rows.append([str(codec), ratio, size / encode / 1e9, size / decode / 1e9])
    result.add_table("Size and speed", ("codec", "stored / raw", "encode GB/s", "decode GB/s"), rows)
    measured = {f"float16, {codec}": measure_values(arguments.folders, None, codec) for codec in ("none", "zstd:3")}
    for bound in TRIED:
        for name in WITH_BOUNDS:
            measured[f"{bound}, {name}"] = measure_values(arguments.folders, bound, name)
    columns = (
        "values",
        "bytes per point",
        "largest error / std",
        "/ bound",
        "/ float16's",
        "encode GB/s",
        "decode GB/s",
    )
    table = [each.row(name) for name, each in measured.items()]
    result.add_table("Seven values of the volume with error bounds", columns, table)
    default = measured[f"{TRIED[0]}, {Codec.parse(BOUNDED_CODEC)}"]
    bytes_of_float16 = measured["float16, none"].stored / measured["float16, none"].points
    share = default.stored / default.points / bytes_of_float16
    result.add_target(f"bytes with a bound of {TRIED[0]} / bytes of float16", share, "at most", 0.6)
    result.add_target("largest error / bound", max(each.of_bound for each in measured.values()), "at most", 1)
    result.add_target(f"largest error with {TRIED[0]} / that of float16", default.of_float16, "at most", 1)
    result.add_note(
        "Ratios of errors are the largest of the three fields. Speeds count the bytes of float32 values, without "
        "checksums. Values of float16 are still to be cast after decoding."
    )
    result.save()


if __name__ == "__main__":
    main()
