"""How often an arrival lists its source, and asks Dagster, until it is published and checked."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from tests.platform.test_source_watch import Watcher
from tests.platform.trial import Trial, write_run
from zarr_core.points.store.head import load_manifest

pytestmark = pytest.mark.usefixtures("nothing_measured")


class Listings:
    """Counts the listings of a whole folder by this process."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._count, self._scandir = 0, os.scandir

        def counted(path: Any = ".") -> Any:
            self._count += isinstance(path, str) and Path(path) == folder
            return self._scandir(path)

        monkeypatch.setattr(os, "scandir", counted)

    def new(self) -> int:
        """How many there were since the last call."""
        count, self._count = self._count, 0
        return count


@pytest.fixture
def published(trial: Trial) -> Trial:
    """A published sample."""
    write_run(trial.source, 1)
    assert trial.convert_all().success
    assert trial.run("refresh").success
    return trial


@pytest.fixture
def listings(published: Trial, monkeypatch: pytest.MonkeyPatch) -> Listings:
    return Listings(published.source, monkeypatch)


def test_an_arrival_lists_its_source_three_times(published: Trial, listings: Listings) -> None:
    """Two ticks have to agree on it, and one listing is published and checked."""
    watcher = Watcher(published)
    watcher.settle()
    write_run(published.source, 2)
    counts = []
    listings.new()
    watcher.tick()
    counts.append(listings.new())
    watcher.tick()
    counts.append(listings.new())
    assert published.samples() == ["run_1", "run_2"]
    assert published.run("convert", "run_2").success
    counts.append(listings.new())
    refreshed = published.run("refresh")
    counts.append(listings.new())
    assert counts == [1, 1, 0, 1]
    checks = {check.check_name: check for check in refreshed.get_asset_check_evaluations()}
    assert checks["equivalence"].description.startswith("2 samples, ")
    assert {"settings", "samples_complete"} < checks.keys()
    assert list(load_manifest(published.dataset.store).samples) == ["run_1", "run_2"]


@pytest.mark.slow
def test_each_run_lists_the_source_anew(published: Trial, listings: Listings) -> None:
    for _ in range(2):
        assert published.run("look").success
        assert listings.new() == 2, "an observation by hand compares two listings"
        check = dg.AssetCheckKey(published.dataset.published, "samples_complete")
        job = published.definitions.resolve_implicit_global_asset_job_def().get_subset(asset_check_selection={check})
        assert job.execute_in_process(instance=published.instance).success
        assert listings.new() == 1, "a check by itself"


@pytest.mark.slow
def test_a_check_sees_no_sample_that_changed_after_the_listing(
    published: Trial, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The equivalence would call it damaged."""
    split_rows = "zarr_core.platform.assets.manifest.split_rows"

    def change(*_: object) -> list[Any]:
        write_run(published.source, 1, shift=1.0)
        return []

    with monkeypatch.context() as patched:
        patched.setattr(split_rows, change)  # after the commit
        result = published.run("refresh")
    checks = {check.check_name: check for check in result.get_asset_check_evaluations()}
    assert checks["equivalence"].description == "no sample whose source is as it was at its conversion"


@pytest.mark.slow
def test_a_tick_asks_for_the_same_versions_once(published: Trial, monkeypatch: pytest.MonkeyPatch) -> None:
    watcher = Watcher(published)
    watcher.settle()
    asked: Counter[tuple[str, ...]] = Counter()
    storage = published.instance.event_log_storage
    for name in ("get_latest_tags_by_partition", "get_dynamic_partitions"):
        answer = getattr(storage, name)

        def counted(*arguments: object, name: str = name, answer: Any = answer) -> Any:
            asked[name, *map(str, arguments)] += 1
            return answer(*arguments)

        monkeypatch.setattr(storage, name, counted)
    watcher.tick()
    assert asked
    assert set(asked.values()) == {1}
