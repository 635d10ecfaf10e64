"""The assets of a dataset, run by its jobs: samples, manifest, statistics, report and the checks between them."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
import yaml
from dagster._core.definitions.data_version import CachingStaleStatusResolver, StaleStatus
from dagster._core.loader import LoadingContextForTest
from zarr_core.platform.assets.zarr_samples import EntryReader
from zarr_core.platform.resources.alerts import Alerts
from zarr_core.platform.sensors.failures import failed_runs
from zarr_core.platform.sensors.messages import failure_message

from tests.helpers.servers.alerts import MailServer, Webhook
from tests.platform.trial import Trial, corrupt, write_run
from zarr_core.errors import TransferError
from zarr_core.points.store.head import load_manifest
from zarr_core.sources import resolve_kind
from zarr_core.stage import stage_store


@pytest.fixture
def filled(trial: Trial) -> Trial:
    """A source of three samples; by AhmedML's rule, 1 and 2 are in train and 4 in test."""
    for number in (1, 2, 4):
        write_run(trial.source, number)
    return trial


def stale(trial: Trial, sample_id: str) -> StaleStatus:
    graph = trial.definitions.resolve_asset_graph()
    resolver = CachingStaleStatusResolver(trial.instance, graph, LoadingContextForTest(trial.instance))
    return resolver.get_status(trial.dataset.key("zarr_samples"), sample_id)


def check_results(result: dg.ExecuteInProcessResult) -> dict[str, dg.AssetCheckEvaluation]:
    return {evaluation.check_name: evaluation for evaluation in result.get_asset_check_evaluations()}


def test_the_whole_chain(filled: Trial) -> None:
    assert filled.convert_all().success
    refreshed = filled.run("refresh")
    assert refreshed.success

    store = Path(filled.dataset.store)
    manifest = load_manifest(str(store))
    assert (manifest.generation, sorted(manifest.samples)) == (1, ["run_1", "run_2", "run_4"])
    assert yaml.safe_load((store / "stats.yaml").read_text())["surface_pressure_count"] == 600, (
        "of the training samples"
    )
    assert (Path(filled.dataset.report) / "report.html").stat().st_size > 10_000

    passed = {name: evaluation.passed for name, evaluation in check_results(refreshed).items()}
    # No sample is in val: a warning, which blocks nothing.
    assert {name for name, ok in passed.items() if not ok} == {"split_ids_present"}
    of_the_store = {"equivalence", "checksums", "converted_samples_fit", "split_ids_present", "plausible", "settings"}
    assert set(passed) == of_the_store | {"source_converted", "samples_complete"}

    numbers = {name: value.value for name, value in filled.materialization("zarr_samples", "run_4").metadata.items()}
    files = list((filled.source / "run_4").iterdir())
    assert numbers["bytes_in"] == sum(path.stat().st_size for path in files)
    assert numbers["bytes_out"] == manifest.samples["run_4"].bytes
    assert (numbers["points"], numbers["points/surface"]) == (900, 300)
    assert numbers["seconds"] > 0
    assert re.fullmatch(r".* kB at the source, .* kB in the store", numbers["size"])
    assert re.fullmatch(r"[\d.]+ s, .*B per second", numbers["took"])
    assert numbers["picture"].startswith("![surface_pressure](data:image/svg+xml,")
    assert len(numbers["picture"]) < 1000, "longer Markdown is collapsed in the UI"
    assert filled.materialization("manifest").metadata["generation"].value == 1


@pytest.mark.slow
def test_a_packed_dataset_is_converted_and_passes_its_checks(filled: Trial) -> None:
    packed = Trial(filled.dataset.model_copy(update={"layout": "packed"}), filled.instance)
    assert packed.convert_all().success
    refreshed = packed.run("refresh")
    assert refreshed.success
    manifest = load_manifest(packed.dataset.store)
    assert sorted(manifest.samples) == ["run_1", "run_2", "run_4"]
    assert all(entry.head and entry.relpath.endswith(".zip") for entry in manifest.samples.values())
    passed = {name: evaluation.passed for name, evaluation in check_results(refreshed).items()}
    assert {name for name, ok in passed.items() if not ok} == {"split_ids_present"}
    assert {"equivalence", "checksums", "settings", "samples_complete"} <= set(passed)
    assert (
        packed.materialization("zarr_samples", "run_4").metadata["bytes_out"].value == manifest.samples["run_4"].bytes
    )


@pytest.mark.usefixtures("nothing_measured")
def test_running_it_again_commits_nothing(filled: Trial) -> None:
    (filled.source / "run_2" / "params.json").write_text('{"angle": NaN}')
    assert filled.convert_all().success
    notes = filled.materialization("zarr_samples", "run_2").metadata["notes"]
    assert notes.value == "values that are empty or not a number were left out: angle of params.json"
    assert filled.run("refresh").success
    before = (Path(filled.dataset.store) / "manifest.json").read_bytes()
    assert filled.convert_all().success
    assert filled.materialization("zarr_samples", "run_1").metadata["status"].value == "up to date"
    assert filled.run("refresh").success
    assert (Path(filled.dataset.store) / "manifest.json").read_bytes() == before


@pytest.mark.usefixtures("nothing_measured")
def test_a_corrupt_sample_fails_alone(filled: Trial) -> None:
    corrupt(filled.source / "run_2")
    result = filled.convert_all()
    assert not result.success
    (failure,) = [event for event in result.all_events if event.is_step_failure]
    assert "1 of 3 samples" in failure.step_failure_data.user_failure_data.description
    assert "run_2: surface_pressure" in failure.step_failure_data.user_failure_data.description
    assert not [event for event in result.all_events if event.is_step_up_for_retry]
    assert filled.converted() == {"run_1", "run_4"}
    # Shown on the page of the partition.
    observation = filled.instance.fetch_observations(
        dg.AssetRecordsFilter(filled.dataset.key("zarr_samples"), asset_partitions=["run_2"]), limit=1
    ).records[0]
    assert "surface_pressure" in observation.asset_observation.metadata["reason"].value

    assert filled.run("refresh").success
    manifest = load_manifest(filled.dataset.store)
    assert sorted(manifest.samples) == ["run_1", "run_4"]
    assert list(manifest.quarantine) == ["run_2"]
    (row,) = filled.materialization("manifest").metadata["refused"].records
    assert row.data["sample"] == "run_2"


def test_nothing_is_published_while_every_sample_is_refused(filled: Trial) -> None:
    for number in (1, 2, 4):
        corrupt(filled.source / f"run_{number}")
    assert not filled.convert_all().success
    refused = filled.run("refresh")
    (failed,) = refused.get_step_failure_events()
    description = failed.step_failure_data.user_failure_data.description
    assert "No sample of the present source is converted, 3 are refused" in description
    assert not (Path(filled.dataset.store) / "manifest.json").exists()


def test_a_failure_of_the_environment_is_retried(filled: Trial, monkeypatch: pytest.MonkeyPatch) -> None:
    from zarr_core.sources import SampleTree

    calls = []
    load = SampleTree.load

    def unplugged(self: SampleTree, sample: object, canonical: str) -> object:
        calls.append(sample)
        if len(calls) == 1:
            raise OSError("network is down")
        return load(self, sample, canonical)

    monkeypatch.setattr(SampleTree, "load", unplugged)
    result = filled.convert_all()
    assert [event for event in result.all_events if event.is_step_up_for_retry]
    assert result.success
    assert filled.converted() == {"run_1", "run_2", "run_4"}


def alert(trial: Trial, result: dg.ExecuteInProcessResult) -> str:
    """The message of the failure sensor about a run."""
    return failure_message(trial.instance, result.dagster_run)


def test_the_alert_gives_the_reason(
    filled: Trial, monkeypatch: pytest.MonkeyPatch, webhook: Webhook, mail_server: MailServer
) -> None:
    corrupt(filled.source / "run_2")
    cursor = None
    for convert in (filled.convert_all, lambda: None):
        with dg.build_sensor_context(
            filled.instance, cursor=cursor, definitions=filled.definitions, resources={"alerts": Alerts()}
        ) as context:
            cursor = failed_runs.evaluate_tick(context).cursor
        convert()
    (text,) = webhook.texts
    assert "1 of 3 samples could not be converted: run_2: surface_pressure" in text
    assert mail_server.texts == [text]

    monkeypatch.setattr("zarr_core.sources.SampleTree.load", lambda *_: (_ for _ in ()).throw(OSError("unplugged")))
    write_run(filled.source, 2, shift=1.0)
    retried = filled.convert_all()
    assert "run_2: OSError: unplugged" in alert(filled, retried), "also when it was tried in vain again"
    (failure,) = [event.step_failure_data for event in retried.all_events if event.is_step_failure]
    assert failure.error.message.startswith("dagster._core.definitions.events.Failure: 1 of 3 samples")
    assert "refused" in failure.user_failure_data.metadata

    filled.source.rename(filled.source.with_name("unmounted"))
    filled.source.mkdir()
    assert "holds no samples" in alert(filled, filled.run("refresh"))


@pytest.mark.slow
@pytest.mark.usefixtures("nothing_measured")
def test_a_vanished_sample_is_retired(filled: Trial) -> None:
    assert filled.convert_all().success
    assert filled.run("refresh").success
    (filled.source / "run_2").rename(filled.source / ".run_2")
    assert filled.run("look").success
    assert filled.samples() == ["run_1", "run_4"]
    assert filled.run("refresh").success
    assert sorted(load_manifest(filled.dataset.store).samples) == ["run_1", "run_4"]
    assert filled.materialization("manifest").metadata["retired"].value == 1


@pytest.mark.slow
@pytest.mark.usefixtures("nothing_measured")
def test_a_renamed_dataset_goes_on_with_its_store(filled: Trial) -> None:
    """As docs/production.md says; its store was staged to another place meanwhile."""
    assert filled.convert_all().success
    assert filled.publish().success
    moved = f"{filled.dataset.store}_moved"
    assert not stage_store(filled.dataset.store, moved).failed
    renamed = Trial(filled.dataset.model_copy(update={"name": "renamed", "store": moved}), filled.instance)
    assert renamed.run("look").success
    assert renamed.converted() == {"run_1", "run_2", "run_4"}, "taken over without a conversion"
    write_run(renamed.source, 5)
    assert renamed.run("look").success
    for refused in (renamed.run("convert", "run_5"), renamed.publish()):
        (failure,) = [event.step_failure_data for event in refused.all_events if event.is_step_failure]
        assert "give dataset_name 'trial'" in (failure.error.cause.message if failure.error.cause else "")
    renamed = Trial(renamed.dataset.model_copy(update={"dataset_name": "trial"}), filled.instance)
    assert renamed.run("convert", "run_5").success
    assert renamed.publish().success
    manifest = load_manifest(moved)
    assert (manifest.dataset_name, set(manifest.samples)) == ("trial", {"run_1", "run_2", "run_4", "run_5"})


@pytest.mark.usefixtures("nothing_measured")
def test_an_empty_source_retires_nothing(filled: Trial) -> None:
    assert filled.convert_all().success
    assert filled.run("refresh").success
    filled.source.rename(filled.source.with_name("unmounted"))
    filled.source.mkdir()
    assert not filled.run("refresh").success
    assert len(load_manifest(filled.dataset.store).samples) == 3


def test_staleness_follows_source_and_settings(filled: Trial) -> None:
    assert filled.convert_all().success
    assert {stale(filled, i) for i in ("run_1", "run_2")} == {StaleStatus.FRESH}

    write_run(filled.source, 2, shift=1.0)
    assert filled.run("look").success
    assert (stale(filled, "run_1"), stale(filled, "run_2")) == (StaleStatus.FRESH, StaleStatus.STALE)
    assert filled.run("convert", "run_2").success
    assert stale(filled, "run_2") is StaleStatus.FRESH

    other = Trial(filled.dataset.model_copy(update={"chunk_points": 128}), filled.instance)
    assert stale(other, "run_1") is StaleStatus.STALE
    assert other.run("convert", "run_1").success
    assert (stale(other, "run_1"), stale(other, "run_4")) == (StaleStatus.FRESH, StaleStatus.STALE)


def test_a_damaged_chunk_stops_statistics_and_report(filled: Trial) -> None:
    assert filled.convert_all().success
    shard = next(Path(filled.dataset.store).glob("samples/run_1/*/volume/velocity/c/0/0"))
    data = bytearray(shard.read_bytes())
    data[10] ^= 1
    shard.write_bytes(data)
    result = filled.run("refresh")
    assert not result.success
    failed = check_results(result)
    assert not failed["checksums"].passed
    assert "run_1" in failed["checksums"].description
    assert "volume_velocity" in failed["checksums"].description
    assert failed["checksums"].description in alert(filled, result), "whole"
    assert not (Path(filled.dataset.store) / "stats.yaml").exists()


@pytest.mark.slow
@pytest.mark.usefixtures("nothing_measured")
def test_rows_that_differ_from_the_source_are_found(filled: Trial) -> None:
    assert filled.convert_all().success
    assert filled.run("refresh").success
    # The same sizes and times, other numbers: what a fingerprint cannot see.
    path = filled.source / "run_1" / "volume_cell_velocity.pt"
    stat = path.stat()
    other = (filled.source / "run_2" / "volume_cell_velocity.pt").read_bytes()
    assert len(other) == stat.st_size
    path.write_bytes(other)
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    result = check_results(filled.run("refresh"))
    assert not result["equivalence"].passed
    assert result["checksums"].passed


@pytest.mark.usefixtures("nothing_measured")
def test_parameters_that_differ_from_the_source_are_found(trial: Trial, tmp_path: Path) -> None:
    kind = tmp_path / "kind.yaml"
    kind.write_text(json.dumps(resolve_kind("ahmedml").model_dump(mode="json") | {"parameters": ["drag.json"]}))
    trial = Trial(trial.dataset.model_copy(update={"kind": str(kind)}), trial.instance)
    parameters = write_run(trial.source, 1) / "drag.json"
    parameters.write_text('{"drag": 0.25}')
    stat = parameters.stat()
    assert trial.convert_all().success
    assert check_results(trial.run("refresh"))["equivalence"].passed
    parameters.write_text('{"drag": 0.75}')
    os.utime(parameters, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert not check_results(trial.run("refresh"))["equivalence"].passed


@pytest.mark.slow
@pytest.mark.usefixtures("nothing_measured")
def test_a_source_that_changed_after_its_conversion_is_not_compared(filled: Trial) -> None:
    """Until it is converted again: its sample is right, and of an earlier source."""
    assert filled.convert_all().success
    assert filled.run("refresh").success
    for number in (1, 2, 4):
        write_run(filled.source, number, shift=1.0)
    result = filled.run("refresh")
    assert result.success
    check = check_results(result)["equivalence"]
    assert (check.passed, check.description) == (True, "no sample whose source is as it was at its conversion")


@pytest.mark.slow
def test_metadata_survives_the_database(filled: Trial) -> None:
    assert filled.convert_all().success
    assert filled.run("refresh").success
    for asset in ("manifest", "statistics", "benchmark_report"):
        metadata = filled.materialization(asset).metadata
        assert any(isinstance(value.value, int | float) for value in metadata.values()), "numbers become charts"
    splits = {
        row.data["split"]: row.data["in the store"]
        for row in filled.materialization("manifest").metadata["splits"].records
    }
    assert splits == {"train": 2, "val": 0, "test": 1}
    published = (Path(filled.dataset.store) / "stats.json").read_bytes()
    generation = load_manifest(filled.dataset.store).generation
    assert (Path(filled.dataset.store) / f"statistics/{generation:08d}/train.json").read_bytes() == published
    assert json.loads(published)


def test_only_damage_is_called_damage(filled: Trial, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another conversion would not help against a network that is down, or an error of the picture."""
    assert filled.convert_all().success
    read = EntryReader.metadata

    def refused(reader: EntryReader, result: Any, entry: Any) -> Any:
        if result.sample_id == "run_2":
            raise TransferError("s3://bucket/store was refused")
        return read(reader, result, entry)

    def fail(*_: Any) -> str:
        raise ValueError("no colours")

    monkeypatch.setattr(EntryReader, "metadata", refused)
    monkeypatch.setattr("zarr_core.platform.assets.zarr_samples.silhouette", fail)
    (failed,) = filled.run("convert", "run_1", "run_4").get_step_failure_events()
    assert failed.step_failure_data.user_failure_data is not None
    description = failed.step_failure_data.user_failure_data.description or ""
    assert "1 of 3 samples could not be converted: run_2: TransferError: s3://bucket/store was refused" in description
    assert "damaged" not in description
    picture = filled.materialization("zarr_samples", "run_1").metadata["picture"].value
    assert picture == "no picture, ValueError: no colours"


@pytest.mark.slow
@pytest.mark.usefixtures("nothing_measured")
def test_a_damaged_group_fails_no_other_sample_and_is_repaired_by_force(filled: Trial) -> None:
    assert filled.convert_all().success
    assert filled.run("refresh").success
    store = Path(filled.dataset.store)
    shard = next(store.glob("samples/run_1/*/surface/pressure/c/0/0"))
    document = next(store.glob("samples/run_2/*/zarr.json"))
    whole = shard.read_bytes(), document.read_bytes()
    shard.write_bytes(whole[0][:10] + bytes([whole[0][10] ^ 1]) + whole[0][11:])
    document.write_bytes(whole[1][:50])

    again = filled.run("convert", "run_1", "run_4")
    (failed,) = again.get_step_failure_events()
    assert failed.step_failure_data.user_failure_data is not None
    assert "1 of 3 samples could not be converted: run_2: its group is damaged" in (
        failed.step_failure_data.user_failure_data.description or ""
    )
    picture = filled.materialization("zarr_samples", "run_1").metadata["picture"].value
    assert "no picture, its group is damaged" in picture
    assert "zarr_core/force" in picture
    check = check_results(filled.run("refresh"))["checksums"]
    assert not check.passed
    assert "To repair: convert run_1, run_2 again in a run with the tag zarr_core/force = true" in check.description

    assert filled.run("convert", "run_1", "run_4", tags={"zarr_core/force": "True"}).success
    assert (shard.read_bytes(), document.read_bytes()) == whole
    assert "image/svg" in filled.materialization("zarr_samples", "run_1").metadata["picture"].value
    assert filled.run("refresh").success


@pytest.mark.slow
@pytest.mark.usefixtures("nothing_measured")
def test_the_refresh_retires_only_what_the_sensor_confirmed_and_only_a_few(filled: Trial) -> None:
    assert filled.convert_all().success
    assert filled.run("refresh").success
    for number in (1, 2):
        (filled.source / f"run_{number}").rename(filled.source / f".run_{number}")
    assert filled.run("refresh").success
    assert filled.materialization("manifest").metadata["retired"].value == 0, "one listing only"
    assert filled.materialization("manifest").metadata["not_at_the_source"].value == 2

    assert filled.run("look").success
    refused = filled.run("refresh")
    (failed,) = refused.get_step_failure_events()
    assert failed.step_failure_data.user_failure_data is not None
    reason = failed.step_failure_data.user_failure_data.description or ""
    assert "2 of 3 samples" in reason
    assert "run trial_refresh with the tag zarr_core/max_retired_share = 1" in reason
    assert len(load_manifest(filled.dataset.store).samples) == 3
    (failed,) = filled.run("refresh", tags={"zarr_core/max_retired_share": "100%"}).get_step_failure_events()
    reason = failed.step_failure_data.user_failure_data.description or ""
    assert reason == "the tag zarr_core/max_retired_share is '100%', not a number from 0 to 1"
    filled.run("refresh", tags={"zarr_core/max_retired_share": "1"})
    assert list(load_manifest(filled.dataset.store).samples) == ["run_4"]
