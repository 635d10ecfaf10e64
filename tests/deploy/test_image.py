"""The image of ``deploy/Dockerfile``, built by buildah, and its entry point."""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.deploy.test_files import dockerfile_command
from tests.helpers.waiting import wait_for

PROJECT = Path(__file__).resolve().parents[2]
#: buildah and its options, as "buildah --storage-driver vfs", and a base image: of Debian with Python, pip and venv.
BUILDAH, BASE = shlex.split(os.environ.get("TEST_BUILDAH", "buildah")), os.environ.get("TEST_IMAGE_BASE")
#: Options of the build, as "--isolation chroot --volume /opt/wheels:/opt/wheels:ro".
OPTIONS = shlex.split(os.environ.get("TEST_IMAGE_OPTIONS", ""))
PORT = "4017"

pytestmark = pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which(BUILDAH[0]) is None or BASE is None,
    reason="needs root, buildah, and a base image in TEST_IMAGE_BASE: without a registry there is none to pull",
)


def buildah(*arguments: str) -> str:
    done = subprocess.run([*BUILDAH, *arguments], cwd=PROJECT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    return done.stdout.strip()


@pytest.fixture
def container() -> Iterator[str]:
    """A container of the image, which is built if TEST_IMAGE does not name one that is."""
    image = os.environ.get("TEST_IMAGE", "zarr-core:test")
    if "TEST_IMAGE" not in os.environ:
        assert BASE is not None
        arguments = ["--build-arg", f"BASE={BASE}", "--layers=false", "-f", "deploy/Dockerfile", "-t", image, *OPTIONS]
        buildah("bud", *arguments, ".")
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
