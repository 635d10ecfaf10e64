"""Staging that is killed, overtaken by another writer or stopped by a full disk; training goes on with its copies."""

from __future__ import annotations

import itertools
import os
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import ANY

import pytest
import torch
import yaml

import zarr_core.points.stage.store
from tests.helpers.commits import lose_commits
from tests.helpers.faults import KILLS_OF_A_COMMIT, Kill, is_killed
from tests.helpers.small_source import KIND, write_source
from tests.helpers.stores import assert_reads_equal, shards
from zarr_core.datasets import ZarrPointDataset, build_dataset
from zarr_core.errors import StoreError, ZarrCoreError
from zarr_core.loader import EpochBatchSampler, ResumableLoader
from zarr_core.points.convert.conversion import convert
from zarr_core.points.stage.store import stage_store
from zarr_core.points.store.head import HEAD, load_manifest
from zarr_core.points.verify.store import verify_store
from zarr_core.statistics import main as statistics
from zarr_core.storage import Storage
from zarr_core.versioning.gc import collect_garbage

FIELDS = ["surface_position", "surface_pressure"]


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("large")
    ids = tuple(f"run_{number}" for number in range(1, 9))
    write_source(root / "source", ids, surface=3000, volume=20_000)
    convert(KIND, root / "store", source_url=str(root / "source"), chunk_points=500)
    (root / "store" / "blacklist.txt").write_text("run_9\n")
    return root / "store"


@pytest.mark.slow
@pytest.mark.parametrize(
    "kill",
    [
        Kill("create", "/.blacklist.txt"),
        Kill("create", "/c/0/"),
        Kill("create", "/c/0/", 30),
        Kill("rename", "/c/0/", 30),
        Kill("rename", "/run_4/[^/]*/zarr.json"),
        *KILLS_OF_A_COMMIT,
    ],
    ids=str,
)
def test_a_stage_that_is_killed_is_finished_by_the_next(large: Path, tmp_path: Path, kill: Kill) -> None:
    assert is_killed(kill, stage_store, large, tmp_path / "copy")
    there = sum(path.stat().st_size for path in shards(tmp_path / "copy") if not path.name.endswith(".tmp"))
    left = list((tmp_path / "copy").rglob("*.tmp"))
    assert left or kill.operation == "unlink"
    report = stage_store(large, tmp_path / "copy")
    assert report.kept == there
    assert_reads_equal(tmp_path / "copy", large, [f"run_{number}" for number in range(1, 9)])
    assert not list((tmp_path / "copy").rglob("*.tmp"))


def test_copied_samples_are_committed_on_the_way(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(zarr_core.points.stage.store, "_COMMIT_SECONDS", 0.0)
    staged = zarr_core.points.stage.store.stage_sample

    def dies_at_the_third(task: Any, item: Any) -> Any:
        if item[0] == "run_3":
            raise KeyboardInterrupt
        return staged(task, item)

    monkeypatch.setattr(zarr_core.points.stage.store, "stage_sample", dies_at_the_third)
    with pytest.raises(KeyboardInterrupt):
        stage_store(source, tmp_path / "copy")
    assert_reads_equal(tmp_path / "copy", source, ["run_1", "run_2"])


def test_a_stage_goes_on_if_other_writers_keep_committing_first(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lose_commits(monkeypatch, 30)
    monkeypatch.setattr(zarr_core.points.stage.store, "_COMMIT_SECONDS", 0.0)
    assert stage_store(source, tmp_path / "copy").ok
    assert_reads_equal(tmp_path / "copy", source, ["run_1", "run_2", "run_3"])


def test_two_stages_at_once_do_not_undo_each_other(
    source: Path, memory_root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No lock keeps the second out of a bucket: it commits other fields while the first one copies."""
    staged = zarr_core.points.stage.store.stage_sample

    def overtaken(task: Any, item: Any) -> Any:
        monkeypatch.setattr(zarr_core.points.stage.store, "stage_sample", staged)
        stage_store(source, memory_root, fields=FIELDS, sample_ids=["run_2"])
        return staged(task, item)

    monkeypatch.setattr(zarr_core.points.stage.store, "stage_sample", overtaken)
    with pytest.raises(StoreError, match="1 more samples, with the fields surface_position, surface_pressure"):
        stage_store(source, memory_root, sample_ids=["run_1"])
    assert_reads_equal(memory_root, source, ["run_2"], FIELDS)


@pytest.mark.parametrize("which", ["source", "copy"])
def test_a_collection_during_a_stage_costs_the_samples_that_it_removes(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, which: str, pristine: Path
) -> None:
    """With no grace at all, of an earlier generation of the source, or of the copy that is not committed yet."""
    convert(KIND, source, root=pristine / "source", codec="zstd", reconvert=True)
    stage_store(source, tmp_path / "copy", sample_ids=["run_1"], generation=1)
    stage_sample, done = zarr_core.points.stage.store.stage_sample, []

    def collected(task: Any, item: Any) -> Any:
        result = stage_sample(task, item)
        done.append(item[0])
        if len(done) == 2:
            store = Storage(source if which == "source" else tmp_path / "copy")
            monkeypatch.setattr("zarr_core.versioning.gc.time.time", lambda: clock() + 3600)
            monkeypatch.setattr(Storage, "now", lambda _: clock() + 3600)
            collect_garbage(store, HEAD, 0)
        return result

    clock = time.time
    monkeypatch.setattr(zarr_core.points.stage.store, "stage_sample", collected)
    report = stage_store(source, tmp_path / "copy", generation=1)
    (failed,) = report.failed
    assert (failed.sample_id, failed.problem) == {
        "source": ("run_3", ANY),
        "copy": ("run_2", "garbage collection removed it from the copy before it was committed; stage again"),
    }[which]
    assert "if garbage collection removed it, stage again" in failed.problem or which == "copy"
    assert verify_store(str(tmp_path / "copy")).ok
    assert len(load_manifest(str(tmp_path / "copy")).samples) == 2
    monkeypatch.undo()
    again = stage_store(source, tmp_path / "copy", generation=None if which == "source" else 1)
    assert again.ok
    assert len(again.manifest.samples) == 3


def test_a_full_disk_stops_the_stage(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write = Storage.write

    def refuse(self: Storage, name: str, pieces: Iterator[bytes]) -> int:
        if "/c/" in name:
            raise OSError(28, "No space left on device")
        return write(self, name, pieces)

    monkeypatch.setattr(Storage, "write", refuse)
    with pytest.raises(StoreError, match="cannot be written: .*No space left"):
        stage_store(source, tmp_path / "copy")


class Interrupted(BaseException):
    """Stands for the death of the process."""


def interrupt(monkeypatch: pytest.MonkeyPatch, operation: str, path: str, number: int) -> None:
    """Interrupt just before the n-th call of an operation of ``Storage`` on a name that contains ``path``."""
    real, calls = getattr(Storage, operation), itertools.count(1)

    def interrupted(self: Storage, name: str, *arguments: Any) -> Any:
        if path in name and next(calls) == number:
            raise Interrupted
        return real(self, name, *arguments)

    monkeypatch.setattr(Storage, operation, interrupted)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store whose third generation is the first with statistics, and which goes on after it."""
    root = tmp_path_factory.mktemp("trained")
    ids = tuple(f"run_{number}" for number in (1, 2, 3, 6, 7, 8, 9))
    write_source(root / "source", ids)
    for few in (2, 4, 6, 7):
        convert(KIND, root / "store", source_url=str(root / "source"), sample_ids=ids[:few], chunk_points=16)
        if few >= 6:
            assert statistics([str(root / "store"), "--split", "train", "--quiet"]) == 0
    return root / "store"


def dataset_of(store: Path, **settings: Any) -> ZarrPointDataset:
    config = {"kind": "ahmedml", "root": str(store), "split": "train", "num_surface_points": 8, "fields": FIELDS}
    normalizers = {"surface_position": "position", "surface_pressure": "mean_std"}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # train lists samples that the source lacks
        return build_dataset({**config, "normalizers": normalizers, **settings})


def loader(store: Path, **settings: Any) -> ResumableLoader:
    dataset = dataset_of(store, **settings)
    return ResumableLoader(dataset, EpochBatchSampler.of(dataset, 2, seed=5))


def train(store: Path, out: Path) -> None:
    """Train for some epochs from the last checkpoint, if there is one; keep each batch, and the state after it."""
    batches, checkpoint = loader(store), out / "state.pt"
    out.mkdir(exist_ok=True)
    if checkpoint.exists():
        batches.load_state_dict(torch.load(checkpoint))
    for epoch in range(batches.epoch, 3):
        batches.set_epoch(epoch)
        for batch in batches:
            state = batches.state_dict()
            values = b"".join(batch[field].numpy().tobytes() for field in sorted(batch))
            (out / f"batch_{epoch}_{state['position']}").write_bytes(values)
            torch.save(state, out / "state.tmp")
            os.replace(out / "state.tmp", checkpoint)


def test_a_run_that_is_killed_on_one_clone_resumes_on_the_other(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = tmp_path / "one", tmp_path / "other"
    monkeypatch.setattr(zarr_core.points.stage.store, "_COMMIT_SECONDS", 0.0)
    for operation, path, number in (
        ("write", "/c/0/0", 3),
        ("write", "zarr.json", 8),
        ("replace", "manifest.json", 2),
        ("create", "generations/", 2),
        ("write", "statistics/", 1),
    ):
        with monkeypatch.context() as patch:
            interrupt(patch, operation, path, number)
            with pytest.raises(Interrupted):
                stage_store(trained, one, fields=FIELDS, generation=3)
    stage_store(trained, one, fields=FIELDS, generation=3)
    monkeypatch.undo()
    stage_store(trained, other, generation=3)
    assert load_manifest(other).generation == 1 < load_manifest(one).generation

    expected, out = tmp_path / "expected", tmp_path / "out"
    train(one, expected)
    names = sorted(path.name for path in expected.glob("batch_*"))
    assert len(names) >= 6
    for number, store in enumerate((one, other, one)):  # each dies after one batch more
        assert is_killed(Kill("rename", "state.pt$", 2), train, store, out)
        assert len(list(out.glob("batch_*"))) == number + 2  # the last of them after the checkpoint
    train(other, out)
    assert sorted(path.name for path in out.glob("batch_*")) == names
    assert all((out / name).read_bytes() == (expected / name).read_bytes() for name in names)
    saved = torch.load(expected / "state.pt")
    loader(trained, generation=3).load_state_dict(saved)
    # The same samples, other statistics; fewer fields; more samples.
    assert statistics([str(other), "--split", "train", "--quiet"]) == 0
    moved = yaml.safe_load((other / "statistics/00000001/train.yaml").read_text()) | {"surface_pressure_mean": 0.5}
    (other / "statistics/00000001/train.yaml").write_text(yaml.safe_dump(moved))
    for refused in (loader(other), loader(one, fields=FIELDS[:1]), loader(trained)):
        with pytest.raises(ZarrCoreError, match="other data.*start a new run"):
            refused.load_state_dict(saved)


def test_a_copy_never_has_statistics_of_another_generation(trained: Path, tmp_path: Path) -> None:
    stage_store(trained, tmp_path / "copy", generation=2)
    assert not list((tmp_path / "copy").glob("stat*"))
    command = rf"zarr-core statistics .*{trained} --split train --generation 2`, then stage the copy again"
    with pytest.raises(ZarrCoreError, match=command):
        dataset_of(tmp_path / "copy")
