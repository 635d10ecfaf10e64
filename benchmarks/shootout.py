"""The recommendation of ``zarr-core shootout`` against a full sweep: ``python -m benchmarks.shootout``.

For each set of data and tier (a local folder, S3 at 10 ms), every format, codec, chunk size and number of workers is
measured in turns, several times. The figure is the rate of the setting that the shootout named, as a share of the best
rate of the sweep; both rates are from the sweep. The shootout measures point stores, so the sets are point stores.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import boto3

from benchmarks.result import Result, Value, add_arguments
from benchmarks.servers import ProxyProcess, s3_endpoint
from benchmarks.synthetic import make_source, make_store
from zarr_core.points.convert import convert
from zarr_core.shootout.candidates import ENTRIES, OURS, Candidate, candidate, chunk_sizes, codecs
from zarr_core.shootout.formats.samples import Samples
from zarr_core.shootout.loading import Reading, time_reading
from zarr_core.shootout.planner import MeasurementError
from zarr_core.shootout.run import Options, measure_all
from zarr_core.shootout.tiers import Tier
from zarr_core.shootout.workload import take_workload

BUCKET = "shootout"
BUNDLED = Path(__file__).parents[1] / "examples" / "data" / "ahmed_rans"
Setting = tuple[Candidate, int]


def make_sets(folder: Path) -> dict[str, tuple[str, int]]:
    """Stores by name, and the points of a draw."""
    few = make_store(make_source(folder / "few", 48, 2_000), folder / "few-store", "blosc-lz4")
    many = make_store(make_source(folder / "many", 6, 400_000), folder / "many-store", "blosc-lz4")
    convert("ahmedml", folder / "real-store", root=BUNDLED)
    return {
        "few points (2,000)": (str(few), 1024),
        "many points (400,000)": (str(many), 16_384),
        "RANS of a car": (str(folder / "real-store"), 4096),
    }


def sweep(store: str, tier: Tier, points: int, rounds: int, worker_counts: list[int]) -> dict[Setting, float]:
    """Median draws per second of every setting on a tier."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        work = take_workload(store, None, folder, limit=16, num_surface_points=points, num_volume_points=points)
        current, chunk_points = work.facts["codec"], work.facts["chunk_points"]
        largest = [most for _, most in work.facts["points"].values()]
        chosen = [
            candidate(entry.name, current, chunk_points)
            for entry in ENTRIES
            if entry.name != OURS and entry.installed and (tier.local or entry.make().remote)
        ]
        for codec in codecs(current):
            chosen += [candidate(OURS, codec, size) for size in chunk_sizes(chunk_points, [points], largest)]
        samples = work.samples
        for each in sorted(chosen, key=lambda each: each.format != OURS):
            built = folder / "copies" / each.copy
            if not built.exists():
                built.mkdir(parents=True)
                each.entry.make().prepare(samples, built)
                if samples.store is None:
                    samples = Samples(samples.folder, built / "store")
                tier.put(each.copy, built)
        rates: dict[Setting, list[float]] = defaultdict(list)
        for _ in range(rounds):
            for workers in worker_counts:
                for each in chosen:
                    reading = Reading(each.entry, tier.place(each.copy), work.draws["draws"], 8, workers)
                    try:
                        end = time.monotonic() + 20
                        rates[each, workers] += time_reading(reading, seconds=0.2, repetitions=3, end=end).rates
                    except MeasurementError as error:
                        print(f"{each.label}: {error}", file=sys.stderr)
        return {setting: statistics.median(found) for setting, found in rates.items()}


def compare(store: str, points: int, tiers: dict[str, str], arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """The setting that the shootout names for each tier, and the best one of the sweep."""
    options = Options(store, tiers, arguments.budget, num_surface_points=points, num_volume_points=points)
    named = measure_all(options)["verdict"]["by_tier"]
    found = []
    for name, place in tiers.items():
        with Tier(name, place) as tier:
            rates = sweep(store, tier, points, arguments.rounds, arguments.workers)
        row = named[name]
        setting = candidate(row["format"], row["codec"] or "none", row["chunk_points"]), row["workers"]
        best = max(rates, key=lambda each: rates[each])
        for each in sorted(rates, key=lambda each: -rates[each])[:8]:
            print(f"{name}: {each[0].label}, {each[1]} workers: {rates[each]:,.0f}/s", file=sys.stderr, flush=True)
        share = rates[setting] / rates[best] if setting in rates else None
        found.append({"tier": name, "named": setting, "best": best, "share": share})
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--budget", type=float, default=120.0, help="seconds of each shootout (default 120)")
    parser.add_argument("--rounds", type=int, default=3, help="of the sweep (default 3)")
    parser.add_argument("--workers", type=int, nargs="+", default=[0, 1, 2], help="of the sweep (default 0 1 2)")
    parser.add_argument("--local-only", action="store_true", help="without S3")
    add_arguments(parser)
    arguments = parser.parse_args()
    result = Result(
        "shootout",
        "The recommendation of a shootout against a full sweep",
        f"A shootout of {arguments.budget:.0f} s per set; then every setting {arguments.rounds} x 3 times in turns.",
        arguments,
    )
    rows: list[list[Value]] = []
    with ExitStack() as cleanup:
        folder = Path(cleanup.enter_context(tempfile.TemporaryDirectory()))
        (folder / "local").mkdir()
        tiers = {"local": str(folder / "local")}
        if not arguments.local_only:
            proxy = cleanup.enter_context(ProxyProcess(cleanup.enter_context(s3_endpoint())))
            os.environ["AWS_ENDPOINT_URL"] = proxy.url
            boto3.client("s3").create_bucket(Bucket=BUCKET)
            proxy.set_faults(latency_s=0.01)
            tiers["S3, 10 ms"] = f"s3://{BUCKET}/tmp"
        for name, (store, points) in make_sets(folder).items():
            for found in compare(store, points, tiers, arguments):
                (named, n_workers), (best, b_workers) = found["named"], found["best"]
                texts = [f"{named.label}, {n_workers} workers", f"{best.label}, {b_workers} workers"]
                rows.append([f"{name}, {found['tier']}", *texts, found["share"]])
                result.add_target(f"named / best, {name}, {found['tier']}", found["share"], "at least", 0.9)
    result.add_table("Named and best", ("data and tier", "named", "best of the sweep", "named / best"), rows)
    result.save()


if __name__ == "__main__":
    main()
