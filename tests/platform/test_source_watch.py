"""The arrivals sensor reports new, changed and vanished samples, and no half-copied ones."""

from __future__ import annotations

import shutil
from pathlib import Path

import dagster as dg
import pytest
from zarr_core.platform.resources.stores import StoreAccess
from zarr_core.platform.sensors.arrivals import arrivals_sensor
from zarr_core.platform.sensors.dagster_internals.queries import observed_versions
from zarr_core.platform.sensors.observations import KnownItems, latest_listing, listing_metadata
from zarr_core.platform.sensors.pending import PendingChanges, find_changes

from tests.platform.trial import Trial, write_run
from zarr_core.points.store.head import load_manifest
from zarr_core.sources import FileInfo, SourceSample
from zarr_core.sources.listing import Listing, list_samples
from zarr_core.storage import Storage


class Watcher:
    """The sensor, and the daemon's handling of its results."""

    def __init__(self, trial: Trial) -> None:
        self.trial, self.cursor = trial, None

    def tick(self) -> dg.SensorResult:
        context = dg.build_sensor_context(self.trial.instance, cursor=self.cursor, resources={"stores": StoreAccess()})
        result = arrivals_sensor(self.trial.dataset)(context)
        assert isinstance(result, dg.SensorResult)
        assert not result.run_requests
        for event in result.asset_events:
            self.trial.instance.report_runless_asset_event(event)
        for request in result.dynamic_partitions_requests or ():
            if isinstance(request, dg.AddDynamicPartitionsRequest):
                self.trial.instance.add_dynamic_partitions(request.partitions_def_name, request.partition_keys)
            else:
                for key in request.partition_keys:
                    self.trial.instance.delete_dynamic_partition(request.partitions_def_name, key)
        self.cursor = result.cursor
        return result

    def settle(self) -> dg.SensorResult:
        """Two ticks, after which every sample that does not change any more is known."""
        self.tick()
        return self.tick()

    def versions(self) -> dict[str, str | None]:
        return KnownItems(self.trial.instance, self.trial.dataset).observed


@pytest.fixture
def watcher(trial: Trial) -> Watcher:
    return Watcher(trial)


def observed(result: dg.SensorResult, asset: str = "source_samples") -> list[str | None]:
    return [event.partition for event in result.asset_events if event.asset_key.path[-1] == asset]


def test_a_sample_is_registered_when_two_listings_show_the_same_files(trial: Trial, watcher: Watcher) -> None:
    for number in (1, 2, 3):
        write_run(trial.source, number)
    assert observed(watcher.tick()) == []
    assert trial.samples() == []
    result = watcher.tick()
    assert observed(result) == ["run_1", "run_2", "run_3"]
    assert "3 complete samples, 3 new (run_1, run_2, run_3)" in str(result.skip_reason)
    assert trial.samples() == ["run_1", "run_2", "run_3"]
    seen = StoreAccess().source(trial.dataset.kind, trial.dataset.source).discover()
    assert watcher.versions() == {sample_id: sample.fingerprint for sample_id, sample in seen.items()}
    assert observed(watcher.tick()) == []


def test_folders_that_are_no_samples_are_named(trial: Trial, watcher: Watcher) -> None:
    """In the summary of every tick, and in the metadata of the listing."""
    write_run(trial.source, 1)
    write_run(trial.source, 2).rename(trial.source / "run 2")
    assert "'run 2': they contain field files but do not match run_*" in str(watcher.tick().skip_reason)
    metadata = listing_metadata(list_samples(StoreAccess().source("ahmedml", trial.dataset.source)))
    assert "'run 2'" in metadata["left out"].md_str


def test_a_half_copied_sample_waits(trial: Trial, watcher: Watcher) -> None:
    whole = write_run(trial.source.parent / "elsewhere", 7)
    write_run(trial.source, 1)
    target = trial.source / "run_7"
    target.mkdir()
    for name in sorted(path.name for path in whole.iterdir())[:-1]:
        shutil.copy(whole / name, target)
    last = sorted(path.name for path in whole.iterdir())[-1]
    result = watcher.settle()
    assert observed(result) == ["run_1"]
    # All files are there now, but one of them still grows.
    data = (whole / last).read_bytes()
    for part in (len(data) // 3, len(data) // 2, len(data)):
        (target / last).write_bytes(data[:part])
        assert observed(watcher.tick()) == []
    assert observed(watcher.tick()) == ["run_7"]


@pytest.mark.slow
def test_a_sample_whose_id_contains_a_blank_is_registered_and_converted(trial: Trial, watcher: Watcher) -> None:
    write_run(trial.source, 1).rename(trial.source / "run_1 coarse")
    assert observed(watcher.settle()) == ["run_1 coarse"]
    assert trial.convert_all().success
    assert trial.converted() == {"run_1 coarse"}
    assert trial.publish().success
    assert list(load_manifest(trial.dataset.store).samples) == ["run_1 coarse"]
    write_run(trial.source, 2).rename(trial.source / "run_1 fine")
    assert observed(watcher.settle()) == ["run_1 fine"]


def test_a_changed_sample_is_observed_in_its_new_version(trial: Trial, watcher: Watcher) -> None:
    write_run(trial.source, 1)
    write_run(trial.source, 2)
    watcher.settle()
    before = watcher.versions()
    write_run(trial.source, 2, shift=1.0)
    assert observed(watcher.settle()) == ["run_2"]
    after = watcher.versions()
    assert after["run_1"] == before["run_1"]
    assert after["run_2"] != before["run_2"]


def test_arrivals_are_in_natural_order(trial: Trial, watcher: Watcher) -> None:
    for number in (10, 9, 1, 2, 11):
        write_run(trial.source, number)
    watcher.settle()
    assert trial.samples() == ["run_1", "run_2", "run_9", "run_10", "run_11"]


def test_scattered_changes_become_neighbours(trial: Trial, watcher: Watcher) -> None:
    for number in range(1, 8):
        write_run(trial.source, number)
    watcher.settle()
    for number in (2, 3):
        write_run(trial.source, number, shift=1.0)
    watcher.settle()
    assert trial.samples() == [f"run_{number}" for number in range(1, 8)], "these were neighbours"
    for number in (1, 4, 6):
        write_run(trial.source, number, shift=1.0)
    assert observed(watcher.settle()) == ["run_1", "run_4", "run_6"]
    assert trial.samples() == ["run_2", "run_3", "run_5", "run_7", "run_1", "run_4", "run_6"]


def test_a_vanished_sample_is_removed_and_may_return(trial: Trial, watcher: Watcher) -> None:
    write_run(trial.source, 1)
    folder = write_run(trial.source, 2)
    watcher.settle()
    before = watcher.versions()
    folder.rename(folder.with_name(".gone"))
    watcher.tick()
    assert trial.samples() == ["run_1", "run_2"], "one listing may miss a folder that is being moved"
    result = watcher.tick()
    assert trial.samples() == ["run_1"]
    assert observed(result, "source_listing") == [None], "the manifest follows the listing"
    folder.with_name(".gone").rename(folder)
    # The same files as before, but the last version observed is "absent".
    assert observed(watcher.settle()) == ["run_2"]
    assert watcher.versions() == before


def test_a_sample_that_lost_a_file_has_not_vanished(trial: Trial, watcher: Watcher) -> None:
    write_run(trial.source, 1)
    folder = write_run(trial.source, 2)
    watcher.settle()
    (folder / "surface_pressure.pt").unlink()
    watcher.settle()
    assert trial.samples() == ["run_1", "run_2"]


def test_an_empty_source_is_an_outage(trial: Trial, watcher: Watcher) -> None:
    write_run(trial.source, 1)
    watcher.settle()
    trial.source.rename(trial.source.with_name("unmounted"))
    trial.source.mkdir()
    watcher.settle()
    watcher.tick()
    assert trial.samples() == ["run_1"]


def test_the_listing_is_observed_once_there_are_samples(trial: Trial, watcher: Watcher) -> None:
    assert observed(watcher.tick(), "source_listing") == []
    write_run(trial.source, 1)
    assert observed(watcher.settle(), "source_listing") == [None]
    assert observed(watcher.settle(), "source_listing") == []


def test_the_listing_shows_the_counts_of_now(trial: Trial, watcher: Watcher) -> None:
    """Its data version stays: the manifest follows conversions, and need not be made twice."""
    write_run(trial.source, 1)
    watcher.settle()
    before = latest_listing(trial.instance, trial.dataset.listing_key)
    write_run(trial.source, 2)
    (write_run(trial.source, 3) / "surface_pressure.pt").unlink()
    watcher.settle()
    (record,) = trial.instance.fetch_observations(dg.AssetRecordsFilter(trial.dataset.listing_key), limit=1).records
    metadata = record.asset_observation.metadata
    assert (metadata["samples"].value, metadata["incomplete"].value) == (2, 1)
    after = latest_listing(trial.instance, trial.dataset.listing_key)
    assert (after.version, after.documents) == (before.version, before.documents)
    assert after.counts != before.counts
    assert observed(watcher.tick(), "source_listing") == []


def with_split_files(trial: Trial, folder: Path) -> Watcher:
    """A watcher of a kind whose splits are files."""
    kind = folder / "mine.yaml"
    kind.write_text(
        "name: mine\nsamples: run_*\nfiles:\n  surface_position: surface_position_vtp.pt\n"
        "  surface_pressure: surface_pressure.pt\n"
    )
    return Watcher(Trial(trial.dataset.model_copy(update={"kind": str(kind)}), trial.instance))


def test_a_changed_split_file_is_observed(trial: Trial, tmp_path: Path) -> None:
    watcher = with_split_files(trial, tmp_path)
    write_run(trial.source, 1)
    watcher.settle()
    assert observed(watcher.tick(), "source_listing") == []
    (trial.source / "train_design_ids.txt").write_text("run_1\n")
    assert observed(watcher.tick(), "source_listing") == [None]
    assert observed(watcher.tick(), "source_listing") == []


@pytest.mark.slow
@pytest.mark.parametrize("vanishes", [True, False])
def test_split_files_and_samples_that_go_together_are_one_change(trial: Trial, tmp_path: Path, vanishes: bool) -> None:
    """A manifest that is made between the two listings must not be up to date with the second one."""
    watcher = with_split_files(trial, tmp_path)
    for number in (1, 2):
        write_run(trial.source, number)
    (trial.source / "train_design_ids.txt").write_text("run_1\nrun_2\n")
    watcher.settle()
    before = latest_listing(trial.instance, trial.dataset.listing_key)
    folder = trial.source / "run_2"
    folder.rename(folder.with_name(".gone"))
    (trial.source / "train_design_ids.txt").write_text("run_1\n")
    assert observed(watcher.tick(), "source_listing") == []
    if not vanishes:
        folder.with_name(".gone").rename(folder)
    assert observed(watcher.tick(), "source_listing") == [None]
    after = latest_listing(trial.instance, trial.dataset.listing_key)
    assert after.version != before.version
    assert observed(watcher.tick(), "source_listing") == []
    assert trial.samples() == ["run_1"] + ["run_2"] * (not vanishes)


def test_samples_that_go_one_after_another_are_one_change(trial: Trial, tmp_path: Path) -> None:
    """A manifest that is made when the first has vanished must not be up to date when the second has."""
    watcher = with_split_files(trial, tmp_path)
    for number in (1, 2, 3):
        write_run(trial.source, number)
    watcher.settle()
    versions = [latest_listing(trial.instance, trial.dataset.listing_key).version]
    for number in (2, 3):
        shutil.rmtree(trial.source / f"run_{number}")
        watcher.tick()
        versions.append(latest_listing(trial.instance, trial.dataset.listing_key).version)
    watcher.tick()
    assert len(set(versions)) == 1
    assert latest_listing(trial.instance, trial.dataset.listing_key).version not in versions
    assert trial.samples() == ["run_1"]


def test_what_has_vanished_is_listed_also_if_nothing_vanishes_any_more(trial: Trial, tmp_path: Path) -> None:
    """The manifest follows the version of the listing, and retires what has vanished."""
    watcher = Watcher(trial)
    for number in (1, 2, 3):
        write_run(trial.source, number)
    watcher.settle()
    before = latest_listing(trial.instance, trial.dataset.listing_key)
    shutil.rmtree(trial.source / "run_2")
    watcher.tick()
    away = (trial.source / "run_3").rename(tmp_path / "run_3")
    watcher.tick()
    away.rename(trial.source / "run_3")
    watcher.tick()
    assert trial.samples() == ["run_1", "run_3"]
    after = latest_listing(trial.instance, trial.dataset.listing_key)
    assert after.version != before.version
    assert observed(watcher.tick(), "source_listing") == [], "once"
    assert latest_listing(trial.instance, trial.dataset.listing_key) == after


def test_a_sample_that_arrived_and_vanished_changes_the_listing(trial: Trial) -> None:
    """Although the samples are those that the listing had when it was observed in another version last."""
    watcher = Watcher(trial)
    write_run(trial.source, 1)
    watcher.settle()
    before = latest_listing(trial.instance, trial.dataset.listing_key)
    write_run(trial.source, 2)
    watcher.settle()
    assert latest_listing(trial.instance, trial.dataset.listing_key).version == before.version
    shutil.rmtree(trial.source / "run_2")
    watcher.settle()
    assert trial.samples() == ["run_1"]
    after = latest_listing(trial.instance, trial.dataset.listing_key)
    assert after.version != before.version
    assert observed(watcher.tick(), "source_listing") == []


def test_samples_outside_the_declared_splits_are_not_registered(trial: Trial) -> None:
    # By AhmedML's rule run_1 is a training sample and run_4 a test sample.
    watcher = Watcher(Trial(trial.dataset.model_copy(update={"splits": ["test"]}), trial.instance))
    write_run(trial.source, 1)
    write_run(trial.source, 4)
    watcher.settle()
    assert trial.samples() == ["run_4"]


class Bucket(Watcher):
    """A watched source in a bucket, and its store beside it."""

    def __init__(self, trial: Trial, root: str) -> None:
        places = {"source": f"{root}/source", "store": f"{root}/store"}
        super().__init__(Trial(trial.dataset.model_copy(update=places), trial.instance))
        self.source, self.folder = Storage(places["source"]), trial.source

    def upload(self, number: int, files: slice = slice(None), shift: float = 0.0) -> None:
        for path in sorted(write_run(self.folder, number, shift=shift).iterdir())[files]:
            self.source.write(f"run_{number}/{path.name}", [path.read_bytes()])


@pytest.mark.parametrize("any_root", ["s3", pytest.param("oci", marks=pytest.mark.slow), "gs", "az"], indirect=True)
def test_arrivals_changes_and_disappearance_in_a_bucket(trial: Trial, any_root: str) -> None:
    bucket = Bucket(trial, any_root)
    bucket.upload(1)
    bucket.upload(2)
    bucket.upload(3, slice(None, -1))
    assert observed(bucket.settle()) == ["run_1", "run_2"]
    bucket.upload(2, shift=1.0)
    bucket.upload(3, slice(-1, None))
    bucket.source.delete([f"run_1/{path.name}" for path in (bucket.folder / "run_1").iterdir()])
    assert observed(bucket.settle()) == ["run_3", "run_2", "run_1"]
    assert bucket.trial.samples() == ["run_2", "run_3"]


@pytest.mark.slow
def test_from_bucket_to_bucket(trial: Trial, s3_root: str) -> None:
    bucket = Bucket(trial, s3_root)
    bucket.upload(1)
    assert bucket.trial.convert_all().success
    assert bucket.trial.publish().success
    assert load_manifest(bucket.trial.dataset.store).samples.keys() == {"run_1"}


def sample(sample_id: str, version: str = "1") -> SourceSample:
    return SourceSample(sample_id, sample_id, {"surface_position": FileInfo("p.pt", 1, version)})


def listing_of(*samples: SourceSample) -> Listing:
    return Listing({s.sample_id: s for s in samples})


def test_many_arrivals_are_taken_in_portions_and_the_cursor_stays_small() -> None:
    many = listing_of(*(sample(f"run_{number:05d}") for number in range(2500)))
    known: dict[str, str | None] = {}
    pending, portions, longest = PendingChanges(), [], 0
    for _ in range(5):
        changes = find_changes(many, known, pending, new_limit=1000)
        reported = changes.new + changes.changed
        portions.append(len(reported))
        known |= {sample_id: many.items[sample_id].fingerprint for sample_id in reported}
        longest = max(longest, len(changes.pending.to_cursor()))
        pending = PendingChanges.from_cursor(changes.pending.to_cursor())
    assert portions == [0, 1000, 1000, 500, 0]
    assert len(known) == 2500
    assert longest < 40_000
    assert pending == PendingChanges()


def test_vanished_items_beyond_the_limit_of_a_tick_stay_pending() -> None:
    """With notifications, the next tick lists the whole source only if a vanished item is pending."""
    known: dict[str, str | None] = {f"run_{number:05d}": "1" for number in range(2501)}
    listing = listing_of(sample("run_00000"))
    known["run_00000"] = listing.items["run_00000"].fingerprint
    pending, portions = find_changes(listing, known, PendingChanges(), limit=1000).pending, []
    while pending.gone_once:
        changes = find_changes(listing, known, pending, limit=1000)
        known = {i: version for i, version in known.items() if i not in changes.vanished}
        portions.append(len(changes.vanished))
        pending = PendingChanges.from_cursor(changes.pending.to_cursor())
    assert portions == [1000, 1000, 500]
    assert known.keys() == {"run_00000"}


def test_many_events_are_stored_by_the_sensor_itself(
    trial: Trial, watcher: Watcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In one transaction; the daemon would store them one by one."""
    monkeypatch.setattr("zarr_core.platform.sensors.observations._MANY_EVENTS", 2)
    for number in (1, 2, 3):
        write_run(trial.source, number)
    result = watcher.settle()
    assert result.asset_events == []
    assert trial.samples() == ["run_1", "run_2", "run_3"]
    assert watcher.versions().keys() == {"run_1", "run_2", "run_3"}
    assert None not in watcher.versions().values()
    assert {event.asset_key for event in watcher.tick().asset_events} == {trial.dataset.key("overview")}, "all is known"


@pytest.mark.parametrize("cursor", [None, "", "not json", "[]", "null", '{"seen_once": 3}'])
def test_a_cursor_of_another_form_means_nothing_is_pending(cursor: str | None) -> None:
    assert PendingChanges.from_cursor(cursor) == PendingChanges()


def test_observing_by_hand_registers_at_once(trial: Trial) -> None:
    write_run(trial.source, 1)
    write_run(trial.source, 2)
    assert trial.run("look").success
    assert trial.samples() == ["run_1", "run_2"]
    assert set(observed_versions(trial.instance, trial.dataset.observed)) == {"run_1", "run_2"}
