"""Failed runs, failed checks, failing sensors and stale datasets are logged by name, and sent as alerts."""

from __future__ import annotations

import asyncio
import json
import re
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import dagster as dg
import pytest
from dagster._core.definitions.asset_checks.asset_check_evaluation import AssetCheckEvaluationPlanned
from dagster._core.definitions.run_request import InstigatorType
from dagster._core.events import DagsterEvent, DagsterEventType, EngineEventData
from dagster._core.loader import LoadingContextForTest
from dagster._core.remote_origin import (
    InProcessCodeLocationOrigin,
    RemoteInstigatorOrigin,
    RemoteJobOrigin,
    RemoteRepositoryOrigin,
)
from dagster._core.scheduler.instigation import (
    InstigatorState,
    InstigatorStatus,
    SensorInstigatorData,
    TickData,
    TickStatus,
)
from dagster._core.storage.dagster_run import DagsterRun
from dagster._core.types.loadable_target_origin import LoadableTargetOrigin
from dagster._core.utils import make_new_run_id
from dagster._daemon.freshness import FreshnessDaemon
from dagster._utils.error import SerializableErrorInfo
from zarr_core.platform.assets.dataset import DatasetDeclaration
from zarr_core.platform.resources.alerts import Alerts
from zarr_core.platform.sensors.dagster_internals.runs import innermost
from zarr_core.platform.sensors.failures import (
    PUBLISHED_WITHIN_HOURS,
    failed_checks,
    failed_runs,
    failing_sensors,
    stale_datasets,
)
from zarr_core.platform.sensors.messages import WEBSERVER, failure_message

from tests.helpers.servers.alerts import MailServer, Webhook
from tests.platform.trial import definitions_of


@pytest.fixture
def look(instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[str, list[str]]]:
    """Evaluates a sensor, which continues from its cursor; returns the text of the tick, and what it logged."""
    cursors: dict[str, str | None] = {}

    def tick(sensor: dg.SensorDefinition, repository: dg.RepositoryDefinition | None = None) -> tuple[str, list[str]]:
        logged: list[str] = []
        context = dg.build_sensor_context(
            instance, cursor=cursors.get(sensor.name), repository_def=repository, resources={"alerts": Alerts()}
        )
        context._code_location_origin = LOCATION  # build_sensor_context has no argument for it
        monkeypatch.setattr(type(context), "log", type("Log", (), {"error": staticmethod(logged.append)}))
        result = sensor(context)
        assert isinstance(result, dg.SensorResult)
        assert result.skip_reason
        cursors[sensor.name] = result.cursor
        return result.skip_reason.skip_message or "", logged

    return tick


LOCATION = InProcessCodeLocationOrigin(LoadableTargetOrigin(module_name="definitions"), location_name="zarr_core")


def tick(
    instance: dg.DagsterInstance,
    name: str,
    status: TickStatus,
    message: str | None = None,
    location: InProcessCodeLocationOrigin = LOCATION,
) -> None:
    """A running sensor and one of its ticks."""
    origin = RemoteInstigatorOrigin(RemoteRepositoryOrigin(location, "repository"), name)
    state = InstigatorState(
        origin, InstigatorType.SENSOR, InstigatorStatus.RUNNING, SensorInstigatorData(sensor_type=None)
    )
    if not instance.get_instigator_state(state.instigator_origin_id, state.selector_id):
        instance.add_instigator_state(state)
    ticks = instance.get_ticks(state.instigator_origin_id, state.selector_id)
    cause = SerializableErrorInfo(message, [], "Failure") if message else None
    error = SerializableErrorInfo("Error occurred", [], "SensorExecutionError", cause) if cause else None
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
    instance: dg.DagsterInstance,
    look: Callable[..., tuple[str, list[str]]],
    webhook: Webhook,
    mail_server: MailServer,
) -> None:
    tick(instance, "a_arrivals", TickStatus.FAILURE, "the bucket is gone\nsecond line")
    tick(instance, "b_arrivals", TickStatus.SKIPPED)
    first = "a_arrivals fails: the bucket is gone\nsecond line"
    webhook.statuses, mail_server.statuses = [403], [451]
    with pytest.raises(dg.Failure, match="the address in .ALERT_WEBHOOK did not take an alert: status 403") as error:
        look(failing_sensors)
    assert "secret" not in str(error.getrepr(chain=True, showlocals=False))
    assert look(failing_sensors) == ("a_arrivals fails", [first]), "reported again, because it was not sent"
    tick(instance, "a_arrivals", TickStatus.STARTED)
    assert look(failing_sensors) == ("a_arrivals fails", [])
    second = "a_arrivals fails: another reason"
    tick(instance, "a_arrivals", TickStatus.FAILURE, "another reason")
    webhook.statuses = [503]  # is sent again
    assert look(failing_sensors) == ("a_arrivals fails", [second])
    tick(instance, "a_arrivals", TickStatus.SKIPPED)
    assert look(failing_sensors) == ("no sensor or schedule fails", [])
    assert webhook.texts == [f"zarr_core: {first}", f"zarr_core: {second}"]
    assert mail_server.texts == webhook.texts
    assert mail_server.mails[0]["Subject"] == "[zarr_core] zarr_core: a_arrivals fails: the bucket is gone"


def test_an_error_whose_message_differs_in_times_and_ids_is_reported_once(
    instance: dg.DagsterInstance, look: Callable[..., tuple[str, list[str]]], webhook: Webhook
) -> None:
    error = (
        "Error performing GET http://service/container in {} - after 3 retries, retry_timeout: 180s: status 403: "
        "<Code>Denied</Code><RequestId>{}</RequestId> <object at {}>"
    )
    tick(instance, "a_arrivals", TickStatus.FAILURE, error.format("890.9\u00b5s", "AB1C", "0x7f01"))
    assert len(look(failing_sensors)[1]) == 1
    tick(instance, "a_arrivals", TickStatus.FAILURE, error.format("1.2ms", "F00D", "0x7f02"))
    assert look(failing_sensors)[1] == []
    tick(instance, "a_arrivals", TickStatus.FAILURE, error.format("2s", "F00D", "0x7f02").replace("403", "404"))
    assert len(look(failing_sensors)[1]) == 1, "another error"


def test_a_location_reports_the_sensors_that_it_defines(
    instance: dg.DagsterInstance, look: Callable[..., tuple[str, list[str]]], webhook: Webhook
) -> None:
    """Another location has a sensor of the same name. A repaired declaration: the same mistake later is new."""

    @dg.sensor(name="wings_not_loaded")
    def not_loaded() -> None: ...

    broken = dg.Definitions(sensors=[not_loaded]).get_repository_def()
    repaired = dg.Definitions().get_repository_def()
    elsewhere = InProcessCodeLocationOrigin(LoadableTargetOrigin(module_name="other"), location_name="other")
    tick(instance, "wings_not_loaded", TickStatus.FAILURE, "chunk_pionts")
    tick(instance, "wings_not_loaded", TickStatus.FAILURE, "of the other location", elsewhere)
    tick(instance, "other_arrivals", TickStatus.FAILURE, "no bucket", elsewhere)
    message = "wings_not_loaded fails: chunk_pionts"
    assert look(failing_sensors, broken) == ("wings_not_loaded fails", [message])
    assert look(failing_sensors, repaired) == ("no sensor or schedule fails", [])
    assert look(failing_sensors, broken) == ("wings_not_loaded fails", [message])


def test_stale_datasets_are_named_once(
    dataset: DatasetDeclaration,
    instance: dg.DagsterInstance,
    monkeypatch: pytest.MonkeyPatch,
    look: Callable[..., tuple[str, list[str]]],
    webhook: Webhook,
    mail_server: MailServer,
) -> None:
    declared = dataset.model_copy(update={"fresh_within_days": 2})
    repository = definitions_of(declared).get_repository_def()
    node, began = repository.asset_graph.get(declared.converted), time.time()
    fresh, reason = ("no asset is stale", []), "nothing was converted for longer than fresh_within_days"
    stale, message = "trial/zarr_samples is stale", f"trial/zarr_samples is stale: {reason}"

    def after(days: float) -> tuple[str, list[str]]:
        now = began + 86_400 * days
        with monkeypatch.context() as patched:
            for module in ("dagster._daemon.freshness", "dagster._core.definitions.freshness_evaluator"):
                patched.setattr(f"{module}.get_current_timestamp", lambda: now)
            patched.setattr("zarr_core.platform.sensors.failures.time", SimpleNamespace(time=lambda: now))
            asyncio.run(FreshnessDaemon()._evaluate_asset(LoadingContextForTest(instance), node))
            return look(stale_datasets, repository)

    assert after(0) == fresh
    assert after(1.9) == fresh
    assert after(2.1) == (stale, [message]), "there never was a sample"
    assert after(2.2) == (stale, [])
    instance.report_runless_asset_event(dg.AssetMaterialization(declared.converted, partition="run_1"))
    assert after(1.9) == fresh
    assert after(2.1) == (stale, [message])
    assert after(2.2) == (stale, [])
    instance.report_runless_asset_event(dg.AssetMaterialization(declared.converted, partition="run_2"))
    assert after(1.9) == fresh
    assert webhook.texts == mail_server.texts == [f"zarr_core: {message}"] * 2


@dg.observable_source_asset
def source() -> dg.DataVersion:
    return dg.DataVersion("1")


@dg.asset(deps=[source])
def converted() -> None:
    pass


@dg.asset(deps=[converted], metadata={PUBLISHED_WITHIN_HOURS: 2})
def manifest() -> None:
    pass


def test_a_manifest_older_than_its_source_is_stale(
    instance: dg.DagsterInstance,
    look: Callable[..., tuple[str, list[str]]],
    webhook: Webhook,
    mail_server: MailServer,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    repository = dg.Definitions(assets=[source, converted, manifest]).get_repository_def()
    stale, message = "manifest is stale", "manifest is stale: its source has changed since, more than 2 hours ago"

    def hours_later(hours: float) -> tuple[str, list[str]]:
        with monkeypatch.context() as patched:
            now = time.time() + 3600 * hours
            patched.setattr("zarr_core.platform.sensors.failures.time", SimpleNamespace(time=lambda: now))
            return look(stale_datasets, repository)

    assert hours_later(3) == ("no asset is stale", [])
    instance.report_runless_asset_event(dg.AssetObservation(source.key))
    assert hours_later(1) == ("no asset is stale", [])
    assert hours_later(3) == (stale, [message]), "never made"
    instance.report_runless_asset_event(dg.AssetMaterialization(manifest.key))
    assert hours_later(3) == ("no asset is stale", [])
    instance.report_runless_asset_event(dg.AssetObservation(source.key))
    instance.report_runless_asset_event(dg.AssetMaterialization(converted.key))
    assert hours_later(3) == (stale, [message])
    assert webhook.texts == mail_server.texts == [f"zarr_core: {message}"] * 2


def test_a_dataset_declares_when_its_manifest_is_late(dataset: DatasetDeclaration) -> None:
    declared = dataset.model_copy(update={"published_within_hours": 2})
    graph = definitions_of(declared).resolve_asset_graph()
    assert graph.get(declared.published).metadata[PUBLISHED_WITHIN_HOURS] == 2


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


class Ended:
    """A sensor of ended runs, which continues from its cursor, and runs of the command line: they name no location."""

    def __init__(
        self, sensor: dg.SensorDefinition, instance: dg.DagsterInstance, definitions: dg.Definitions | None = None
    ) -> None:
        self.sensor, self.instance, self.cursor = sensor, instance, None
        self.definitions = definitions or dg.Definitions(
            [published, broken], asset_checks=[hollow, half_full], resources={"alerts": Alerts()}
        )

    def tick(self) -> str | None:
        with dg.build_sensor_context(
            self.instance, cursor=self.cursor, definitions=self.definitions, resources={"alerts": Alerts()}
        ) as context:
            result = self.sensor.evaluate_tick(context)
        self.cursor = result.cursor
        return result.skip_message

    def run(self, *assets: dg.AssetsDefinition) -> dg.DagsterRun:
        job = self.definitions.resolve_implicit_global_asset_job_def()
        keys = [asset.key for asset in assets]
        run = job.execute_in_process(instance=self.instance, asset_selection=keys, raise_on_error=False).dagster_run
        assert run.remote_job_origin is None
        return run

    def messages(self, run: dg.DagsterRun, beginning: str = "run ") -> list[str]:
        """What the sensor added to the events of a run."""
        events = self.instance.all_logs(run.run_id, of_type=dg.DagsterEventType.ENGINE_EVENT)
        texts = [event.dagster_event.message or "" for event in events if event.dagster_event]
        return [text for text in texts if text.startswith(beginning)]


def test_failed_runs_are_reported_until_their_alert_is_sent(
    instance: dg.DagsterInstance,
    capfd: pytest.CaptureFixture[str],
    webhook: Webhook,
    mail_server: MailServer,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ended = Ended(failed_runs, instance)
    logged = "of broken failed: broken: the disk is full"
    earlier = ended.run(broken)
    ended.tick()  # the first one
    run = ended.run(broken)
    capfd.readouterr()
    webhook.statuses, mail_server.statuses = [403], [451]
    with pytest.raises(dg.Failure, match="the address in .ALERT_WEBHOOK did not take an alert: status 403") as error:
        ended.tick()
    assert "secret" not in "".join(traceback.format_exception(error.value))
    (line,) = [line for line in capfd.readouterr().err.splitlines() if " - ERROR - run " in line]
    assert line.endswith(logged)
    last = instance.all_logs(run.run_id)[-1].dagster_event
    assert last
    assert (last.message or "").endswith(logged), "the page of the run shows its last events"

    second = ended.run(broken)
    assert (ended.tick() or "").count(logged) == 2, "reported again, because it was not sent, with what failed since"
    (text,) = webhook.texts
    assert [part.endswith(logged) for part in text.splitlines()] == [True, True]
    assert mail_server.texts == [text]
    assert (ended.tick() or "").startswith("no "), "once"
    assert [len(ended.messages(each)) for each in (earlier, run, second)] == [0, 1, 1], "logged once"

    ended.run(broken)
    monkeypatch.setattr("zarr_core.platform.sensors.failures._SENT_FOR_SECONDS", -60)
    assert logged in (ended.tick() or "")
    assert len(webhook.texts) == 1, "an alert that could not be sent for a day is given up"


@pytest.mark.slow
def test_the_cursor_lists_the_latest_failures_newest_first(instance: dg.DagsterInstance) -> None:
    ended = Ended(failed_runs, instance)
    ended.tick()
    runs = [ended.run(broken) for _ in range(4)]
    ended.tick()
    runs += [ended.run(broken) for _ in range(8)]
    ended.tick()
    ended.tick()
    latest = json.loads(ended.cursor or "")["latest"]
    newest_first = [f"run {run.run_id[:8]} of broken failed: broken: the disk is full" for run in reversed(runs)]
    assert [message.partition(" UTC: ")[2] for message in latest] == newest_first[:10]


def test_checks_that_fail_or_warn_are_reported_once_per_reason(
    instance: dg.DagsterInstance, webhook: Webhook, mail_server: MailServer
) -> None:
    """Warnings too, and those that a sensor reports without a run."""
    ended = Ended(failed_checks, instance)
    assert ended.tick() == "no check failed"
    run = ended.run(published)
    both = ["check hollow of published fails: run_2 is hollow", "check half_full of published warns: a warning"]
    webhook.statuses, mail_server.statuses = [403], [451]
    with pytest.raises(dg.Failure, match="status 403"):
        ended.tick()
    assert sorted(re.split(", | fails", ended.tick() or "")[:2]) == ["published:half_full", "published:hollow"]
    assert sorted(webhook.texts[0].splitlines()) == sorted(both) == sorted(mail_server.texts[0].splitlines())
    assert sorted(ended.messages(run, "check ")) == sorted(both), "the page of the run shows its last events, once"

    ended.run(published)
    ended.tick()
    assert len(webhook.texts) == 1, "the same reason"

    def found(description: str, *, passed: bool = False) -> str | None:
        warning = dg.AssetCheckSeverity.WARN
        instance.report_runless_asset_event(
            dg.AssetCheckEvaluation(published.key, "half_full", passed, {}, severity=warning, description=description)
        )
        return ended.tick()

    found("12 of 437 samples are withdrawn: run_1")
    found("13 of 1,437 samples are withdrawn: run_1")
    assert webhook.texts[1:] == ["check half_full of published warns: 12 of 437 samples are withdrawn: run_1"]
    found("13 of 437 samples are withdrawn: run_2")
    assert webhook.texts[2:] == ["check half_full of published warns: 13 of 437 samples are withdrawn: run_2"]
    assert found("none", passed=True) == "published:hollow fails or warns"
    found("13 of 437 samples are withdrawn: run_2")
    assert len(webhook.texts) == 4, "it passed in between"


def test_a_check_that_is_being_evaluated_is_not_forgotten(instance: dg.DagsterInstance, webhook: Webhook) -> None:
    ended = Ended(failed_checks, instance)
    ended.run(published)
    reported = ended.tick()
    planned = AssetCheckEvaluationPlanned(asset_key=published.key, check_name="hollow")
    event = DagsterEvent(
        DagsterEventType.ASSET_CHECK_EVALUATION_PLANNED.value, "job", event_specific_data=planned, message=""
    )
    run = ended.definitions.resolve_implicit_global_asset_job_def()
    instance.report_dagster_event(event, instance.create_run_for_job(run).run_id)
    assert ended.tick() == reported
    assert len(webhook.texts) == 1


@dg.asset_check(asset=published, blocking=True)
def held_back() -> dg.AssetCheckResult:
    return dg.AssetCheckResult(passed=False, description="run_3 is damaged")


def test_a_blocking_check_is_reported_with_its_run_alone(instance: dg.DagsterInstance, webhook: Webhook) -> None:
    definitions = dg.Definitions([published], asset_checks=[held_back], resources={"alerts": Alerts()})
    runs, checks = Ended(failed_runs, instance, definitions), Ended(failed_checks, instance, definitions)
    runs.tick()
    runs.run(published)
    assert (runs.tick() or "").endswith(" failed: check held_back of published: run_3 is damaged")
    assert checks.tick() == "no check failed"


def test_a_failed_run_is_reported_by_its_own_location(instance: dg.DagsterInstance, webhook: Webhook) -> None:
    """Of a run of the command line, which names no location, by the one that defines its assets."""
    here = Ended(failed_runs, instance)
    other = dg.asset(name="other")(lambda: None)
    elsewhere = Ended(failed_runs, instance, dg.Definitions([other], resources={"alerts": Alerts()}))
    here.tick(), elsewhere.tick()
    here.run(broken)
    assert elsewhere.tick() == "no run failed"
    assert "the disk is full" in (here.tick() or "")
    origin = RemoteJobOrigin(RemoteRepositoryOrigin(LOCATION, "repository"), "some_job")
    run = instance.add_run(DagsterRun("some_job", run_id=make_new_run_id(), remote_job_origin=origin))
    instance.report_run_failed(run)
    assert elsewhere.tick() == here.tick() == "no run failed", "neither of them is that location"


def test_a_run_that_no_step_of_failed_says_why(instance: dg.DagsterInstance) -> None:
    """A launcher that cannot find the definition of the job reports its error apart from the failure."""

    def failed(message: str | None = None, error: str | None = None) -> str:
        run = instance.add_run(DagsterRun("gone", run_id=make_new_run_id()))
        if error:
            details = EngineEventData.engine_error(SerializableErrorInfo(f"{error}\n", [], "Error"))
            instance.report_engine_event("could not be launched", run, details)
        instance.report_run_failed(run, message)
        return failure_message(instance, run).partition(" failed: ")[2]

    assert failed(error="Could not find job 'gone'") == "Could not find job 'gone'"
    assert failed("Exceeded maximum runtime of 5 seconds") == "Exceeded maximum runtime of 5 seconds"
    assert failed() == "its process died"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("StoreError", "StoreError: s3://bucket/store holds no manifest.json"),
        ("DagsterUserCodeUnreachableError", "Could not reach user code server"),
        ("SensorExecutionError", "cause"),
    ],
)
def test_the_reason_is_that_of_the_code_not_what_led_to_it(name: str, message: str) -> None:
    raised = SerializableErrorInfo(message, [], name, cause=SerializableErrorInfo("cause", [], "FileNotFoundError"))
    tick = SerializableErrorInfo("Error occurred", [], "DagsterExecutionStepExecutionError", cause=raised)
    assert innermost(tick).message == message


def test_an_alert_says_what_happens_next_and_links_the_run(
    instance: dg.DagsterInstance, webhook: Webhook, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(WEBSERVER, "https://dagster.example.org/")
    ended = Ended(failed_runs, instance)
    ended.tick()
    run = ended.run(broken)
    instance.add_run_tags(run.run_id, {"dagster/will_retry": "true"})
    ended.tick()
    (text,) = webhook.texts
    assert text == (
        f"run {run.run_id[:8]} of broken failed: broken: the disk is full. The run is started once more "
        f"(https://dagster.example.org/runs/{run.run_id})"
    )
