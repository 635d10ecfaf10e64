"""Samples that stay older in the store than at their source, or incomplete there, are named by checks."""

from __future__ import annotations

import os
import time

import dagster as dg
import pytest
from dagster._core.definitions.asset_checks.asset_check_evaluation import AssetCheckEvaluationPlanned
from dagster._core.events import DagsterEvent, DagsterEventType
from dagster._core.execution.asset_backfill import AssetGraphSubset
from dagster._core.execution.backfill import BulkActionStatus, PartitionBackfill
from zarr_core.platform.sensors.behind import check_complete, check_converted, conversions
from zarr_core.platform.sensors.dagster_internals.queries import latest_check, older_than_its_source
from zarr_core.platform.sensors.observations import KnownItems

from tests.platform.test_source_watch import Watcher
from tests.platform.trial import Trial, corrupt, write_run
from zarr_core.sources import SampleTree
from zarr_core.sources.listing import list_samples

pytestmark = pytest.mark.usefixtures("nothing_measured")


@pytest.fixture
def published(trial: Trial) -> Trial:
    for number in (1, 2, 3):
        write_run(trial.source, number)
    assert trial.convert_all().success
    assert trial.publish().success
    return trial


def cancel_backfill(trial: Trial, *sample_ids: str, name: str = "backfill") -> None:
    """A backfill of these samples that was cancelled before it made a run."""
    subset = trial.dataset.partitions.empty_subset().with_partition_keys(sample_ids)
    backfill = PartitionBackfill.from_asset_graph_subset(
        *(name, time.time(), {}, trial.instance),
        *(AssetGraphSubset({trial.dataset.converted: subset}), None, None, None),
    )
    trial.instance.add_backfill(backfill)
    trial.instance.update_backfill(backfill.with_status(BulkActionStatus.CANCELED).with_end_timestamp(time.time()))


def is_late(trial: Trial) -> bool:
    """Whether an alert is due because the manifest lacks changes."""
    graph = trial.definitions.resolve_asset_graph()
    return older_than_its_source(trial.instance, graph, trial.dataset.published, time.time() + 3600)


def test_changed_samples_of_a_cancelled_backfill_are_named(published: Trial) -> None:
    trial = published
    assert check_converted(trial.dataset, conversions(KnownItems(trial.instance, trial.dataset))).passed
    assert not is_late(trial)
    for number in (1, 2):
        write_run(trial.source, number, shift=1.0)
    assert trial.run("look").success
    assert check_converted(trial.dataset, conversions(KnownItems(trial.instance, trial.dataset))).passed, (
        "they are about to be converted"
    )
    cancel_backfill(trial, "run_1", "run_2")
    # The manifest is made once more, as by its schedule; the samples stay as they were.
    result = trial.publish()
    (check,) = [each for each in result.get_asset_check_evaluations() if each.check_name == "source_converted"]
    assert not check.passed
    assert check.severity is dg.AssetCheckSeverity.WARN
    assert "2 samples changed or arrived at the source and their conversion was cancelled: run_1, run_2" in str(
        check.description
    )
    assert "materialize their partitions of trial/zarr_samples" in str(check.description)
    assert is_late(trial), "although the manifest is newer than the change"

    assert trial.run("convert", "run_1", "run_2").success
    assert check_converted(trial.dataset, conversions(KnownItems(trial.instance, trial.dataset))).passed
    assert trial.publish().success
    assert not is_late(trial)


def test_the_sensor_reports_them_although_nothing_is_published(published: Trial) -> None:
    watcher = Watcher(published)
    watcher.settle()
    write_run(published.source, 3, shift=1.0)
    watcher.settle()
    cancel_backfill(published, "run_3")
    key = dg.AssetCheckKey(published.dataset.published, "source_converted")
    watcher.tick()
    check = latest_check(published.instance, key)
    assert check is not None
    assert "run_3" in str(check.description)
    assert not [event for event in watcher.tick().asset_events if isinstance(event, dg.AssetCheckEvaluation)]


def test_the_sensor_leaves_checks_to_a_run_that_is_about_to_evaluate_them(published: Trial) -> None:
    """The UI would show none: the sensor's would be the latest, and older than what the run materializes."""
    watcher = Watcher(published)
    watcher.settle()
    job = published.definitions.resolve_job_def("trial_refresh")
    run = published.instance.create_run_for_job(job)
    key = dg.AssetCheckKey(published.dataset.published, "source_converted")
    planned = AssetCheckEvaluationPlanned(asset_key=key.asset_key, check_name=key.name)
    event = DagsterEvent(DagsterEventType.ASSET_CHECK_EVALUATION_PLANNED.value, job.name, event_specific_data=planned)
    published.instance.report_dagster_event(event, run.run_id)

    def reported() -> list[str]:
        events = watcher.tick().asset_events
        return [event.check_name for event in events if isinstance(event, dg.AssetCheckEvaluation)]

    assert reported() == []
    published.instance.report_run_failed(run)
    assert "source_converted" in reported(), "the run did not come to it"


def test_a_changed_sample_that_cannot_be_converted_is_named_and_a_new_one_is_not(published: Trial) -> None:
    for number in (2, 4):
        write_run(published.source, number, shift=1.0)
        corrupt(published.source / f"run_{number}")
    assert published.run("look").success
    assert not published.run("convert", "run_2", "run_4").success
    check = check_converted(published.dataset, conversions(KnownItems(published.instance, published.dataset)))
    assert "1 sample changed or arrived at the source and their conversion failed: run_2." in str(check.description)


@pytest.mark.parametrize("is_published_again", [False, True])
def test_a_new_sample_that_is_refused_does_not_use_up_the_alert(published: Trial, is_published_again: bool) -> None:
    """Its message would be that of a later change, which would then send nothing."""
    watcher = Watcher(published)
    watcher.settle()
    assert published.publish().success
    corrupt(write_run(published.source, 4))
    watcher.settle()
    assert is_late(published), "it is about to be converted"
    assert not published.run("convert", "run_4").success
    if is_published_again:
        assert published.publish().success
    assert not is_late(published)
    write_run(published.source, 2, shift=1.0)
    watcher.settle()
    assert is_late(published)
    corrupt(published.source / "run_2")
    watcher.settle()
    assert not published.run("convert", "run_2").success
    assert is_late(published), "the store keeps the version before"


def test_a_refused_sample_that_changed_since_is_about_to_be_converted(published: Trial) -> None:
    corrupt(write_run(published.source, 4))
    assert published.run("look").success
    assert not published.run("convert", "run_4").success
    assert conversions(KnownItems(published.instance, published.dataset)).refused == {"run_4"}
    write_run(published.source, 4, shift=1.0)
    assert published.run("look").success
    assert conversions(KnownItems(published.instance, published.dataset)).waiting == {"run_4"}


def test_a_sample_that_never_becomes_complete_is_named(published: Trial) -> None:
    folder = write_run(published.source, 9)
    (folder / "surface_pressure.pt").unlink()

    def check() -> dg.AssetCheckEvaluation:
        listing = list_samples(SampleTree(published.dataset.kind, published.dataset.source))
        return check_complete(listing, 24, published.dataset.published)

    assert check().passed
    long_ago = time.time() - 25 * 3600
    for file in folder.iterdir():
        os.utime(file, (long_ago, long_ago))
    assert not check().passed
    assert "1 sample incomplete for more than 24 hours: run_9. run_9 lacks surface_pressure.pt" in str(
        check().description
    )
    watcher = Watcher(published)
    watcher.settle()
    key = dg.AssetCheckKey(published.dataset.published, "samples_complete")
    found = latest_check(published.instance, key)
    assert found is not None
    assert not found.passed
    next(folder.iterdir()).touch()
    assert check().passed, "something arrives still"
