"""Samples that stay older in the store than at their source, or incomplete there, are named by checks."""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path

import dagster as dg
import pytest
from dagster._core.definitions.asset_checks.asset_check_evaluation import AssetCheckEvaluationPlanned
from dagster._core.events import DagsterEvent, DagsterEventType
from dagster._core.execution.asset_backfill import AssetGraphSubset
from dagster._core.execution.backfill import BulkActionStatus, PartitionBackfill
from zarr_core.platform.resources.warehouses import WarehouseAccess
from zarr_core.platform.sensors.behind import check_complete, check_converted, conversions, held_batches
from zarr_core.platform.sensors.dagster_internals.evaluations import latest_check
from zarr_core.platform.sensors.dagster_internals.freshness import older_than_its_source
from zarr_core.platform.sensors.observations import KnownItems

from tests.platform.matrix_trial import MatrixTrial, declare
from tests.platform.test_source_watch import Watcher
from tests.platform.test_wide_matrix import reported_by_the_sensor
from tests.platform.trial import Trial, corrupt, write_run
from zarr_core.matrix import WideMatrix
from zarr_core.points.store.head import load_manifest
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


@pytest.mark.slow
def test_changed_samples_of_a_cancelled_backfill_are_named(published: Trial) -> None:
    trial = published
    assert check_converted(trial.dataset, conversions(KnownItems(trial.instance, trial.dataset), None)).passed
    assert not is_late(trial)
    for number in (1, 2):
        write_run(trial.source, number, shift=1.0)
    assert trial.run("look").success
    assert check_converted(trial.dataset, conversions(KnownItems(trial.instance, trial.dataset), None)).passed, (
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
    assert check_converted(trial.dataset, conversions(KnownItems(trial.instance, trial.dataset), None)).passed
    assert trial.publish().success
    assert not is_late(trial)


@pytest.mark.slow
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


@pytest.mark.slow
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


def checked_by(result: dg.ExecuteInProcessResult) -> dg.AssetCheckEvaluation:
    """The check as a run evaluated it."""
    (check,) = [each for each in result.get_asset_check_evaluations() if each.check_name == "source_converted"]
    return check


def reported_by(watcher: Watcher) -> dg.AssetCheckEvaluation | None:
    """The check, if a tick reports it because it has changed."""
    events = [event for event in watcher.tick().asset_events if isinstance(event, dg.AssetCheckEvaluation)]
    return next((event for event in events if event.check_name == "source_converted"), None)


@pytest.mark.slow
def test_a_store_that_was_removed_is_noticed(published: Trial) -> None:
    watcher = Watcher(published)
    watcher.settle()
    watcher.tick()
    assert reported_by(watcher) is None
    Path(published.dataset.store).rename(published.source.parent / "away")
    check = reported_by(watcher)
    assert check is not None
    assert "The store does not hold 3 samples as converted" in str(check.description)
    assert "run_1, run_2, run_3. To convert them, materialize their partitions of trial/zarr_samples" in str(
        check.description
    )
    assert str(published.materialization("overview").metadata["not in the store"].value).startswith("3: run_1")
    assert not published.publish().success

    # A sample that arrives begins another store.
    write_run(published.source, 4)
    watcher.settle()
    assert published.run("convert", "run_4", "run_4").success
    check = reported_by(watcher)
    assert check is not None
    assert "3 samples" in str(check.description), "the new one only waits for its publication"
    assert "3 samples" in str(checked_by(published.publish()).description)
    assert published.run("convert", "run_1", "run_3").success
    assert checked_by(published.publish()).passed
    watcher.tick()
    assert "not in the store" not in published.materialization("overview").metadata
    assert sorted(load_manifest(published.dataset.store).samples) == ["run_1", "run_2", "run_3", "run_4"]


def test_a_partition_that_a_person_deleted_is_not_about_to_be_converted(published: Trial) -> None:
    watcher = Watcher(published)
    published.instance.delete_dynamic_partition(published.dataset.partitions_name, "run_2")
    watcher.settle()
    assert sorted(published.samples()) == ["run_1", "run_2", "run_3"]
    assert not conversions(KnownItems(published.instance, published.dataset), None).waiting
    assert not is_late(published)


@pytest.mark.slow
def test_a_store_that_was_restored_from_an_older_copy_is_noticed(published: Trial) -> None:
    watcher = Watcher(published)
    watcher.settle()
    copy = published.source.parent / "copy"
    shutil.copytree(published.dataset.store, copy)
    write_run(published.source, 2, shift=1.0)
    watcher.settle()
    assert published.run("convert", "run_2", "run_2").success
    assert checked_by(published.publish()).passed
    shutil.rmtree(published.dataset.store)
    copy.rename(published.dataset.store)
    assert "does not hold 1 sample as converted" in str(checked_by(published.publish()).description)
    write_run(published.source, 2, shift=2.0)
    assert checked_by(published.publish()).passed, "it has just changed, and is about to be converted"
    write_run(published.source, 2, shift=1.0)
    watcher.settle()
    assert published.run("convert", "run_2", "run_2").success
    assert checked_by(published.publish()).passed


@pytest.mark.slow
def test_a_sample_whose_group_was_deleted_before_its_publication_is_named(published: Trial) -> None:
    for number in (4, 5):
        write_run(published.source, number)
    assert published.run("look").success
    assert published.run("convert", "run_4", "run_5").success
    shutil.rmtree(Path(published.dataset.store) / "samples" / "run_4")  # as garbage collection does after a time
    result = published.publish()
    assert result.success
    assert "The store does not hold 1 sample as converted" in str(checked_by(result).description)
    (published.source / "run_4" / "surface_pressure.pt").unlink()
    assert checked_by(published.publish()).passed, "an incomplete sample cannot be converted"


@pytest.mark.slow
def test_a_matrix_that_was_removed_is_noticed(tmp_path: Path, instance: dg.DagsterInstance) -> None:
    trial = MatrixTrial(declare(tmp_path), instance)
    for batch_id in ("b0", "b1", "b2"):
        trial.write(batch_id)
    assert trial.load_all().success
    trial.run("refresh")
    matrix = WideMatrix.open(trial.dataset.matrix)
    matrix.retire([], ["b0"])

    def lost() -> frozenset[str]:
        known = KnownItems(instance, trial.dataset)
        held = held_batches(WarehouseAccess().matrix_if_any(trial.dataset.matrix), known.registered)
        return conversions(known, held).lost

    assert lost() == set(), "a retired batch is not missing"
    matrix.reinstate([], ["b0"])
    assert lost() == {"b0"}, "one that is allowed again is"
    shutil.rmtree(trial.dataset.matrix)
    assert lost() == {"b0", "b1", "b2"}
    assert "The store does not hold 3 batches" in str(reported_by_the_sensor(trial)["source_converted"].description)
    assert trial.run("load", "b0", "b2").success
    assert lost() == set()
    WideMatrix.open(trial.dataset.matrix).retire([f"b1s{number}" for number in range(5)])
    assert lost() == set(), "all its samples were retired"


@pytest.mark.slow
def test_a_changed_sample_that_cannot_be_converted_is_named_and_a_new_one_is_not(published: Trial) -> None:
    for number in (2, 4):
        write_run(published.source, number, shift=1.0)
        corrupt(published.source / f"run_{number}")
    assert published.run("look").success
    assert not published.run("convert", "run_2", "run_4").success
    check = check_converted(published.dataset, conversions(KnownItems(published.instance, published.dataset), None))
    assert "1 sample changed or arrived at the source and their conversion failed: run_2." in str(check.description)
    assert "mend that at the source" in str(check.description)
    assert "materialize" not in str(check.description), "another run would refuse it again"


@pytest.mark.slow
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


@pytest.mark.slow
def test_a_refused_sample_that_changed_since_is_about_to_be_converted(published: Trial) -> None:
    corrupt(write_run(published.source, 4))
    assert published.run("look").success
    assert not published.run("convert", "run_4").success
    assert conversions(KnownItems(published.instance, published.dataset), None).refused == {"run_4"}
    write_run(published.source, 4, shift=1.0)
    assert published.run("look").success
    assert conversions(KnownItems(published.instance, published.dataset), None).waiting == {"run_4"}


@pytest.mark.slow
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
