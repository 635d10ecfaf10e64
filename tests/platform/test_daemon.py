"""The platform as it runs: a daemon, samples copied into a watched folder, and batches written to a warehouse.

All tests share one daemon, whose start takes longer than most of them, and follow one another: arrivals of samples and
of batches, their repair, a killed daemon, a terminated conversion, a failed check, a migration, a source of which most
is gone, and a misspelt declaration. A test that needs the platform at rest calls :func:`settled` first. What loses its
database comes last. The slow tests are the last ones, since none of the others may miss what they leave.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import dagster as dg
import pytest
from zarr_core.platform.sensors import watchdog
from zarr_core.platform.sensors.dagster_internals.evaluations import latest_check
from zarr_core.platform.sensors.migration import CHECK

from tests.helpers.holding import WAITING
from tests.platform.deployment import (
    Deployment,
    evaluated,
    failed_partitions,
    materializations,
    open_work,
    planned,
    reported_failing,
    reported_generation,
    requested,
    runs_of,
    settled,
    shown,
)
from tests.platform.matrix_trial import assert_equal_to_a_pivot
from tests.platform.trial import PROJECT, corrupt, write_run
from tests.platform.ui import Ui, user_interface
from zarr_core.matrix import WideMatrix
from zarr_core.points.convert.publish import publish
from zarr_core.points.store.head import load_manifest
from zarr_core.sources import resolve_kind

pytestmark = pytest.mark.in_order

SHARED = PROJECT.parent / "shared" / "data" / "ahmed_rans"
NUMBERS = range(1, 11)
RUNS = {f"run_{number}" for number in NUMBERS}
CORRUPT = "run_3"
OBSERVED = dg.AssetKey(["ahmed_rans", "source_samples"])
SAMPLES = dg.AssetKey(["ahmed_rans", "zarr_samples"])
MANIFEST = dg.AssetKey(["ahmed_rans", "manifest"])
STATISTICS = dg.AssetKey(["ahmed_rans", "statistics"])
REPORT = dg.AssetKey(["ahmed_rans", "benchmark_report"])

LOADED = dg.AssetKey(["methylation", "matrix_batches"])
CHECKED = dg.AssetKey(["methylation", "matrix"])


@pytest.fixture(scope="module")
def instance(deployment: Deployment) -> Iterator[dg.DagsterInstance]:
    with dg.DagsterInstance.from_config(str(deployment.home)) as instance:
        yield instance


@pytest.fixture(scope="module")
def ui(instance: dg.DagsterInstance, location: dg.Definitions) -> Iterator[Ui]:
    with user_interface(instance) as ui:
        yield ui


@pytest.fixture(scope="module")
def arrivals(deployment: Deployment, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Ten runs, one of them corrupt, and two batches, one of them doubled, arrive.

    They appear at once, by a rename: what the daemon sees first does not depend on how fast we copy.

    Returns:
        Folder with the runs as they should be.
    """
    made, waiting = tmp_path_factory.mktemp("made"), tmp_path_factory.mktemp("waiting")
    for number in NUMBERS:
        original = SHARED / f"run_{number}"
        if not original.is_dir():
            original = write_run(made / "simulated", number, points=3000)
        for folder in (made, waiting):
            shutil.copytree(original, folder / original.name, copy_function=shutil.copyfile)
    corrupt(waiting / CORRUPT)
    for split, ids in {"train": RUNS - {"run_2"}, "val": {"run_2"}}.items():
        (waiting / f"{split}_design_ids.txt").write_text("\n".join(sorted(ids)))
    waiting.rename(deployment.source)
    deployment.deliver("GSE38608")
    deployment.deliver("lister_h1", doubled=True)
    return made


@pytest.fixture(scope="module")
def further_arrivals(deployment: Deployment, arrivals: Path) -> None:
    """The corrupt run is repaired, the doubled batch is written as it should be, and another batch arrives."""
    good = resolve_kind("ahmedml").fields["surface_pressure"].filename
    (arrivals / CORRUPT / good).rename(deployment.source / CORRUPT / good)
    deployment.deliver("lister_h1")
    deployment.deliver("GSE55763_b0")


def test_datasets_without_a_store_have_nothing_to_do(instance: dg.DagsterInstance, location: dg.Definitions) -> None:
    """What the schedules of a dataset run that was declared before its first sample arrives."""
    for name, published in (("ahmed_rans", MANIFEST), ("methylation", CHECKED)):
        for job in ("refresh", "gc", "verify"):
            result = location.resolve_job_def(f"{name}_{job}").execute_in_process(instance=instance)
            said = [event.user_message for event in instance.all_logs(result.run_id)]
            assert [message for message in said if " yet: " in message], (name, job)
        assert not materializations(instance, published)


@pytest.mark.usefixtures("arrivals")
def test_ten_runs_copied_into_a_watched_folder(deployment: Deployment, instance: dg.DagsterInstance) -> None:
    deployment.wait("the report", lambda: materializations(instance, REPORT))
    assert set(instance.get_dynamic_partitions("ahmed_rans__samples")) == RUNS
    assert set(instance.get_materialized_partitions(SAMPLES)) == RUNS - {CORRUPT}
    deployment.wait("the failure", lambda: failed_partitions(instance, SAMPLES) == {CORRUPT})
    # One run, and further ones if the automation looks just when a sample is recorded, or on the hour for what failed.
    assert len(runs_of(instance, SAMPLES)) < len(RUNS) / 2
    manifest = load_manifest(str(deployment.store))
    assert (manifest.generation, set(manifest.samples)) == (1, RUNS - {CORRUPT})
    assert list(manifest.quarantine) == [CORRUPT]
    assert materializations(instance, STATISTICS)
    training = set(manifest.split_ids("train"))
    points = sum(manifest.samples[i].domains["surface"].n_points for i in training)
    assert deployment.surface_points() == points


@pytest.mark.usefixtures("arrivals")
def test_a_batch_is_loaded_and_one_with_doubled_rows_fails(
    deployment: Deployment, instance: dg.DagsterInstance
) -> None:
    deployment.wait("the report", lambda: deployment.reported())
    deployment.wait("the failure", lambda: failed_partitions(instance, LOADED))
    assert deployment.reported() == {"GSE38608"}
    assert failed_partitions(instance, LOADED) == {"lister_h1"}
    assert list(WideMatrix.open(deployment.matrix).batches) == ["GSE38608"]


@pytest.mark.usefixtures("further_arrivals")
def test_a_repaired_run_is_converted(deployment: Deployment, instance: dg.DagsterInstance) -> None:
    deployment.wait("the repaired run in the report", lambda: reported_generation(instance, REPORT) == 2)
    assert set(instance.get_materialized_partitions(SAMPLES)) == RUNS
    assert not failed_partitions(instance, SAMPLES)
    manifest = load_manifest(str(deployment.store))
    assert (manifest.generation, set(manifest.samples)) == (2, RUNS)
    assert not manifest.quarantine
    training = set(manifest.split_ids("train"))
    assert deployment.surface_points() == sum(manifest.samples[i].domains["surface"].n_points for i in training)
    deployment.wait("the alert", lambda: f"{CORRUPT}: surface_pressure" in deployment.logged())


@pytest.mark.usefixtures("further_arrivals")
def test_repaired_and_further_batches_are_loaded(deployment: Deployment, instance: dg.DagsterInstance) -> None:
    everything = {"GSE38608", "lister_h1", "GSE55763_b0"}
    deployment.wait("the other batches in the report", lambda: deployment.reported() == everything)
    assert not failed_partitions(instance, LOADED)
    assert set(instance.get_materialized_partitions(LOADED)) == everything
    assert_equal_to_a_pivot(WideMatrix.open(deployment.matrix), deployment.long)
    page = (deployment.quality / "quality.html").read_text()
    assert all(f"<td>{batch_id}</td>" in page for batch_id in everything)

    loads = runs_of(instance, LOADED)
    assert {run.tags.get("dagster/from_automation_condition") for run in loads} == {"true"}, (
        "no run was started by hand"
    )
    summaries = instance.event_log_storage.get_asset_check_summary_records(
        [dg.AssetCheckKey(CHECKED, name) for name in ("axis_hash", "cells_loaded", "no_doubles")]
    )
    found = {key.name: record.last_check_execution_record for key, record in summaries.items()}
    assert {name: record and record.status.value for name, record in found.items()} == dict.fromkeys(
        ("axis_hash", "cells_loaded", "no_doubles"), "SUCCEEDED"
    )


@pytest.mark.usefixtures("further_arrivals")
def test_a_killed_daemon_goes_on_after_its_restart(
    deployment: Deployment, instance: dg.DagsterInstance, tmp_path: Path
) -> None:
    """It dies with its code servers and a run in the middle of a conversion, which nobody reports."""
    settled(deployment, instance)
    (deployment.home / WAITING).unlink(missing_ok=True)
    before = load_manifest(str(deployment.store)).samples
    with deployment.hold("run_17"):
        write_run(tmp_path, 17, points=3000).rename(deployment.source / "run_17")
        deployment.wait("the conversion", deployment.holding)
        (running,) = [run for run in runs_of(instance, SAMPLES) if run.status is dg.DagsterRunStatus.STARTED]
        deployment.kill()
    deployment.start()
    deployment.wait("the publication", lambda: "run_17" in load_manifest(str(deployment.store)).samples)
    manifest = load_manifest(str(deployment.store))
    assert {i: manifest.samples[i] for i in before} == dict(before)
    found = instance.get_run_by_id(running.run_id)
    assert found is not None
    assert found.status is dg.DagsterRunStatus.FAILURE


@pytest.mark.slow
@pytest.mark.usefixtures("further_arrivals")
def test_a_terminated_conversion_ends_as_canceled_and_keeps_what_it_converted(
    deployment: Deployment, instance: dg.DagsterInstance, ui: Ui, arrivals: Path
) -> None:
    new = ("run_11", "run_12", "run_13")
    before = set(load_manifest(str(deployment.store)).samples)
    with deployment.hold("run_12"):
        # The held one last: a sample that the daemon sees after it waits in another run.
        for number in (11, 13, 12):
            write_run(arrivals, number, points=3000).rename(deployment.source / f"run_{number}")
        deployment.wait("the conversion", deployment.holding)
        others = {"run_11", "run_13"}
        deployment.wait("the others", lambda: others <= set(instance.get_materialized_partitions(SAMPLES)))
        (running,) = [run for run in runs_of(instance, SAMPLES) if run.status is dg.DagsterRunStatus.STARTED]
        ui.terminate(running.run_id)
        deployment.wait("the end of the run", lambda: ui.status(running.run_id) == "CANCELED")
        sentence = f"run {running.run_id[:8]} of ahmed_rans/zarr_samples was cancelled; its errors follow from that."
        # Dagster may add that the process has ended after it.
        deployment.wait(
            "the sentence", lambda: any(sentence in event.message for event in instance.all_logs(running.run_id))
        )
        evaluated(deployment, instance)
        assert len(planned(instance, SAMPLES, "run_12")) == 1, "it is not requested again"
    deployment.wait("the publication", lambda: {*load_manifest(str(deployment.store)).samples} == before | others)
    assert not (deployment.store / "samples" / "run_12").exists()
    shown = ui.partitions(SAMPLES)
    assert {*new} & {*shown["materialized"]} == others
    assert (shown["unmaterialized"], shown["failed"], shown["materializing"]) == (["run_12"], [], [])
    reason = "sample changed or arrived at the source and their conversion was cancelled: run_12"
    deployment.wait(
        "the alert", lambda: f"check source_converted of ahmed_rans/manifest warns: 1 {reason}" in deployment.logged()
    )


@pytest.mark.slow
def test_a_check_that_failed_by_hand_is_logged_and_holds_back_what_follows(
    deployment: Deployment, instance: dg.DagsterInstance, location: dg.Definitions, ui: Ui
) -> None:
    """By a run of the command line, in which a chunk of a sample is damaged; then the sample is repaired by force."""
    settled(deployment, instance)
    made = materializations(instance, STATISTICS), materializations(instance, REPORT)
    shard = deployment.store / load_manifest(str(deployment.store)).samples["run_1"].relpath / "surface/pressure/c/0/0"
    whole = shard.read_bytes()
    shard.write_bytes(whole[:10] + bytes([whole[10] ^ 1]) + whole[11:])
    refresh = location.resolve_job_def("ahmed_rans_refresh")
    assert not refresh.execute_in_process(instance=instance, raise_on_error=False).success

    reason = "check checksums of ahmed_rans/manifest: run_1, surface_pressure"
    deployment.wait("the alert", lambda: reason in deployment.logged())
    status, description = ui.checks(MANIFEST)["checksums"]
    assert status == "FAILED"
    assert "To repair: convert run_1 again in a run with the tag zarr_core/force = true" in description
    evaluated(deployment, instance)
    assert (materializations(instance, STATISTICS), materializations(instance, REPORT)) == made

    ui.materialize(SAMPLES, ["run_1"], {"zarr_core/force": "true"})
    deployment.wait("statistics and report", lambda: materializations(instance, REPORT) > made[1])
    assert shard.read_bytes() == whole
    assert ui.checks(MANIFEST)["checksums"][0] == "SUCCEEDED"
    assert ui.partitions(SAMPLES)["failed"] == []


@pytest.mark.slow
@pytest.mark.usefixtures("arrivals")
def test_a_migration_goes_on_while_samples_arrive_and_is_dropped(
    deployment: Deployment, instance: dg.DagsterInstance, location: dg.Definitions, tmp_path: Path
) -> None:
    """Begun by a command line that was killed after its first commit, dropped by the job."""

    def stored_as(dtype: str) -> bool:
        """Whether readers see all samples, the new one too, in this dtype, and the sensor reports the end."""
        manifest = load_manifest(str(deployment.store))
        dtypes = {manifest.fields_of(i)["surface_pressure"].dtype for i in manifest.samples}
        check = latest_check(instance, dg.AssetCheckKey(MANIFEST, CHECK))
        under_way = check is None or "under way" in (check.description or "")
        return "run_14" in manifest.samples and dtypes == {dtype} and not under_way

    deployment.wait("the first batch", lambda: materializations(instance, REPORT))
    publish("ahmedml", str(deployment.store), root=deployment.source, reconvert=True, values_dtype="float32")
    write_run(tmp_path, 14, points=3000).rename(deployment.source / "run_14")
    deployment.wait("the migration", lambda: stored_as("float32"))
    check = latest_check(instance, dg.AssetCheckKey(MANIFEST, CHECK))
    assert check is not None
    assert "declared, but not applied: values_dtype: 'float32' -> 'float16'" in (check.description or "")
    evaluated(deployment, instance)
    assert stored_as("float32"), "no declaration converts anything by itself"

    assert location.resolve_job_def("ahmed_rans_migrate").execute_in_process(instance=instance).success
    deployment.wait("the way back", lambda: stored_as("float16"))


@pytest.mark.slow
def test_a_killed_run_worker_is_replaced(deployment: Deployment, instance: dg.DagsterInstance, tmp_path: Path) -> None:
    settled(deployment, instance)
    (deployment.home / WAITING).unlink(missing_ok=True)
    with deployment.hold("run_16"):
        write_run(tmp_path, 16, points=3000).rename(deployment.source / "run_16")
        deployment.wait("the conversion", deployment.holding)
        (running,) = [run for run in runs_of(instance, SAMPLES) if run.status is dg.DagsterRunStatus.STARTED]
        (started,) = instance.all_logs(running.run_id, of_type=dg.DagsterEventType.RUN_START)
        assert started.dagster_event
        assert started.dagster_event.pid
        os.kill(started.dagster_event.pid, signal.SIGKILL)
        failed = dg.RunsFilter(run_ids=[running.run_id], statuses=[dg.DagsterRunStatus.FAILURE])
        deployment.wait("the failure", lambda: instance.get_runs(failed))
    deployment.wait("the publication", lambda: "run_16" in load_manifest(str(deployment.store)).samples)


@pytest.mark.slow
def test_changed_samples_of_a_cancelled_backfill_are_named_until_they_are_converted(
    deployment: Deployment, instance: dg.DagsterInstance, ui: Ui, tmp_path: Path
) -> None:
    """One of them is being converted, the others are requested, when a person cancels everything."""
    settled(deployment, instance)
    (deployment.home / WAITING).unlink(missing_ok=True)
    before = load_manifest(str(deployment.store)).samples

    with deployment.hold("run_11", "run_13", "run_14"):
        deployment.change(tmp_path, 11)
        deployment.wait("the conversion", deployment.holding)
        deployment.change(tmp_path, 13, 14)
        deployment.wait("their requests", lambda: {"run_13", "run_14"} <= requested(instance, SAMPLES))

        def all_cancelled() -> bool:
            ui.cancel_all(instance)
            return not open_work(instance)

        deployment.wait("the end of all runs", all_cancelled)
    cancelled = "changed or arrived at the source and their conversion was cancelled"
    stale = f"4 samples {cancelled}: run_11, run_12, run_13, run_14. The store keeps what it had of them"
    deployment.wait(
        "the alert", lambda: f"check source_converted of ahmed_rans/manifest warns: {stale}" in deployment.logged()
    )
    assert load_manifest(str(deployment.store)).samples == before

    ui.materialize(SAMPLES, ["run_11", "run_13", "run_14"], {})
    check = dg.AssetCheckKey(MANIFEST, "source_converted")
    left = f"1 sample {cancelled}: run_12"
    deployment.wait("the check", lambda: left in str((found := latest_check(instance, check)) and found.description))


@pytest.mark.slow
def test_a_sample_that_was_incomplete_for_a_day_is_an_alert_until_it_is_gone(
    deployment: Deployment, instance: dg.DagsterInstance, tmp_path: Path
) -> None:
    folder = write_run(tmp_path, 18)
    (folder / "surface_pressure.pt").unlink()
    yesterday = time.time() - 25 * 3600
    for file in folder.iterdir():
        os.utime(file, (yesterday, yesterday))
    folder.rename(deployment.source / folder.name)
    late = "1 sample incomplete for more than 24 hours: run_18. run_18 lacks surface_pressure.pt"
    deployment.wait(
        "the alert", lambda: f"check samples_complete of ahmed_rans/manifest warns: {late}" in deployment.logged()
    )
    shutil.rmtree(deployment.source / folder.name)
    check = dg.AssetCheckKey(MANIFEST, "samples_complete")
    deployment.wait("the check", lambda: (found := latest_check(instance, check)) is not None and found.passed)


@pytest.mark.slow
def test_a_hopeless_batch_is_refused_once_until_something_changes(
    deployment: Deployment, instance: dg.DagsterInstance
) -> None:
    """What failed is retried at each evaluation; what was refused, when the matrix or its own rows change."""
    settled(deployment, instance)
    hopeless = "lister_imr90"

    def attempts_and_alerts() -> tuple[int, int]:
        alert = rf"ERROR - __repository__ - failed_runs - run \w+ of methylation/matrix_batches failed: .*{hopeless}"
        return len(planned(instance, LOADED, hopeless)), len(re.findall(alert, deployment.logged()))

    deployment.deliver(hopeless, doubled=True)
    deployment.wait("the alert", lambda: attempts_and_alerts()[1])
    evaluated(deployment, instance, "methylation")
    assert attempts_and_alerts() == (1, 1)

    matrix = WideMatrix.open(deployment.matrix)
    matrix.retire(matrix.sample_ids[:1])
    deployment.wait("another attempt", lambda: attempts_and_alerts() == (2, 2))
    deployment.deliver(hopeless)
    deployment.wait("the batch", lambda: hopeless in instance.get_materialized_partitions(LOADED))
    assert attempts_and_alerts() == (3, 2)


@pytest.mark.slow
def test_a_withdrawn_batch_is_an_alert_until_it_is_retired(
    deployment: Deployment, instance: dg.DagsterInstance
) -> None:
    """A warning of a check, which fails no run. The sensor reports it, and again after the command of the alert."""
    settled(deployment, instance)
    withdrawn = "GSE38608"
    shutil.rmtree(deployment.long / f"batch_id={withdrawn}")
    warning = (
        "check nothing_withdrawn of methylation/matrix warns: withdrawn from the warehouse, but still in the matrix"
    )
    deployment.wait("the alert", lambda: warning in deployment.logged())
    assert f"zarr-core matrix retire {deployment.matrix} --batches {withdrawn}" in deployment.logged()
    WideMatrix.open(deployment.matrix).retire([], [withdrawn])
    check = dg.AssetCheckKey(CHECKED, "nothing_withdrawn")
    deployment.wait("the check", lambda: (found := latest_check(instance, check)) is not None and found.passed)
    deployment.wait("the overview", lambda: f"{withdrawn} (" in shown(instance, "methylation", "retired"))


@pytest.mark.slow
def test_a_source_of_which_most_is_gone_retires_nothing(
    deployment: Deployment, instance: dg.DagsterInstance, ui: Ui
) -> None:
    settled(deployment, instance)
    before = load_manifest(str(deployment.store))
    left = deployment.source.with_name("left")
    shutil.copytree(deployment.source / "run_1", left / "run_1", copy_function=os.link)
    deployment.source.rename(deployment.source.with_name("gone"))
    left.rename(deployment.source)

    reason = f"{len(before.samples) - 1} of {len(before.samples)} samples of"
    deployment.wait("the alert", lambda: f"ahmed_rans__manifest: {reason}" in deployment.logged())
    assert "run ahmed_rans_refresh with the tag zarr_core/max_retired_share = 1" in deployment.logged()
    assert load_manifest(str(deployment.store)).samples == before.samples
    assert ui.partitions(SAMPLES)["materialized"] == ["run_1"]
    (latest,) = instance.get_runs(limit=1)
    assert (MANIFEST in (latest.asset_selection or ()), ui.status(latest.run_id)) == (True, "FAILURE")


@pytest.mark.slow
def test_a_source_that_never_answers_is_named_and_delays_no_other(
    deployment: Deployment, instance: dg.DagsterInstance
) -> None:
    """The source of the other code location, which reports it alone. All the other tests run meanwhile."""
    reason = "stalled_arrivals fails: listing s3://stalled/samples has not ended within 42 seconds: does the service"
    deployment.wait("the failing sensor", lambda: reason in deployment.logged())

    deployment.wait("the end of the tick", lambda: "stalled_arrivals" in reported_failing(instance, "other"))
    assert "stalled_arrivals" not in reported_failing(instance, "zarr_core"), "each location reports its own"


@pytest.mark.slow
def test_the_watchdog_sees_what_the_daemon_does(deployment: Deployment, ui: Ui) -> None:
    data = ui.ask(watchdog.QUERY)
    assert watchdog.problems_at(data, time.time()) == []
    later = time.time() + 3600
    (problem,) = watchdog.problems_at(data, later)
    assert "SENSOR" in problem.removeprefix("daemons that do not run: ")


@pytest.mark.slow
def test_a_misspelt_declaration_is_logged_by_name(deployment: Deployment) -> None:
    """All the other tests show that it stops no other dataset."""
    reason = "wings_not_loaded fails: the declaration of wings cannot be loaded"
    deployment.wait("the failing sensor", lambda: reason in deployment.logged())
    assert "`attributes.chunk_pionts at " in deployment.logged()


@pytest.mark.slow
@pytest.mark.usefixtures("location")
def test_a_new_instance_takes_what_the_store_holds(deployment: Deployment) -> None:
    """Dagster's database is lost while a declared setting is not applied; the source is back, and a sample arrives."""
    deployment.stop()
    deployment.lose_database()
    shutil.rmtree(deployment.source)
    deployment.source.with_name("gone").rename(deployment.source)
    write_run(deployment.source, 15, points=3000)
    before = load_manifest(str(deployment.store)).samples
    unknown = {path.name for path in deployment.source.iterdir() if path.is_dir()} - before.keys()
    deployment.project.change("assets/datasets/ahmed_rans/defs.yaml", "chunk_points: 4096", "values_dtype: float32")

    deployment.start()
    with dg.DagsterInstance.from_config(str(deployment.home)) as instance, user_interface(instance) as ui:
        deployment.wait("the report", lambda: materializations(instance, REPORT))
        events = instance.fetch_materializations(dg.AssetRecordsFilter(SAMPLES), limit=100).records
        # The first of each sample: the automation may look just when a sample is recorded, and convert it again.
        found = [event.asset_materialization for event in reversed(events)]
        statuses: dict[str | None, object] = {}
        for event in found:
            assert event
            statuses.setdefault(event.partition, event.metadata["status"].value)
        assert statuses == dict.fromkeys(before, "in the store") | dict.fromkeys(unknown, "converted")
        assert {*ui.partitions(SAMPLES)["materialized"]} == before.keys() | unknown
        settings = dg.AssetCheckKey(MANIFEST, CHECK)
        deployment.wait("the check of the settings", lambda: latest_check(instance, settings))
        check = latest_check(instance, settings)
    after = load_manifest(str(deployment.store))
    assert {i: after.samples[i] for i in before} == dict(before)
    assert {after.fields_of(i)["surface_pressure"].dtype for i in after.samples} == {"float16"}
    assert after.samples.keys() == before.keys() | unknown
    assert check is not None
    assert "declared, but not applied: " in (check.description or "")
    assert "values_dtype: 'float16' -> 'float32'" in (check.description or "")
    assert f"{len(before)} taken over from the store" in deployment.logged()
