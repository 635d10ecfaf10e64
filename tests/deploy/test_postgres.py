"""The platform on the instance of ``deploy/production``: PostgreSQL, and the output of runs in a bucket."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import boto3
import dagster as dg
import pytest
import yaml
from zarr_core.platform.assets.dataset import DatasetDeclaration
from zarr_core.platform.resources.pools import ConversionPool

from tests.helpers.servers.postgres import DATABASE, USER, Postgres, postgres, programs
from tests.helpers.stores import objects
from tests.platform.conftest import dataset  # noqa: F401
from tests.platform.trial import PROJECT, Trial, write_run
from zarr_core.convert import convert
from zarr_core.points.store.head import load_manifest
from zarr_core.storage import Storage

pytestmark = pytest.mark.skipif(programs() is None, reason="needs the programs of PostgreSQL (Debian: postgresql)")


@pytest.fixture(scope="module")
def server() -> Iterator[Postgres]:
    with postgres() as server:
        yield server


@pytest.fixture
def trial(
    dataset: DatasetDeclaration,  # noqa: F811
    server: Postgres,
    s3_server: None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Trial]:
    boto3.client("s3").create_bucket(Bucket="logs")
    (tmp_path / "home").mkdir()
    settings = yaml.safe_load((PROJECT / "deploy" / "production" / "dagster.yaml").read_text())
    # Otherwise a thread of the interrupted run goes on uploading when the test has ended.
    del settings["compute_logs"]["config"]["upload_interval"]
    (tmp_path / "home" / "dagster.yaml").write_text(yaml.safe_dump(settings))
    environment = {
        "DAGSTER_PG_HOST": "127.0.0.1",
        "DAGSTER_PG_PORT": str(server.port),
        "DAGSTER_PG_USERNAME": USER,
        "DAGSTER_PG_PASSWORD": "",
        "DAGSTER_PG_DB": DATABASE,
        "DAGSTER_LOGS_BUCKET": "logs",
    }
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    with dg.DagsterInstance.from_config(str(tmp_path / "home")) as instance:
        yield Trial(dataset, instance)


class KillingPool(ConversionPool):
    """Converts in one thread, and kills the database before the second sample."""

    @contextmanager
    def executor(self, *_: object) -> Iterator[Executor]:
        with ThreadPoolExecutor(1) as threads:
            yield _Killing(threads)


class _Killing(Executor):
    server: Postgres

    def __init__(self, threads: Executor) -> None:
        self.threads, self.calls = threads, 0

    def submit(self, call: Any, /, *arguments: Any, **options: Any) -> Future[Any]:
        self.calls += 1
        if self.calls == 2:
            self.server.kill()
        return self.threads.submit(call, *arguments, **options)


@pytest.mark.slow
def test_a_killed_database_ends_after_its_restart_in_the_same_store(
    trial: Trial, server: Postgres, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in (1, 2, 3):
        write_run(trial.source, number)
    assert trial.run("look").success
    monkeypatch.setattr(_Killing, "server", server, raising=False)
    # Dagster tries each connection six times, and waits for twelve seconds in between.
    monkeypatch.setattr("dagster_postgres.utils.time", SimpleNamespace(sleep=lambda _: None))
    with pytest.raises(Exception, match="(?i)connection|server"):
        trial.run("convert", "run_1", "run_3", pool=KillingPool())
    server.start()
    assert trial.run("convert", "run_1", "run_3").success
    assert trial.publish().success
    assert trial.converted() == {"run_1", "run_2", "run_3"}
    assert set(load_manifest(trial.dataset.store).samples) == {"run_1", "run_2", "run_3"}

    convert("ahmedml", tmp_path / "sequential", source_url=str(trial.source))
    made, expected = (
        {name: data for name, data in objects(root).items() if name.startswith("samples/")}
        for root in (trial.dataset.store, tmp_path / "sequential")
    )
    assert made == expected
    assert any(name.startswith("dagster/") for name in Storage("s3://logs").list()), "the output of the runs"
