"""A draw of one sample, and a batch, from S3 at several latencies: requests, bytes and time of each engine.

``python -m benchmarks.s3`` takes the server of AWS_ENDPOINT_URL, or starts Ceph's gateway, and puts the fault proxy in
front of it, which adds the latency and counts. Eight synthetic samples of 1 M points and four fields, chunks of 16,384
points, 16,384 points drawn. Every engine reads the same draws, in turn. Warm: the sample has been read before, cold: by
a new reader. A round trip is one GET of a chunk of positions, through the same proxy and client.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from benchmarks.result import Result, Value, parse
from benchmarks.servers import ProxyProcess, s3_endpoint
from benchmarks.synthetic import DRAWN, FIELDS, POINTS, make_source, make_store
from zarr_core.format.array_metadata import ArrayLayout, group_arrays
from zarr_core.format.shards import ChunkIndex, decode_shard_index
from zarr_core.points.read.reader import ZarrChunkReader
from zarr_core.storage import Storage
from zarr_core.storage.backends.s3 import S3Backend
from zarr_core.storage.byte_ranges import Objects, Request, open_objects

SAMPLES = 8
DRAWS = {"volume": DRAWN}
PACKED, DIRECT, S3FS, PLAIN, THREADS, TENSORSTORE = (
    "direct, packed, obstore",
    "direct, obstore",
    "direct, s3fs",
    "zarr-python",
    "zarr-python, 4 threads",
    "tensorstore",
)


def s3fs_objects(root: str) -> Objects:
    """Requests by s3fs, also where obstore is installed."""
    return open_objects(Storage(root, client=S3Backend))


READERS: dict[str, Callable[[str], ZarrChunkReader]] = {
    PACKED: ZarrChunkReader,
    DIRECT: ZarrChunkReader,
    S3FS: functools.partial(ZarrChunkReader, objects_factory=s3fs_objects),
    PLAIN: functools.partial(ZarrChunkReader, engine="zarr"),
    THREADS: functools.partial(ZarrChunkReader, engine="zarr", read_concurrency=4),
    TENSORSTORE: functools.partial(ZarrChunkReader, engine="tensorstore"),
}


def upload(store: Path) -> str:
    """The store's URL in a new bucket."""
    import s3fs

    bucket = f"zarr-core-{os.urandom(4).hex()}"

    remote = s3fs.S3FileSystem()
    remote.mkdir(bucket)
    remote.put(f"{store}/", f"{bucket}/store/", recursive=True)
    return f"s3://{bucket}/store"


def chunk_bytes(reader: ZarrChunkReader, sample_id: str, epoch: int) -> int:
    """Stored bytes of the chunks of a draw: the minimum that a reader fetches."""
    total = 0
    for read in reader.field_reads(sample_id, DRAWS, epoch=epoch).values():
        _, index = _array(reader, sample_id, read.column.array_name)
        total += sum(index.lengths[chunk] for chunk in read.drawn.chunks)
    return total


@functools.cache
def _array(reader: ZarrChunkReader, sample_id: str, name: str) -> tuple[ArrayLayout, ChunkIndex]:
    group = Path(reader.root, reader.manifest.samples[sample_id].relpath)
    layout = group_arrays(json.loads((group / "zarr.json").read_bytes()))[name]
    shards = [
        decode_shard_index(layout, (group / name / layout.shard_key(shard)).read_bytes()[-layout.index_bytes :])
        for shard in range(layout.n_shards)
    ]
    return layout, ChunkIndex.from_shards(layout, shards)


def milliseconds(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return 1000 * (time.perf_counter() - started)


def round_trip(root: str, local: ZarrChunkReader, repeats: int) -> float:
    """Median milliseconds of one GET of a chunk of positions."""
    objects = open_objects(root)
    read = local.field_reads("run_1", DRAWS)[FIELDS[0]]
    layout, index = _array(local, "run_1", read.column.array_name)
    request = Request(f"{read.path}/{layout.shard_key(0)}", index.starts[0], index.starts[0] + index.lengths[0])

    def get() -> None:
        (data,) = objects.fetch([request])
        if isinstance(data, Exception):
            raise data

    return statistics.median([milliseconds(get) for _ in range(2 + repeats)][2:])


class Measured:
    """One engine at one latency."""

    def __init__(self) -> None:
        self.warm_ms: list[float] = []
        self.cold_ms: list[float] = []
        self.batch_ms: list[float] = []
        self.warm_requests = self.warm_bytes = self.cold_requests = self.cold_bytes = 0.0

    @property
    def median(self) -> float:
        """Milliseconds, warm."""
        return statistics.median(self.warm_ms)


def measure(
    root: str, packed: str, local: ZarrChunkReader, proxy: ProxyProcess, rounds: int
) -> tuple[dict[str, Measured], float]:
    """Every engine in turn; and the chunks' own bytes per sample, warm."""
    samples = local.sample_ids
    found = {name: Measured() for name in READERS}
    readers = {name: make(packed if name == PACKED else root) for name, make in READERS.items()}
    draws = [(samples[number % len(samples)], 1 + number) for number in range(rounds)]
    own = statistics.mean(chunk_bytes(local, *draw) for draw in draws)
    for name, reader in readers.items():
        result = found[name]
        proxy.counts()
        for sample in samples:
            result.cold_ms.append(milliseconds(lambda s=sample, r=reader: r.read_sample(s, DRAWS)))
        counts = proxy.counts()
        result.cold_requests = counts["requests"] / len(samples)
        result.cold_bytes = counts.get("GET bytes", 0) / len(samples)
    for name, reader in readers.items():
        result = found[name]
        for sample, epoch in draws:
            result.warm_ms.append(milliseconds(lambda s=sample, e=epoch, r=reader: r.read_sample(s, DRAWS, epoch=e)))
        counts = proxy.counts()
        result.warm_requests = counts["requests"] / rounds
        result.warm_bytes = counts.get("GET bytes", 0) / rounds
    for epoch in range(100, 100 + max(3, rounds // 5)):
        for name, reader in readers.items():
            reads = [read for s in samples for read in reader.field_reads(s, DRAWS, epoch=epoch).values()]
            found[name].batch_ms.append(milliseconds(lambda n=reads, r=reader: r.execute(n)))
    return found, own


def add_latency(result: Result, latency: int, found: dict[str, Measured], own: float, trip: float) -> None:
    """The table and the targets of one latency."""
    rows: list[list[Value]] = []
    for name, measured in found.items():
        p99 = float(np.percentile(measured.warm_ms, 99))
        rows.append(
            [
                name,
                measured.warm_requests,
                measured.warm_bytes / own,
                measured.median,
                p99,
                measured.cold_requests,
                measured.cold_bytes / 1e3,
                statistics.median(measured.cold_ms),
                statistics.median(measured.batch_ms),
            ]
        )
    columns = (
        "engine",
        "requests, warm",
        "bytes / bytes of the chunks, warm",
        "ms p50, warm",
        "ms p99, warm",
        "requests, cold",
        "kB, cold",
        "ms p50, cold",
        f"ms per batch of {SAMPLES}",
    )
    result.add_table(f"{latency} ms added; one GET of a chunk takes {trip:.1f} ms", columns, rows, "ms p50, warm")
    at = f"at {latency} ms"
    for name in (PACKED, DIRECT, S3FS):
        direct = found[name]
        per, number = ("domain", 1) if name == PACKED else ("field", len(FIELDS))
        result.add_target(f"{name}, {at}: GETs per {per}, warm", direct.warm_requests / number, "exactly", 1)
        more = direct.cold_requests - direct.warm_requests
        result.add_target(f"{name}, {at}: further GETs per sample, cold", more, "exactly", 1)
        result.add_target(f"{name}, {at}: bytes / bytes of the chunks", direct.warm_bytes / own, "at most", 1.02)
    direct, packed = found[DIRECT], found[PACKED]
    batches = statistics.median(direct.batch_ms) / statistics.median(packed.batch_ms)
    result.add_target(f"batch of {SAMPLES}, directory / packed, {at}", batches, "at least", 1.5, "x")
    ratio = found[TENSORSTORE].median / packed.median
    result.add_target(f"TensorStore / direct, packed, {at}", ratio, "at least", 3 if latency <= 10 else 2, "x")
    result.add_target(f"TensorStore / direct, {at}", found[TENSORSTORE].median / direct.median, "at least", 2, "x")
    result.add_target(f"zarr-python / direct, {at}", found[PLAIN].median / direct.median, "at least", 3, "x")
    if latency >= 50:
        batch = statistics.median(direct.batch_ms) / trip
        result.add_target(f"batch of {SAMPLES} x {len(FIELDS)}, {at}", batch, "at most", 3, " round trips")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--codec", default="none")
    parser.add_argument("--latencies", nargs="+", type=int, default=[0, 10, 50], metavar="MS")
    arguments = parse(parser, rounds=40)
    result = Result("s3", "Draws from S3", arguments)
    result.describe(
        f"{SAMPLES} samples of {POINTS:,} points, {len(FIELDS)} fields, {DRAWN:,} drawn, {arguments.codec}; "
        f"{arguments.rounds} draws; Ceph's gateway or AWS_ENDPOINT_URL behind a proxy that adds latency and "
        "counts requests."
    )
    with tempfile.TemporaryDirectory() as folder, s3_endpoint() as server, ProxyProcess(server) as proxy:
        source = make_source(Path(folder, "source"), SAMPLES)
        store = make_store(source, Path(folder, "store"), arguments.codec)
        one_object_each = make_store(source, Path(folder, "packed"), arguments.codec, layout="packed")
        local = ZarrChunkReader(store)
        os.environ["AWS_ENDPOINT_URL"] = proxy.url
        root, packed = upload(store), upload(one_object_each)
        for latency in arguments.latencies:
            proxy.set_faults(latency_s=latency / 1000)
            trip = round_trip(root, local, 20)
            add_latency(result, latency, *measure(root, packed, local, proxy, arguments.rounds), trip)
    result.add_note(
        "Warm, TensorStore makes two round trips (shard index, then chunk) and the direct engine makes one; both "
        "request all fields at the same time. So the ratio tends to 2 as latency grows. Without added latency, "
        "gateway, proxy and client share the cores."
    )
    result.save()


if __name__ == "__main__":
    main()
