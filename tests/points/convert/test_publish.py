"""Publication: finished groups, the splits of a commit, and the same sample from two converters."""

from __future__ import annotations

import itertools
import json
import logging
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import ANY

import pytest
import torch

from tests.helpers.commits import add, lose_commits
from tests.helpers.described_source import Source
from tests.helpers.small_source import KIND, write_source
from tests.helpers.stores import nan, write_broken
from zarr_core.errors import SourceError, StoreError
from zarr_core.info import format_sample
from zarr_core.points.convert import conversion as convert_module
from zarr_core.points.convert.conversion import convert, convert_samples, iter_convert
from zarr_core.points.convert.job import ConversionJob
from zarr_core.points.convert.publish import Pending, commit_results, publish
from zarr_core.points.convert.request import ConversionRequest
from zarr_core.points.convert.sample import ConversionResult
from zarr_core.points.convert.write_sample import write_sample
from zarr_core.points.convert.writer import GroupWriter
from zarr_core.points.store.head import HEAD, load_manifest
from zarr_core.points.store.manifest import StoreManifest
from zarr_core.points.store.settings import ConversionSettings
from zarr_core.points.verify.store import verify_store
from zarr_core.sources.description import SourceDescription
from zarr_core.sources.selection import select_samples
from zarr_core.storage import Storage
from zarr_core.storage.temporary import add_temp_suffix
from zarr_core.stores.summary import sample_info
from zarr_core.versioning.generations import commit

SETTINGS = {"chunk_points": 32}


@pytest.fixture
def two_states(tmp_path: Path) -> tuple[Path, Callable[[], None]]:
    """A source of one sample, and what changes it."""
    source = write_source(tmp_path / "source", sample_ids=("run_1",))

    def change() -> None:
        path = source / "run_1" / "surface_pressure.pt"
        torch.save(torch.load(path, weights_only=True) + 1, path)
        os.utime(path, (1, 1))

    return source, change


def _job(source: Path, store: Path, **options: Any) -> ConversionJob:
    writer = GroupWriter(store, ConversionSettings(chunk_points=16))
    request = ConversionRequest(KIND, store, root=source, **options)
    return ConversionJob(request, select_samples(request.open_source()), writer)


def _converted(source: Path, store: Path) -> tuple[ConversionJob, Pending]:
    """A conversion's results that are not committed yet."""
    job = _job(source, store)
    (result,) = convert_samples(job, [(job.selection.samples["run_1"], None)])
    assert result.written is not None
    return job, Pending({"run_1": result.written})


def test_a_stale_converter_does_not_undo_a_newer_one(
    two_states: tuple[Path, Callable[[], None]], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    source, change = two_states
    store = Storage(tmp_path / "store")
    old = _converted(source, tmp_path / "store")
    change()
    new = _converted(source, tmp_path / "store")
    newest = new[1].written["run_1"]
    assert commit_results(*new).manifest.samples["run_1"] == newest
    report = commit_results(*old)
    assert (report.added, report.replaced, report.committed, report.stale) == ([], [], False, ["run_1"])
    assert load_manifest(store).samples["run_1"] == newest
    assert "run_1: its source changed after this conversion read it" in caplog.text


def test_a_conversion_tells_that_a_source_changed_after_it_was_read(
    two_states: tuple[Path, Callable[[], None]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, change = two_states
    first = convert(KIND, tmp_path / "store", root=source, **SETTINGS).manifest
    change()
    work = convert_module.convert_sample

    def overtaken(*arguments: Any) -> ConversionResult:
        result = work(*arguments)
        path = source / "run_1" / "surface_pressure.pt"
        os.utime(path, (2, 2))
        return result

    monkeypatch.setattr(convert_module, "convert_sample", overtaken)
    report = convert(KIND, tmp_path / "store", root=source, **SETTINGS)
    (result,) = report.results
    assert (report.ok, result.status, result.written) == (False, "failed", None)
    assert result.reason == "its source changed after it was read, so what is committed stays; run again"
    assert report.manifest.samples == first.samples
    monkeypatch.undo()
    assert convert(KIND, tmp_path / "store", root=source, **SETTINGS).having("converted")


def test_a_newer_converter_replaces_an_older_result_and_logs_it(
    two_states: tuple[Path, Callable[[], None]], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "zarr_core")
    source, change = two_states
    store = Storage(tmp_path / "store")
    old = _converted(source, tmp_path / "store")
    change()
    new = _converted(source, tmp_path / "store")
    commit_results(*old)
    report = commit_results(*new)
    assert report.replaced == ["run_1"]
    assert load_manifest(store).samples["run_1"] == new[1].written["run_1"]
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
        commit_results(*new)
        swap(self, name, data, version)

    monkeypatch.setattr(Storage, "replace", overtaken)
    report = commit_results(*old)
    assert not report.replaced
    assert report.manifest.samples["run_1"] == new[1].written["run_1"]
    assert set(report.manifest.samples) == {"other", "run_1"}


def test_a_stale_refusal_does_not_quarantine_a_repaired_sample(
    two_states: tuple[Path, Callable[[], None]], tmp_path: Path
) -> None:
    source, change = two_states
    store, path = Storage(tmp_path / "store"), source / "run_1" / "surface_pressure.pt"
    whole = torch.load(path, weights_only=True)
    torch.save(whole[:-1], path)
    job = _job(source, tmp_path / "store")
    (refused,) = convert_samples(job, [(job.selection.samples["run_1"], None)])
    assert refused.quarantine is not None
    torch.save(whole, path)
    change()
    new = _converted(source, tmp_path / "store")
    commit_results(*new)
    report = commit_results(job, Pending(refused={"run_1": refused.quarantine}))
    assert (report.committed, load_manifest(store).quarantine) == (False, {})


def test_a_stale_sample_does_not_replace_a_newer_refusal(
    two_states: tuple[Path, Callable[[], None]], tmp_path: Path
) -> None:
    source, change = two_states
    commit(Storage(tmp_path / "store"), HEAD, add("other"))
    old = _converted(source, tmp_path / "store")
    change()
    write_broken(source, "run_1", "surface_pressure.pt", nan(70))
    job = _job(source, tmp_path / "store")
    (refused,) = convert_samples(job, [(job.selection.samples["run_1"], None)])
    assert refused.quarantine is not None
    commit_results(job, Pending(refused={"run_1": refused.quarantine}))
    report = commit_results(*old)
    assert (report.committed, report.quarantined) == (False, {"run_1": refused.quarantine})


def test_a_store_made_meanwhile_that_identifies_samples_in_another_way_is_left_alone(
    tmp_path: Path, source: Path
) -> None:
    early = ConversionJob.open(ConversionRequest(KIND, tmp_path / "store", root=source))
    made = convert(KIND, tmp_path / "store", root=source, fingerprint="content").manifest
    with pytest.raises(StoreError, match="identifies samples by the content of their files, not by version: run again"):
        commit_results(early, Pending())
    assert load_manifest(tmp_path / "store") == made


def test_a_sample_that_arrived_after_the_listing_is_not_retired(tmp_path: Path) -> None:
    source = write_source(tmp_path / "source", ("run_1", "run_2", "run_3"))
    (source / "run_2").rename(tmp_path / "run_2")
    early = _job(source, tmp_path / "store", retire_vanished=True)
    (tmp_path / "run_2").rename(source / "run_2")
    convert(KIND, tmp_path / "store", root=source, chunk_points=16)
    (source / "run_3").rename(tmp_path / "run_3")
    report = commit_results(early, Pending())
    assert (report.retired, sorted(report.manifest.samples)) == ([], ["run_1", "run_2", "run_3"])
    late = _job(source, tmp_path / "store", retire_vanished=True)
    report = commit_results(late, Pending())
    assert (report.retired, sorted(report.manifest.samples)) == (["run_3"], ["run_1", "run_2"])


def test_splits_are_those_at_the_commit_of_a_conversion_that_began_earlier(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    source, store = write_source(tmp_path / "source", kind="drivaernet"), tmp_path / "store"
    train = source / "train_design_ids.txt"
    train.write_text("run_1\n")
    early = ConversionJob.open(ConversionRequest("drivaernet", store, root=source))
    train.write_text("run_1\nrun_2\n")
    (source / "test_design_ids.txt").write_text("run_3\n")
    now = {"train": ["run_1", "run_2"], "test": ["run_3"]}
    assert convert("drivaernet", store, root=source).manifest.splits == now
    assert commit_results(early, Pending()).manifest.splits == now
    assert (store / train.name).read_text() == "run_1\nrun_2\n"
    source.rename(tmp_path / "away")  # as if its file system was unmounted
    assert commit_results(early, Pending()).manifest.samples.keys() == {"run_1", "run_2", "run_3"}
    assert "splits are committed as they were when the conversion started" in caplog.text


@pytest.mark.parametrize("commits", [False, True])
@pytest.mark.parametrize("at", ["test", "train"])
def test_copied_split_files_are_those_of_the_splits_whichever_conversion_writes_them_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, commits: bool, at: str
) -> None:
    """The source changes, and another conversion commits that, after this one has read a file and before it copies it.

    This one then has nothing to commit, or loses the race.
    """
    source, store = write_source(tmp_path / "source", kind="drivaernet"), tmp_path / "store"
    train, test = source / "train_design_ids.txt", source / "test_design_ids.txt"
    train.write_text("run_1\n")
    test.write_text("run_2\n")
    convert("drivaernet", store, root=source)
    if commits:
        shutil.copytree(source / "run_1", source / "run_4")
    job = ConversionJob.open(ConversionRequest("drivaernet", store, root=source))
    results = list(convert_samples(job, [(job.selection.samples[i], None) for i in ("run_4",) if commits]))
    write = Storage.write

    def overtaken(self: Storage, name: str, pieces: Any) -> int:
        if name == f"{at}_design_ids.txt":
            monkeypatch.undo()
            train.write_text("run_1\nrun_3\n")
            test.unlink()
            convert("drivaernet", store, root=source, sample_ids=["run_1"])
        return write(self, name, pieces)

    monkeypatch.setattr(Storage, "write", overtaken)
    report = commit_results(job, Pending({r.sample_id: r.written for r in results if r.written is not None}))
    assert (report.committed, report.manifest.splits) == (commits, {"train": ["run_1", "run_3"]} if commits else ANY)
    assert load_manifest(store).splits == {"train": ["run_1", "run_3"]}
    assert {path.name: path.read_text() for path in store.glob("*.txt")} == {train.name: "run_1\nrun_3\n"}


def test_a_split_file_that_comes_back_while_its_copy_is_deleted_is_copied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, store = write_source(tmp_path / "source", kind="drivaernet"), tmp_path / "store"
    train, test = source / "train_design_ids.txt", source / "test_design_ids.txt"
    train.write_text("run_1\n")
    test.write_text("run_2\n")
    convert("drivaernet", store, root=source)
    test.unlink()
    delete = Storage.delete

    def overtaken(self: Storage, names: Any) -> None:
        if names == [test.name]:
            monkeypatch.undo()
            test.write_text("run_3\n")
            convert("drivaernet", store, root=source)
        delete(self, names)

    monkeypatch.setattr(Storage, "delete", overtaken)
    convert("drivaernet", store, root=source)
    assert load_manifest(store).splits["test"] == ["run_3"]
    assert {path.name: path.read_text() for path in store.glob("*.txt")} == {
        train.name: "run_1\n",
        test.name: "run_3\n",
    }


def test_splits_of_folders_have_the_samples_of_a_later_listing(tmp_path: Path) -> None:
    kind = SourceDescription.model_validate(
        {
            "name": "k",
            "samples": "*/run_*",
            "files": {"surface_position": "p.pt"},
            "splits": {"rule": "folders", "folders": {"train": ["new"]}},
        }
    )

    def add_sample(sample_id: str) -> None:
        (tmp_path / "source" / sample_id).mkdir(parents=True)
        torch.save(torch.zeros(5, 3), tmp_path / "source" / sample_id / "p.pt")

    add_sample("new/run_1")
    early = ConversionJob.open(ConversionRequest(kind, tmp_path / "store", root=tmp_path / "source"))
    add_sample("new/run_2")
    convert(kind, tmp_path / "store", root=tmp_path / "source")
    assert commit_results(early, Pending()).manifest.splits == {"train": ["new/run_1", "new/run_2"]}
    arrays = {"surface_position": torch.zeros(5, 3)}
    write_sample(tmp_path / "store", "new/written", arrays, split="test", kind=kind)
    kept = {"train": ["new/run_1", "new/run_2"], "test": ["new/written"]}
    assert commit_results(early, Pending()).manifest.splits == kept, "a folder of the source has not the written sample"


def test_a_migration_does_not_undo_a_later_one(tmp_path: Path, source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = tmp_path / "store"
    convert("ahmedml", store, root=source, **SETTINGS)

    def overtaken(*arguments: Any) -> Iterator[ConversionResult]:
        monkeypatch.setattr(convert_module, "convert_samples", convert_samples)
        convert("ahmedml", store, root=source, chunk_points=8, reconvert=True)
        yield from convert_samples(*arguments)

    monkeypatch.setattr(convert_module, "convert_samples", overtaken)
    with pytest.raises(StoreError, match="chunk_points is 8 in the store, not 16"):
        convert("ahmedml", store, root=source, chunk_points=16, reconvert=True)
    manifest = load_manifest(store)
    assert manifest.conversion is not None
    assert {entry.settings for entry in manifest.samples.values()} == {manifest.conversion.current}
    assert {grid.chunk_points for entry in manifest.samples.values() for grid in entry.domains.values()} == {8}


def test_a_conversion_goes_on_if_other_writers_keep_committing_first(
    tmp_path: Path, source: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A long conversion commits once a minute, here after each sample; the last commit has what others left out."""
    lose_commits(monkeypatch, 30)
    monkeypatch.setattr(convert_module, "_COMMIT_SECONDS", -1)
    report = convert(KIND, tmp_path / "store", root=source)
    assert report.ok
    assert list(load_manifest(tmp_path / "store").samples) == ["run_1", "run_2", "run_3"]
    assert "the samples converted so far wait for the next commit" in caplog.text


def test_unpublished_groups_are_found_and_committed_once(tmp_path: Path, source: Path) -> None:
    store = tmp_path / "store"
    write_broken(source, "run_2", "surface_pressure.pt", nan(77))
    results = list(iter_convert("ahmedml", store, source_url=str(source), **SETTINGS))
    assert [result.status for result in results] == ["converted", "quarantined", "converted"]
    assert not (store / "manifest.json").exists()
    first = publish("ahmedml", store, source_url=str(source), **SETTINGS)
    assert (first.added, first.committed, first.manifest.generation) == (["run_1", "run_3"], True, 1)
    assert list(first.quarantined) == ["run_2"]
    second = publish("ahmedml", store, source_url=str(source), **SETTINGS)
    assert (second.added, second.committed, second.manifest.generation) == ([], False, 1)
    assert [o.status for o in iter_convert("ahmedml", store, source_url=str(source), **SETTINGS)].count(
        "up to date"
    ) == 2


def test_the_leftover_of_a_killed_writer_hides_no_group(tmp_path: Path, source: Path) -> None:
    job = _job(source, tmp_path / "store")
    sample = job.selection.samples["run_1"]
    array = f"{job.writer.relpath('run_1', sample.fingerprint)}/surface/pressure"
    leftover = tmp_path / "store" / add_temp_suffix(f"{array}/c/0/0")
    leftover.parent.mkdir(parents=True)
    leftover.write_bytes(bytes(100))
    for result in convert_samples(job, [(sample, None)]):
        assert result.status == "converted"
    report = publish(KIND, tmp_path / "store", root=source, chunk_points=16)
    assert report.added == ["run_1"]
    assert verify_store(str(tmp_path / "store")).ok
    assert leftover.exists()  # garbage collection removes it


def test_a_publication_parses_the_manifest_once_and_its_own_once(
    tmp_path: Path, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With 25,000 samples, each time takes a second."""
    store = tmp_path / "store"
    assert convert(KIND, store, root=source, sample_ids=["run_1"], **SETTINGS).ok
    assert all(result.status != "failed" for result in iter_convert(KIND, store, root=source))
    calls: list[str] = []
    parse, serialize = StoreManifest.from_json.__func__, StoreManifest.to_json

    def parsed(cls: type[StoreManifest], *arguments: Any) -> StoreManifest:
        calls.append("parse")
        return parse(cls, *arguments)

    def serialized(self: StoreManifest) -> bytes:
        calls.append("serialize")
        return serialize(self)

    monkeypatch.setattr(StoreManifest, "from_json", classmethod(parsed))
    monkeypatch.setattr(StoreManifest, "to_json", serialized)
    assert publish(KIND, store, root=source).added == ["run_2", "run_3"]
    assert calls == ["parse", "serialize", "parse", "serialize"]  # the third and fourth check what was serialized
    assert load_manifest(store).generation == 2


def test_info_shows_that_a_sample_is_excluded(tmp_path: Path) -> None:
    source = Source(tmp_path)
    source.write("case_1", "case_2")
    source.convert()
    (source.root / "bad.txt").write_text("case_2\n")
    source.kind.write_text(json.dumps(json.loads(source.kind.read_text()) | {"blacklists": ["bad.txt"]}))
    source.convert()
    one, excluded = (sample_info(source.store, sample_id) for sample_id in ("case_1", "case_2"))
    assert (one.splits, one.excluded) == (("train",), False)
    assert (excluded.splits, excluded.excluded) == ((), True)
    assert "splits      none, a blacklist excludes it" in format_sample(excluded)


def test_a_description_without_splits_leaves_those_of_the_store(tmp_path: Path) -> None:
    source = Source(tmp_path)
    source.write("case_1", "case_2", "case_3")
    (source.root / "train_design_ids.txt").unlink()
    files = {"train.txt": "case_1\n", "test.txt": "case_2\ncase_3\n", "bad.txt": "case_3\n"}
    for name, text in files.items():
        (source.root / name).write_text(text)
    plain = json.loads(source.kind.read_text())
    rule = {"rule": "files", "filename": "{split}.txt", "names": ["train", "test"]}
    source.kind.write_text(json.dumps(plain | {"splits": rule, "blacklists": ["bad.txt"]}))
    source.convert()
    before = source.reader().manifest
    assert before.splits == {"train": ["case_1"], "test": ["case_2", "case_3"]}
    source.kind.write_text(json.dumps(plain))
    report = source.convert()
    after = source.reader().manifest
    assert (after.splits, after.excluded) == (before.splits, before.excluded)
    assert "the source lists no splits, so those of the store stay (train, test)" in " ".join(report.notes)
    assert (source.store / "train.txt").exists()
    source.kind.write_text(json.dumps(plain | {"splits": {"rule": "folders", "folders": {}}}))
    source.convert()
    assert source.reader().manifest.splits == {}


def test_a_sample_that_went_with_its_line_changes_nothing_until_it_is_retired(tmp_path: Path) -> None:
    """Neither does the order of its split, which is that of the items of datasets."""
    source = Source(tmp_path)
    source.write("case_1", "case_2", "case_3")
    lines = source.root / "train.txt"
    lines.write_text("case_1\ncase_2\ncase_3\n")
    rule = {"rule": "files", "filename": "{split}.txt", "names": ["train"]}
    source.kind.write_text(json.dumps(json.loads(source.kind.read_text()) | {"splits": rule}))
    source.convert()
    shutil.rmtree(source.root / "case_2")
    lines.write_text("case_1\ncase_3\n")
    assert source.convert().manifest.generation == 1
    assert source.reader().manifest.split_ids("train") == ["case_1", "case_2", "case_3"]
    lines.write_text("case_3\ncase_1\n")
    source.convert()
    assert source.reader().manifest.split_ids("train") == ["case_3", "case_1", "case_2"]
    source.convert(retire_vanished=True)
    assert source.reader().manifest.split_ids("train") == ["case_3", "case_1"]


def test_a_permutation_is_not_applied_to_ids_of_another_form(tmp_path: Path) -> None:
    source = Source(tmp_path)
    source.write("case_1", "case_2")
    plain = json.loads(source.kind.read_text())
    rule: dict[str, Any] = {"rule": "permutation", "count": 2, "seed": 0, "sizes": {"train": 1, "test": 1}}
    source.kind.write_text(json.dumps(plain | {"splits": rule}))
    with pytest.raises(
        SourceError, match="samples run_1 to run_2, without zero padding, but this one is 'case_1'.*id: \"case_"
    ):
        source.convert()
    source.kind.write_text(json.dumps(plain | {"splits": rule | {"sample_id": "case_{}"}}))
    source.convert()
    assert sorted(itertools.chain.from_iterable(source.reader().manifest.splits.values())) == ["case_1", "case_2"]


def test_a_permutation_is_not_applied_to_ids_with_zero_padding(tmp_path: Path) -> None:
    source = Source(tmp_path)
    source.write("case_001", "case_002")
    rule = {"rule": "permutation", "count": 2, "seed": 0, "sizes": {"train": 2}, "sample_id": "case_{}"}
    source.kind.write_text(json.dumps(json.loads(source.kind.read_text()) | {"splits": rule}))
    with pytest.raises(SourceError, match="case_1 to case_2, without zero padding, but this one is 'case_001'"):
        source.convert()
