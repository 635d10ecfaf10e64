"""The requests of the automation, evaluated without a daemon."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from pathlib import Path

import dagster as dg
import pytest
from dagster._core.execution.asset_backfill import AssetGraphSubset
from dagster._core.execution.backfill import BulkActionStatus, PartitionBackfill

from tests.helpers.stores import flip
from tests.platform.automation import Automation
from tests.platform.test_queued_runs import queue
from tests.platform.trial import Trial, corrupt, write_run

DERIVED = ("manifest", "statistics", "benchmark_report")


# These tests are about when, not what.
pytestmark = pytest.mark.usefixtures("nothing_measured")


def everything_derived(requested: dict[str, set[str | None]]) -> bool:
    return set(requested) == set(DERIVED)


def _after_arrivals(trial: Trial) -> Automation:
    """An automation that has requested the conversion of three samples."""
    automation = Automation(trial)
    automation.evaluate()
    for number in (1, 2, 3):
        write_run(trial.source, number)
    assert trial.run("look").success
    assert set(automation.evaluate()) == {"zarr_samples"}
    return automation


def _after_one_conversion(trial: Trial) -> Automation:
    """An automation that has requested the assets derived from one sample."""
    automation = Automation(trial)
    automation.evaluate()
    write_run(trial.source, 1)
    assert trial.convert_all().success
    assert everything_derived(automation.evaluate())
    return automation


def _after_a_refresh(trial: Trial, *numbers: int) -> Automation:
    """An automation of these runs that has nothing to request."""
    automation = Automation(trial)
    for number in numbers:
        write_run(trial.source, number)
    assert trial.convert_all().success
    assert trial.run("refresh").success
    automation.evaluate()
    return automation


def _with_a_damaged_shard(trial: Trial) -> tuple[Automation, Path]:
    """An automation that has seen no run, and a shard of one of two runs; to flip it again mends it."""
    automation = Automation(trial)
    automation.evaluate()
    for number in (1, 2):
        write_run(trial.source, number)
    assert trial.convert_all().success
    shard = next(Path(trial.dataset.store).glob("samples/run_1/*/volume/velocity/c/0/0"))
    flip(shard)
    return automation, shard


def test_nothing_is_made_of_an_empty_source(trial: Trial) -> None:
    automation = Automation(trial)
    assert automation.evaluate() == {}
    assert trial.run("look").success
    assert automation.evaluate() == {}
    assert automation.evaluate() == {}


def test_arrivals_before_the_first_evaluation_are_converted(trial: Trial) -> None:
    for number in (1, 2, 3):
        write_run(trial.source, number)
    assert trial.run("look").success
    assert Automation(trial).evaluate() == {"zarr_samples": {"run_1", "run_2", "run_3"}}


def test_one_batch_is_followed_by_one_refresh(trial: Trial) -> None:
    automation = _after_arrivals(trial)
    assert trial.run("convert", "run_1", "run_3").success
    assert everything_derived(automation.evaluate())
    assert trial.run("refresh").success
    assert automation.evaluate() == {}
    assert automation.evaluate() == {}


@pytest.mark.slow
def test_nothing_is_requested_in_the_evaluation_that_sees_the_end_of_a_run(
    trial: Trial, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may have read the assets before the run materialized them, as if the run had not done so."""
    automation = _after_one_conversion(trial)
    assert automation.evaluate() == {}
    seen: list[object] = []

    def measure(*_: object, **__: object) -> None:
        seen.append(automation.evaluate())
        raise OSError("not materialized")

    monkeypatch.setattr("zarr_core.benchmark.run_benchmark", measure)
    assert not trial.run("refresh").success
    assert seen == [{}], "the report is in progress"
    assert automation.evaluate() == {}
    trial.instance.report_runless_asset_event(dg.AssetMaterialization(trial.dataset.key("benchmark_report")))
    assert automation.evaluate() == {}


@pytest.mark.slow
def test_a_listing_with_other_counts_alone_requests_nothing(trial: Trial) -> None:
    automation = Automation(trial)
    automation.evaluate()
    write_run(trial.source, 1)
    assert trial.convert_all().success
    listing = trial.dataset.listing_key
    seen = dg.AssetObservation(listing, tags={"dagster/data_version": "lists", "zarr_core/counts": "1_0_0"})
    trial.instance.report_runless_asset_event(seen)
    assert everything_derived(automation.evaluate())
    assert trial.run("refresh").success
    assert automation.evaluate() == {}
    again = dg.AssetObservation(listing, tags={"dagster/data_version": "lists", "zarr_core/counts": "2_0_0"})
    trial.instance.report_runless_asset_event(again)
    assert automation.evaluate() == {}
    assert trial.run("refresh").success
    trial.instance.report_runless_asset_event(again)  # while the refresh ran, or before the evaluation that sees it
    assert automation.evaluate() == {}
    assert automation.evaluate() == {}


@pytest.mark.slow
def test_a_refused_sample_holds_nothing_back_and_is_not_requested_again(trial: Trial) -> None:
    automation = Automation(trial)
    automation.evaluate()
    for number in (1, 2, 3):
        write_run(trial.source, number)
    corrupt(trial.source / "run_2")
    assert trial.run("look").success
    assert automation.evaluate() == {"zarr_samples": {"run_1", "run_2", "run_3"}}
    assert not trial.run("convert", "run_1", "run_3").success
    assert everything_derived(automation.evaluate())
    assert trial.run("refresh").success
    assert automation.evaluate() == {}

    write_run(trial.source, 2)
    assert trial.run("look").success
    assert automation.evaluate() == {"zarr_samples": {"run_2"}}, "the repaired one, and no other"


def unplugged(*_: object) -> None:
    raise OSError("the source cannot be reached")


HOUR = dt.timedelta(hours=1)


@pytest.mark.slow
def test_a_failed_sample_is_retried_on_schedule_and_a_refused_one_is_not(
    trial: Trial, monkeypatch: pytest.MonkeyPatch
) -> None:
    automation = Automation(trial)
    automation.evaluate()
    corrupt(write_run(trial.source, 1))
    assert trial.run("look").success
    assert automation.evaluate() == {"zarr_samples": {"run_1"}}
    assert not trial.run("convert", "run_1").success
    assert automation.evaluate() == {}
    assert automation.evaluate(after=HOUR) == {}, "also while there is no store"
    write_run(trial.source, 2)
    write_run(trial.source, 3)
    assert trial.run("look").success
    automation.evaluate()
    with monkeypatch.context() as patched:
        patched.setattr("zarr_core.sources.SampleTree.load", unplugged)
        assert not trial.run("convert", "run_3").success
    assert trial.run("convert", "run_2").success
    automation.evaluate()
    assert trial.run("refresh").success
    assert automation.evaluate() == {}
    assert automation.evaluate(after=HOUR) == {"zarr_samples": {"run_3"}}

    corrupt(write_run(trial.source, 1, shift=1.0))
    assert trial.run("look").success
    assert "run_1" in automation.evaluate()["zarr_samples"]
    with monkeypatch.context() as patched:
        patched.setattr("zarr_core.sources.SampleTree.load", unplugged)
        assert not trial.run("convert", "run_1").success
    automation.evaluate()
    assert automation.evaluate(after=HOUR)["zarr_samples"] == {"run_1", "run_3"}, "refused in another version"
    assert not trial.run("convert", "run_1").success
    automation.evaluate()
    assert automation.evaluate(after=HOUR)["zarr_samples"] == {"run_3"}


@pytest.mark.slow
def test_a_retry_during_which_the_next_one_is_due_is_not_repeated_at_its_end(
    trial: Trial, monkeypatch: pytest.MonkeyPatch
) -> None:
    automation = Automation(trial)
    automation.evaluate()
    write_run(trial.source, 1)
    assert trial.run("look").success
    again = {"zarr_samples": {"run_1"}}
    assert automation.evaluate() == again
    monkeypatch.setattr("zarr_core.sources.SampleTree.load", unplugged)
    assert not trial.run("convert", "run_1").success
    assert automation.evaluate() == {}
    assert automation.evaluate(after=HOUR) == again

    def due(*_: object) -> None:
        assert automation.evaluate(after=HOUR) == {}, "in progress"
        unplugged()

    monkeypatch.setattr("zarr_core.sources.SampleTree.load", due)
    assert not trial.run("convert", "run_1").success
    assert automation.evaluate() == {}
    assert automation.evaluate(after=HOUR) == again


@pytest.mark.slow
def test_a_conversion_that_ends_after_a_refresh_is_published_too(trial: Trial) -> None:
    """Both end before the next evaluation, which sees updates of the samples and of the manifest."""
    automation = _after_one_conversion(trial)
    write_run(trial.source, 2)
    assert trial.run("look").success
    assert automation.evaluate() == {"zarr_samples": {"run_2"}}
    assert trial.publish().success
    assert trial.run("convert", "run_2", "run_2").success
    assert everything_derived(automation.evaluate())
    assert trial.run("refresh").success
    assert automation.evaluate() == {}


@pytest.mark.slow
def test_a_conversion_that_ends_during_a_refresh_is_published_when_the_refresh_has_ended(
    trial: Trial, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not while its report is being made: the manifest would be made without it, and the report in a further run."""
    automation = _after_one_conversion(trial)
    seen: list[object] = []

    def measure(*_: object, **__: object) -> None:
        write_run(trial.source, 2)
        assert trial.run("look").success
        seen.append(automation.evaluate())
        assert trial.run("convert", "run_2", "run_2").success
        seen.extend(automation.evaluate() for _ in range(3))

    with monkeypatch.context() as patched:
        patched.setattr("zarr_core.benchmark.run_benchmark", measure)
        assert trial.run("refresh").success
    assert seen == [{"zarr_samples": {"run_2"}}, {}, {}, {}]
    assert automation.evaluate() == {}, "one evaluation later: a run may have ended just now"
    assert everything_derived(automation.evaluate())
    assert trial.run("refresh").success
    assert automation.evaluate() == {}
    assert automation.evaluate() == {}


@pytest.mark.slow
def test_changed_conditions_forget_no_update(trial: Trial) -> None:
    """Dagster drops what it recorded of the conditions when they change."""
    for number in (1, 2):
        write_run(trial.source, number)
    assert trial.convert_all().success
    assert trial.run("refresh").success
    assert Automation(trial).evaluate() == {}
    write_run(trial.source, 2, shift=1.0)
    assert trial.run("look").success
    assert Automation(trial).evaluate() == {"zarr_samples": {"run_2"}}
    assert trial.run("convert", "run_2", "run_2").success
    automation = Automation(trial)
    assert automation.evaluate() == {}, "one evaluation later: a run may have ended just now"
    assert everything_derived(automation.evaluate())


@pytest.mark.slow
def test_a_change_right_after_the_conversion_is_converted(trial: Trial) -> None:
    automation = Automation(trial)
    automation.evaluate()
    write_run(trial.source, 1)
    assert trial.run("look").success
    assert automation.evaluate() == {"zarr_samples": {"run_1"}}
    assert trial.run("convert", "run_1", "run_1").success
    write_run(trial.source, 1, shift=1.0)
    assert trial.run("look").success
    assert automation.evaluate()["zarr_samples"] == {"run_1"}
    assert trial.run("convert", "run_1", "run_1").success
    assert "zarr_samples" not in automation.evaluate()


def test_a_changed_source_is_converted_again(trial: Trial) -> None:
    automation = _after_a_refresh(trial, 1, 2)
    write_run(trial.source, 2, shift=1.0)
    assert trial.run("look").success
    assert automation.evaluate() == {"zarr_samples": {"run_2"}}


@pytest.mark.slow
def test_an_observation_without_changes_requests_nothing(trial: Trial) -> None:
    automation = _after_a_refresh(trial, 1)
    assert trial.run("look").success
    assert automation.evaluate() == {}


@pytest.mark.slow
def test_a_vanished_sample_is_followed_by_a_refresh_alone(trial: Trial) -> None:
    automation = _after_a_refresh(trial, 1, 2)
    (trial.source / "run_2").rename(trial.source / ".run_2")
    assert trial.run("look").success
    assert everything_derived(automation.evaluate())


@pytest.mark.slow
def test_a_sample_that_came_back_is_requested(trial: Trial) -> None:
    automation = Automation(trial)
    for number in (1, 2):
        write_run(trial.source, number)
    assert trial.convert_all().success
    (trial.source / "run_2").rename(trial.source / ".run_2")
    assert trial.run("look").success
    assert trial.run("refresh").success
    automation.evaluate()
    (trial.source / ".run_2").rename(trial.source / "run_2")
    assert trial.run("look").success
    # Its files are unchanged, but it was retired from the manifest.
    assert automation.evaluate()["zarr_samples"] == {"run_2"}


@pytest.mark.slow
def test_a_renamed_sample_is_retired_and_published_together(trial: Trial) -> None:
    automation = _after_a_refresh(trial, 1, 2)
    (trial.source / "run_2").rename(trial.source / "run_3")
    assert trial.run("look").success
    assert trial.samples() == ["run_1", "run_3"]
    assert automation.evaluate() == {"zarr_samples": {"run_3"}}
    assert trial.run("convert", "run_3").success
    assert everything_derived(automation.evaluate())


def test_a_request_that_never_became_a_run_is_repeated(trial: Trial) -> None:
    write_run(trial.source, 1)
    assert trial.run("look").success
    automation = Automation(trial)
    assert automation.evaluate() == {"zarr_samples": {"run_1"}}
    assert automation.evaluate() == {"zarr_samples": {"run_1"}}


@pytest.mark.slow
def test_a_failed_check_holds_back_what_follows_whoever_ran_it(trial: Trial) -> None:
    automation, shard = _with_a_damaged_shard(trial)
    assert not trial.publish().success
    assert automation.evaluate() == {}
    assert automation.evaluate() == {}

    flip(shard)
    assert trial.publish().success
    assert set(automation.evaluate()) == {"statistics", "benchmark_report"}
    assert trial.run("refresh").success
    assert automation.evaluate() == {}


@pytest.mark.slow
def test_a_check_that_failed_in_the_automations_own_run_is_followed_when_it_passes(trial: Trial) -> None:
    automation, shard = _with_a_damaged_shard(trial)
    assert everything_derived(automation.evaluate())
    assert not trial.run("refresh").success
    assert automation.evaluate() == {}
    flip(shard)
    failed = {dg.AssetCheckKey(trial.dataset.key("manifest"), name) for name in ("checksums", "equivalence")}
    alone = trial.definitions.resolve_implicit_global_asset_job_def().get_subset(asset_check_selection=failed)
    assert alone.execute_in_process(instance=trial.instance).success, "*Execute* on the page of the checks"
    assert set(automation.evaluate()) == {"statistics", "benchmark_report"}


def cancel(trial: Trial, first: str, last: str, **tags: str) -> None:
    """*Terminate* on a queued run over a range of samples."""
    _, run = queue(trial, first, last, **tags)
    trial.instance.report_run_canceling(run)
    trial.instance.report_run_canceled(run)


@pytest.mark.slow
def test_a_cancelled_sample_is_not_requested_before_its_source_changes(trial: Trial) -> None:
    automation = _after_arrivals(trial)
    cancel(trial, "run_1", "run_3")
    assert automation.evaluate() == {}
    assert Automation(trial).evaluate() == {}, "nor by an automation without a cursor"

    write_run(trial.source, 2, shift=1.0)
    assert trial.run("look").success
    assert automation.evaluate() == {"zarr_samples": {"run_2"}}
    assert trial.run("convert", "run_2", "run_2").success
    assert everything_derived(automation.evaluate()), "cancelled samples are not waited for"
    assert trial.run("refresh").success
    assert automation.evaluate() == {}
    assert trial.run("convert", "run_1", "run_1").success, "a person requested it"
    assert everything_derived(automation.evaluate())


@pytest.mark.slow
def test_what_a_person_started_and_cancelled_is_not_requested(trial: Trial) -> None:
    automation = _after_a_refresh(trial, 1)
    write_run(trial.source, 1, shift=1.0)
    assert trial.run("look").success
    cancel(trial, "run_1", "run_1")
    assert automation.evaluate() == {}
    assert automation.evaluate() == {}


def test_the_rest_of_a_cancelled_backfill_is_not_requested(trial: Trial) -> None:
    automation = Automation(trial)
    automation.evaluate()
    for number in (1, 2):
        write_run(trial.source, number)
    assert trial.run("look").success
    key = trial.dataset.key("zarr_samples")
    subset = trial.dataset.partitions.empty_subset().with_partition_keys(["run_1", "run_2"])
    backfill = PartitionBackfill.from_asset_graph_subset(
        "backfill", 0.0, {}, trial.instance, AssetGraphSubset({key: subset}), None, None, None
    )
    trial.instance.add_backfill(backfill)
    assert automation.evaluate() == {}, "in progress"
    ended = dt.datetime.now(dt.UTC).timestamp()
    trial.instance.update_backfill(backfill.with_status(BulkActionStatus.CANCELED).with_end_timestamp(ended))
    assert automation.evaluate() == {}
    write_run(trial.source, 2, shift=1.0)
    assert trial.run("look").success
    assert automation.evaluate() == {"zarr_samples": {"run_2"}}


def test_runs_that_dagster_cancelled_with_a_failed_backfill_are_repeated(trial: Trial) -> None:
    automation = Automation(trial)
    automation.evaluate()
    write_run(trial.source, 1)
    assert trial.run("look").success
    assert set(automation.evaluate()) == {"zarr_samples"}
    subset = AssetGraphSubset({trial.dataset.key("zarr_samples"): trial.dataset.partitions.empty_subset()})
    backfill = PartitionBackfill.from_asset_graph_subset("backfill", 0.0, {}, trial.instance, subset, None, None, None)
    trial.instance.add_backfill(backfill.with_status(BulkActionStatus.FAILED))
    cancel(trial, "run_1", "run_1", **{"dagster/backfill": "backfill"})
    assert automation.evaluate() == {"zarr_samples": {"run_1"}}


@pytest.mark.slow
def test_an_evaluation_asks_for_each_run_once(trial: Trial, monkeypatch: pytest.MonkeyPatch) -> None:
    automation = _after_a_refresh(trial, 1)
    asked: list[Sequence[str]] = []
    records = trial.instance.get_run_records

    def ask(filters: dg.RunsFilter | None = None, **options: object) -> Sequence[dg.RunRecord]:
        asked.append((filters and filters.run_ids) or ())
        return records(filters, **options)

    monkeypatch.setattr(trial.instance, "get_run_records", ask)
    assert automation.evaluate() == {}
    run_ids = [run_id for batch in asked for run_id in batch]
    assert run_ids
    assert len(run_ids) == len(set(run_ids))
