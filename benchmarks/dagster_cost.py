"""What Dagster costs per sample: arrivals of many tiny samples, and a tick over many that are known.

``python -m benchmarks.dagster_cost`` makes samples of 800 points, converts them without Dagster, then does in one
process what the daemon does: the ticks that register them, the run that converts them, idle ticks over 25,000 others,
and a refresh of the manifest after 100 of them were converted. SQLite, in memory (``--folder /dev/shm``) or on a disk.
"""

from __future__ import annotations

import argparse
import os
import resource
import shutil
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import Executor
from contextlib import contextmanager
from pathlib import Path

import dagster as dg
import torch
from dagster._core.definitions.job_base import InMemoryJob
from dagster._core.execution.api import execute_run

from assets.component import dataset_definitions
from assets.dataset import DatasetDeclaration
from benchmarks.result import Result, add_arguments
from resources.pools import ConversionPool
from resources.stores import StoreAccess
from sensors.arrivals import arrivals_sensor
from sensors.dagster_internals import partition_range_tags
from zarr_core._util.processes import WorkerPool
from zarr_core.points.convert import convert
from zarr_core.sources import resolve_kind

PROJECT = Path(__file__).parents[1]
KIND, POINTS, WORKERS = "ahmedml", 800, 2


def make_samples(source: Path, count: int) -> None:
    """Samples of a few points; each has the same content."""
    for number in range(1, count + 1):
        folder = source / f"run_{number}"
        folder.mkdir(parents=True)
        for file in resolve_kind(KIND).required_fields.values():
            shape = (POINTS,) if file.field.dim == 1 else (POINTS, 3)
            torch.save(torch.rand(shape), folder / file.filename)


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


@contextmanager
def timed(rows: dict[str, float], name: str) -> Iterator[None]:
    """Record the seconds of a block."""
    started = time.perf_counter()
    yield
    rows[name] = time.perf_counter() - started


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    add_arguments(parser)
    parser.add_argument("--folder", help="where all files lie; by default the folder of temporary files")
    parser.add_argument("--samples", type=int, default=300)
    arguments = parser.parse_args()
    count = arguments.samples
    os.environ.setdefault("DAGSTER_EVENT_BATCH_SIZE", "100")
    result = Result(
        "dagster_cost",
        "Cost of Dagster per sample",
        f"{count} samples of {POINTS} points, {WORKERS} workers, SQLite; in one process, without a daemon's pauses.",
        arguments,
    )
    seconds: dict[str, float] = {}
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
            with timed(seconds, "registration by the sensor"):
                platform.tick()
            with timed(seconds, "creation of the run"):
                run = platform.queue("run_1", f"run_{count}")
            with timed(seconds, "the run"):
                platform.execute(run)
            ended = instance.get_run_by_id(run.run_id)
            assert ended is not None
            assert ended.is_success
    milliseconds = {name: 1000 * value / count for name, value in seconds.items()}
    plain = milliseconds["conversion without Dagster"]
    cost = sum(milliseconds.values()) - 2 * plain
    result.add_table("Milliseconds per sample", ("what", "ms"), [*milliseconds.items(), ("Dagster in all", cost)])
    result.add_target("Dagster per sample", cost, "at most", 30, " ms")
    print(f"peak memory {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.0f} MiB")
    result.save()


if __name__ == "__main__":
    main()
