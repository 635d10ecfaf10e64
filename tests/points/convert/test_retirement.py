"""Samples that vanish from the source, and refusals: what a store keeps of them."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.helpers.commits import add
from tests.helpers.described_source import Source
from tests.helpers.faults import lost_response
from tests.helpers.small_source import write_source
from tests.helpers.stores import nan, objects, write_broken
from zarr_core.convert import main
from zarr_core.datasets import build_dataset
from zarr_core.errors import RetirementError, SourceError, StoreError
from zarr_core.format.object_names import MANIFEST
from zarr_core.info import format_sample
from zarr_core.points.convert.conversion import convert, convert_samples, iter_convert
from zarr_core.points.convert.job import ConversionJob
from zarr_core.points.convert.publish import Pending, commit_results, publish, publish_finished
from zarr_core.points.convert.request import ConversionRequest
from zarr_core.points.store.head import HEAD, load_manifest
from zarr_core.sources.parts import Part
from zarr_core.storage import Storage
from zarr_core.stores.summary import sample_info
from zarr_core.versioning.generations import commit

SETTINGS = {"chunk_points": 32}


def test_refusals_alone_make_no_store_and_are_recorded_with_the_first_sample(tmp_path: Path, source: Path) -> None:
    store = tmp_path / "store"
    repaired = torch.load(source / "run_1" / "surface_pressure.pt", weights_only=True)
    for number in (1, 2, 3):
        write_broken(source, f"run_{number}", "surface_pressure.pt", nan(70))
    (source / "train_design_ids.txt").write_text("run_1\nrun_2\n")
    assert {result.status for result in iter_convert("ahmedml", store, root=source)} == {"quarantined"}
    report = publish("ahmedml", store, root=source)
    assert (report.committed, report.manifest.generation, len(report.quarantined)) == (False, 0, 3)
    assert {name.rpartition("/")[2] for name in objects(store) if "/c/" not in name} == {"quarantine.json"}
    write_broken(source, "run_1", "surface_pressure.pt", repaired)
    (converted,) = iter_convert("ahmedml", store, root=source, sample_ids=["run_1"])
    assert converted.status == "converted"
    report = publish("ahmedml", store, root=source)
    assert (report.committed, report.added, sorted(report.quarantined)) == (True, ["run_1"], ["run_2", "run_3"])


@pytest.mark.parametrize("first", [0, 1])
def test_parts_record_their_refusals_whichever_ends_first(tmp_path: Path, source: Path, first: int) -> None:
    write_broken(source, "run_2", "surface_pressure.pt", nan(70))  # all of part 1 of 2
    for part in (Part(first, 2), Part(1 - first, 2)):
        convert("ahmedml", tmp_path / "store", root=source, part=part)
    manifest = load_manifest(tmp_path / "store")
    assert (sorted(manifest.samples), list(manifest.quarantine)) == (["run_1", "run_3"], ["run_2"])


def test_a_store_records_that_every_sample_was_refused(tmp_path: Path, source: Path) -> None:
    store = tmp_path / "store"
    convert("ahmedml", store, root=source, sample_ids=["run_1"])
    for number in (2, 3):
        write_broken(source, f"run_{number}", "surface_pressure.pt", nan(70))
    report = convert("ahmedml", store, root=source, sample_ids=["run_2", "run_3"])
    assert not report.ok
    assert sorted(load_manifest(store).quarantine) == ["run_2", "run_3"]


def test_refusals_before_the_first_sample_are_kept(
    tmp_path: Path, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A long conversion commits once a minute, here after each sample."""
    monkeypatch.setattr("zarr_core.points.convert.conversion._COMMIT_SECONDS", -1)
    write_broken(source, "run_1", "surface_pressure.pt", nan(70))
    convert("ahmedml", tmp_path / "store", root=source)
    manifest = load_manifest(tmp_path / "store")
    assert (sorted(manifest.samples), list(manifest.quarantine)) == (["run_2", "run_3"], ["run_1"])


def test_vanished_samples_are_retired_on_request_and_their_bytes_stay(tmp_path: Path, source: Path) -> None:
    store = tmp_path / "store"
    convert("ahmedml", store, root=source, **SETTINGS)
    before = objects(store)
    shutil.rmtree(source / "run_2")
    assert publish("ahmedml", store, source_url=str(source), **SETTINGS).committed is False
    report = publish("ahmedml", store, source_url=str(source), retire_vanished=True, **SETTINGS)
    assert (report.retired, sorted(report.manifest.samples)) == (["run_2"], ["run_1", "run_3"])
    assert all(name in objects(store) for name in before)
    shutil.rmtree(source)
    source.mkdir()
    with pytest.raises(SourceError, match="no sample"):  # an unmounted disk must not empty a store
        publish("ahmedml", store, source_url=str(source), retire_vanished=True, **SETTINGS)


def test_a_retirement_whose_response_is_lost_is_reported(source: Path, memory_root: str) -> None:
    """Another writer commits before the head is read back."""
    convert("ahmedml", memory_root, root=source, **SETTINGS)
    shutil.rmtree(source / "run_2")
    request = ConversionRequest("ahmedml", memory_root, root=source, retire_vanished=True, settings=SETTINGS)
    job = ConversionJob.open(request)
    with lost_response(job.writer.storage, MANIFEST, lambda: commit(Storage(memory_root), HEAD, add("other"))):
        report = commit_results(job, Pending())
    assert (report.retired, report.committed, report.manifest.generation) == (["run_2"], True, 2)
    assert sorted(load_manifest(memory_root).samples) == ["other", "run_1", "run_3"]


@pytest.mark.slow
@pytest.mark.parametrize("count", [2, 3, 9, 11])
def test_a_single_sample_is_retired_from_a_store_of_any_size_unless_the_share_is_0(tmp_path: Path, count: int) -> None:
    store, source = tmp_path / "store", tmp_path / "source"
    ids = tuple(f"run_{number}" for number in range(1, count + 1))
    write_source(source, ids, surface=5, volume=5)
    convert("ahmedml", store, root=source)
    shutil.rmtree(source / "run_1")
    with pytest.raises(RetirementError, match=rf"1 of {count} samples .* more than max_retired_share=0 allows"):
        convert("ahmedml", store, root=source, retire_vanished=True, max_retired_share=0)
    assert convert("ahmedml", store, root=source, retire_vanished=True).retired == ["run_1"]
    if count > 3:
        for sample_id in ("run_2", "run_3"):
            shutil.rmtree(source / sample_id)
        with pytest.raises(RetirementError, match=f"2 of {count - 1} samples"):
            convert("ahmedml", store, root=source, retire_vanished=True)


def test_mass_retirement_has_to_be_confirmed(tmp_path: Path, source: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store = tmp_path / "store"
    convert("ahmedml", store, root=source, **SETTINGS)
    write_source(source, sample_ids=("run_4",))
    for sample_id in ("run_1", "run_2"):
        shutil.rmtree(source / sample_id)
    with pytest.raises(RetirementError, match=r"2 of 3 samples .*run_1, run_2\).*--max-retired-share 1"):
        convert("ahmedml", store, root=source, retire_vanished=True)
    manifest = load_manifest(store)
    assert sorted(manifest.samples) == ["run_1", "run_2", "run_3", "run_4"], "what arrived is committed"
    command = [str(store), "--source", str(source), "--dataset-kind", "ahmedml", "--retire-vanished"]
    assert main([*command, "--max-retired-share", "0.3", "--quiet"]) != 0
    assert "2 of 4 samples" in capsys.readouterr().err
    assert load_manifest(store) == manifest
    write_source(source, sample_ids=("run_5",))
    assert main([*command, "--max-retired-share", "0.3"]) != 0
    printed = capsys.readouterr().out
    assert printed.startswith("1 converted")
    assert "error: 2 of 4 samples" in printed
    config = {"kind": "point", "root": str(store), "split": "all", "normalizers": {"surface_pressure": "mean_std"}}
    assert len(build_dataset(config)) == 5, "the statistics of what is committed are written"
    report = publish("ahmedml", store, root=source, retire_vanished=["run_2"])
    assert report.retired == ["run_2"], "run_1 is not named"
    assert main([*command, "--max-retired-share", "1", "--quiet"]) == 0
    assert sorted(load_manifest(store).samples) == ["run_3", "run_4", "run_5"]


@pytest.mark.parametrize("verb", [publish, convert])
def test_a_named_sample_that_cannot_be_retired_is_an_error(
    tmp_path: Path, source: Path, verb: Callable[..., Any]
) -> None:
    store = tmp_path / "store"
    convert("ahmedml", store, root=source, **SETTINGS)
    shutil.rmtree(source / "run_2")
    manifest = load_manifest(store)
    with pytest.raises(SourceError, match=r"still has \(run_3\): delete them there first; or .*`blacklists`"):
        verb("ahmedml", store, root=source, retire_vanished=["run_2", "run_3"])
    with pytest.raises(StoreError, match="no such samples to retire: run_9"):
        verb("ahmedml", store, root=source, retire_vanished=["run_2", "run_9"])
    assert load_manifest(store) == manifest
    # Named again after it was retired, as when a script runs twice.
    for _ in range(2):
        verb("ahmedml", store, root=source, retire_vanished=["run_2"])
    assert sorted(load_manifest(store).samples) == ["run_1", "run_3"]
    # The platform names what two listings did not find. What has come back since stays.
    request = ConversionRequest("ahmedml", store, root=source, retire_vanished=["run_2", "run_3"])
    assert publish_finished(request, request.open_source().find()).retired == []


@pytest.mark.parametrize("verb", [publish, convert])
def test_a_refusal_ends_when_the_source_is_as_it_was(tmp_path: Path, source: Path, verb: Callable[..., Any]) -> None:
    store, file = tmp_path / "store", source / "run_2" / "surface_pressure.pt"
    convert("ahmedml", store, root=source, **SETTINGS)
    kept = load_manifest(store).samples["run_2"]
    shutil.copy2(file, tmp_path / "kept.pt")
    values = torch.load(file)
    values[0] = float("nan")
    torch.save(values, file)
    convert("ahmedml", store, root=source)
    assert list(load_manifest(store).quarantine) == ["run_2"]
    assert "refused     a newer source: surface_pressure: 1 of" in format_sample(sample_info(store, "run_2"))
    convert("ahmedml", store, root=source)
    assert list(load_manifest(store).quarantine) == ["run_2"], "nothing has changed"
    shutil.copy2(tmp_path / "kept.pt", file)
    verb("ahmedml", store, root=source)
    manifest = load_manifest(store)
    assert (manifest.quarantine, manifest.samples["run_2"]) == ({}, kept)
    assert sample_info(store, "run_2").refused == ""


def test_a_refusal_of_the_same_files_stays(tmp_path: Path, source: Path) -> None:
    """As when a file was damaged under the same size and time, and was converted by force."""
    store, file = tmp_path / "store", source / "run_2" / "surface_pressure.pt"
    convert("ahmedml", store, root=source, **SETTINGS)
    times = file.stat()
    file.write_bytes(bytes(times.st_size))
    os.utime(file, ns=(times.st_atime_ns, times.st_mtime_ns))
    convert("ahmedml", store, root=source, force=True, sample_ids=["run_2"])
    convert("ahmedml", store, root=source)
    assert list(load_manifest(store).quarantine) == ["run_2"]


def test_a_refusal_that_came_after_the_listing_stays(tmp_path: Path, source: Path) -> None:
    """The job listed the source before it changed; another conversion refused the change."""
    store, file = tmp_path / "store", source / "run_2" / "surface_pressure.pt"
    convert("ahmedml", store, root=source, **SETTINGS)
    job = ConversionJob.open(ConversionRequest("ahmedml", str(store), root=str(source)))
    torch.save(nan(70), file)
    convert("ahmedml", store, root=source)
    assert list(load_manifest(store).quarantine) == ["run_2"]
    commit_results(job, Pending())
    assert list(load_manifest(store).quarantine) == ["run_2"]


@pytest.mark.parametrize("broken", [False, True])
def test_a_sample_that_was_retired_meanwhile_does_not_come_back(tmp_path: Path, broken: bool) -> None:
    """A conversion has read its new files before they were deleted, and commits after the retirement."""
    source = Source(tmp_path)
    source.write("a", "b", "z")
    source.convert()
    source.write("a", low=1e39 if broken else 350.0, step=1e36 if broken else 1.0)
    source.write("b", low=350.0)
    job = ConversionJob.open(ConversionRequest(str(source.kind), source.store, root=source.root))
    results = list(convert_samples(job, [(job.selection.samples[i], None) for i in ("a", "b")]))
    written = {result.sample_id: result.written for result in results if result.written is not None}
    refused = {result.sample_id: result.quarantine for result in results if result.quarantine is not None}
    assert (set(written), set(refused)) == (({"b"}, {"a"}) if broken else ({"a", "b"}, set()))
    shutil.rmtree(source.root / "a")
    assert source.convert(retire_vanished=True).retired == ["a"]
    report = commit_results(job, Pending(written, refused))
    assert (list(report.stale), report.manifest.quarantine) == (["a"], {})
    assert (sorted(report.manifest.samples), sorted(report.manifest.retired)) == (["b", "z"], ["a"])
    source.write("a")
    assert sorted(source.convert().manifest.samples) == ["a", "b", "z"]


def test_a_sample_of_several_folders_that_was_retired_meanwhile_does_not_come_back(tmp_path: Path) -> None:
    source = Source(tmp_path)
    files = {"surface_position": "points/{id}.npy", "surface_temperature": "heat/{id}.npy"}
    source.describe(files)
    for path in files.values():
        (source.root / path).parent.mkdir()
    for sample_id in ("a", "z"):
        np.save(source.root / f"points/{sample_id}.npy", np.arange(60.0).reshape(20, 3))
        np.save(source.root / f"heat/{sample_id}.npy", np.arange(20.0))
    source.convert()
    np.save(source.root / "heat/a.npy", np.arange(20.0) + 1)
    job = ConversionJob.open(ConversionRequest(str(source.kind), source.store, root=source.root))
    (result,) = convert_samples(job, [(job.selection.samples["a"], None)])
    assert result.written is not None
    for path in ("points/a.npy", "heat/a.npy"):
        (source.root / path).unlink()
    assert source.convert(retire_vanished=True).retired == ["a"]
    assert list(commit_results(job, Pending({"a": result.written})).manifest.samples) == ["z"]
