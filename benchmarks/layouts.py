"""The two layouts of samples side by side: draws, whole samples, conversion and staging, on a local disk and on S3.

``python -m benchmarks.layouts`` makes synthetic samples of four fields, and every store of them twice: ``directory``
(a folder per sample) and ``packed`` (one object per sample). Local draws: eight samples of 1 M points, 16,384 of them
drawn; warm, and by a new reader after the files were dropped from the page cache. Conversion and staging: samples of
1,000 points. S3 is the server of AWS_ENDPOINT_URL, or Ceph's gateway, behind the fault proxy, which adds 10 ms. The
layouts take turns; the fastest run of each counts. Ratios are directory / packed, so more than 1 is for packed.
"""

from __future__ import annotations

import argparse
import os
import shutil
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import get_args

from benchmarks.result import Result, Value, parse
from benchmarks.servers import ProxyProcess, s3_endpoint
from benchmarks.synthetic import DRAWN, make_source, make_store
from zarr_core.points.read.reader import ZarrChunkReader
from zarr_core.points.stage.store import stage_store
from zarr_core.points.store.settings import Layout

LAYOUTS: tuple[Layout, ...] = get_args(Layout)
LATENCY_MS = 10


class Measured:
    """Seconds of the same work in each layout, and the requests that it made."""

    def __init__(self, what: str, goal: float) -> None:
        self.what, self.goal = what, goal
        self.seconds: dict[Layout, float] = {}
        self.requests: dict[Layout, float] = {}

    def add(self, layout: Layout, seconds: float, requests: float = 0) -> None:
        """Count a run in, if it is the fastest so far."""
        if seconds < self.seconds.get(layout, float("inf")):
            self.seconds[layout], self.requests[layout] = seconds, requests

    @property
    def ratio(self) -> float:
        """How many times as fast packed samples are."""
        return self.seconds["directory"] / self.seconds["packed"]

    def row(self, count: int) -> list[Value]:
        """Of the table: milliseconds per sample of each layout, the ratio, and requests per sample."""
        row: list[Value] = [self.what]
        row += [1000 * self.seconds[layout] / count for layout in LAYOUTS]
        row.append(self.ratio)
        row += [self.requests[layout] / count or None for layout in LAYOUTS]
        return row


def seconds_of(work: Callable[[], object]) -> float:
    """Seconds that it takes."""
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def drop_from_page_cache(folder: Path) -> None:
    """Make the next read of each file below a folder one of the disk."""
    os.sync()  # pages that are not written yet stay
    for path in folder.rglob("*"):
        if path.is_file():
            with path.open("rb") as file:
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def read_draws(reader: ZarrChunkReader, epoch: int) -> None:
    """A draw of every sample."""
    for sample_id in reader.sample_ids:
        reader.read_sample(sample_id, {"volume": DRAWN}, epoch=epoch)


def read_whole(reader: ZarrChunkReader) -> None:
    """Every sample, all its points."""
    for sample_id in reader.sample_ids:
        reader.read_sample(sample_id)


def measure_reads(folder: Path, samples: int, points: int, rounds: int) -> list[Measured]:
    """Reads of local stores, warm and cold."""
    source = make_source(folder / "large", samples, points)
    stores = {layout: make_store(source, folder / f"large-{layout}", "none", layout=layout) for layout in LAYOUTS}
    warm = Measured("draws, local, warm", 1 / 0.9)
    whole = Measured("whole samples, local, warm", 1 / 0.9)
    cold = Measured("first draws, local, page cache dropped", 1 / 0.5)
    readers = {layout: ZarrChunkReader(store) for layout, store in stores.items()}
    for _ in range(10 * rounds):  # a chunk is compared with its checksum when it is first read
        for layout, reader in readers.items():
            whole.add(layout, seconds_of(partial(read_whole, reader)))
    for epoch in range(100 * rounds):
        for layout, reader in readers.items():
            warm.add(layout, seconds_of(partial(read_draws, reader, epoch)))
    for epoch in range(rounds):
        for layout, store in stores.items():
            drop_from_page_cache(store)
            new = ZarrChunkReader(store)
            cold.add(layout, seconds_of(partial(read_draws, new, epoch)))
    return [warm, whole, cold]


def measure_small(source: Path, folder: Path, rounds: int) -> Measured:
    """Conversion of small samples to a local disk."""
    converted = Measured("conversion of small samples, local", 1.5)
    for number in range(rounds):
        for layout in LAYOUTS:
            store = folder / f"{layout}-{number}"
            converted.add(layout, seconds_of(partial(make_store, source, store, "none", layout=layout)))
            shutil.rmtree(store)
    return converted


def measure_s3(source: Path, folder: Path, proxy: ProxyProcess, rounds: int) -> list[Measured]:
    """Conversion of small samples to S3, and reading and staging from there."""
    import s3fs

    converted = Measured(f"conversion of small samples, S3 at {LATENCY_MS} ms", 3)
    first = Measured(f"first draws of small samples, S3 at {LATENCY_MS} ms", 1.5)
    staged = Measured(f"staging of small samples, S3 at {LATENCY_MS} ms", 4)
    for _ in range(rounds):
        for layout in LAYOUTS:
            bucket = f"zarr-core-{os.urandom(4).hex()}"
            s3fs.S3FileSystem().mkdir(bucket)
            url = f"s3://{bucket}/store"
            proxy.counts()
            seconds = seconds_of(partial(make_store, source, url, "none", layout=layout))
            converted.add(layout, seconds, proxy.counts()["requests"])
            new = ZarrChunkReader(url)
            proxy.counts()
            seconds = seconds_of(partial(read_whole, new))
            first.add(layout, seconds, proxy.counts()["requests"])
            copy = folder / bucket
            seconds = seconds_of(partial(stage_store, url, copy))
            staged.add(layout, seconds, proxy.counts()["requests"])
            shutil.rmtree(copy)
    return [converted, first, staged]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--local", action="store_true", help="without S3")
    parser.add_argument("--samples", type=int, default=8, help="large ones")
    parser.add_argument("--points", type=int, default=1_000_000, help="of a large sample")
    parser.add_argument("--small", type=int, default=2000, help="samples converted locally; a tenth of them on S3")
    arguments = parse(parser, rounds=3)
    result = Result("layouts", "Packed samples and folders side by side", arguments)
    result.describe(
        f"{arguments.samples} samples of {arguments.points:,} points and four fields, {DRAWN:,} points drawn; "
        f"{arguments.small:,} samples of 1,000 points locally, {arguments.small // 10:,} on S3. "
        f"Fastest of {arguments.rounds} turns; milliseconds per sample."
    )
    columns = ["", *(f"{layout}, ms" for layout in LAYOUTS), "directory / packed"]
    columns += [f"{layout}, requests" for layout in LAYOUTS]
    found: list[Measured] = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        reads = measure_reads(folder, arguments.samples, arguments.points, arguments.rounds)
        rows = [each.row(arguments.samples) for each in reads]
        source = make_source(folder / "small", arguments.small, 1000)
        local = measure_small(source, folder, arguments.rounds)
        rows.append(local.row(arguments.small))
        found += [*reads, local]
        if not arguments.local:
            count = arguments.small // 10
            few = make_source(folder / "few", count, 1000)
            with s3_endpoint() as endpoint, ProxyProcess(endpoint) as proxy:
                os.environ["AWS_ENDPOINT_URL"] = proxy.url
                proxy.set_faults(latency_s=LATENCY_MS / 1000)
                remote = measure_s3(few, folder, proxy, arguments.rounds)
            rows += [each.row(count) for each in remote]
            found += remote
    result.add_table("Time and requests per sample", columns, rows)
    for each in found:
        result.add_target(f"{each.what}: directory / packed", each.ratio, "at least", each.goal)
    result.save()


if __name__ == "__main__":
    main()
