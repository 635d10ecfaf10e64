"""Fixtures that several test modules share."""

from __future__ import annotations

import atexit
import gc
import math
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import fsspec.config
import pytest

from tests.helpers import examples  # noqa: F401  (sets the profile of Hypothesis)
from tests.helpers.fork_server import one_fork_server, start_early
from tests.helpers.servers import s3
from tests.helpers.servers.clouds import AzureServer, GoogleServer
from tests.helpers.servers.oci import NAMESPACE, OciServer
from tests.helpers.skipped import SkippedTests

# The slowest files, in this order: they run first, so that no worker is left with one at the end.
_LONGEST = (
    "tests/platform/test_daemon.py",
    "tests/matrix/ingest/test_loader.py",
    "tests/points/convert/test_writer.py",
    "tests/platform/test_conditions.py",
    "tests/loader/test_loader.py",
    "tests/attacks/test_attacks.py",
    "tests/points/stage/test_interruptions.py",
    "tests/points/read/engines/test_packed.py",
    "tests/matrix/test_crashes.py",
    "tests/points/read/engines/test_engines.py",
    "tests/platform/test_wide_matrix.py",
    "tests/deploy/test_slurm.py",
    "tests/platform/test_chain.py",
    "tests/shootout/test_run.py",
    "tests/versioning/test_generations.py",
    "tests/storage/test_retries.py",
    "tests/platform/test_demo.py",
    "tests/platform/test_migration.py",
    "tests/storage/test_credentials.py",
    "tests/points/convert/test_dask.py",
    "tests/_util/test_time_limit.py",
    "tests/points/read/engines/test_hostile_archives.py",
    "tests/platform/test_behind.py",
    "tests/points/convert/test_conversion.py",
    "tests/platform/test_definitions.py",
    "tests/benchmark/test_benchmark.py",
    "tests/cli/test_command.py",
    "tests/cli/test_progress.py",
    "tests/shootout/test_formats.py",
    "tests/platform/test_failures.py",
    "tests/matrix/test_versioning.py",
    "tests/deploy/test_postgres.py",
)


# The modules of all tests and the libraries that they import are a million objects, which live until the end: garbage
# collections while they are imported, and of them later, took a tenth of the time of all tests.
gc.disable()


def pytest_configure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):  # only the process that the workers of xdist report to
        config.pluginmanager.register(SkippedTests(config))
    else:
        start_early()


def pytest_collection_finish() -> None:
    """Look only at what the tests make from now on, and not as often as CPython, which took a twentieth of the time."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 50)
    gc.enable()
    # Some libraries report what was not collected at the end, after pytest's own last collections.
    atexit.register(gc.unfreeze)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run the longest files first; Makefile tells xdist to keep this order, and to give each file to one worker.

    Without TEST_EXTRAS, slow tests are skipped. Tests that use S3 are marked: by a fixture or, where
    that depends on a parameter, by the client in their ids.
    """
    place = {name: number for number, name in enumerate(_LONGEST)}
    items.sort(key=lambda item: place.get(item.nodeid.partition("::")[0], len(place)))
    for item in items:
        if item.get_closest_marker("slow") and "TEST_EXTRAS" not in os.environ:
            item.add_marker(pytest.mark.skip(reason="slow; `make test-extras` runs it"))
        if "s3_server" in getattr(item, "fixturenames", ()) or re.search("(?<![a-z])s3|obstore", item.name):
            item.add_marker("s3")


@pytest.fixture(autouse=True, scope="session")
def _no_waiting_for_the_disk() -> Iterator[None]:
    """``fsync`` and ``sync`` do nothing in this process: they protect against power cuts, which no test simulates.

    ``sync`` waits for the writes of every process on the machine, which may take longer than all tests.
    """
    before = os.fsync, os.sync
    os.fsync, os.sync = lambda _: None, lambda: None
    yield
    os.fsync, os.sync = before


@pytest.fixture(autouse=True, scope="session")
def _no_commits_by_the_clock() -> Iterator[None]:
    """A long conversion or copy commits once a minute: on a busy machine, that would add generations to a short one."""
    import zarr_core.points.convert.conversion
    import zarr_core.points.stage.store

    with pytest.MonkeyPatch.context() as patch:
        for module in (zarr_core.points.convert.conversion, zarr_core.points.stage.store):
            patch.setattr(module, "_COMMIT_SECONDS", math.inf)
        yield


@pytest.fixture(autouse=True, scope="session")
def _one_fork_server() -> Iterator[None]:
    with one_fork_server():
        yield


@contextmanager
def _variables(names: dict[str, str]) -> Iterator[None]:
    """Set environment variables for the duration of a block."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in names.items():
            patch.setenv(name, value)
        yield


@pytest.fixture(scope="session")
def s3_server() -> Iterator[None]:
    """An S3 server on loopback in this process, named by the environment as users name theirs.

    ``TEST_S3_ENDPOINT`` names another one, which is then used with the credentials in the environment.
    """
    if endpoint := os.environ.get("TEST_S3_ENDPOINT"):
        with _variables({"AWS_ENDPOINT_URL": endpoint}):
            yield
        return
    with s3.s3_server() as url, _variables({"AWS_ENDPOINT_URL": url, **s3.CREDENTIALS}):
        yield


@pytest.fixture
def s3_root(s3_server: None) -> str:
    """An empty prefix in a bucket of its own."""
    import s3fs

    # A new client takes a tenth of a second, so the next test has the same ones.
    cached = s3fs.S3FileSystem._cache.values()
    if any(fs._s3 is not None and fs._s3.meta.endpoint_url != os.environ["AWS_ENDPOINT_URL"] for fs in cached):
        s3fs.S3FileSystem.clear_instance_cache()
    bucket = f"bucket-{os.urandom(4).hex()}"
    s3fs.S3FileSystem().call_s3("create_bucket", Bucket=bucket)
    return f"s3://{bucket}/store"


@pytest.fixture(scope="session")
def oci_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OciServer]:
    """An OCI object storage on loopback in this process, named by the environment as users name theirs."""
    with OciServer() as server:
        names = server.environment(tmp_path_factory.mktemp("oci"))
        with _variables(names):
            fsspec.config.set_conf_env(fsspec.config.conf, names)
            yield server
        fsspec.config.conf.pop("oci")


@pytest.fixture
def oci_root(oci_server: OciServer) -> str:
    """An empty prefix in a bucket of its own."""
    import ocifs

    ocifs.OCIFileSystem.clear_instance_cache()  # those that know another server's address
    return f"oci://{_new_bucket(oci_server)}@{NAMESPACE}/store"


_Cloud = TypeVar("_Cloud", GoogleServer, AzureServer)


@contextmanager
def _running(server: _Cloud) -> Iterator[_Cloud]:
    """A server on loopback in this process, named by the environment as users name theirs."""
    pytest.importorskip("obstore", reason="needs the obstore extra")
    with server, _variables(server.environment()):
        yield server


@pytest.fixture(scope="session")
def gs_server() -> Iterator[GoogleServer]:
    """A Google Cloud Storage."""
    with _running(GoogleServer()) as server:
        yield server


@pytest.fixture
def gs_root(gs_server: GoogleServer) -> str:
    """An empty prefix in a bucket of its own."""
    return f"gs://{_new_bucket(gs_server)}/store"


@pytest.fixture(scope="session")
def az_server() -> Iterator[AzureServer]:
    """An Azure Blob Storage."""
    with _running(AzureServer()) as server:
        yield server


@pytest.fixture
def az_root(az_server: AzureServer) -> str:
    """An empty prefix in a container of its own."""
    return f"az://{_new_bucket(az_server)}/store"


def _new_bucket(server: OciServer) -> str:
    bucket = f"bucket-{os.urandom(4).hex()}"
    server.buckets[bucket] = {}
    return bucket


@pytest.fixture
def memory_root() -> str:
    """An empty place in this process's memory filesystem."""
    return f"memory://{os.urandom(4).hex()}"


@pytest.fixture(params=["directory", "packed"])
def layout(request: pytest.FixtureRequest) -> str:
    """How samples are stored."""
    return str(request.param)


@pytest.fixture(params=["local", "memory", "s3", "oci", "gs", "az"])
def any_root(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """An empty root on each kind of location."""
    if request.param == "local":
        return str(tmp_path / "store")
    return str(request.getfixturevalue(f"{request.param}_root"))
