"""A draw of one sample on a local disk, warm: the engines against the same work written by hand.

``python -m benchmarks.local [--codec blosc-lz4]`` writes one synthetic sample of 1 M points and four fields (positions
float32, the rest float16; chunks of 16,384 points), then draws 16,384 points of it, a new epoch each time, one process,
one thread, each way in turn. By hand: ``pread`` of the very chunks that the draw touches and decoding them into new
arrays (without a codec: ``preadv`` into them), nothing else: rows are not put in order. "Checked" also verifies the
checksums; the target is compared with the work without.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import google_crc32c
import numpy as np

from benchmarks.result import Result, parse
from benchmarks.synthetic import DRAWN, FIELDS, POINTS, make_source, make_store
from zarr_core.format.array_metadata import group_arrays
from zarr_core.format.codecs import DEFAULT_CODEC
from zarr_core.format.shards import decode_shard_index
from zarr_core.points.read.reader import ZarrChunkReader
from zarr_core.points.read.sampling import draw


class ByHand:
    """The minimum work of a reader: reading and decoding the chunks of a draw."""

    def __init__(self, store: Path, checked: bool) -> None:
        reader = ZarrChunkReader(store)
        group = store / reader.manifest.samples["run_1"].relpath
        self.checked = checked
        self.fields = []
        for name, layout in group_arrays(json.loads((group / "zarr.json").read_bytes())).items():
            path = group / name / layout.shard_key(0)
            index = decode_shard_index(layout, path.read_bytes()[-layout.index_bytes :])
            handle = os.open(path, os.O_RDONLY)
            self.fields.append((handle, index.tolist(), layout, layout.codec._compressor))

    def __call__(self, epoch: int) -> list[np.ndarray]:
        """Read one draw into new arrays."""
        results = []
        chunks = draw(POINTS, DRAWN, DRAWN, epoch=epoch, sample_id="run_1", stream="volume").chunks
        for handle, index, layout, compressor in self.fields:
            out = np.empty((len(chunks) * DRAWN, layout.dim), layout.dtype)
            results.append(out)
            first, last = index[chunks[0]], index[chunks[-1]]
            if compressor is None:
                self._read_into(handle, first[0], np.split(out, len(chunks)))
                continue
            data = os.pread(handle, last[0] + last[1] - first[0], first[0])
            for place, chunk in enumerate(chunks):
                start = index[chunk][0] - first[0]
                body = data[start : start + index[chunk][1] - 4]
                if self.checked and google_crc32c.value(body).to_bytes(4, "little") != data[start + len(body) :][:4]:
                    raise ValueError("checksum")
                compressor.decode(body, out[place * DRAWN : (place + 1) * DRAWN])
        return results

    def _read_into(self, handle: int, start: int, parts: list[np.ndarray]) -> None:
        """Read chunks without codec, each followed by its checksum."""
        buffers: list[Any] = []
        for part in parts:
            buffers += [part, bytearray(4)]
        os.preadv(handle, buffers, start)
        for part, checksum in zip(parts, buffers[1::2], strict=True):
            if self.checked and google_crc32c.value(part.tobytes()).to_bytes(4, "little") != checksum:
                raise ValueError("checksum")


def measure(ways: dict[str, Callable[[int], object]], rounds: int) -> dict[str, float]:
    """Median milliseconds of each way, in turns, so that other load on the machine affects all alike.

    A turn is ten draws, of which the first two are not counted: they find the caches as another way left them.
    """
    taken: dict[str, list[float]] = {name: [] for name in ways}
    for turn in range(rounds // 8):
        for name, way in ways.items():
            for epoch in range(10 * turn, 10 * turn + 10):
                started = time.perf_counter()
                way(epoch)
                if epoch % 10 >= 2:
                    taken[name].append(1000 * (time.perf_counter() - started))
    return {name: statistics.median(values) for name, values in taken.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--codec", default=str(DEFAULT_CODEC))
    arguments = parse(parser, rounds=400)
    result = Result("local", "A draw of one sample on a local disk, warm", arguments)
    result.describe(
        f"{POINTS:,} points, {len(FIELDS)} fields, {DRAWN:,} drawn, {arguments.codec}, "
        f"one thread, median of {arguments.rounds} draws."
    )
    with tempfile.TemporaryDirectory() as folder:
        store = make_store(make_source(Path(folder, "source"), 1), Path(folder, "store"), arguments.codec)
        ways: dict[str, Callable[[int], object]] = {
            "by hand": ByHand(store, checked=False),
            "by hand, checked": ByHand(store, checked=True),
        }
        for engine in ("direct", "zarr", "tensorstore"):
            reader = ZarrChunkReader(store, engine=engine)
            ways[engine] = lambda epoch, reader=reader: reader.read_sample("run_1", {"volume": DRAWN}, epoch=epoch)
        times = measure(ways, arguments.rounds)
    direct = times["direct"]
    rows = [(name, taken, taken / direct) for name, taken in times.items()]
    result.add_table("Ways to read a draw", ("way", "ms per sample", "time / direct engine's"), rows, "ms per sample")
    result.add_target("direct engine / by hand", direct / times["by hand"], "at most", 1.25, "x")
    result.add_target("zarr-python / direct engine", times["zarr"] / direct, "at least", 10, "x")
    result.add_target("TensorStore / direct engine", times["tensorstore"] / direct, "at least", 2, "x")
    result.save()


if __name__ == "__main__":
    main()
