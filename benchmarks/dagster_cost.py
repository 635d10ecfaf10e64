"""What Dagster costs per sample: arrivals of many tiny samples, and a tick over many that are known.

``python -m benchmarks.dagster_cost`` makes samples of 800 points, converts them without Dagster, then does in one
process what the daemon does: the ticks that register them, the run that converts them, idle ticks over 25,000 others,
and a refresh of the manifest after 100 of them were converted. SQLite, in memory (``--folder /dev/shm``) or on a disk.
``--known 5000 --ticks 200`` shows whether the sensor's memory grows.
"""

from __future__ import annotations

import argparse
import shutil
import sqlite3
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import Executor
from contextlib import closing, contextmanager
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple
from unittest.mock import patch

import dagster as dg
import torch
from dagster._core.definitions.job_base import InMemoryJob
from dagster._core.execution.api import execute_run
from zarr_core.platform.assets.component import dataset_definitions
from zarr_core.platform.assets.dataset import DatasetDeclaration
from zarr_core.platform.assets.manifest import manifest_asset
from zarr_core.platform.resources.pools import ConversionPool
from zarr_core.platform.resources.stores import StoreAccess
from zarr_core.platform.sensors.arrivals import arrivals_sensor
from zarr_core.platform.sensors.dagster_internals.events import report_runless_events
from zarr_core.platform.sensors.dagster_internals.runs import delete_run
from zarr_core.platform.sensors.dagster_internals.tags import DATA_VERSION, partition_range_tags, version_tags
from zarr_core.platform.sensors.migration import data_version_of

from benchmarks.endurance import resident_mb
from benchmarks.result import Result, parse
from zarr_core._util.processes import WorkerPool
from zarr_core.points.convert.conversion import convert
from zarr_core.points.store.head import HEAD, load_manifest
from zarr_core.points.store.manifest import StoreManifest
from zarr_core.sources import SampleTree, resolve_kind
from zarr_core.storage import Storage
from zarr_core.versioning.generations import commit

PROJECT = Path(__file__).parents[1]
# Ticks after which the sensor takes what was registered as known.
_FIRST_TICKS = 4
KIND, POINTS, WORKERS = "ahmedml", 800, 2


def database_bytes(home: Path) -> int:
    """Bytes of all databases of an instance, without the pages that SQLite will use again."""
    total = 0
    for path in home.rglob("*.db"):
        with closing(sqlite3.connect(path)) as database:
            size, pages, free = (
                database.execute(f"pragma {name}").fetchone()[0]
                for name in ("page_size", "page_count", "freelist_count")
            )
        total += size * (pages - free)
    return total


def make_samples(source: Path, count: int) -> None:
    """Samples of a few points; each has the same content."""
    first = source / "run_1"
    first.mkdir(parents=True)
    for file in resolve_kind(KIND).required_fields.values():
        shape = (POINTS,) if file.field.dim == 1 else (POINTS, 3)
        torch.save(torch.rand(shape), first / file.filename)
    for number in range(2, count + 1):
        shutil.copytree(first, source / f"run_{number}")


class Platform:
    """One dataset on an instance of its own, and the daemon's work on it."""

    def __init__(self, folder: Path, instance: dg.DagsterInstance, batch_size: int, pool: Executor) -> None:
        class Started(ConversionPool):
            @contextmanager
            def executor(self, workers: int, *_: object) -> Iterator[Executor]:
                yield pool

        declared = DatasetDeclaration(
            name="tiny", kind=KIND, source="source", store="store", report="report", batch_size=batch_size
        )
        self.dataset, self.instance, self.cursor = declared.with_absolute_paths(folder, folder), instance, None
        self.definitions = dg.Definitions.merge(
            dataset_definitions(self.dataset),
            dg.Definitions(
                resources={"stores": StoreAccess(), "conversion_pool": Started()}, executor=dg.in_process_executor
            ),
        )
        self.sensor = arrivals_sensor(self.dataset)

    def tick(self) -> None:
        """A tick of the sensor, and what the daemon does with its result."""
        context = dg.build_sensor_context(self.instance, cursor=self.cursor, resources={"stores": StoreAccess()})
        result = self.sensor(context)
        assert isinstance(result, dg.SensorResult)
        for event in result.asset_events:
            self.instance.report_runless_asset_event(event)
        for request in result.dynamic_partitions_requests or ():
            self.instance.add_dynamic_partitions(request.partitions_def_name, request.partition_keys)
        self.cursor = result.cursor

    def queue(self, first: str, last: str) -> dg.DagsterRun:
        """Create a conversion run."""
        job = self.definitions.resolve_job_def(self.dataset.conversion_job)
        return self.instance.create_run_for_job(job, tags=partition_range_tags(first, last))

    def execute(self, run: dg.DagsterRun) -> None:
        """Execute a run in this process."""
        execute_run(InMemoryJob(self.definitions.resolve_job_def(self.dataset.conversion_job)), run, self.instance)


class Times(NamedTuple):
    """Seconds, and seconds of the processor: other work on the machine affects the first much more."""

    wall: float
    processor: float


@contextmanager
def timed(rows: dict[str, Times], name: str) -> Iterator[None]:
    """Record the seconds of a block, and the processor time of this process in it."""
    started = time.perf_counter(), time.process_time()
    yield
    rows[name] = Times(time.perf_counter() - started[0], time.process_time() - started[1])


def many(result: Result, platform: Platform, plain: StoreManifest, count: int, ticks: int) -> None:
    """Measure idle ticks over a source of many samples, and the manifest after some others were converted.

    The many samples are entries of the manifest, events and a faked listing, without any files.
    """
    dataset, instance = platform.dataset, platform.instance
    real = StoreAccess().source(dataset.kind, dataset.source).find()
    sample, entry = next(iter(real.samples.values())), next(iter(plain.samples.values()))
    names = [f"run_{number}" for number in range(10_000, 10_000 + count)]
    found = {name: replace(sample, sample_id=name, folder=name) for name in names}
    entries = {
        name: replace(entry, relpath=f"samples/{name}/{number:016x}", fingerprint=found[name].fingerprint)
        for number, name in enumerate(names)
    }
    stored = replace(plain, dataset_name=dataset.name, generation=0, samples=entries, splits={})
    commit(Storage(dataset.store), HEAD, lambda _: stored)
    seconds: dict[str, Times] = {}
    with timed(seconds, "registered"):
        observed = {i: {DATA_VERSION: item.fingerprint} for i, item in found.items()}
        events = [dg.AssetObservation(dataset.observed, partition=i, tags=tags) for i, tags in observed.items()]
        for i, tags in observed.items():
            versions = version_tags("", data_version_of(entries[i]), dataset.observed, (tags, None))
            events.append(dg.AssetMaterialization(dataset.converted, partition=i, tags=versions))
        report_runless_events(instance, events)
        instance.add_dynamic_partitions(dataset.partitions_name, list(found))
    listing = replace(real, samples={**found, **real.samples})
    with patch.object(SampleTree, "find", lambda *_, **__: listing):
        times, memory = [], []
        for number in range(-_FIRST_TICKS, ticks + 1):
            with timed(seconds, "tick"):
                platform.tick()
            if number >= 0:
                times.append(seconds["tick"])
                memory.append(resident_mb())
        resources = {"stores": StoreAccess()}
        with timed(seconds, "manifest"):
            assert dg.materialize([manifest_asset(dataset)], instance=instance, resources=resources).success
    assert len(load_manifest(dataset.store).samples) == count + len(real.samples)
    rows = [
        ("registration of all at once", *seconds["registered"]),
        ("idle tick", *max(times)),
        (f"manifest, {len(real.samples)} samples new", *seconds["manifest"]),
    ]
    result.add_table(f"{count:,} samples, seconds", ("what", "s", "s of the processor"), rows)
    result.add_target(f"idle tick over {count:,} samples", max(times).wall, "at most", 10, " s")
    result.add_target(f"manifest of {count:,} samples", seconds["manifest"].wall, "at most", 10, " s")
    shown = range(0, ticks + 1, max(1, ticks // 10))
    result.add_table("Memory over idle ticks", ("tick", "MB"), [(str(number), memory[number]) for number in shown])
    result.add_target(f"growth of memory over {ticks} idle ticks", memory[-1] - memory[0], "at most", 20, " MB")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", help="where all files lie; by default the folder of temporary files")
    parser.add_argument("--samples", type=int, default=300)
    parser.add_argument("--known", type=int, default=25_000, help="registered samples, for the idle ticks")
    parser.add_argument("--ticks", type=int, default=5, help="idle ticks, over which memory must not grow")
    arguments = parse(parser)
    count = arguments.samples
    result = Result("dagster_cost", "Cost of Dagster per sample", arguments)
    result.describe(
        f"{count} samples of {POINTS} points, {WORKERS} workers, SQLite; in one process, without a daemon's pauses."
    )
    seconds: dict[str, Times] = {}
    with tempfile.TemporaryDirectory(dir=arguments.folder) as temporary:
        folder = Path(temporary)
        make_samples(folder / "source", count)
        (folder / "home").mkdir()
        shutil.copy(PROJECT / "deploy/local/dagster.yaml", folder / "home")
        with WorkerPool(WORKERS) as pool, dg.DagsterInstance.from_config(str(folder / "home")) as instance:
            list(pool.map(abs, range(8)))
            with timed(seconds, "conversion without Dagster"):
                convert(KIND, folder / "plain", root=folder / "source", executor=pool)
            platform = Platform(folder, instance, count, pool)
            platform.tick()
            sizes = [database_bytes(folder / "home")]
            with timed(seconds, "registration by the sensor"):
                platform.tick()
            sizes.append(database_bytes(folder / "home"))
            with timed(seconds, "creation of the run"):
                run = platform.queue("run_1", f"run_{count}")
            with timed(seconds, "the run"):
                platform.execute(run)
            ended = instance.get_run_by_id(run.run_id)
            assert ended is not None
            assert ended.is_success
            sizes.append(database_bytes(folder / "home"))
            many(result, platform, load_manifest(folder / "plain"), arguments.known, arguments.ticks)
            with_the_run = database_bytes(folder / "home")
            delete_run(instance, run.run_id)
            sizes.append(sizes[-1] + database_bytes(folder / "home") - with_the_run)
    plain = seconds.pop("conversion without Dagster")
    cost = [1000 / count * (sum(times) - plain[n]) for n, times in enumerate(zip(*seconds.values(), strict=True))]
    rows = [(name, *(1000 / count * value for value in times)) for name, times in seconds.items()]
    rows += [("conversion without Dagster", *(1000 / count * value for value in plain)), ("Dagster in all", *cost)]
    result.add_table("Milliseconds per sample", ("what", "ms", "ms of the main process"), rows)
    kilobytes = [(after - before) / count / 1000 for before, after in pairwise(sizes)]
    steps = ("registration by the sensor", "conversion, in one run", "deletion of the run")
    result.add_table("Growth of the databases per sample", ("what", "kB"), list(zip(steps, kilobytes, strict=True)))
    result.add_target("Dagster per sample", cost[0], "at most", 30, " ms")
    result.save()


if __name__ == "__main__":
    main()
