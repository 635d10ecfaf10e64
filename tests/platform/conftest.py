"""A declared dataset over an empty folder, and a Dagster instance of the test's own."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from pathlib import Path

import dagster as dg
import pytest
from zarr_core.platform.assets.dataset import DatasetDeclaration
from zarr_core.platform.resources.alerts import MAIL_FROM, MAIL_TO, SMTP, WEBHOOK

import tests.helpers.quick_dagster  # noqa: F401
from definitions import defs
from tests.helpers.servers.alerts import MailServer, Webhook, serving
from tests.platform.deployment import Deployment
from tests.platform.trial import Trial


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", dg.BetaWarning)
        yield


@pytest.fixture
def dataset(tmp_path: Path) -> DatasetDeclaration:
    """A dataset whose source is an empty folder."""
    (tmp_path / "source").mkdir()
    declared = DatasetDeclaration(
        name="trial",
        kind="ahmedml",
        source="source",
        store="store",
        report="report",
        workers=1,
        settle_seconds=0.02,
        retry_seconds=0,
    )
    return declared.with_absolute_paths(tmp_path, tmp_path)


@pytest.fixture
def instance() -> Iterator[dg.DagsterInstance]:
    """An instance in memory, which takes half the time of one on disk; the daemon and the demo use one on disk."""
    with dg.DagsterInstance.ephemeral() as temporary:
        yield temporary


@pytest.fixture
def on_disk(tmp_path: Path) -> Iterator[dg.DagsterInstance]:
    """An instance on disk, whose event log differs from the one in memory."""
    with dg.DagsterInstance.local_temp(str(tmp_path), {"telemetry": {"enabled": False}}) as temporary:
        yield temporary


@pytest.fixture
def trial(dataset: DatasetDeclaration, instance: dg.DagsterInstance) -> Trial:
    """The dataset with its jobs."""
    return Trial(dataset, instance)


@pytest.fixture(scope="module")
def deployment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    """The daemon has looked at both sources, which are empty."""
    deployment = Deployment(tmp_path_factory.mktemp("deployment"))
    with deployment.daemon():
        for sensor in ("ahmed_rans_arrivals", "methylation_batches"):
            deployment.wait(f"the first tick of {sensor}", lambda name=f"Sensor {sensor}": name in deployment.logged())
        yield deployment


@pytest.fixture(scope="module")
def location(deployment: Deployment) -> Iterator[dg.Definitions]:
    """The definitions of both datasets in this process, as a command line loads them."""
    with pytest.MonkeyPatch.context() as patched:
        for name, value in deployment.environment().items():
            patched.setenv(name, value)
        yield defs()


@pytest.fixture
def nothing_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leaves out the report, which takes most of the time of a refresh."""
    monkeypatch.setattr("zarr_core.benchmark.run_benchmark", lambda *_, **__: {})
    monkeypatch.setattr("zarr_core.platform.assets.report._metadata", lambda *_: {})


@pytest.fixture
def webhook(monkeypatch: pytest.MonkeyPatch) -> Iterator[Webhook]:
    """The address that alerts go to."""
    made = Webhook()
    monkeypatch.setenv(WEBHOOK, made.address)
    with serving(made.server):
        yield made


@pytest.fixture
def mail_server(monkeypatch: pytest.MonkeyPatch) -> Iterator[MailServer]:
    """The server that takes alerts by e-mail."""
    made = MailServer()
    for name, value in ((SMTP, made.address), (MAIL_FROM, "dagster@example.org"), (MAIL_TO, "a@example.org")):
        monkeypatch.setenv(name, value)
    with serving(made.server):
        yield made
