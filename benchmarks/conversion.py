"""Conversion compared with the same work written by hand, and two workers compared with one.

``python -m benchmarks.conversion`` makes 24 synthetic samples in the AhmedML layout (300,000 volume and 100,000
surface points each), then converts them, in turn: by hand (load, permute, gather, encode with the same codec and
checksum, write, in plain NumPy and numcodecs, nothing else), with one worker, with two. Page cache warm, workers
started (what that takes is printed), a first round left out. The work by hand in the same two processes says how much
faster two can be on this machine at all. On a disk the flush at the end is the same for one and for two; in memory
(``--folder /dev/shm``) there is none.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Executor
from pathlib import Path

import google_crc32c
import numpy as np
import torch

from benchmarks.result import Result, parse
from zarr_core._util.processes import WorkerPool
from zarr_core.format.codecs import DEFAULT_CODEC, Codec
from zarr_core.points.convert.conversion import convert
from zarr_core.sources import resolve_kind

CHUNK_POINTS = 16_384
POINTS = {"surface": 100_000, "volume": 300_000}


def make_samples(root: Path, count: int, points: Mapping[str, int] = POINTS) -> None:
    """Synthetic runs with values of CFD's ranges, different in each sample."""
    for number in range(1, count + 1):
        folder = root / f"run_{number}"
        folder.mkdir(parents=True)
        generator = torch.Generator().manual_seed(number)
        for file in resolve_kind("ahmedml").required_fields.values():
            dim = file.field.dim or 1
            shape = (points[file.domain], dim) if dim > 1 else (points[file.domain],)
            torch.save(torch.randn(shape, generator=generator) * 10, folder / file.filename)


def convert_by_hand(root: Path, output: Path, part: slice = slice(None)) -> None:
    """Load, permute, gather, encode, write: the minimum work of a conversion."""
    codec = Codec.parse(DEFAULT_CODEC)
    for folder in sorted(root.iterdir())[part]:
        target = output / folder.name
        target.mkdir(parents=True)
        permutations = {domain: torch.from_numpy(np.random.permutation(n)) for domain, n in POINTS.items()}
        for canonical, file in resolve_kind("ahmedml").required_fields.items():
            values = torch.load(folder / file.filename, weights_only=True)
            points = values.reshape(len(values), -1).index_select(0, permutations[file.domain])
            stored = points.numpy() if file.field.is_position else points.half().numpy()
            chunks = [codec.encode(stored[i : i + CHUNK_POINTS]) for i in range(0, len(stored), CHUNK_POINTS)]
            checked = [chunk + google_crc32c.value(chunk).to_bytes(4, "little") for chunk in chunks]
            (target / canonical).write_bytes(b"".join(checked))
    os.sync()  # a conversion has ended when its bytes are on the disk


def convert_by_hand_twice(pool: Executor, root: Path, output: Path) -> None:
    """The same, each process one half."""
    list(pool.map(convert_by_hand, [root] * 2, [output] * 2, [slice(0, None, 2), slice(1, None, 2)]))


def measure(root: Path, rounds: int) -> dict[str, float]:
    """Median seconds of each way, measured in turns so that other load on the machine affects all alike."""
    started = time.perf_counter()
    pool = WorkerPool(2)
    list(pool.map(abs, range(8)))
    print(f"start of the fork server, which imports torch, and of two workers: {time.perf_counter() - started:.2f} s")
    ways: dict[str, Callable[[Path], object]] = {
        "by hand": lambda output: convert_by_hand(root, output),
        "by hand, 2": lambda output: convert_by_hand_twice(pool, root, output),
        "1 worker": lambda output: convert("ahmedml", output, source_url=str(root), chunk_points=CHUNK_POINTS),
        "2 workers": lambda output: convert(
            "ahmedml", output, source_url=str(root), chunk_points=CHUNK_POINTS, executor=pool
        ),
    }
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(1 + rounds):
        for name, way in ways.items():
            output = Path(tempfile.mkdtemp(dir=root.parent))
            started = time.perf_counter()
            way(output)
            seconds[name].append(time.perf_counter() - started)
            shutil.rmtree(output)
    return {name: statistics.median(values[1:]) for name, values in seconds.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--samples", type=int, default=24)
    parser.add_argument("--folder", help="where to work (default: the system's folder for temporary files)")
    arguments = parse(parser, rounds=5)
    # By hand and with one worker alike: one core.
    torch.set_num_threads(1)
    result = Result("conversion", "Converting", arguments)
    result.describe(
        f"{arguments.samples} synthetic samples of {POINTS['volume']:,} volume and {POINTS['surface']:,} surface "
        f"points, median of {arguments.rounds} rounds."
    )
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        root = Path(folder, "source")
        make_samples(root, arguments.samples)
        seconds = measure(root, arguments.rounds)
    rows = [(name, value, arguments.samples / value) for name, value in seconds.items()]
    result.add_table("Ways to convert", ("way", "seconds", "samples/s"), rows, "samples/s")
    by_hand, one, two = (seconds[name] for name in ("by hand", "1 worker", "2 workers"))
    result.add_target("one worker / by hand", one / by_hand, "at most", 1.5, "x")
    limit = by_hand / seconds["by hand, 2"]
    result.add_target(f"two workers' speed / one's (by hand: {limit:.2f}x)", one / two, "at least", 1.7, "x")
    result.save()


if __name__ == "__main__":
    main()
