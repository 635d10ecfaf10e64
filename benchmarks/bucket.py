"""Converting from S3 to S3 at a latency, compared with disk to disk.

``python -m benchmarks.bucket`` takes the server of AWS_ENDPOINT_URL, or starts Ceph's gateway, and puts the fault proxy
in front of it, which adds the latency. Synthetic samples (see ``benchmarks.conversion``), one process, in turn; a first
round is left out. The seconds of the processor tell how much of the difference is the conversion's own work, and how
much that of the server and the proxy, if they run on the same machine.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
import uuid
from pathlib import Path

import numpy as np
import psutil
import torch

from benchmarks.conversion import CHUNK_POINTS, POINTS, make_samples
from benchmarks.result import Result, parse
from benchmarks.servers import ProxyProcess, s3_endpoint
from zarr_core.convert import convert


def clocks() -> np.ndarray:
    """Seconds so far: on the clock, of the processor in this process, and in all processes of the machine."""
    used = psutil.cpu_times()
    busy = sum(getattr(used, kind, 0.0) for kind in ("user", "nice", "system", "irq", "softirq"))
    return np.array([time.perf_counter(), time.process_time(), busy])


def seconds_of(source: str, store: str) -> np.ndarray:
    """What a conversion takes, as :func:`clocks`."""
    started = clocks()
    assert convert("ahmedml", store, source_url=source, chunk_points=CHUNK_POINTS).ok
    return clocks() - started


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--samples", type=int, default=12)
    parser.add_argument("--scale", type=int, default=10, help="times the points of benchmarks.conversion")
    parser.add_argument("--latency-ms", type=float, default=10)
    arguments = parse(parser, rounds=3)
    torch.set_num_threads(1)
    import s3fs

    points = {domain: arguments.scale * count for domain, count in POINTS.items()}
    latency = f"{arguments.latency_ms:g} ms"
    result = Result("bucket", "Converting from S3 to S3", arguments)
    result.describe(
        f"{arguments.samples} synthetic samples of {points['volume']:,} + {points['surface']:,} points, "
        f"one process, {latency} added to each request, median of {arguments.rounds} rounds."
    )
    with tempfile.TemporaryDirectory() as folder, s3_endpoint() as endpoint, ProxyProcess(endpoint) as proxy:
        root = Path(folder, "source")
        make_samples(root, arguments.samples, points)
        os.environ["AWS_ENDPOINT_URL"] = proxy.url
        bucket = f"benchmark-{uuid.uuid4().hex[:8]}"
        remote = s3fs.S3FileSystem()
        remote.mkdir(bucket)
        remote.put(f"{root}/", f"{bucket}/source/", recursive=True)
        proxy.set_faults(latency_s=arguments.latency_ms / 1000)
        seconds: dict[str, list[np.ndarray]] = {"disk to disk": [], "S3 to S3": []}
        requests = 0
        for number in range(1 + arguments.rounds):
            seconds["disk to disk"].append(seconds_of(str(root), f"{folder}/store{number}"))
            proxy.counts()
            seconds["S3 to S3"].append(seconds_of(f"s3://{bucket}/source", f"s3://{bucket}/store{number}"))
            requests = proxy.counts()["requests"]
        remote.rm(bucket, recursive=True)
    medians = {name: np.median(values[1:], axis=0).tolist() for name, values in seconds.items()}
    rows = [(name, *values, arguments.samples / values[0]) for name, values in medians.items()]
    columns = ("way", "seconds", "processor seconds of the conversion", "of all processes", "samples/s")
    result.add_table("Ways to convert", columns, rows, "samples/s")
    ratio = medians["disk to disk"][0] / medians["S3 to S3"][0]
    result.add_target(f"S3 to S3 at {latency} / disk to disk, samples/s", ratio, "at least", 0.8, "x")
    busy = medians["S3 to S3"][1] / medians["S3 to S3"][0]
    result.add_target("cores that the conversion keeps busy, S3 to S3", busy, "at least", 0.8)
    result.add_note(f"{requests / arguments.samples:.0f} requests per sample.")
    result.save()


if __name__ == "__main__":
    main()
