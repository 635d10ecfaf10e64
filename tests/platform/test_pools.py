"""What converts the samples of a dataset is declared."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import contextmanager

import pytest

from resources.pools import ConversionPool, PoolDeclaration
from tests.platform.trial import Trial, write_run


def test_samples_are_converted_by_the_declared_cluster(trial: Trial, monkeypatch: pytest.MonkeyPatch) -> None:
    """``options`` reach the class, ``scale`` workers are started, and all calls go to the executor of its scheduler."""
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
    def dask_executor(address: str) -> Iterator[Executor]:
        seen.append(address)
        with ThreadPoolExecutor(1) as threads:
            yield threads

    monkeypatch.setattr("resources.pools.import_dotted", {"dask_jobqueue.SLURMCluster": Cluster}.__getitem__)
    monkeypatch.setattr("resources.pools.dask_executor", dask_executor)
    write_run(trial.source, 1)
    options = {"cores": 1, "memory": "4GB"}
    pool = PoolDeclaration(kind="dask", cluster="dask_jobqueue.SLURMCluster", options=options, scale=3)
    declared = Trial(trial.dataset.model_copy(update={"pool": pool}), trial.instance)
    assert declared.run("look").success
    assert declared.run("convert", "run_1", pool=ConversionPool()).success
    assert seen == [options, 3, "tcp://127.0.0.1:8786", "closed"]


@pytest.mark.parametrize(
    "pool", [{"kind": "dask"}, {"kind": "dask", "address": "tcp://a:1", "cluster": "b.C"}, {"address": "tcp://a:1"}]
)
def test_a_pool_that_is_declared_by_halves_is_refused(pool: dict[str, str]) -> None:
    with pytest.raises(ValueError, match="pool: "):
        PoolDeclaration(**pool)
