"""The wide matrix: rows and columns read, against the bytes that they take; what an append writes.

``python -m benchmarks.matrix [--features 450000] [--samples 256] [--codec CODEC ...]``. Every ratio is of two things
done side by side in this run, local and warm, best of several. Values are betas as arrays give them: random, with four
decimals, a twentieth missing. Needs room for the matrix twice, in TMPDIR.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

from benchmarks import environment
from zarr_core.matrix import WideMatrix
from zarr_core.objects import CountingObjects, open_objects
from zarr_core.storage import Storage

BATCH = 64
REPEATS = 5


def betas(samples: int, features: int, seed: int) -> np.ndarray:
    """Made-up measurements."""
    rng = np.random.default_rng(seed)
    cells = rng.integers(0, 10_001, (samples, features), np.uint16) / np.float32(10_000)
    cells[rng.random(cells.shape, np.float32) < 0.05] = np.nan
    return cells


def best(work: Callable[[], Any]) -> float:
    """Seconds of the fastest of several runs."""
    times = []
    for _ in range(REPEATS):
        started = time.perf_counter()
        work()
        times.append(time.perf_counter() - started)
    return min(times)


def best_of_both(ours: Callable[[], Any], other: Callable[[], Any]) -> tuple[float, float]:
    """Seconds of the fastest run of each; they take turns, so that what else the machine does meets both."""
    times = []
    for _ in range(3 * REPEATS):
        pair = []
        for work in (ours, other):
            started = time.perf_counter()
            work()
            pair.append(time.perf_counter() - started)
        times.append(pair)
    return min(pair[0] for pair in times), min(pair[1] for pair in times)


def counted(url: str) -> tuple[WideMatrix, CountingObjects]:
    """A matrix that has read nothing yet, and its counter."""
    counter = CountingObjects(open_objects(url))
    return WideMatrix.open(url, objects_factory=lambda _: counter), counter


def measure(codec: str, features: int, samples: int, folder: str) -> None:
    root = f"{folder}/{codec.replace(':', '-')}"
    names = [f"cg{number:08d}" for number in range(features)]
    writer = WideMatrix.create(root, names, {"beta": "float32"}, codec=codec)
    started = time.perf_counter()
    for first in range(0, samples, BATCH):
        ids = [f"s{n}" for n in range(first, first + BATCH)]
        writer.append(f"b{first}", ids, {"beta": betas(BATCH, features, first)})
    stored = sum(size for name, size in Storage(root).list("beta.zarr").items() if "/c/" in name)
    print(
        f"\n{codec}: {samples} samples x {features:,} features, {stored / (4 * samples * features):.3f} of raw", end=""
    )
    print(f", appended in {time.perf_counter() - started:.1f} s with making the values")
    rng = np.random.default_rng(0)
    asked = [f"s{n}" for n in rng.choice(samples, 50, replace=False)]
    read_rows(root, asked, features)
    read_columns(root, writer, [names[n] for n in rng.choice(features, 50, replace=False)])


def read_rows(root: str, asked: list[str], features: int) -> None:
    matrix, counter = counted(root)
    matrix.read(asked)
    ranges = [(key, n_bytes) for key, (_, n_bytes) in counter.by_key.items()]
    total = sum(n_bytes for _, n_bytes in ranges)

    def by_hand(buffer: np.ndarray) -> None:
        end = 0
        for key, n_bytes in ranges:  # as many bytes, of the same files
            with Path(root, key).open("rb", buffering=0) as file:
                assert file.readinto(memoryview(buffer)[end : end + n_bytes]) == n_bytes
            end += n_bytes

    out, buffer = np.empty((50, features), np.float32), np.empty(total, np.uint8)
    pairs = {
        "into a new array": (lambda: matrix.read(asked), lambda: by_hand(np.empty(total, np.uint8))),
        "into one that is there": (lambda: matrix.read(asked, out=out), lambda: by_hand(buffer)),
    }
    print(f"50 rows, {total:,} bytes (at most 1.5 times as long as reading those by hand):")
    for what, (ours, hand) in pairs.items():
        seconds, by_hand_seconds = best_of_both(ours, hand)
        ratio = seconds / by_hand_seconds
        print(f"  {what}: {seconds * 1e3:.0f} ms, by hand {by_hand_seconds * 1e3:.0f} ms: {ratio:.2f}")


def read_columns(root: str, writer: WideMatrix, picked: list[str]) -> None:
    matrix, counter = counted(root)
    everybody = matrix.sample_ids
    by_rows = matrix.read(everybody, picked)
    from_rows, requests = counter.bytes, counter.requests
    seconds_rows = best(lambda: matrix.read(everybody, picked))
    started = time.perf_counter()
    writer.derive_columns()
    derived = time.perf_counter() - started
    matrix, counter = counted(root)
    np.testing.assert_array_equal(matrix.read(everybody, picked), by_rows)
    share = counter.bytes / from_rows
    print(f"50 columns of all rows: {counter.requests} requests, {counter.bytes:,} bytes, indices included")
    print(f"  the row copy alone {requests} requests, {from_rows:,} bytes: {share:.4f} of that (at most 0.1)")
    seconds = best(lambda: matrix.read(everybody, picked))
    print(f"  {seconds * 1e3:.1f} ms instead of {seconds_rows * 1e3:.0f} ms; derived in {derived:.1f} s")


def count_append(folder: str) -> None:
    """What is written for one more batch of a matrix with 10,000 samples."""
    root, features = f"{folder}/many", 64
    matrix = WideMatrix.create(root, list(range(features)), shard_rows=64)
    tables = {value: betas(50, features, 0) for value in matrix.values}
    for number in range(200):
        matrix.append(f"b{number}", [f"b{number}s{n}" for n in range(50)], tables)
    written: Counter[str] = Counter()
    originals = {method: getattr(Storage, method) for method in ("create", "replace", "write", "read")}

    def counting(method: str) -> Callable[..., Any]:
        def call(self: Storage, name: str, *arguments: Any, **options: Any) -> Any:
            written[f"{method} {name.partition('/')[0]}"] += 1
            return originals[method](self, name, *arguments, **options)

        return call

    with contextlib.ExitStack() as patches:
        for method in originals:
            patches.enter_context(mock.patch.object(Storage, method, counting(method)))
        started = time.perf_counter()
        matrix.append("one more", [f"x{n}" for n in range(50)], tables)
        seconds = time.perf_counter() - started
    head = os.path.getsize(f"{root}/HEAD.json")
    print(f"\none more batch on 10,000 samples in 200 batches, two tables: {seconds * 1e3:.0f} ms, HEAD {head:,} bytes")
    for what, count in sorted(written.items()):
        print(f"  {what} x {count}")
    print("  (wanted: that batch's shards, one claim, one replaced HEAD.json with its copies in generations/)")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.matrix", description=__doc__.splitlines()[0])
    parser.add_argument("--features", type=int, default=450_000)
    parser.add_argument("--samples", type=int, default=256)
    parser.add_argument("--codec", nargs="+", default=["none", "blosc-lz4", "zstd:1"])
    options = parser.parse_args()
    print(environment.describe())
    with tempfile.TemporaryDirectory() as folder:
        count_append(folder)
    for codec in options.codec:
        with tempfile.TemporaryDirectory() as folder:
            measure(codec, options.features, options.samples, folder)


if __name__ == "__main__":
    main()
