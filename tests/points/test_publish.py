"""Publication: the same sample from two converters."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from tests.helpers.commits import add
from tests.helpers.small_source import KIND, write_source
from zarr_core.points.convert import convert, convert_samples
from zarr_core.points.manifest import HEAD, load_manifest
from zarr_core.points.publish import Pending, commit_results
from zarr_core.points.settings import ConversionSettings
from zarr_core.points.writer import ZarrStoreWriter
from zarr_core.sources.selection import Selection, open_source, select_samples
from zarr_core.storage import Storage
from zarr_core.versioning.generations import commit


@pytest.fixture
def two_states(tmp_path: Path) -> tuple[Path, Callable[[], None]]:
    """A source of one sample, and what changes it."""
    source = write_source(tmp_path / "source", sample_ids=("run_1",))

    def change() -> None:
        path = source / "run_1" / "surface_pressure.pt"
        torch.save(torch.load(path, weights_only=True) + 1, path)
        os.utime(path, (1, 1))

    return source, change


def _converted(source: Path, store: Path) -> tuple[Selection, Pending, ConversionSettings]:
    """A conversion's results that are not committed yet."""
    settings = ConversionSettings(chunk_points=16)
    selection = select_samples(open_source(KIND, root=source))
    (outcome,) = convert_samples(
        selection.source, ZarrStoreWriter(store, settings), [*selection.samples.values()], False, 1, None
    )
    assert outcome.written is not None
    return selection, Pending({"run_1": outcome.written}), settings


def test_a_stale_converter_does_not_undo_a_newer_one(
    two_states: tuple[Path, Callable[[], None]], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    source, change = two_states
    store = Storage(tmp_path / "store")
    old = _converted(source, tmp_path / "store")
    change()
    new = _converted(source, tmp_path / "store")
    newest = new[1].written["run_1"].entry
    assert commit_results(store, new[0], new[2], new[1]).manifest.samples["run_1"] == newest
    report = commit_results(store, old[0], old[2], old[1])
    assert (report.added, report.replaced, report.committed) == ([], [], False)
    assert load_manifest(store).samples["run_1"] == newest
    assert "run_1: its source changed after this conversion read it" in caplog.text


def test_a_newer_converter_replaces_an_older_result_and_logs_it(
    two_states: tuple[Path, Callable[[], None]], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "zarr_core")
    source, change = two_states
    store = Storage(tmp_path / "store")
    old = _converted(source, tmp_path / "store")
    change()
    new = _converted(source, tmp_path / "store")
    commit_results(store, old[0], old[2], old[1])
    report = commit_results(store, new[0], new[2], new[1])
    assert report.replaced == ["run_1"]
    assert load_manifest(store).samples["run_1"] == new[1].written["run_1"].entry
    assert "replaces" in caplog.text


def test_a_stale_converter_does_not_replace_a_newer_result(
    two_states: tuple[Path, Callable[[], None]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The newer converter commits between the older one's read of the manifest and its swap."""
    source, change = two_states
    store = Storage(tmp_path / "store")
    commit(store, HEAD, add("other"))
    old = _converted(source, tmp_path / "store")
    change()
    new = _converted(source, tmp_path / "store")
    swap = Storage.replace

    def overtaken(self: Storage, name: str, data: bytes, version: str | None) -> None:
        monkeypatch.setattr(Storage, "replace", swap)
        commit_results(store, new[0], new[2], new[1])
        swap(self, name, data, version)

    monkeypatch.setattr(Storage, "replace", overtaken)
    report = commit_results(store, old[0], old[2], old[1])
    assert not report.replaced
    assert report.manifest.samples["run_1"] == new[1].written["run_1"].entry
    assert set(report.manifest.samples) == {"other", "run_1"}


def test_a_stale_refusal_does_not_quarantine_a_repaired_sample(
    two_states: tuple[Path, Callable[[], None]], tmp_path: Path
) -> None:
    source, change = two_states
    store, path = Storage(tmp_path / "store"), source / "run_1" / "surface_pressure.pt"
    whole = torch.load(path, weights_only=True)
    torch.save(whole[:-1], path)
    settings, selection = ConversionSettings(chunk_points=16), select_samples(open_source(KIND, root=source))
    writer = ZarrStoreWriter(tmp_path / "store", settings)
    (refused,) = convert_samples(selection.source, writer, [*selection.samples.values()], False, 1, None)
    assert refused.quarantine is not None
    torch.save(whole, path)
    change()
    new = _converted(source, tmp_path / "store")
    commit_results(store, new[0], new[2], new[1])
    report = commit_results(store, selection, settings, Pending(refused={"run_1": refused.quarantine}))
    assert (report.committed, load_manifest(store).quarantine) == (False, {})


def test_a_sample_that_arrived_after_the_listing_is_not_retired(tmp_path: Path) -> None:
    source = write_source(tmp_path / "source", ("run_1", "run_2", "run_3"))
    (source / "run_2").rename(tmp_path / "run_2")
    early = select_samples(open_source(KIND, root=source))
    (tmp_path / "run_2").rename(source / "run_2")
    settings = {"chunk_points": 16}
    convert(KIND, tmp_path / "store", root=source, **settings)
    (source / "run_3").rename(tmp_path / "run_3")
    report = commit_results(
        Storage(tmp_path / "store"), early, ConversionSettings(**settings), Pending(), retire_vanished=True
    )
    assert (report.retired, sorted(report.manifest.samples)) == ([], ["run_1", "run_2", "run_3"])
    late = select_samples(open_source(KIND, root=source))
    report = commit_results(
        Storage(tmp_path / "store"), late, ConversionSettings(**settings), Pending(), retire_vanished=True
    )
    assert (report.retired, sorted(report.manifest.samples)) == (["run_3"], ["run_1", "run_2"])
