"""The image of ``deploy/Dockerfile``, built by buildah, and its entry point."""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from definitions import DATASETS
from tests.deploy.test_files import dockerfile_command
from tests.helpers.waiting import wait_for
from tests.platform.project import WINGS
from zarr_core._util.units import format_size

PROJECT = Path(__file__).resolve().parents[2]
#: buildah and its options, as "buildah --storage-driver vfs", and a base image: of Debian with Python, pip and venv.
BUILDAH, BASE = shlex.split(os.environ.get("TEST_BUILDAH", "buildah")), os.environ.get("TEST_IMAGE_BASE")
#: Options of the build, as "--isolation chroot --volume /opt/wheels:/opt/wheels:ro".
OPTIONS = shlex.split(os.environ.get("TEST_IMAGE_OPTIONS", ""))
#: What building takes at once where layers are copied, as by the storage driver vfs: 10.6 GB measured.
NEEDED_BYTES = 12 * 10**9
PORT = "4017"
LIST_ASSETS = """
from definitions import defs
for key in defs().resolve_asset_graph().get_all_asset_keys():
    print(key.to_user_string())
"""

pytestmark = pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which(BUILDAH[0]) is None or BASE is None,
    reason="needs root, buildah, and a base image in TEST_IMAGE_BASE: without a registry there is none to pull",
)


def buildah(*arguments: str) -> str:
    done = subprocess.run([*BUILDAH, *arguments], cwd=PROJECT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    return done.stdout.strip()


@pytest.fixture(scope="module")
def image() -> str:
    """The image, which is built if TEST_IMAGE does not name one that is."""
    if "TEST_IMAGE" in os.environ:
        return os.environ["TEST_IMAGE"]
    assert BASE is not None
    free = shutil.disk_usage(tempfile.gettempdir()).free
    if free < NEEDED_BYTES:
        pytest.skip(f"needs {format_size(NEEDED_BYTES)} of free disk for an image, and {format_size(free)} are free")
    name = "zarr-core:test"
    arguments = ["--build-arg", f"BASE={BASE}", "--layers=false", "-f", "deploy/Dockerfile", "-t", name, *OPTIONS]
    buildah("bud", *arguments, ".")
    return name


@pytest.fixture
def container(image: str) -> Iterator[str]:
    """A container of the image."""
    made = buildah("from", image)
    yield made
    buildah("rm", made)


def test_the_entry_point_loads_the_project(container: str, tmp_path: Path) -> None:
    inside = ["run", container, "--"]
    assert buildah(*inside, "id", "-un") == "dagster"
    assert buildah(*inside, "zarr-core", "--version")
    buildah(*inside, "touch", "demo/report")
    command = [PORT if word == "4000" else word for word in dockerfile_command()]
    with (tmp_path / "log").open("wb") as log:
        server = subprocess.Popen(
            [*BUILDAH, "run", "--env", "DAGSTER_HOME=", container, "--", *command],
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    try:
        check = [*BUILDAH, *inside, "dagster", "api", "grpc-health-check", "--port", PORT]
        wait_for(lambda: subprocess.run(check, capture_output=True).returncode == 0 or server.poll() is not None)
        assert server.poll() is None, (tmp_path / "log").read_text()
    finally:
        os.killpg(server.pid, signal.SIGTERM)
        server.wait()
    assert "Started Dagster code server" in (tmp_path / "log").read_text()


def test_declarations_are_those_of_a_mounted_folder(container: str, tmp_path: Path) -> None:
    text = "\n".join(["type: zarr_core.platform.PointDataset", "attributes:", *WINGS]) + "\n"
    declaration = tmp_path / "datasets" / "wings" / "defs.yaml"
    declaration.parent.mkdir(parents=True)
    declaration.write_text(text)
    mounted = ["--volume", f"{tmp_path / 'datasets'}:/datasets:ro", "--env", f"{DATASETS}=/datasets"]
    printed = buildah("run", *mounted, "--env", "DAGSTER_HOME=", container, "--", "python3", "-c", LIST_ASSETS)
    keys = set(printed.splitlines())
    assert {"wings/source_samples", "wings/manifest"} <= keys
    assert {key.partition("/")[0] for key in keys} == {"wings"}, "and not those of the image"
