"""What converts the samples of a dataset is declared."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest
from zarr_core.platform.resources.pools import ConversionPool, PoolDeclaration

from tests.platform.trial import Trial, write_run

CLUSTER = "dask_jobqueue.SLURMCluster"
OPTIONS = {"cores": 1, "memory": "4GB"}


class Threads(ThreadPoolExecutor):
    """Notes that it was used."""

    def __init__(self, seen: list[object]) -> None:
        super().__init__(1)
        self._seen = seen

    def submit(self, *call: Any, **options: Any) -> Future[Any]:
        if self._seen[-1] != "works":
            self._seen.append("works")
        return super().submit(*call, **options)


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """What happens to a cluster that is declared, about which there is a warning."""
    seen: list[object] = []

    class Cluster:
        scheduler_address = "tcp://127.0.0.1:8786"

        def __init__(self, **options: object) -> None:
            seen.append(options)

        def __enter__(self) -> Cluster:
            return self

        def __exit__(self, *_: object) -> None:
            seen.append("closed")

        def scale(self, workers: int) -> None:
            seen.append(workers)

    @contextmanager
    def dask_executor(address: str, warn: Callable[[str], object]) -> Iterator[Executor]:
        seen.append(address)
        warn("no worker yet")
        with Threads(seen) as threads:
            yield threads

    monkeypatch.setattr("zarr_core.platform.resources.pools.import_dotted", {CLUSTER: Cluster}.__getitem__)
    monkeypatch.setattr("zarr_core.platform.resources.pools.dask_executor", dask_executor)
    return seen


@pytest.mark.slow
def test_samples_are_converted_and_verified_by_the_declared_cluster(trial: Trial, seen: list[object]) -> None:
    """``options`` reach the class, ``scale`` workers are started, and all calls go to the executor of its scheduler."""
    write_run(trial.source, 1)
    pool = PoolDeclaration(kind="dask", cluster=CLUSTER, options=OPTIONS, scale=3)
    declared = Trial(trial.dataset.model_copy(update={"pool": pool}), trial.instance)
    assert declared.run("look").success
    calls = [OPTIONS, 3, "tcp://127.0.0.1:8786", "works", "closed"]
    converted = declared.run("convert", "run_1", pool=ConversionPool())
    assert converted.success
    assert seen == calls
    warnings = [
        entry.user_message for entry in trial.instance.all_logs(converted.run_id) if entry.level == logging.WARNING
    ]
    assert "no worker yet" in warnings
    assert declared.publish().success
    seen.clear()
    assert declared.run("verify", pool=ConversionPool()).success
    assert seen == calls
    assert declared.materialization("deep_verification").metadata["samples"].value == 1


@pytest.mark.parametrize(
    "pool", [{"kind": "dask"}, {"kind": "dask", "address": "tcp://a:1", "cluster": "b.C"}, {"address": "tcp://a:1"}]
)
def test_a_pool_that_is_declared_by_halves_is_refused(pool: dict[str, str]) -> None:
    with pytest.raises(ValueError, match="pool: "):
        PoolDeclaration(**pool)
