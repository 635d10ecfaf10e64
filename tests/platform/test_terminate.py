"""A terminated run ends as canceled at once, keeps what it made and makes nothing more."""

from __future__ import annotations

import itertools
import os
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from zarr_core.platform.assets.retries import retried
from zarr_core.platform.assets.wide_matrix import batches
from zarr_core.platform.resources.pools import ConversionPool
from zarr_core.platform.sensors.failures import failed_runs
from zarr_core.platform.sensors.messages import WEBSERVER

from tests.helpers.servers.alerts import Webhook
from tests.helpers.waiting import LIMIT_SECONDS, wait_for
from tests.platform.matrix_trial import MatrixTrial, declare
from tests.platform.test_failures import Ended, published
from tests.platform.trial import Trial, write_run


@pytest.fixture(autouse=True)
def _handler_of_sigterm() -> Iterator[None]:
    """Restores it: Dagster leaves SIGTERM ignored after an interrupt, and processes would inherit that."""
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


def terminate(instance: dg.DagsterInstance, job_name: str) -> None:
    """What *Terminate* in the UI does to a run of this process."""
    (run,) = [run for run in instance.get_runs() if run.job_name == job_name]
    instance.report_run_canceling(run)
    # To the main thread, where Python handles it: sent to the process, another thread may receive it, and later.
    signal.pthread_kill(threading.main_thread().ident, signal.SIGTERM)


def status(instance: dg.DagsterInstance, job_name: str) -> dg.DagsterRunStatus:
    (run,) = [run for run in instance.get_runs() if run.job_name == job_name]
    return run.status


class TerminatingExecutor(Executor):
    """Converts one sample after another in a thread. The second one terminates the run once the first is recorded."""

    def __init__(self, trial: Trial, pool: ThreadPoolExecutor, ended: threading.Event) -> None:
        self.trial, self.pool, self.ended, self.submitted = trial, pool, ended, 0

    def submit(self, function: Callable[..., Any], /, *arguments: Any, **named: Any) -> Future[Any]:
        self.submitted += 1
        return self.pool.submit(self.terminate if self.submitted == 2 else function, *arguments, **named)

    def terminate(self, *arguments: Any) -> None:
        wait_for(self.trial.converted)
        terminate(self.trial.instance, "trial_convert")
        wait_for(self.ended.is_set)


def test_a_terminated_conversion_keeps_what_it_converted(trial: Trial) -> None:
    for number in (1, 2, 3):
        write_run(trial.source, number)
    assert trial.run("look").success

    attempts = itertools.count()

    class Terminating(ConversionPool):
        """Terminates the first attempt: a second one would convert everything."""

        @contextmanager
        def executor(self, workers: int, *_: object) -> Iterator[Executor]:
            ended = threading.Event()
            with ThreadPoolExecutor(1) as pool:
                try:
                    yield pool if next(attempts) else TerminatingExecutor(trial, pool, ended)
                finally:
                    ended.set()

    trial.run("convert", "run_1", "run_3", pool=Terminating())
    assert status(trial.instance, "trial_convert") is dg.DagsterRunStatus.CANCELED
    assert len(trial.converted()) == 1
    assert {path.name for path in (Path(trial.dataset.store) / "samples").iterdir()} == trial.converted()


def test_a_terminated_load_keeps_what_it_loaded(
    tmp_path: Path, instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    trial = MatrixTrial(declare(tmp_path), instance)
    for batch_id in ("b0", "b1", "b2"):
        trial.write(batch_id)
    assert trial.run("look").success
    load = batches._load

    def terminating(loader: Any, batch_id: str) -> dict[str, Any]:
        if batch_id == "b1":
            # Once: a second attempt would load everything.
            monkeypatch.setattr(batches, "_load", load)
            terminate(instance, "trial_load")
        return load(loader, batch_id)

    monkeypatch.setattr(batches, "_load", terminating)
    trial.run("load", "b0", "b2")
    assert status(instance, "trial_load") is dg.DagsterRunStatus.CANCELED
    assert trial.loaded() == {"b0"}


def test_a_run_that_is_terminated_during_an_import_ends_in_a_sentence(instance: dg.DagsterInstance) -> None:
    """Extension modules make an ``ImportError`` of the interrupt."""

    @dg.asset
    def importing(context) -> None:  # type: ignore[no-untyped-def]  # Dagster resolves no annotation in a function
        with retried(context, 0):
            instance.report_run_canceling(context.run)
            raise ImportError("numpy.core.multiarray failed to import")

    result = dg.materialize([importing], instance=instance, raise_on_error=False)
    run = instance.get_run_by_id(result.run_id)
    assert run is not None
    assert run.status is dg.DagsterRunStatus.CANCELED
    messages = [event.user_message for event in instance.all_logs(run.run_id)]
    assert "The run was terminated (ImportError: numpy.core.multiarray failed to import)" in messages


def test_the_last_event_of_a_cancelled_run_is_a_sentence_and_no_alert_is_sent(
    instance: dg.DagsterInstance, webhook: Webhook, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Wherever the interrupt came: Dagster's own last events are tracebacks."""

    @dg.asset
    def importing(context) -> None:  # type: ignore[no-untyped-def]  # Dagster resolves no annotation in a function
        instance.report_run_canceling(context.run)
        raise ImportError("numpy.core.multiarray failed to import")

    monkeypatch.setenv(WEBSERVER, "https://dagster.example.org")
    ended = Ended(failed_runs, instance, dg.Definitions([importing]))
    ended.tick()
    run = ended.run(importing)
    ended.tick()
    found = instance.get_run_by_id(run.run_id)
    assert found is not None
    assert found.status is dg.DagsterRunStatus.CANCELED
    last = instance.all_logs(run.run_id)[-1].dagster_event
    assert last is not None
    sentence = f"run {run.run_id[:8]} of importing was cancelled; its errors follow from that."
    assert str(last.message).startswith(sentence)
    assert str(last.message).endswith(f" (https://dagster.example.org/runs/{run.run_id})")
    assert webhook.texts == []
    ended.tick()
    assert len(ended.messages(run)) == 1, "once"


def test_a_cancelled_run_whose_process_died_says_so(instance: dg.DagsterInstance, webhook: Webhook) -> None:
    ended = Ended(failed_runs, instance)
    ended.tick()
    job = ended.definitions.resolve_implicit_global_asset_job_def()
    run = instance.create_run_for_job(job, asset_selection={published.key})
    instance.report_run_canceling(run)
    instance.report_run_failed(run)
    ended.tick()
    (text,) = webhook.texts
    assert f"run {run.run_id[:8]} of published was cancelled, and failed before it ended: its process died" in text


def test_an_error_of_a_run_that_nobody_terminated_stays_an_error(instance: dg.DagsterInstance) -> None:
    @dg.asset
    def importing(context) -> None:  # type: ignore[no-untyped-def]  # Dagster resolves no annotation in a function
        with retried(context, 0):
            raise ImportError("numpy.core.multiarray failed to import")

    run = dg.materialize([importing], instance=instance, raise_on_error=False).dagster_run
    assert run.status is dg.DagsterRunStatus.FAILURE


def wait_for_a_signal(started: str, survived: str) -> None:
    """Runs in a worker process until it is killed; notes it if that does not happen."""
    signal.signal(signal.SIGALRM, lambda *_: (Path(survived).touch(), os._exit(1)))
    signal.alarm(LIMIT_SECONDS)
    Path(started).write_text("started")  # a pipe: returns when the test reads it
    signal.pause()


@pytest.mark.slow
def test_an_interrupt_kills_the_worker_processes(tmp_path: Path) -> None:
    started, survived = tmp_path / "started", tmp_path / "survived"
    os.mkfifo(started)

    def interrupted() -> None:
        with ConversionPool().executor(1) as pool:
            pool.submit(wait_for_a_signal, str(started), str(survived))
            assert started.read_text() == "started"
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert not survived.exists()
