"""The page of many partitions in a browser: ``python -m benchmarks.dagster_page``.

Records 25,000 materialized partitions on an SQLite instance of its own, starts the webserver, and opens their page
in a headless Chromium. Needs Playwright and a Chromium, as ``docs/screenshots.py`` does.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from contextlib import suppress
from pathlib import Path

import dagster as dg
from zarr_core.platform.sensors.dagster_internals.events import report_runless_events
from zarr_core.platform.sensors.dagster_internals.tags import DATA_VERSION

from benchmarks.dagster_cost import PROJECT, Times, timed
from benchmarks.dagster_daemon import CONVERTED, environment, wait
from benchmarks.result import Result, parse

PARTITIONS = "ahmed_rans__samples"


def processor_seconds() -> float:
    """Processor time of this process and its descendants: the webserver, its code server, and the browser."""
    ticks, children = {}, defaultdict(list)
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # it has just ended
            fields = path.read_text().rpartition(")")[2].split()
            process, parent = int(path.parent.name), int(fields[1])
            ticks[process] = sum(map(int, fields[11:15]))
            children[parent].append(process)
    waiting, total = [os.getpid()], 0
    while waiting:
        process = waiting.pop()
        total += ticks.get(process, 0)
        waiting += children[process]
    return total / os.sysconf("SC_CLK_TCK")


def main() -> None:
    from playwright.sync_api import sync_playwright

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", help="where all files lie; by default the folder of temporary files")
    parser.add_argument("--partitions", type=int, default=25_000)
    parser.add_argument("--picture", help="PNG to write of the page")
    parser.add_argument("--port", type=int, default=3797)
    arguments = parse(parser)
    count, rows = arguments.partitions, {}
    result = Result("dagster_page", "The page of the partitions", arguments)
    result.describe(f"{count:,} materialized partitions, SQLite; headless Chromium on the machine of the webserver.")
    with tempfile.TemporaryDirectory(dir=arguments.folder) as temporary:
        folder = Path(temporary)
        (folder / "home").mkdir()
        shutil.copy(PROJECT / "deploy/local/dagster.yaml", folder / "home")
        names = [f"run_{number}" for number in range(1, count + 1)]
        events = [dg.AssetMaterialization(CONVERTED, partition=name, tags={DATA_VERSION: name}) for name in names]
        with dg.DagsterInstance.from_config(str(folder / "home")) as instance:
            with timed(rows, "materializations recorded in batches"):
                report_runless_events(instance, events)
            with timed(rows, "partitions added"):
                instance.add_dynamic_partitions(PARTITIONS, names)
        command = [sys.executable, "-m", "dagster_webserver", "-w", "workspace.yaml", "-p", str(arguments.port)]
        log = folder / "webserver.log"
        with log.open("wb") as output:
            server = subprocess.Popen(
                command, cwd=PROJECT, env=environment(folder), stdout=output, stderr=output, start_new_session=True
            )
        try:
            wait("the webserver", log, lambda: "Serving" in log.read_text())
            with sync_playwright() as playwright:
                path = os.environ.get("CHROMIUM") or shutil.which("chromium")
                browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox", "--disable-gpu"])
                url = f"http://127.0.0.1:{arguments.port}/assets/{'/'.join(CONVERTED.path)}?view=partitions"
                for number in ("first", "second", "third"):
                    page = browser.new_page(viewport={"width": 1280, "height": 800})
                    page.set_default_timeout(300_000)
                    started = time.perf_counter(), processor_seconds()
                    page.goto(url)
                    page.get_by_text(f"Materialized ({count})").wait_for()
                    page.get_by_text("run_10", exact=True).first.wait_for()
                    ended = time.perf_counter(), processor_seconds()
                    rows[f"page, {number} time"] = Times(ended[0] - started[0], ended[1] - started[1])
                    if arguments.picture:
                        page.screenshot(path=arguments.picture)
                    page.close()
                browser.close()
        finally:
            os.killpg(server.pid, signal.SIGTERM)
            server.wait()
    result.add_table("Seconds", ("what", "s", "s of the processor"), [(name, *times) for name, times in rows.items()])
    result.add_target("page, third time", rows["page, third time"].wall, "at most", 5, " s")
    result.save()


if __name__ == "__main__":
    main()
