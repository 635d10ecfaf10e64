"""The recommendation of ``zarr-core shootout`` against a full sweep: ``python -m benchmarks.shootout``.

For each set of data and tier (a local folder, S3 at 10 ms), every format, codec, chunk size and number of threads and
workers is measured in turns, several times. Then the setting that the shootout named and the best one of the sweep are
measured in turns once more: the largest of many rates is too large by its error. The figure is the rate of the named
setting as a share of the other's. A second figure is for stores alone. Three sets are point stores, one is a tall
matrix.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from itertools import product
from pathlib import Path
from typing import Any, get_args

import boto3

from benchmarks.matrix import write
from benchmarks.result import Result, Value, parse
from benchmarks.servers import ProxyProcess, s3_endpoint
from benchmarks.synthetic import make_source, make_store
from zarr_core.points.convert.conversion import convert
from zarr_core.points.store.settings import ConversionSettings, Layout
from zarr_core.shootout.budget import MeasurementError
from zarr_core.shootout.candidates import OURS, Candidate, Loader, codecs
from zarr_core.shootout.loading import Reading, Timer
from zarr_core.shootout.request import ShootoutRequest
from zarr_core.shootout.run import measure_all, take_workload, worker_counts
from zarr_core.shootout.tiers import Tier, local_copy
from zarr_core.shootout.verdict import format_rate

BUCKET = "shootout"
BUNDLED = Path(__file__).parents[1] / "examples" / "data" / "ahmed_rans"
# Format, layout, codec, points or features per chunk, threads or workers.
Setting = tuple[str, str, str, int, Loader]


def make_sets(folder: Path, chosen: list[str] | None) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Name, store and options of each set; it is made when its turn comes."""

    def points(n: int) -> dict[str, Any]:
        return {"num_surface_points": n, "num_volume_points": n}

    def wanted(name: str) -> bool:
        return chosen is None or any(name.startswith(each) for each in chosen)

    if wanted(name := "few points (2,000)"):
        few = make_store(make_source(folder / "few", 48, 2_000), folder / "few-store", "blosc-lz4")
        yield name, str(few), points(1024)
    if wanted(name := "many points (400,000)"):
        many = make_store(make_source(folder / "many", 6, 400_000), folder / "many-store", "blosc-lz4")
        yield name, str(many), points(16_384)
    if wanted(name := "RANS of a car"):
        convert("ahmedml", folder / "real-store", root=BUNDLED)
        yield name, str(folder / "real-store"), points(4096)
    if wanted(name := "tall matrix (2,000 x 20,000)"):
        matrix, _ = write(str(folder / "matrix"), "none", [f"cg{n:08d}" for n in range(20_000)], 2_000)
        yield name, matrix.url, {}


class Sweep:
    """Every setting on a tier, for the draws that a shootout decides by.

    Args:
        options: of the shootout.
        tier: open.
        workers: numbers of threads and of workers; those of a shootout if None.
        folder: local.
    """

    def __init__(self, options: ShootoutRequest, tier: Tier, workers: list[int] | None, folder: Path) -> None:
        self.tier, self.batch_size = tier, options.batch_size
        work = take_workload(options, folder)
        (reads, self.draws), *_ = work.draws.items()
        current, unit = work.facts["codec"], work.facts["unit"]
        chosen = []
        for entry in work.entries:
            if not entry.installed or reads not in (entry.reads or (reads,)) or not (tier.local or entry.make().remote):
                continue
            if entry.name != OURS:
                chosen.append(entry.with_settings(current, work.chunk_sizes[0]))
                continue
            layouts = get_args(Layout) if unit == "points" else (ConversionSettings.layout,)
            for layout, codec, size in product(layouts, codecs(current), work.chunk_sizes):
                chosen.append(entry.with_settings(codec, size, layout))
        for each in chosen:
            if each.copy not in tier.copies:
                tier.put(each.copy, local_copy(work.samples, folder, each))
        found: list[tuple[Loader, Candidate]] = []
        for each in chosen:
            made = each.make()
            # A worker reads shards of its own.
            shards = len(list(local_copy(work.samples, folder, each).glob("*.tar"))) if made.streams else None
            for count in workers or [0, *worker_counts(shards)]:
                found.append((Loader(count), each))
                if count and not made.without_threads:
                    found.append((Loader(threads=count), each))
        found.sort(key=lambda pair: pair[0].parallel)
        self.settings: dict[Setting, Candidate] = {}
        for loader, each in found:
            self.settings[each.name, each.layout, each.codec, each.chunk, loader] = each

    def measure(self, settings: Iterable[Setting], rounds: int) -> dict[Setting, float]:
        """Median items per second of settings, measured in turns."""
        rates: dict[Setting, list[float]] = defaultdict(list)
        for _ in range(rounds):
            for setting in settings:
                each = self.settings[setting]
                reading = Reading(each, self.tier.place(each.copy), self.draws, self.batch_size, setting[-1])
                try:
                    end = time.monotonic() + 20
                    rates[setting] += Timer(reading, end, 3, 0.2).epochs().rates
                except MeasurementError as error:
                    print(f"{each.label}: {error}", file=sys.stderr)
        return {setting: statistics.median(found) for setting, found in rates.items()}


def compare(options: ShootoutRequest, arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """The setting that the shootout names for each tier, and the best one of the sweep."""
    report = measure_all(options)
    verdict, unit = report["verdict"], report["workload"]["unit"]
    found = []
    for name, place in options.tiers.items():
        rows = {name: verdict["by_tier"][name], f"{name}, stores": verdict["store"]}
        named: dict[str, Setting] = {}
        for what, row in rows.items():
            if row["tier"] == name:  # the best store is named for one of the tiers only
                # The sweep has no deeper prefetching and no pinned memory.
                loader = Loader(row["workers"], threads=row["threads"])
                named[what] = (row["format"], row["layout"], row["codec"], row[f"chunk_{unit}"], loader)
        with Tier(name, place) as tier, tempfile.TemporaryDirectory() as folder:
            sweep = Sweep(options, tier, arguments.workers, Path(folder))
            rates = sweep.measure(sweep.settings, arguments.rounds)
            for each in sorted(rates, key=lambda each: -rates[each])[:8]:
                print(f"{name}: {shown(each)}: {format_rate(rates[each])}/s", file=sys.stderr, flush=True)
            best = {
                what: max((each for each in rates if what == name or each[0] == OURS), key=lambda each: rates[each])
                for what in named
            }
            again = sweep.measure({*named.values(), *best.values()}, 3 * arguments.rounds)
        for what, setting in named.items():
            share = again[setting] / again[best[what]]
            found.append({"tier": what, "named": setting, "best": best[what], "share": share})
    return found


def shown(setting: Setting) -> str:
    """A setting in words."""
    format, layout, codec, chunk, loader = setting
    return ", ".join(filter(None, (format, layout, codec, f"{chunk:,} per chunk" if codec else "", loader.words)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--budget", type=float, default=600.0, help="seconds of each shootout (default 600, as there)")
    parser.add_argument("--rounds", type=int, default=1, help="of the sweep (default 1)")
    parser.add_argument("--workers", type=int, nargs="+", help="and threads, of the sweep (default as in a shootout)")
    parser.add_argument("--sets", nargs="+", help="only sets whose names begin so (default all)")
    parser.add_argument("--local-only", action="store_true", help="without S3")
    arguments = parse(parser)
    result = Result("shootout", "The recommendation of a shootout against a full sweep", arguments)
    result.describe(
        f"A shootout of {arguments.budget:.0f} s per set; then every setting {arguments.rounds} x 3 times in turns, "
        f"and the named and the best one {3 * arguments.rounds} x 3 times."
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
        for name, store, more in make_sets(folder, arguments.sets):
            for found in compare(ShootoutRequest(store, tiers, arguments.budget, **more), arguments):
                texts = [shown(found["named"]), shown(found["best"])]
                rows.append([f"{name}, {found['tier']}", *texts, found["share"]])
                result.add_target(f"named / best, {name}, {found['tier']}", found["share"], "at least", 0.9)
    result.add_table("Named and best", ("data and tier", "named", "best of the sweep", "named / best"), rows)
    result.save()


if __name__ == "__main__":
    main()
