"""Failed runs, failed checks, failing sensors and stale datasets are logged by name, and sent as alerts."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import dagster as dg
import pytest
from dagster._core.definitions.freshness import FreshnessState, FreshnessStateChange
from dagster._core.definitions.run_request import InstigatorType
from dagster._core.remote_origin import (
    InProcessCodeLocationOrigin,
    RemoteInstigatorOrigin,
    RemoteRepositoryOrigin,
)
from dagster._core.scheduler.instigation import (
    InstigatorState,
    InstigatorStatus,
    SensorInstigatorData,
    TickData,
    TickStatus,
)
from dagster._core.types.loadable_target_origin import LoadableTargetOrigin
from dagster._utils.error import SerializableErrorInfo

from resources.alerts import WEBHOOK, Alerts
from sensors.failures import failed_checks, failed_runs, failing_sensors, stale_datasets


class Webhook:
    """A server on the loopback interface that takes alerts.

    Attributes:
        texts: of the alerts that it took.
        statuses: what it answers to the next requests, instead of 200.
    """

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.statuses: list[int] = []
        webhook = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                document = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                status = webhook.statuses.pop(0) if webhook.statuses else 200
                if status == 200:
                    assert self.headers["Content-Type"] == "application/json"
                    assert document.keys() == {"text"}
                    webhook.texts.append(document["text"])
                self.send_response(status)
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.address = f"http://127.0.0.1:{self.server.server_port}/services/secret"


@pytest.fixture
def webhook(monkeypatch: pytest.MonkeyPatch) -> Iterator[Webhook]:
    """The address that alerts go to."""
    made = Webhook()
    monkeypatch.setenv(WEBHOOK, made.address)
    thread = threading.Thread(target=made.server.serve_forever)
    thread.start()
    yield made
    made.server.shutdown()
    thread.join()
    made.server.server_close()


@pytest.fixture
def look(instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[str, list[str]]]:
    """Evaluates a sensor, which continues from its cursor; returns the text of the tick, and what it logged."""
    cursors: dict[str, str | None] = {}

    def tick(sensor: dg.SensorDefinition, repository: dg.RepositoryDefinition | None = None) -> tuple[str, list[str]]:
        logged: list[str] = []
        context = dg.build_sensor_context(
            instance, cursor=cursors.get(sensor.name), repository_def=repository, resources={"alerts": Alerts()}
        )
        monkeypatch.setattr(type(context), "log", type("Log", (), {"error": staticmethod(logged.append)}))
        result = sensor(context)
        assert isinstance(result, dg.SensorResult)
        assert result.skip_reason
        cursors[sensor.name] = result.cursor
        return result.skip_reason.skip_message or "", logged

    return tick


def tick(instance: dg.DagsterInstance, name: str, status: TickStatus, message: str | None = None) -> None:
    """A running sensor and one of its ticks."""
    location = InProcessCodeLocationOrigin(LoadableTargetOrigin(module_name="definitions"))
    origin = RemoteInstigatorOrigin(RemoteRepositoryOrigin(location, "repository"), name)
    state = InstigatorState(
        origin, InstigatorType.SENSOR, InstigatorStatus.RUNNING, SensorInstigatorData(sensor_type=None)
    )
    if not instance.get_instigator_state(state.instigator_origin_id, state.selector_id):
        instance.add_instigator_state(state)
    ticks = instance.get_ticks(state.instigator_origin_id, state.selector_id)
    cause = SerializableErrorInfo(message, [], "Failure") if message else None
    error = SerializableErrorInfo("Error occurred during the evaluation", [], "Error", cause) if cause else None
    instance.create_tick(
        TickData(
            state.instigator_origin_id,
            name,
            InstigatorType.SENSOR,
            status,
            timestamp=float(len(ticks) + 1),
            error=error,
            selector_id=state.selector_id,
        )
    )


@pytest.fixture
def instance(tmp_path: Path) -> Iterator[dg.DagsterInstance]:
    """An instance on disk, because one in memory records no ticks."""
    with dg.DagsterInstance.local_temp(str(tmp_path), {"telemetry": {"enabled": False}}) as temporary:
        yield temporary


def test_failing_sensors_are_named_once_per_error(
    instance: dg.DagsterInstance, look: Callable[..., tuple[str, list[str]]], webhook: Webhook
) -> None:
    tick(instance, "a_arrivals", TickStatus.FAILURE, "the bucket is gone\nsecond line")
    tick(instance, "b_arrivals", TickStatus.SKIPPED)
    first = "a_arrivals fails: the bucket is gone\nsecond line"
    webhook.statuses = [403]
    with pytest.raises(dg.Failure, match="the address in .ALERT_WEBHOOK did not take an alert: status 403") as error:
        look(failing_sensors)
    assert "secret" not in str(error.getrepr(chain=True, showlocals=False))
    assert look(failing_sensors) == ("a_arrivals fails", [first]), "reported again, because it was not sent"
    tick(instance, "a_arrivals", TickStatus.STARTED)
    assert look(failing_sensors) == ("a_arrivals fails", [])
    tick(instance, "a_arrivals", TickStatus.FAILURE, "another reason")
    webhook.statuses = [503]  # is sent again
    assert look(failing_sensors) == ("a_arrivals fails", ["a_arrivals fails: another reason"])
    tick(instance, "a_arrivals", TickStatus.SKIPPED)
    assert look(failing_sensors) == ("no sensor or schedule fails", [])
    assert webhook.texts == [first, "a_arrivals fails: another reason"]


def test_stale_datasets_are_named_once(
    instance: dg.DagsterInstance, look: Callable[..., tuple[str, list[str]]], webhook: Webhook
) -> None:
    repository = dg.Definitions(assets=[published, broken]).get_repository_def()
    before = FreshnessState.UNKNOWN
    reason = "is stale: nothing was converted for longer than fresh_within_days"
    for state, found in (
        (FreshnessState.PASS, ("no asset is stale", [])),
        (FreshnessState.FAIL, ("published is stale", [f"published {reason}"])),
        (FreshnessState.FAIL, ("published is stale", [])),
        (FreshnessState.PASS, ("no asset is stale", [])),
    ):
        # As Dagster's daemon reports it.
        instance._report_runless_asset_event(
            FreshnessStateChange(
                key=published.key, new_state=state, previous_state=before, state_change_timestamp=time.time()
            )
        )
        before = state
        assert look(stale_datasets, repository) == found
    assert webhook.texts == [f"published {reason}"]


@dg.asset
def published() -> None:
    pass


@dg.asset
def broken() -> None:
    raise dg.Failure("the disk is full")


@dg.asset_check(asset=published)
def hollow() -> dg.AssetCheckResult:
    return dg.AssetCheckResult(passed=False, description="run_2 is hollow")


@dg.asset_check(asset=published)
def half_full() -> dg.AssetCheckResult:
    return dg.AssetCheckResult(passed=False, severity=dg.AssetCheckSeverity.WARN, description="a warning")


@pytest.mark.parametrize(
    ("sensor", "asset", "logged"),
    [
        (failed_runs, broken, "failed: broken: the disk is full"),
        (failed_checks, published, "check hollow of published: run_2 is hollow"),
    ],
)
def test_runs_of_the_command_line_are_logged(
    sensor: dg.SensorDefinition,
    asset: dg.AssetsDefinition,
    logged: str,
    instance: dg.DagsterInstance,
    capfd: pytest.CaptureFixture[str],
    webhook: Webhook,
) -> None:
    """Such a run names no code location, as this one does."""
    definitions = dg.Definitions(
        assets=[published, broken],
        asset_checks=[hollow, half_full],
        sensors=[sensor],
        resources={"alerts": Alerts()},
    )

    def errors() -> list[str]:
        return [line for line in capfd.readouterr().err.splitlines() if " - ERROR - run " in line]

    def tick(cursor: str | None) -> str | None:
        repository = definitions.get_repository_def()
        with dg.build_sensor_context(
            instance,
            cursor=cursor,
            repository_def=repository,
            repository_name="__repository__",
            resources={"alerts": Alerts()},
        ) as context:
            return sensor.evaluate_tick(context).cursor

    cursor = tick(None)
    job = definitions.resolve_implicit_global_asset_job_def()
    run = job.execute_in_process(instance=instance, asset_selection=[asset.key], raise_on_error=False).dagster_run
    assert run.remote_job_origin is None
    errors()
    cursor = tick(cursor)
    (error,) = errors()
    assert error.endswith(logged)
    last = instance.all_logs(run.run_id)[-1].dagster_event
    assert last
    assert (last.message or "").endswith(logged), "the page of the run shows its last events"
    tick(cursor)
    assert errors() == [], "once"
    (text,) = webhook.texts
    assert text.endswith(logged)
