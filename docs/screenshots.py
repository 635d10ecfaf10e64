"""Takes the pictures of the pages about the platform: ``python docs/screenshots.py``.

Needs Playwright and a Chromium (``pip install playwright``, then ``playwright install chromium``, or a path in
``$CHROMIUM``). It brings about what the pages describe, on an instance of its own, starts a webserver, and writes
docs/images. Nothing else is left behind.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from io import BytesIO
from pathlib import Path
from typing import Any

PROJECT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(PROJECT))
os.chdir(PROJECT)

import dagster as dg  # noqa: E402
from PIL import Image  # noqa: E402
from playwright.sync_api import Page, sync_playwright  # noqa: E402
from zarr_core.platform.assets.dataset import DatasetDeclaration  # noqa: E402
from zarr_core.platform.assets.zarr_samples import FORCE_TAG  # noqa: E402
from zarr_core.platform.resources.pools import ConversionPool  # noqa: E402
from zarr_core.platform.sensors.dagster_internals.tags import partition_range_tags  # noqa: E402
from zarr_core.platform.sensors.messages import cancellation_message, failure_message  # noqa: E402
from zarr_core.platform.sensors.pending import natural_order  # noqa: E402

from tests.platform.deployment import Deployment  # noqa: E402
from tests.platform.trial import corrupt, definitions_of, write_run  # noqa: E402
from zarr_core.points.store.head import load_manifest  # noqa: E402

PORT = int(os.environ.get("PORT", "3797"))
IMAGES = PROJECT / "docs" / "images"
MANIFEST = dg.AssetKey(["ahmed_rans", "manifest"])


def main() -> None:
    """Take all pictures, or those of the functions that are named as arguments."""
    for case in sys.argv[1:] or ("operating", "migration", "overview", "sample"):
        globals()[case]()


def operating() -> None:
    """A refused sample, a failed check, its repair, and a cancelled run."""
    with platform() as (deployment, jobs):
        arrive(deployment, *range(1, 9), damaged=3)
        jobs.run("look")
        failed = jobs.run("convert", "run_1", "run_8")
        jobs.run("refresh")
        group = load_manifest(str(deployment.store)).samples["run_1"].relpath
        damage(deployment.store / group / "surface/pressure/c/0/0")
        refresh = jobs.run("refresh")
        with webserver(deployment), browser() as page:
            take(page, "failed", "/assets/ahmed_rans/zarr_samples?view=partitions&partition=run_3", "run_3")
            take(page, "reason", f"/runs/{failed}", "1 of 8 samples could not be converted")
            take(page, "not-loaded", "/assets/wings/not_loaded", "attributes.chunk_pionts")
            take(page, "failed-check", "/assets/ahmed_rans/manifest?view=checks&checkDetail=checksums", "To repair")
            take(page, "held-back", f"/runs/{refresh}", "failed: check checksums of")
            repaired = jobs.run("convert", "run_1", "run_1", tags={FORCE_TAG: "true"})
            take(page, "repaired", f"/runs/{repaired}", "Finished execution of run")
            arrive(deployment, 11, 12, 13)
            jobs.run("look")
            cancelled = jobs.run("convert", "run_11", "run_13", pool=Terminated())
            take(page, "cancelled", f"/runs/{cancelled}", "was cancelled; its errors follow")


def migration() -> None:
    """A migration of which one run is done."""
    with platform() as (deployment, jobs):
        arrive(deployment, *range(1, 9))
        jobs.run("look")
        jobs.run("convert", "run_1", "run_8")
        jobs.run("refresh", assets=[MANIFEST])
        declaration, last = "assets/datasets/ahmed_rans/defs.yaml", "  chunk_points: 4096\n"
        deployment.project.change(declaration, last, last + "  values_dtype: float32\n")
        jobs.dataset = jobs.dataset.model_copy(update={"values_dtype": "float32"})
        jobs.run("migrate")
        jobs.run("convert", "run_1", "run_3")
        jobs.run("refresh", assets=[MANIFEST])
        with webserver(deployment), browser() as page:
            shown = "/assets/ahmed_rans/manifest?view=checks&checkDetail=settings"
            take(page, "migration", shown, "migration under way")


def overview() -> None:
    """What a daemon shows of stale samples, and of a batch that was withdrawn from the warehouse."""
    with platform() as (deployment, jobs):
        batches = sorted((PROJECT / "examples/data/methylation/long").iterdir())
        for batch in batches[:3]:
            shutil.copytree(batch, deployment.long / batch.name)
        arrive(deployment, *range(1, 9), damaged=3)
        with deployment.daemon():
            for asset in (["ahmed_rans", "benchmark_report"], ["methylation", "quality_report"]):
                wait_for_asset(deployment, jobs.instance, asset)
        shutil.rmtree(deployment.long / batches[0].name)
        for number in (4, 5, 6, 7):
            write_run(deployment.source, number, points=3000, shift=1.0)
        jobs.run("look")
        jobs.run("convert", "run_4", "run_7", pool=Terminated())
        before = time.time()
        with deployment.daemon():
            for name in ("ahmed_rans", "methylation"):
                wait_for_asset(deployment, jobs.instance, [name, "overview"], before)
        with webserver(deployment), browser() as page:
            take(page, "overview", "/assets/ahmed_rans/overview", "stale or cancelled")
            take(page, "withdrawn", "/assets/methylation/matrix?view=checks&checkDetail=nothing_withdrawn", "To remove")
            take(page, "timeline", "/overview/activity/timeline?groupBy=automation", "ahmed_rans_automation")


def sample() -> None:
    """A converted simulation run, among those of the folder ``$RUNS``."""
    runs = Path(os.environ.get("RUNS", PROJECT / "examples/data/ahmed_rans"))
    with platform() as (deployment, jobs):
        folders = sorted(runs.glob("run_*"), key=lambda folder: natural_order(folder.name))
        for folder in folders:
            shutil.copytree(folder, deployment.source / folder.name)
        corrupt(deployment.source / folders[2].name)
        jobs.run("look")
        jobs.run("convert", folders[0].name, folders[-1].name)
        shown = folders[len(folders) // 2].name
        with webserver(deployment), browser() as page:
            page.set_viewport_size({"width": 1300, "height": 900})
            take(page, "sample", f"/assets/ahmed_rans/zarr_samples?view=partitions&partition={shown}", "stored_share")


def wait_for_asset(deployment: Deployment, instance: dg.DagsterInstance, path: list[str], after: float = 0.0) -> None:
    """Wait until the daemon has materialized an asset, later than a time."""

    def is_made() -> bool:
        event = instance.get_latest_materialization_event(dg.AssetKey(path))
        return event is not None and event.timestamp > after

    deployment.wait("/".join(path), is_made)


class Jobs:
    """The jobs of a dataset, run in this process: a daemon would go on with what a picture shows."""

    def __init__(self, dataset: DatasetDeclaration, instance: dg.DagsterInstance) -> None:
        self.dataset, self.instance = dataset, instance

    def run(
        self,
        job: str,
        *sample_ids: str,
        tags: Mapping[str, str] | None = None,
        assets: list[dg.AssetKey] | None = None,
        pool: ConversionPool | None = None,
    ) -> str:
        """Run a job, for the samples from the first to the last named; returns the id of the run."""
        tags = {**(tags or {}), **(partition_range_tags(sample_ids[0], sample_ids[-1]) if sample_ids else {})}
        found = definitions_of(self.dataset, pool).resolve_job_def(f"ahmed_rans_{job}")
        with suppress(KeyboardInterrupt):  # of a terminated run
            found.execute_in_process(instance=self.instance, tags=tags, asset_selection=assets, raise_on_error=False)
        (run,) = self.instance.get_runs(limit=1)
        if run.status is dg.DagsterRunStatus.FAILURE:  # the daemon's sensor adds the reason to the events of the run
            self.instance.report_engine_event(failure_message(self.instance, run), run)
        if run.status is dg.DagsterRunStatus.CANCELED:
            self.instance.report_engine_event(cancellation_message(run), run)
        return run.run_id


class Terminated(ConversionPool):
    """Converts one sample after another. Before the third one, the run is terminated."""

    @contextmanager
    def executor(self, workers: int, *_: object) -> Iterator[Executor]:
        """An executor of one thread."""
        with ThreadPoolExecutor(1) as pool:
            yield Terminating(pool)


class Terminating(Executor):
    """Does what *Terminate* does to a run of this process, when the third call is made."""

    def __init__(self, pool: Executor) -> None:
        self.pool, self.calls = pool, 0

    def submit(self, call: Callable[..., Any], /, *arguments: Any, **options: Any) -> Future[Any]:
        """See :class:`concurrent.futures.Executor`."""
        self.calls += 1
        return self.pool.submit(self.terminate if self.calls == 3 else call, *arguments, **options)

    def terminate(self, *_: Any) -> None:
        """Terminate the run."""
        with dg.DagsterInstance.get() as instance:
            instance.report_run_canceling(instance.get_runs(limit=1)[0])
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(5)


@contextmanager
def platform() -> Iterator[tuple[Deployment, Jobs]]:
    """An instance in a temporary folder, the project with a misspelt declaration, and the jobs of a dataset."""
    with tempfile.TemporaryDirectory() as folder:
        deployment = Deployment(Path(folder))
        os.environ.update(deployment.environment())
        dataset = DatasetDeclaration(
            name="ahmed_rans",
            kind="ahmedml",
            source=str(deployment.source),
            store=str(deployment.store),
            report=str(deployment.report),
            chunk_points=4096,
            retry_seconds=0,
        )
        with dg.DagsterInstance.get() as instance:
            yield deployment, Jobs(dataset, instance)


def arrive(deployment: Deployment, *numbers: int, damaged: int = 0) -> None:
    """Simulation runs appear in the watched folder, one of them cut short."""
    made = deployment.source.with_name("made")
    for number in numbers:
        write_run(made, number, points=3000)
        if number == damaged:
            corrupt(made / f"run_{number}")
    for number in numbers:
        (made / f"run_{number}").rename(deployment.source / f"run_{number}")


def damage(path: Path) -> None:
    """Change a bit, as a disk does."""
    data = bytearray(path.read_bytes())
    data[10] ^= 1
    path.write_bytes(data)


@contextmanager
def webserver(deployment: Deployment) -> Iterator[None]:
    """Dagster's webserver."""
    command = [sys.executable, "-m", "dagster_webserver", "-w", "workspace.yaml", "-h", "127.0.0.1", "-p", str(PORT)]
    with (deployment.home.parent / "webserver.log").open("wb") as log:
        process = subprocess.Popen(
            command, cwd=deployment.project.folder, stdout=log, stderr=log, start_new_session=True
        )
        try:
            deployment.wait("the webserver", lambda: b"Serving" in Path(log.name).read_bytes())
            yield
        finally:
            os.killpg(process.pid, signal.SIGTERM)
            process.wait()


@contextmanager
def browser() -> Iterator[Page]:
    """A headless Chromium."""
    path = os.environ.get("CHROMIUM") or shutil.which("chromium")
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=path, args=["--no-sandbox", "--disable-gpu"])
        page = chromium.new_page(viewport={"width": 1280, "height": 800})
        page.set_default_timeout(300_000)
        yield page
        chromium.close()


def take(page: Page, name: str, path: str, text: str) -> None:
    """Write the picture of a page on which a text is visible."""
    page.goto(f"http://127.0.0.1:{PORT}{path}", wait_until="domcontentloaded")
    page.get_by_text(text).first.wait_for()
    page.get_by_text("Loading run logs").wait_for(state="hidden")
    page.get_by_text(text).first.scroll_into_view_if_needed()
    page.wait_for_timeout(4000)  # charts and folds are drawn after the text
    with Image.open(BytesIO(page.screenshot())) as picture:
        picture.quantize(128).save(IMAGES / f"{name}.png", optimize=True)
    print(IMAGES / f"{name}.png", flush=True)


if __name__ == "__main__":
    main()
