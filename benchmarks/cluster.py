"""Converting with two Dask workers compared with one, and in two parts compared with one.

``python -m benchmarks.cluster`` makes synthetic samples (see ``benchmarks.conversion``) and converts them in turn: with
one and with two Dask workers of one thread each, on this machine; and in one and in two processes that convert a part
each, as Slurm's array jobs do. Workers are started and have imported torch; a first round is left out. The stores must
be equal, byte for byte. Processor time of all processes is measured beside the seconds: other work on the machine
affects it much less, and ways of equal cost take half the seconds on two idle cores.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import Executor
from functools import partial
from pathlib import Path

import psutil
import torch

from benchmarks.conversion import CHUNK_POINTS, make_samples
from benchmarks.result import Result, parse
from zarr_core._util.dask_cluster import dask_executor
from zarr_core._util.processes import WorkerPool
from zarr_core.convert import convert
from zarr_core.sources.parts import Part


def convert_all(executor: Executor, root: Path, output: Path) -> None:
    assert convert("ahmedml", output, source_url=str(root), chunk_points=CHUNK_POINTS, executor=executor).ok


def convert_part(root: Path, output: Path, part: Part) -> None:
    convert("ahmedml", output, source_url=str(root), chunk_points=CHUNK_POINTS, part=part)


def convert_parts(pool: Executor, count: int, root: Path, output: Path) -> None:
    parts = [Part(number, count) for number in range(count)]
    list(pool.map(partial(convert_part, root, output), parts))


def digest(store: Path) -> str:
    """Digest of all objects of the samples."""
    found = hashlib.sha256()
    for file in sorted(path for path in store.joinpath("samples").rglob("*") if path.is_file()):
        found.update(f"{file.relative_to(store)} {hashlib.sha256(file.read_bytes()).hexdigest()}\n".encode())
    return found.hexdigest()


def processor_seconds() -> float:
    """Processor time so far of this process and of all that it has started."""
    this = psutil.Process()
    times = (process.cpu_times() for process in (this, *this.children(recursive=True)))
    return sum(used.user + used.system for used in times)


def measure(
    root: Path, rounds: int, ways: dict[str, Callable[[Path, Path], None]]
) -> tuple[dict[str, tuple[float, float]], bool]:
    """Median seconds and processor seconds of each way, measured in turn; and whether all stores are equal."""
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    used: dict[str, list[float]] = {name: [] for name in ways}
    digests = set()
    for _ in range(1 + rounds):
        for name, way in ways.items():
            output = Path(tempfile.mkdtemp(dir=root.parent))
            started = time.perf_counter(), processor_seconds()
            way(root, output)
            seconds[name].append(time.perf_counter() - started[0])
            used[name].append(processor_seconds() - started[1])
            digests.add(digest(output))
            shutil.rmtree(output)
    medians = {name: (statistics.median(seconds[name][1:]), statistics.median(used[name][1:])) for name in ways}
    return medians, len(digests) == 1


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--samples", type=int, default=24)
    arguments = parse(parser, rounds=5)
    os.environ["OMP_NUM_THREADS"] = "1"  # of the workers: one core each
    from distributed import Client, LocalCluster

    result = Result("cluster", "Converting on a cluster", arguments)
    result.describe(f"{arguments.samples} synthetic samples, median of {arguments.rounds} rounds.")
    options = {"threads_per_worker": 1, "dashboard_address": None, "processes": True}
    with (
        tempfile.TemporaryDirectory() as folder,
        LocalCluster(n_workers=1, **options) as one,
        LocalCluster(n_workers=2, **options) as two,
        dask_executor(one.scheduler_address) as by_one,
        dask_executor(two.scheduler_address) as by_two,
        WorkerPool(2) as pool,
    ):
        assert by_one is not None
        assert by_two is not None
        for cluster in (one, two):
            with Client(cluster) as client:
                client.run(torch.set_num_threads, 1)
        root = Path(folder, "source")
        make_samples(root, arguments.samples)
        ways = {
            "Dask, 1 worker": partial(convert_all, by_one),
            "Dask, 2 workers": partial(convert_all, by_two),
            "1 part": partial(convert_parts, pool, 1),
            "2 parts": partial(convert_parts, pool, 2),
        }
        seconds, equal = measure(root, arguments.rounds, ways)
    rows = [(name, wall, used, arguments.samples / wall) for name, (wall, used) in seconds.items()]
    columns = ("way", "seconds", "seconds of the processor", "samples/s")
    result.add_table("Ways to convert", columns, rows, "samples/s")
    speed = seconds["Dask, 1 worker"][0] / seconds["Dask, 2 workers"][0]
    result.add_target("two Dask workers' speed / one's", speed, "at least", 1.7, "x")
    result.add_target("two parts' speed / one's", seconds["1 part"][0] / seconds["2 parts"][0], "at least", 1.7, "x")
    result.add_target("stores that are equal byte for byte", int(equal), "exactly", 1)
    result.save()


if __name__ == "__main__":
    main()
