"""Takes the pictures of docs/operating.md: ``python docs/screenshots.py`` in the root of the project.

Needs Playwright and a Chromium (``pip install playwright``, then ``playwright install chromium``, or a path in
``$CHROMIUM``). It starts a webserver and a daemon on an instance of its own, brings about what the page describes, and
writes docs/images. Nothing else is left behind.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(PROJECT))
os.chdir(PROJECT)

import dagster as dg  # noqa: E402
from PIL import Image  # noqa: E402
from playwright.sync_api import Page, sync_playwright  # noqa: E402

from tests.platform.deployment import Deployment, failed_partitions, materializations, runs_of  # noqa: E402
from tests.platform.trial import corrupt, write_run  # noqa: E402
from tests.platform.ui import user_interface  # noqa: E402
from zarr_core.points.manifest import load_manifest  # noqa: E402
from zarr_core.points.publish import publish  # noqa: E402

PORT = 3797
IMAGES = PROJECT / "docs" / "images"
SAMPLES, MANIFEST, REPORT = (
    dg.AssetKey(["ahmed_rans", name]) for name in ("zarr_samples", "manifest", "benchmark_report")
)


def main() -> None:
    """Bring about each case, and take its pictures."""
    with tempfile.TemporaryDirectory() as folder:
        deployment = Deployment(Path(folder))
        os.environ.update(deployment.environment())
        # A fresh database is created by one process: two at once fail.
        with dg.DagsterInstance.get() as instance:
            instance.get_runs()
            with deployment.daemon(), webserver(deployment), browser() as page, user_interface(instance) as ui:
                arrive(deployment, *range(1, 9), damaged=3)
                deployment.wait("the failure", lambda: failed_partitions(instance, SAMPLES) == {"run_3"})
                deployment.wait("the report", lambda: materializations(instance, REPORT))
                take(page, "failed", "/assets/ahmed_rans/zarr_samples?view=partitions&partition=run_3", "run_3")
                failed = runs_of(instance, SAMPLES)[-1]
                take(page, "reason", f"/runs/{failed.run_id}", "1 of 8 samples could not be converted")
                take(page, "not-loaded", "/assets/wings/not_loaded", "attributes.chunk_pionts")

                group = load_manifest(str(deployment.store)).samples["run_1"].relpath
                damage(deployment.store / group / "surface/pressure/c/0/0")
                refresh = definitions().resolve_job_def("ahmed_rans_refresh")
                refresh.execute_in_process(instance=instance, raise_on_error=False)
                take(page, "failed-check", "/assets/ahmed_rans/manifest?view=checks&checkDetail=checksums", "To repair")
                take(page, "held-back", "/assets/ahmed_rans/statistics?view=automation", "with each new generation")

                ui.materialize(SAMPLES, ["run_1"], {"zarr_core/force": "true"})
                deployment.wait("the repair", lambda: ui.checks(MANIFEST)["checksums"][0] == "SUCCEEDED")
                take(page, "repaired", f"/runs/{runs_of(instance, SAMPLES)[0].run_id}", "run_1 converted")

                publish("ahmedml", deployment.store, root=deployment.source, reconvert=True, chunk_points=8192)
                with deployment.hold("run_5"):
                    deployment.wait("the migration", deployment.holding)
                    detail = "/assets/ahmed_rans/manifest?view=checks&checkDetail=settings"
                    take(page, "migration", detail, "migration under way")
                deployment.wait("the end of the migration", lambda: all(run.is_finished for run in instance.get_runs()))

                with deployment.hold("run_12"):
                    arrive(deployment, 11, 12, 13)
                    deployment.wait("the conversion", deployment.holding)
                    others = {"run_11", "run_13"}
                    deployment.wait("the others", lambda: others <= set(instance.get_materialized_partitions(SAMPLES)))
                    (run,) = [run for run in runs_of(instance, SAMPLES) if not run.is_finished]
                    ui.terminate(run.run_id)
                    deployment.wait("the end", lambda: ui.status(run.run_id) == "CANCELED")
                take(page, "cancelled", f"/runs/{run.run_id}", "Canceled")


def definitions() -> dg.Definitions:
    """The definitions in the environment of the deployment."""
    from definitions import defs

    return defs()


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
    page.wait_for_timeout(4000)  # charts and folds are drawn after the text
    with Image.open(BytesIO(page.screenshot())) as picture:
        picture.quantize(64).save(IMAGES / f"{name}.png", optimize=True)
    print(IMAGES / f"{name}.png", flush=True)


if __name__ == "__main__":
    main()
