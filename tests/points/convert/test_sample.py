"""Conversion of one sample: refusals, and sources that change meanwhile."""

from __future__ import annotations

import asyncio
import io
import os
import shutil
import threading
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest
import torch

from tests.helpers.small_source import load_field
from tests.helpers.stores import (
    nan,
    objects,
    stored_values,
    write_broken,
)
from tests.helpers.waiting import LIMIT_SECONDS
from zarr_core.convert import convert
from zarr_core.format.shuffle import shuffle_permutation
from zarr_core.points.convert.sample import convert_sample, loaded_ahead
from zarr_core.points.convert.writer import GroupWriter
from zarr_core.points.store.head import load_manifest
from zarr_core.points.store.settings import ConversionSettings
from zarr_core.sources import SampleTree
from zarr_core.sources.description import SourceDescription
from zarr_core.sources.sample import SourceSample
from zarr_core.sources.selection import open_source, select_samples
from zarr_core.storage import Storage, clients, retries
from zarr_core.storage.backends.generic import MemoryBackend

SETTINGS = {"chunk_points": 32}


def upload(source: Path, root: str) -> None:
    filesystem, path = fsspec.url_to_fs(root)
    filesystem.put(f"{source}/", f"{path}/source/", recursive=True)


@pytest.mark.parametrize(
    ("filename", "tensor", "where", "reason"),
    [
        ("surface_pressure.pt", nan(77), "surface_pressure", "1 of 77 values are NaN or infinite"),
        ("surface_position_vtp.pt", torch.full((77, 3), torch.inf), "surface_position", "231 of 231 values"),
        ("surface_pressure.pt", torch.full((77,), 1e5), "surface_pressure", "--field-dtype surface_pressure=float32"),
        ("surface_pressure.pt", torch.full((77,), -65520.0), "surface_pressure", "65520 does not fit float16"),
        ("surface_pressure.pt", torch.zeros(76), "surface_pressure", "has 76 points, surface_position has 77"),
        (
            "volume_cell_velocity.pt",
            torch.zeros(237, 2),
            "volume_velocity",
            "2 components per point, velocity has 3",
        ),
        ("volume_cell_velocity.pt", torch.zeros(237, 3, 1), "volume_velocity", "has shape (237, 3, 1)"),
        ("surface_pressure.pt", torch.zeros(0), "surface_pressure", "holds no points"),
        ("surface_pressure.pt", torch.tensor(1.0), "surface_pressure", "has shape ()"),
        ("surface_pressure.pt", torch.zeros(77, dtype=torch.complex64), "surface_pressure", "complex64"),
        ("surface_pressure.pt", torch.zeros(77, dtype=torch.bool), "surface_pressure", "bool"),
    ],
)
def test_a_bad_sample_is_refused_alone_and_named(
    tmp_path: Path, source: Path, filename: str, tensor: torch.Tensor, where: str, reason: str
) -> None:
    store = tmp_path / "store"
    good = (source / "run_2" / filename).read_bytes()
    write_broken(source, "run_2", filename, tensor)
    report = convert("ahmedml", store, root=source, **SETTINGS)
    (refused,) = report.having("quarantined")
    assert refused.sample_id == "run_2"
    assert reason in refused.reason
    assert not report.ok
    manifest = load_manifest(store)
    assert sorted(manifest.samples) == ["run_1", "run_3"]
    assert manifest.quarantine["run_2"].field == where
    # Known to be bad: not tried again until something about it changes.
    again = convert("ahmedml", store, root=source, **SETTINGS)
    assert (len(again.having("up to date")), len(again.having("quarantined")), again.ok) == (2, 1, False)
    assert again.manifest.generation == 1
    (source / "run_2" / filename).write_bytes(good)
    repaired = convert("ahmedml", store, root=source, **SETTINGS)
    assert [o.sample_id for o in repaired.having("converted")] == ["run_2"]
    assert load_manifest(store).quarantine == {}


def test_a_refused_version_leaves_the_good_one_in_place(tmp_path: Path, source: Path) -> None:
    store = tmp_path / "store"
    convert("ahmedml", store, root=source, **SETTINGS)
    before = stored_values(store, "run_2", "surface/pressure")
    write_broken(source, "run_2", "surface_pressure.pt", nan(77))
    convert("ahmedml", store, root=source, **SETTINGS)
    assert np.array_equal(stored_values(store, "run_2", "surface/pressure"), before)
    assert "NaN" in load_manifest(store).quarantine["run_2"].reason


def test_a_quarantined_sample_is_converted_again_on_request(
    tmp_path: Path, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_broken(source, "run_2", "surface_pressure.pt", nan(77))
    convert("ahmedml", tmp_path / "store", root=source, **SETTINGS)
    monkeypatch.setattr(
        "zarr_core.points.convert.writer.as_points", lambda *a: torch.zeros(5, 3 if a[1].dim == 3 else 1)
    )
    assert not convert("ahmedml", tmp_path / "store", root=source, **SETTINGS).having("converted")
    retried = convert("ahmedml", tmp_path / "store", root=source, retry_quarantined=True, **SETTINGS)
    assert [o.sample_id for o in retried.having("converted")] == ["run_2"]


def test_a_file_too_many_is_to_be_moved(tmp_path: Path) -> None:
    for name in ("a/position_1", "a/position_2", "b/position_1"):
        (tmp_path / "source" / name).parent.mkdir(parents=True, exist_ok=True)
        np.save(tmp_path / "source" / f"{name}.npy", np.ones((5, 3)))
    kind = SourceDescription(name="cases", samples="*", files={"surface_position": "position_*.npy"})
    report = convert(kind, tmp_path / "store", root=tmp_path / "source")
    (refused,) = report.having("quarantined")
    assert "which 2 files match: position_1.npy, position_2.npy" in refused.reason
    assert "move the others away or narrow it" in refused.reason


def test_a_missing_file_is_named(tmp_path: Path, source: Path) -> None:
    (source / "run_3" / "volume_cell_velocity.pt").unlink()
    (refused,) = convert("ahmedml", tmp_path / "store", root=source, **SETTINGS).having("quarantined")
    assert "missing volume_cell_velocity.pt" in refused.reason


def test_an_environment_error_does_not_quarantine_the_sample(
    tmp_path: Path, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*args: object) -> None:
        raise OSError("connection reset")

    with monkeypatch.context() as patch:
        patch.setattr("zarr_core.sources.tree.SampleTree.load", fail)
        report = convert("ahmedml", tmp_path / "store", root=source, **SETTINGS)
    assert [o.reason for o in report.having("failed")] == ["OSError: connection reset"] * 3
    assert not report.ok
    assert report.manifest.quarantine == {}
    assert not (tmp_path / "store").exists()
    assert len(convert("ahmedml", tmp_path / "store", root=source, **SETTINGS).having("converted")) == 3


def test_a_sample_that_changes_while_it_is_read_is_not_committed(
    tmp_path: Path, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from zarr_core.sources import SampleTree

    load = SampleTree.load

    def meddling(self, sample, canonical):
        values = load(self, sample, canonical)
        if canonical == "surface_pressure" and sample.sample_id == "run_2":
            torch.save(values + 1, source / "run_2" / "surface_pressure.pt")
        return values

    with monkeypatch.context() as patch:
        patch.setattr(SampleTree, "load", meddling)
        report = convert("ahmedml", tmp_path / "store", root=source, **SETTINGS)
    (failed,) = report.having("failed")
    assert "changed while they were read" in failed.reason
    assert "run_2" not in load_manifest(tmp_path / "store").samples
    convert("ahmedml", tmp_path / "store", root=source, **SETTINGS)
    expected = load_field(source, "run_2", "surface_pressure")[shuffle_permutation(0, "run_2", "surface", 77)]
    assert np.array_equal(stored_values(tmp_path / "store", "run_2", "surface/pressure"), expected.astype("float16"))


@pytest.mark.parametrize("again", ["the same listing", "a new one"])
def test_data_of_two_file_versions_is_never_committed(
    tmp_path: Path, source: Path, monkeypatch: pytest.MonkeyPatch, again: str
) -> None:
    """Another converter that has listed the sample before it changed; or a file that is put back with its time."""
    selection = select_samples(open_source("ahmedml", root=source))
    writer, (sample,) = (
        GroupWriter(tmp_path / "store", ConversionSettings(**SETTINGS)),
        [selection.samples["run_2"]],
    )
    path, load = source / "run_2" / "surface_pressure.pt", SampleTree.load
    first = torch.load(path, weights_only=True)

    def meddling(self: SampleTree, sample: SourceSample, canonical: str) -> torch.Tensor:
        if canonical == "surface_pressure":
            torch.save(first + 1, path)
        return load(self, sample, canonical)

    with monkeypatch.context() as patch:
        patch.setattr(SampleTree, "load", meddling)
        assert convert_sample(writer, selection.source, sample).status == "failed"
    if again == "the same listing":
        assert convert_sample(writer, selection.source, sample).status == "failed"
    torch.save(first, path)
    os.utime(path, (0, float(sample.files["surface_pressure"].version)))
    convert("ahmedml", tmp_path / "store", root=source, **SETTINGS)
    expected = first.numpy()[shuffle_permutation(0, "run_2", "surface", 77)]
    assert np.array_equal(
        stored_values(tmp_path / "store", "run_2", "surface/pressure")[:, 0], expected.astype("float16")
    )


def test_a_sample_that_vanishes_while_it_is_converted_fails_alone(
    tmp_path: Path, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    load = SampleTree.load

    def vanishing(self: SampleTree, sample: SourceSample, canonical: str) -> torch.Tensor:
        if (sample.sample_id, canonical) == ("run_2", "surface_pressure"):
            shutil.rmtree(source / "run_2")
        return load(self, sample, canonical)

    monkeypatch.setattr(SampleTree, "load", vanishing)
    report = convert("ahmedml", tmp_path / "store", root=source, **SETTINGS)
    assert [result.status for result in report.results] == ["converted", "failed", "converted"]
    assert "changed while they were read" in report.results[1].reason


def test_a_slow_converter_writes_no_other_version_into_a_committed_group(
    tmp_path: Path, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It looks for the group; another one makes and commits it; the source changes; it reads what is there now."""
    store, path, load = tmp_path / "store", source / "run_2" / "surface_pressure.pt", SampleTree.load
    committed: dict[str, bytes] = {}

    def slow(self: SampleTree, sample: SourceSample, canonical: str) -> torch.Tensor:
        if (sample.sample_id, canonical) == ("run_2", "surface_pressure") and not committed:
            with monkeypatch.context() as patch:
                patch.setattr(SampleTree, "load", load)
                convert("ahmedml", store, root=source, sample_ids=["run_2"], **SETTINGS)
            committed.update(objects(store))
            torch.save(torch.load(path, weights_only=True) + 1, path)
        return load(self, sample, canonical)

    monkeypatch.setattr(SampleTree, "load", slow)
    report = convert("ahmedml", store, root=source, sample_ids=["run_2"], **SETTINGS)
    assert [result.status for result in report.results] == ["failed"]
    assert objects(store) == committed


def test_a_file_on_a_network_is_read_in_the_version_that_was_listed(
    source: Path, s3_root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another version is refused, even if the listed one is there again afterwards."""
    upload(source, s3_root)
    storage, load = Storage(f"{s3_root}/source"), SampleTree.load

    def changing(self: SampleTree, sample: SourceSample, canonical: str) -> torch.Tensor:
        name = f"{sample.folder}/surface_pressure.pt"
        before = storage.read(name)
        other = io.BytesIO()
        torch.save(load(self, sample, canonical) + 1, other)
        storage.write(name, [other.getvalue() if canonical == "surface_pressure" else before])
        try:
            return load(self, sample, canonical)
        finally:
            storage.write(name, [before])

    monkeypatch.setattr(SampleTree, "load", changing)
    report = convert("ahmedml", f"{s3_root}/store", source_url=storage.root, sample_ids=["run_2"], **SETTINGS)
    (result,) = report.results
    assert (result.status, "surface_pressure.pt: it changed after the source was listed" in result.reason) == (
        "failed",
        True,
    )


@pytest.mark.slow
def test_the_requests_of_a_sample_from_bucket_to_bucket(
    source: Path, s3_root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One for each file, one for each object, one to look for an earlier attempt; none twice."""
    upload(source, s3_root)
    requested: list[str] = []
    request = retries.request

    def counted(where: retries.Service, what: str, *arguments: Any) -> Any:
        requested.append(what)
        return request(where, what, *arguments)

    monkeypatch.setattr(retries, "request", counted)
    assert convert("ahmedml", f"{s3_root}/store", source_url=f"{s3_root}/source", **SETTINGS).ok
    monkeypatch.undo()
    files = [f"{s3_root}/source/run_2/{path.name}" for path in source.joinpath("run_2").iterdir()]
    group = load_manifest(f"{s3_root}/store").samples["run_2"].relpath
    written = [f"{s3_root}/store/{name}" for name in Storage(f"{s3_root}/store").list(group)]
    assert sorted(what for what in requested if "/run_2" in what) == sorted(
        [*files, f"{s3_root}/store/{group}", *written]
    )
    assert (len(files), len(written)) == (7, 17)


def test_the_next_field_is_loaded_while_one_is_used() -> None:
    begun = {name: threading.Event() for name in "abc"}

    def load(name: str) -> str:
        begun[name].set()
        return name.upper()

    with loaded_ahead(load, list("abc")) as next_one:
        assert begun["a"].wait(LIMIT_SECONDS)
        assert next_one("a") == "A"
        assert begun["b"].wait(LIMIT_SECONDS)
        assert not begun["c"].is_set()
        assert [next_one("b"), next_one("c")] == ["B", "C"]


def test_the_last_object_of_a_group_is_uploaded_when_the_others_are_there(source: Path, memory_root: str) -> None:
    class Delayed(MemoryBackend):
        async def put(self, path: str, data: bytes | bytearray) -> None:
            unfinished_before[path] = set(begun) - written
            begun.append(path)
            await asyncio.sleep(0.05)
            await super().put(path, data)
            written.add(path)

    begun: list[str] = []
    written: set[str] = set()
    unfinished_before: dict[str, set[str]] = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(clients._ON_FSSPEC, "memory", Delayed)
        assert convert("ahmedml", memory_root, source_url=str(source), sample_ids=["run_1"], chunk_points=32).ok
    objects = [path for path in begun if "/run_1/" in path]
    assert len(objects) > 10
    assert any(unfinished_before[path] for path in objects)
    assert objects[-1].count("/") == min(path.count("/") for path in objects)  # the group's own zarr.json
    assert not unfinished_before[objects[-1]]
