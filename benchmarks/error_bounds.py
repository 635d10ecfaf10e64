"""Training reads of stores with error bounds beside those of float16: first epochs from disk, and draws from S3.

``python -m benchmarks.error_bounds`` converts the samples of ``../shared/data/ahmed_rans``, or the bundled ones: as
float16, and with bounds of 1e-3 standard deviations, on the values (positions float32) and on all fields. First epochs:
whole samples by a new dataset after the files were dropped from the page cache, as they are and with each point ten
times, which makes large samples. S3 is the server of AWS_ENDPOINT_URL, or Ceph's gateway, behind the fault proxy, which
adds 10 ms, and limits the bandwidth of all connections together; draws of 16,384 volume and 4,096 surface points in
batches of 8, read before. The stores take turns; medians.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from benchmarks.disk_limit import can_limit_reads, limited_reads
from benchmarks.layouts import drop_from_page_cache
from benchmarks.result import Result, Value, parse
from benchmarks.s3 import upload
from benchmarks.servers import ProxyProcess, s3_endpoint
from zarr_core import EpochBatchSampler, ResumableLoader, build_dataset
from zarr_core.convert import convert
from zarr_core.sources import resolve_kind

REAL = Path(__file__).parents[1] / "../shared/data/ahmed_rans"
BUNDLED = Path(__file__).parents[1] / "examples" / "data" / "ahmed_rans"
BOUND = "1e-3std"
FLOAT16, VALUES, ALL, LZ4 = "float16", "bounds on values", "bounds on all fields", "on all fields, bitshuffle-lz4"
LATENCY_S = 0.01
DRAW = {"num_volume_points": 16_384, "num_surface_points": 4_096}
#: Copies of each point in the large samples.
TIMES = 10
#: Of a cloud's disk.
DISK_MB_PER_S = 125
Epoch = Callable[[int], None]


def settings() -> dict[str, dict[str, Any]]:
    """Settings of the conversion by name."""
    fields = list(resolve_kind("ahmedml").required_fields)
    values = [name for name in fields if not name.endswith("position")]
    everything = {"max_errors": dict.fromkeys(fields, BOUND)}
    bounded = {VALUES: {"max_errors": dict.fromkeys(values, BOUND)}, ALL: everything}
    return {FLOAT16: {}, **bounded, LZ4: {**everything, "codec": "bitshuffle-lz4"}}


def enlarged(source: Path, folder: Path) -> Path:
    """The samples with each point ``TIMES`` times; a conversion shuffles them, so that copies are not neighbours."""
    for file in source.glob("*/*.pt"):
        target = folder / file.relative_to(source)
        target.parent.mkdir(parents=True, exist_ok=True)
        values = torch.load(file, weights_only=True)
        torch.save(values.repeat_interleave(TIMES, dim=0), target)
    return folder


def convert_all(source: Path, folder: Path, layout: str) -> tuple[dict[str, Path], int]:
    """The stores by name, and the number of samples of each."""
    stores: dict[str, Path] = {}
    samples = 0
    for name, chosen in settings().items():
        stores[name] = folder / f"{layout} {name}".replace(" ", "-").replace(",", "")
        report = convert("ahmedml", stores[name], root=source, layout=layout, **chosen)
        assert report.ok, report
        samples = len(report.results)
    return stores, samples


def first_epochs(
    stores: Mapping[str, Path], samples: int, rounds: int, batch_size: int, label: str
) -> list[list[Value]]:
    """Rows of a table of whole samples from the disk, without threads and with two."""
    rows: list[list[Value]] = []
    for threads in (0, 2):
        make = {
            name: lambda store=store, threads=threads: epoch_of(str(store), threads, batch_size, {"collate": "list"})
            for name, store in stores.items()
        }
        found = in_turns(make, rounds, lambda name: drop_from_page_cache(stores[name]))
        rows += rows_of(found, samples, f"{label}, {threads or 'no'} threads")
    return rows


def epoch_of(root: str, threads: int, batch_size: int, config: Mapping[str, Any]) -> Epoch:
    """Reads all batches of an epoch."""
    dataset = build_dataset({"kind": "ahmedml", "root": root, "split": "all", **config})
    sampler = EpochBatchSampler.of(dataset, batch_size=batch_size, seed=0)
    loader = ResumableLoader(dataset, sampler, num_threads=threads)

    def epoch(number: int) -> None:
        loader.set_epoch(number)
        for _ in loader:
            pass

    return epoch


def in_turns(
    make: Mapping[str, Callable[[], Epoch]], rounds: int, prepare: Callable[[str], object] | None
) -> dict[str, tuple[float, float]]:
    """Median seconds of an epoch, and of the processor.

    Args:
        make: opens each store.
        rounds: epochs of each.
        prepare: called with the name before each epoch; the store is then opened anew. None: stores stay open.

    One more round comes first, which is not counted.
    """
    opened = {name: build() for name, build in make.items()}
    seconds: dict[str, list[float]] = {name: [] for name in make}
    used: dict[str, list[float]] = {name: [] for name in make}
    for number in range(rounds + 1):
        for name, build in make.items():
            if prepare is not None:
                opened[name] = build()
                prepare(name)
            started = time.perf_counter(), time.process_time()
            opened[name](number)
            if number:
                seconds[name].append(time.perf_counter() - started[0])
                used[name].append(time.process_time() - started[1])
    return {name: (statistics.median(seconds[name]), statistics.median(used[name])) for name in make}


def rows_of(found: Mapping[str, tuple[float, float]], samples: int, label: str) -> list[list[Value]]:
    """Rows of a table: samples per second, as a multiple of float16's, and processor milliseconds per sample."""
    base = found[FLOAT16][0]
    rows: list[list[Value]] = []
    for name, (seconds, used) in found.items():
        rows.append([f"{label}: {name}", samples / seconds, base / seconds, 1000 * used / samples])
    return rows


def best_ratio(rows: list[list[Value]]) -> float:
    """The largest multiple of float16's rate with bounds."""
    return max(float(row[2] or 0) for row in rows if not str(row[0]).endswith(FLOAT16))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--source", type=Path, default=REAL if REAL.is_dir() else BUNDLED)
    parser.add_argument("--local-only", action="store_true", help="no S3")
    arguments = parse(parser, rounds=15)
    torch.set_num_threads(1)
    source = arguments.source.resolve()
    result = Result("error_bounds", "Training from stores with error bounds", arguments)
    columns = ("read", "samples/s", "/ float16", "CPU ms per sample")
    with tempfile.TemporaryDirectory() as folder:
        rows: list[list[Value]] = []
        for layout in ("directory", "packed"):
            stores, samples = convert_all(source, Path(folder), layout)
            rows += first_epochs(stores, samples, arguments.rounds, 2, layout)
        sizes = {name: sum(path.stat().st_size for path in store.rglob("*.zip")) for name, store in stores.items()}
        described = ", ".join(f"{size / samples / 1e6:.2f} ({name})" for name, size in sizes.items())
        result.describe(f"{samples} samples of {source.name}, MB per packed sample: {described}.")
        result.add_table("First epochs from disk, whole samples", columns, rows)
        result.add_target("first epochs from disk, best with bounds / float16", best_ratio(rows), "at least", 1.3)
        large, _ = convert_all(enlarged(source, Path(folder) / "large"), Path(folder) / "of large", "packed")
        rows = first_epochs(large, samples, arguments.rounds, 1, "packed")
        result.add_table(f"First epochs from disk, whole samples with each point {TIMES} times", columns, rows)
        what = "first epochs from disk, large samples, best with bounds / float16"
        result.add_target(what, best_ratio(rows), "at least", 1.3)
        if can_limit_reads():
            slow = f"from a disk of {DISK_MB_PER_S} MB/s"
            with limited_reads(Path(folder), DISK_MB_PER_S * 10**6):
                rows = first_epochs(large, samples, arguments.rounds, 1, "packed")
            result.add_table(f"First epochs {slow}, whole samples with each point {TIMES} times", columns, rows)
            what = f"first epochs {slow}, large samples, best with bounds / float16"
            result.add_target(what, best_ratio(rows), "at least", 1.3)
        if not arguments.local_only:
            with s3_endpoint() as upstream, ProxyProcess(upstream) as proxy:
                urls = {name: upload(store) for name, store in stores.items()}
                os.environ["AWS_ENDPOINT_URL"] = proxy.url
                for limit in (0, 100):
                    proxy.set_faults(latency_s=LATENCY_S, bytes_per_s=limit * 1e6)
                    rows = []
                    for threads in (0, 2):
                        make = {
                            name: lambda url=url, threads=threads: epoch_of(url, threads, min(8, samples), DRAW)
                            for name, url in urls.items()
                        }
                        found = in_turns(make, arguments.rounds, None)
                        rows += rows_of(found, samples, f"{threads or 'no'} threads")
                    link = f"{limit} MB/s" if limit else "no limit of the bandwidth"
                    result.add_table(f"Draws from S3 at 10 ms, {link}", columns, rows)
                    what = f"draws from S3 at 10 ms, {link}, best with bounds / float16"
                    result.add_target(what, best_ratio(rows), "at least", 1.3)
    result.save()


if __name__ == "__main__":
    main()
