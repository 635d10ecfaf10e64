"""Tiny samples from copied to committed, by Dagster's daemon: ``python -m benchmarks.dagster_daemon``.

Converts 2,000 samples of 800 points without Dagster, starts ``dagster-daemon`` with the settings of ``deploy/local`` on
an instance of its own, copies the samples into the folder that it watches, and waits until the manifest holds them all.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import dagster as dg

from benchmarks.dagster_cost import KIND, POINTS, PROJECT, WORKERS, make_samples
from benchmarks.result import Result, parse
from zarr_core._util.processes import WorkerPool
from zarr_core.points.convert.conversion import convert
from zarr_core.points.store.head import load_if_any
from zarr_core.storage import Storage

CONVERTED, REPORT = dg.AssetKey(["ahmed_rans", "zarr_samples"]), dg.AssetKey(["ahmed_rans", "benchmark_report"])
PATIENCE_S = 1800
_PR_SET_CHILD_SUBREAPER = 36


def environment(folder: Path) -> dict[str, str]:
    """Variables of a process on the instance in ``folder/home``, whose datasets lie in the folder."""
    return os.environ | {
        "DAGSTER_HOME": str(folder / "home"),
        "DAGSTER_DISABLE_TELEMETRY": "1",
        "PYTHONPATH": str(PROJECT),
        "AHMED_RANS_SOURCE": str(folder / "source"),
        "AHMED_RANS_STORE": str(folder / "store"),
        "AHMED_RANS_REPORT": str(folder / "report"),
        "METHYLATION_FILES": str(folder / "no_batches" / "*.parquet"),
        "METHYLATION_MATRIX": str(folder / "matrix"),
        "METHYLATION_REPORT": str(folder / "quality"),
    }


@contextmanager
def daemon(folder: Path) -> Iterator[Path]:
    """The daemon, which watches ``folder/source``: the path of its log."""
    (folder / "home").mkdir()
    shutil.copy(PROJECT / "deploy/local/dagster.yaml", folder / "home")
    log = folder / "daemon.log"
    command = [str(Path(sys.executable).with_name("dagster-daemon")), "run", "-w", "workspace.yaml"]
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, cwd=PROJECT, env=environment(folder), stdout=output, stderr=output, start_new_session=True
        )
    try:
        yield log
    finally:
        for sign in (signal.SIGTERM, signal.SIGKILL):
            with suppress(ProcessLookupError, subprocess.TimeoutExpired):
                os.killpg(process.pid, sign)
                process.wait(30)


def wait(what: str, log: Path, condition: Callable[[], object]) -> None:
    """Return when a condition holds; exit with the daemon's log if it never does."""
    began = time.monotonic()
    while not condition():
        if time.monotonic() - began > PATIENCE_S:
            raise SystemExit(
                f"error: {what} took more than {PATIENCE_S} s; the daemon's log ends:\n{log.read_text()[-4000:]}"
            )
        time.sleep(0.5)


def processor_seconds() -> float:
    """Processor time of this process and of all that it started and that has ended, orphans included."""
    with suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    return sum(sum(resource.getrusage(who)[:2]) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))


def without_dagster(source: Path, store: Path) -> float:
    """Seconds of the same conversion in the same number of processes."""
    started = time.perf_counter()
    with WorkerPool(WORKERS) as pool:
        convert(KIND, store, root=source, executor=pool, chunk_points=4096)
    return time.perf_counter() - started


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", help="where all files lie; by default the folder of temporary files")
    parser.add_argument("--samples", type=int, default=2000)
    arguments = parse(parser)
    count = arguments.samples
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)  # orphans of the daemon are counted with this process
    result = Result("dagster_daemon", "Arrival of tiny samples", arguments)
    result.describe(f"{count:,} samples of {POINTS} points, {WORKERS} workers; deploy/local/dagster.yaml on SQLite.")
    with tempfile.TemporaryDirectory(dir=arguments.folder) as temporary:
        folder = Path(temporary)
        make_samples(folder / "made", count)
        print("samples made", flush=True)
        plain = without_dagster(folder / "made", folder / "plain")
        (folder / "source").mkdir()
        store = Storage(str(folder / "store"))
        processor = processor_seconds()
        with daemon(folder) as log:
            wait("the daemon's start", log, lambda: "Sensor ahmed_rans_arrivals" in log.read_text())
            copied = time.time()
            shutil.copytree(folder / "made", folder / "source", dirs_exist_ok=True)
            print(f"copied in {time.time() - copied:.0f} s", flush=True)
            wait("the commit", log, lambda: (found := load_if_any(store)) and len(found.samples) == count)
            committed = time.time()
            with dg.DagsterInstance.from_config(str(folder / "home")) as instance:
                wait("the report", log, lambda: instance.get_latest_materialization_event(REPORT))
                records = instance.get_run_records()
        processor = processor_seconds() - processor
    runs = sorted(
        (record.create_timestamp.timestamp(), record.start_time, record.end_time)
        for record in records
        if CONVERTED in (record.dagster_run.asset_selection or ())
    )
    print("\n".join(" ".join(f"{time - copied:7.1f}" for time in run) for run in runs))
    conversion = max(end for _, _, end in runs) - runs[0][0]
    result.add_table(
        "Seconds",
        ("what", "s"),
        [
            ("conversion without Dagster, start of the workers included", plain),
            ("from the copy of the first sample to the first conversion run", runs[0][0] - copied),
            ("conversion runs, from the first one's creation to the last one's end", conversion),
            ("sum of the conversion runs", sum(end - start for _, start, end in runs)),
            ("from the copy of the first sample to the commit of all", committed - copied),
            ("processor, of the daemon and all that it started, until the report", processor),
        ],
    )
    result.add_target("conversion runs", len(runs), "at most", 10)
    result.add_target("Dagster per sample", 1000 * (conversion - plain) / count, "at most", 30, " ms")
    result.save()


if __name__ == "__main__":
    main()
