"""The wide matrix: reads of rows and columns compared with reads of the same bytes; the objects that an append writes.

``python -m benchmarks.matrix [--features 450000] [--samples 256] [--codec CODEC ...]``. Every ratio is of two things
done side by side in this run, local and warm, best of several. Values are betas as arrays give them: random, with four
decimals, a twentieth missing. Needs room for the matrix twice, in TMPDIR.
"""

from __future__ import annotations

import argparse
import contextlib
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

from benchmarks.result import Result, Value, parse
from benchmarks.timing import best_in_turn, best_of
from zarr_core.matrix import WideMatrix
from zarr_core.storage import Storage
from zarr_core.storage.byte_ranges import CountingObjects, open_objects

BATCH = 64
N_REQUESTED = 50
REPEATS = 5


def betas(samples: int, features: int, seed: int) -> np.ndarray:
    """Synthetic measurements."""
    rng = np.random.default_rng(seed)
    cells = rng.integers(0, 10_001, (samples, features), np.uint16) / np.float32(10_000)
    cells[rng.random(cells.shape, np.float32) < 0.05] = np.nan
    return cells


def counted(url: str) -> tuple[WideMatrix, CountingObjects]:
    """A newly opened matrix and its counter."""
    counter = CountingObjects(open_objects(url))
    return WideMatrix.open(url, objects_factory=lambda _: counter), counter


def write(root: str, codec: str, names: list[str], samples: int) -> tuple[WideMatrix, float]:
    """A matrix, and its stored bytes over the raw ones."""
    matrix = WideMatrix.create(root, names, {"beta": "float32"}, codec=codec)
    for first in range(0, samples, BATCH):
        cells = betas(min(BATCH, samples - first), len(names), first)
        matrix.append(f"b{first}", [f"s{first + n}" for n in range(len(cells))], {"beta": cells})
    stored = sum(size for name, size in Storage(root).list("beta.zarr").items() if "/c/" in name)
    return matrix, stored / (4 * samples * len(names))


def read_rows(root: str, requested: list[str], features: int) -> dict[str, tuple[float, float]]:
    """Seconds of reading rows, and of reading as many bytes of the same files by hand."""
    matrix, counter = counted(root)
    matrix.read(requested)
    matrix = WideMatrix.open(root)  # the counter stands between it and the files
    ranges = [(key, n_bytes) for key, (_, n_bytes) in counter.by_key.items()]
    total = sum(n_bytes for _, n_bytes in ranges)

    def by_hand(buffer: np.ndarray) -> None:
        end = 0
        for key, n_bytes in ranges:
            with Path(root, key).open("rb", buffering=0) as file:
                assert file.readinto(memoryview(buffer)[end : end + n_bytes]) == n_bytes
            end += n_bytes

    out, buffer = np.empty((len(requested), features), np.float32), np.empty(total, np.uint8)
    new, there = "into a new array", "into an existing array"
    works: list[Callable[[], object]] = [
        lambda: matrix.read(requested),
        lambda: by_hand(np.empty(total, np.uint8)),
        lambda: matrix.read(requested, out=out),
        lambda: by_hand(buffer),
    ]
    seconds = best_in_turn(3 * REPEATS, works)
    return {new: (seconds[0], seconds[1]), there: (seconds[2], seconds[3])}


def read_columns(root: str, writer: WideMatrix, picked: list[str]) -> dict[str, list[float]]:
    """Requests, bytes (indices included) and seconds of some columns of all rows, from either copy."""
    found: dict[str, list[float]] = {}
    cells: list[np.ndarray] = []
    for copy in ("row-major copy only", "column-major copy"):
        if copy == "column-major copy":
            writer.derive_columns()
        matrix, counter = counted(root)
        everybody = matrix.sample_ids
        cells.append(matrix.read(everybody, picked))
        found[copy] = [counter.requests, counter.bytes]
        found[copy].append(best_of(REPEATS, lambda: matrix.read(everybody, picked)))  # noqa: B023 - called at once
    np.testing.assert_array_equal(*cells)
    return found


def count_append(folder: str) -> tuple[Counter[str], int]:
    """Objects written by appending a batch to a matrix of 10,000 samples and two tables; size of its head."""
    root, features = f"{folder}/many", 64
    matrix = WideMatrix.create(root, list(range(features)), shard_rows=64)
    tables = {value: betas(50, features, 0) for value in matrix.values}
    for number in range(200):
        matrix.append(f"b{number}", [f"b{number}s{n}" for n in range(50)], tables)
    written: Counter[str] = Counter()
    originals = {method: getattr(Storage, method) for method in ("create", "replace", "write")}

    def counting(method: str) -> Callable[..., Any]:
        def call(self: Storage, name: str, *arguments: Any, **options: Any) -> Any:
            done = originals[method](self, name, *arguments, **options)
            if done is not False:  # "create" wrote nothing where something was there
                written["shard" if "/c/" in name else name.partition("/")[0]] += 1
            return done

        return call

    with contextlib.ExitStack() as patches:
        for method in originals:
            patches.enter_context(mock.patch.object(Storage, method, counting(method)))
        matrix.append("one more", [f"x{n}" for n in range(50)], tables)
    return written, Path(root, "HEAD.json").stat().st_size


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.matrix", description=__doc__.splitlines()[0])
    parser.add_argument("--features", type=int, default=450_000)
    parser.add_argument("--samples", type=int, default=256)
    parser.add_argument("--codec", nargs="+", default=["none"])
    options = parse(parser)
    result = Result("matrix", "The wide matrix: rows, columns, appends", options)
    result.describe(
        f"{options.samples} samples x {options.features:,} features, float32, synthetic beta values with four "
        "decimals, 5 % missing. Local disk, warm; the measurements to compare alternate."
    )
    rows: list[list[Value]] = []
    columns: list[list[Value]] = []
    names = [f"cg{number:08d}" for number in range(options.features)]
    for codec in options.codec:
        rng = np.random.default_rng(0)
        requested = [f"s{n}" for n in rng.choice(options.samples, N_REQUESTED, replace=False)]
        picked = [names[n] for n in rng.choice(options.features, N_REQUESTED, replace=False)]
        with tempfile.TemporaryDirectory() as folder:
            writer, stored = write(f"{folder}/matrix", codec, names, options.samples)
            for what, (ours, by_hand) in read_rows(writer.url, requested, options.features).items():
                rows.append([f"{codec}, {what}", ours * 1e3, by_hand * 1e3, ours / by_hand, stored])
            for copy, (requests, n_bytes, seconds) in read_columns(writer.url, writer, picked).items():
                columns.append([f"{codec}, {copy}", requests, n_bytes, seconds * 1e3])
    result.add_table(
        f"{N_REQUESTED} whole rows",
        ("codec", "ms", "ms to read the bytes by hand", "ms / ms by hand", "stored / raw"),
        rows,
    )
    result.add_table(f"{N_REQUESTED} scattered columns of all rows", ("codec", "requests", "bytes", "ms"), columns)
    with tempfile.TemporaryDirectory() as folder:
        written, head = count_append(folder)
    result.add_table(
        f"Objects written by one more batch of two tables on 10,000 samples in 200 batches (HEAD.json: {head:,} bytes)",
        ("object", "times"),
        sorted(written.items()),
    )
    for name, *_, ratio, _ in rows:
        if str(name).startswith("none"):
            what = f"{N_REQUESTED} rows {str(name)[6:]}, time / time to read their bytes by hand"
            result.add_target(what, float(ratio or 0), "at most", 1.5)
    for (_, _, by_rows, _), (_, _, by_columns, _) in zip(columns[::2], columns[1::2], strict=True):
        share = float(by_columns or 0) / float(by_rows or 1)
        what = f"{N_REQUESTED} columns, bytes with / without the column-major copy"
        result.add_target(what, share, "at most", 0.1)
    result.add_target("shards written by a batch of two tables, one shard each", written["shard"], "exactly", 2)
    result.add_target("replacements of HEAD.json per batch", written["HEAD.json"], "exactly", 1)
    others = sum(written.values()) - written["shard"] - written["HEAD.json"]
    what = "other objects per batch of two tables (claim, archived generation, metadata of each array)"
    result.add_target(what, others, "exactly", 4)
    result.save()


if __name__ == "__main__":
    main()
