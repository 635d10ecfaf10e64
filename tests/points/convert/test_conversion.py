"""Conversion of a dataset: equality with its source, interruptions, settings, splits, and what is left out."""

from __future__ import annotations

import importlib.util
import json
import shutil
import subprocess
import sys
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import fsspec
import numpy as np
import pytest
import torch
import zarr

from tests.helpers.odd_arrays import ODD, odd_arrays
from tests.helpers.small_source import SHARED, load_field, write_source
from tests.helpers.stores import objects, stored_values
from zarr_core import ZarrChunkReader
from zarr_core._util.processes import WorkerPool
from zarr_core.convert import convert, convert_aero_dataset, convert_fsspec_source, iter_convert, summary
from zarr_core.errors import SourceError, StoreError
from zarr_core.format.shuffle import shuffle_permutation
from zarr_core.info import store_info
from zarr_core.points.convert.publish import publish
from zarr_core.points.convert.write_sample import ZarrStoreWriter
from zarr_core.points.store.head import load_manifest
from zarr_core.points.verify.store import verify_store
from zarr_core.sources import SampleTree, SourceDescription
from zarr_core.sources.sample import SourceSample
from zarr_core.storage import Storage

SETTINGS = {"chunk_points": 32}


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return write_source(tmp_path / "source")


def test_every_row_is_its_source_row(source: Path, any_root: str) -> None:
    report = convert("ahmedml", any_root, source_url=str(source), **SETTINGS)
    assert [o.sample_id for o in report.having("converted")] == ["run_1", "run_2", "run_3"]
    for sample_id in ("run_1", "run_2", "run_3"):
        for canonical in ("surface_position", "surface_pressure", "volume_velocity"):
            domain, _, name = canonical.partition("_")
            values = load_field(source, sample_id, canonical)
            expected = values[shuffle_permutation(0, sample_id, domain, len(values))]
            stored = stored_values(any_root, sample_id, f"{domain}/{name}")
            assert stored.dtype == ("float32" if name == "position" else "float16")
            assert np.array_equal(stored, expected.astype(stored.dtype))


@pytest.mark.parametrize("layout", ["directory", "packed"])
def test_a_bucket_that_does_not_exist_is_one_error_before_any_sample(source: Path, s3_root: str, layout: str) -> None:
    missing = s3_root.replace("//bucket-", "//missing-")
    with pytest.raises(StoreError, match="//missing-.*: the bucket does not exist; create it, or correct the name"):
        convert("ahmedml", missing, root=source, layout=layout, **SETTINGS)
    with pytest.raises(StoreError, match="holds no manifest.json or HEAD.json; the bucket does not exist; create it"):
        store_info(missing)


def test_the_same_bytes_however_it_runs(tmp_path: Path, source: Path, s3_root: str) -> None:
    one = convert("ahmedml", tmp_path / "one", root=source, **SETTINGS)
    assert one.ok
    convert("ahmedml", tmp_path / "two", source_url=str(source), workers=2, **SETTINGS)
    with ThreadPoolExecutor(3) as executor:
        convert("ahmedml", tmp_path / "threads", root=source, executor=executor, **SETTINGS)
    with ProcessPoolExecutor(1, mp_context=get_context("forkserver")) as executor:
        convert("ahmedml", tmp_path / "forked", root=source, executor=executor, **SETTINGS)
    convert("ahmedml", s3_root, root=source, **SETTINGS)
    expected = objects(tmp_path / "one")
    assert len(expected) > 3 * 17
    for other in (tmp_path / "two", tmp_path / "threads", tmp_path / "forked", s3_root):
        assert objects(other) == expected


def test_a_second_run_converts_nothing_and_a_changed_sample_alone(tmp_path: Path, source: Path) -> None:
    store = tmp_path / "store"
    convert("ahmedml", store, root=source, **SETTINGS)
    before = objects(store)
    again = convert("ahmedml", store, root=source, **SETTINGS)
    assert (len(again.having("up to date")), again.ok, objects(store) == before) == (3, True, True)
    torch.save(torch.full((77,), 5.0), source / "run_2" / "surface_pressure.pt")
    changed = convert("ahmedml", store, root=source, **SETTINGS)
    assert [o.sample_id for o in changed.having("converted")] == ["run_2"]
    assert (stored_values(store, "run_2", "surface/pressure") == 5).all()
    # What generation 1 names is still there, byte for byte.
    assert {name: data for name, data in objects(store).items() if name in before and name != "manifest.json"} == {
        name: data for name, data in before.items() if name != "manifest.json"
    }


def test_changed_settings_convert_again_beside_the_old(tmp_path: Path, source: Path) -> None:
    store = tmp_path / "store"
    convert("ahmedml", store, root=source, **SETTINGS)
    new = {"field_dtypes": {"surface_pressure": "float32"}}
    report = convert("ahmedml", store, root=source, reconvert=True, **new, **SETTINGS)
    assert len(report.having("converted")) == 3
    assert stored_values(store, "run_1", "surface/pressure").dtype == "float32"
    assert report.manifest.fields["surface_pressure"].dtype == "float32"
    assert load_manifest(store, generation=1).fields["surface_pressure"].dtype == "float16"
    same = convert("ahmedml", store, root=source, field_dtypes={"surface_pressure": "float32"}, **SETTINGS)
    assert len(same.having("up to date")) == 3
    assert all(result.bytes_written for result in report.having("converted"))
    former = {"field_dtypes": {"surface_pressure": "default"}}
    back = convert("ahmedml", store, root=source, reconvert=True, **former, **SETTINGS)
    found = [(result.bytes_read, result.bytes_written) for result in back.having("converted")]
    assert found == [(0, 0)] * 3, "their groups were there"


def test_shards_are_capped_to_whole_chunks(tmp_path: Path, source: Path) -> None:
    convert("ahmedml", tmp_path / "capped", root=source, chunk_points=32, shard_points=80)
    convert("ahmedml", tmp_path / "whole", root=source, chunk_points=32)
    grid = load_manifest(tmp_path / "capped").samples["run_1"].domains["volume"]
    assert (grid.n_points, grid.chunk_points, grid.shard_points, grid.n_chunks) == (230, 32, 64, 8)
    names = [name for name in Storage(tmp_path / "capped").list() if "run_1/" in name and "volume/velocity/c/" in name]
    assert len(names) == 4
    whole, capped = (stored_values(tmp_path / name, "run_1", "volume/velocity") for name in ("whole", "capped"))
    assert np.array_equal(whole, capped)


def test_a_cap_below_one_chunk_means_one_chunk(tmp_path: Path, source: Path) -> None:
    report = convert("ahmedml", tmp_path / "store", root=source, chunk_points=32, shard_points=9)
    assert report.manifest.samples["run_1"].domains["volume"].shard_points == 32


def test_a_field_must_be_as_wide_as_in_the_samples_before(tmp_path: Path) -> None:
    (tmp_path / "own.yaml").write_text(
        "name: own\nsamples: '*'\nfiles: {surface_position: p.pt, surface_temperature: t.pt}\n"
    )
    for sample_id, width in (("a", 2), ("b", 4)):
        (tmp_path / "data" / sample_id).mkdir(parents=True)
        torch.save(torch.zeros(5, 3), tmp_path / "data" / sample_id / "p.pt")
        torch.save(torch.zeros(5, width), tmp_path / "data" / sample_id / "t.pt")
    convert(str(tmp_path / "own.yaml"), tmp_path / "store", root=tmp_path / "data")
    manifest = load_manifest(tmp_path / "store")
    assert list(manifest.samples) == ["a"]
    assert "4 components per point, the store's samples have 2" in manifest.quarantine["b"].reason


def test_split_files_and_blacklists_travel_along(tmp_path: Path) -> None:
    kind = tmp_path / "own.yaml"
    kind.write_text("name: own\nsamples: '*'\nfiles: {surface_position: p.pt}\nblacklists: [blacklist.txt]\n")
    for sample_id in "abc":
        (tmp_path / "data" / sample_id).mkdir(parents=True)
        torch.save(torch.zeros(5, 3), tmp_path / "data" / sample_id / "p.pt")
    (tmp_path / "data" / "train_design_ids.txt").write_text("a\nb\nmissing\n")
    (tmp_path / "data" / "test_design_ids.txt").write_text("c\n")
    (tmp_path / "data" / "blacklist.txt").write_text("b.vtk\n")
    convert(str(kind), tmp_path / "store", root=tmp_path / "data", splits=["train"])
    manifest = load_manifest(tmp_path / "store")
    assert (list(manifest.samples), manifest.split_ids("train"), manifest.split_ids("test")) == (["a"], ["a"], [])
    assert (tmp_path / "store" / "train_design_ids.txt").read_text() == "a\nb\nmissing\n"
    assert (tmp_path / "store" / "blacklist.txt").read_text() == "b.vtk\n"


def test_samples_that_stay_behind_are_named(tmp_path: Path) -> None:
    """A sample that lacks a field which the description has by now, and one on a blacklist in a migration."""
    kind, root, store = tmp_path / "own.yaml", tmp_path / "data", tmp_path / "store"
    document = {"name": "own", "samples": "*", "files": {"surface_position": "p.pt"}, "blacklists": ["bad.txt"]}
    kind.write_text(json.dumps(document))
    for sample_id in "abc":
        (root / sample_id).mkdir(parents=True)
        torch.save(torch.zeros(5, 3), root / sample_id / "p.pt")
        if sample_id != "b":
            torch.save(torch.zeros(5), root / sample_id / "q.pt")
    (root / "bad.txt").write_text("c\n")
    assert not [note for note in convert(str(kind), store, root=root).notes if "stay" in note or "keep" in note]
    (root / "bad.txt").write_text("")
    document["files"] |= {"surface_pressure": "q.pt"}  # type: ignore[operator]
    kind.write_text(json.dumps(document))
    report = convert(str(kind), store, root=root)
    assert [r.sample_id for r in report.results if r.status == "converted"] == ["a", "c"]
    assert "samples that stay without files that the description requires by now (1): b (q.pt)" in report.notes
    (root / "bad.txt").write_text("c\n")
    report = convert(str(kind), store, root=root, values_dtype="float32", reconvert=True)
    former = "samples on a blacklist that keep their former settings until they are taken off it (1): c"
    assert former in report.notes
    (root / "bad.txt").write_text("")
    assert former not in convert(str(kind), store, root=root).notes


class SomebodyElses:
    """A dataset of another framework, as far as this library knows it."""

    class FileMap:
        surface_position = "pos"
        surface_pressure = "p"
        surface_normals = None
        design_parameters = "params"

    filemap = FileMap()

    def __init__(self, root: str = "", split: str = "train") -> None:
        if split == "val":
            raise ValueError("no such split")
        self.root, self.split = root, split
        self.design_ids = [1, 2] if split == "train" else [3]

    def _load(self, idx: int, filename: str) -> object:
        n = 40 + self.design_ids[idx]
        return {"pos": torch.arange(3.0 * n).reshape(n, 3), "p": torch.arange(float(n)), "params": {"speed": n}}[
            filename
        ]


def test_any_object_with_a_filemap_and_a_load(tmp_path: Path) -> None:
    writer = ZarrStoreWriter(tmp_path / "store", chunk_points=16)
    report = convert_aero_dataset(SomebodyElses(), writer)
    assert sorted(report.manifest.samples) == ["run_1", "run_2"]
    assert report.manifest.split_ids("train") == ["run_1", "run_2"]
    expected = np.arange(41)[shuffle_permutation(0, "run_1", "surface", 41)][:, None]
    assert np.array_equal(stored_values(tmp_path / "store", "run_1", "surface/pressure"), expected)
    assert len(convert_aero_dataset(SomebodyElses(), writer).having("up to date")) == 2
    convert_aero_dataset(SomebodyElses(split="test"), writer, max_workers=1)
    manifest = load_manifest(tmp_path / "store")
    assert (manifest.split_ids("train"), manifest.split_ids("test")) == (["run_1", "run_2"], ["run_3"])


def test_changed_parameters_of_a_dataset_object_are_converted(tmp_path: Path) -> None:
    class Driven(SomebodyElses):
        speed = 1.0

        def _load(self, idx: int, filename: str) -> object:
            return {"speed": self.speed} if filename == "params" else super()._load(idx, filename)

    writer = ZarrStoreWriter(tmp_path / "store", chunk_points=16)
    for Driven.speed in (1.0, 2.0):
        assert len(convert_aero_dataset(Driven(), writer).having("converted")) == 2
        assert ZarrChunkReader(tmp_path / "store").read_attributes("run_1")["parameters"] == {"speed": Driven.speed}


@pytest.mark.slow
@pytest.mark.parametrize("value", [None, np.zeros(41), *(name for name in ODD if name.endswith("tensor"))])
def test_what_a_dataset_object_loads_instead_of_a_tensor_concerns_one_sample(tmp_path: Path, value: object) -> None:
    if isinstance(value, str):
        make, expected = odd_arrays(np.ones((41, 1)))[value]
        if expected is not None:
            return
        value = make()

    class Odd(SomebodyElses):
        def _load(self, idx: int, filename: str) -> object:
            return value if (idx, filename) == (0, "p") else super()._load(idx, filename)

    report = convert_aero_dataset(Odd(), ZarrStoreWriter(tmp_path / "store", chunk_points=16))
    assert list(report.manifest.samples) == ["run_2"]
    assert list(report.manifest.quarantine) == ["run_1"]


def test_a_dataset_object_of_a_training_script(tmp_path: Path) -> None:
    """Its tensors may need gradients or have 16 bits, and its numbers come from NumPy."""

    class Trained(SomebodyElses):
        def _load(self, idx: int, filename: str) -> object:
            found = super()._load(idx, filename)
            if filename == "pos":
                return torch.as_tensor(found).requires_grad_()
            return torch.as_tensor(found).bfloat16() if filename == "p" else found

    dataset = Trained()
    dataset.design_ids = list(np.array([1, 2]))
    report = convert_aero_dataset(dataset, ZarrStoreWriter(tmp_path / "store", chunk_points=16))
    assert sorted(report.manifest.samples) == ["run_1", "run_2"]


def test_splits_of_dataset_objects_that_overlap_are_named(tmp_path: Path) -> None:
    writer = ZarrStoreWriter(tmp_path / "store", chunk_points=16)
    first = convert_aero_dataset(SomebodyElses(split="test"), writer)
    moved = SomebodyElses()
    moved.design_ids = [1, 3]
    second = convert_aero_dataset(moved, writer)
    assert first.notes == ()
    assert second.notes == ("samples in more than one split (1): run_3 (test, train)",)


def test_an_external_class_by_dotted_path(tmp_path: Path) -> None:
    kind = f"{__name__}.SomebodyElses"
    report = convert(kind, tmp_path / "store", root=tmp_path, splits=["train", "val", "test"], chunk_points=16)
    expected = "SomebodyElses(split='val') failed: ValueError: no such split"
    assert report.notes == (expected, "SomebodyElses has no split val; skipped")
    assert sorted(report.manifest.samples) == ["run_1", "run_2", "run_3"]
    with pytest.raises(SourceError, match="failed for every split"):
        convert(kind, tmp_path / "store", root=tmp_path, splits=["val"])


def test_a_tree_at_any_location(source: Path, tmp_path: Path, memory_root: str) -> None:
    filesystem, path = fsspec.url_to_fs(memory_root)
    filesystem.put(f"{source}/", f"{path}/", recursive=True)
    writer = ZarrStoreWriter(tmp_path / "store", chunk_points=32)
    assert len(convert_fsspec_source(memory_root, "ahmedml", writer).having("converted")) == 3


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"chunk_points": 0}, "chunk_points"),
        ({"values_dtype": "int8"}, "int8"),
        ({"field_dtypes": {"surface_pressure": "float8"}}, "surface_pressure"),
        ({"field_dtypes": {"surface_presure": "float32"}}, "surface_presure"),
        ({"codec": "lzma"}, "lzma"),
    ],
)
def test_settings_that_make_no_sense(tmp_path: Path, source: Path, settings: dict, reason: str) -> None:
    with pytest.raises(SourceError, match=reason):
        convert("ahmedml", tmp_path / "store", root=source, **settings)
    assert not (tmp_path / "store").exists()


def test_a_limit_counts_what_is_to_be_done(tmp_path: Path, source: Path) -> None:
    store = tmp_path / "store"
    first, second, third = (convert("ahmedml", store, root=source, limit=2, **SETTINGS) for _ in range(3))
    assert ([r.sample_id for r in first.having("converted")], first.remaining) == (["run_1", "run_2"], 1)
    assert ([r.sample_id for r in second.having("converted")], second.remaining) == (["run_3"], 0)
    assert (len(third.having("up to date")), third.remaining) == (3, 0)
    assert all(report.ok for report in (first, second, third))


@pytest.mark.parametrize("limit", [0, -1])
def test_a_limit_below_one_is_refused(tmp_path: Path, source: Path, limit: int) -> None:
    with pytest.raises(SourceError, match=f"limit must be positive, not {limit}"):
        convert("ahmedml", tmp_path / "store", root=source, limit=limit)
    assert not (tmp_path / "store").exists()


def test_splits_are_those_that_the_source_has_now(tmp_path: Path) -> None:
    source, store = write_source(tmp_path / "source", kind="drivaernet"), tmp_path / "store"
    (source / "train_design_ids.txt").write_text("run_1\nrun_2\n")
    (source / "test_design_ids.txt").write_text("run_3\n")
    (source / "blacklist.txt").write_text("run_2\n")
    convert("drivaernet", store, root=source, **SETTINGS)
    (source / "test_design_ids.txt").unlink()
    (source / "blacklist.txt").unlink()
    (source / "train_design_ids.txt").write_text("run_1\nrun_2\nrun_3\n")
    manifest = convert("drivaernet", store, root=source, **SETTINGS).manifest
    assert manifest.splits == {"train": ["run_1", "run_2", "run_3"]}
    assert manifest.excluded == frozenset()
    # Readers of the published format read the copies of these files.
    assert sorted(path.name for path in store.glob("*.txt")) == ["train_design_ids.txt"]
    assert load_manifest(store, generation=1).split_ids("test") == ["run_3"]


def test_a_report_names_what_was_left_out(tmp_path: Path) -> None:
    source = write_source(tmp_path / "source", ("run_1", "run_(2)"))
    torch.save(torch.zeros(3), source / "run_1" / "surface_area.pt")
    report = convert("ahmedml", tmp_path / "store", root=source, **SETTINGS)
    left_out, unused, absent = report.notes
    assert "run_(2)" in left_out
    assert "surface_area.pt" in unused
    assert "499 of the 500 ids" in absent
    assert report.ok
    assert all(summary(report, "store").count(note) == 1 for note in report.notes)
    published = publish("ahmedml", tmp_path / "store", root=source, **SETTINGS)
    assert published.notes == report.notes


def test_fingerprints_of_content_belong_to_the_store(tmp_path: Path, source: Path) -> None:
    """Another copy of the data makes the same store, byte for byte; the kind of fingerprint is given once."""
    copy = shutil.copytree(source, tmp_path / "copy", copy_function=shutil.copy)
    one, two = tmp_path / "one", tmp_path / "two"
    convert("ahmedml", one, root=source, fingerprint="content", **SETTINGS)
    convert("ahmedml", two, root=copy, fingerprint="content", workers=2, **SETTINGS)
    assert objects(one) == objects(two)
    assert len(convert("ahmedml", one, root=copy, **SETTINGS).having("up to date")) == 3
    assert publish("ahmedml", one, root=copy, **SETTINGS).committed is False
    assert {r.status for r in iter_convert("ahmedml", one, root=copy, **SETTINGS)} == {"up to date"}
    assert load_manifest(one).fingerprints == "content"
    assert verify_store(str(one), source=str(copy)).ok
    torch.save(torch.full((77,), 5.0), copy / "run_2" / "surface_pressure.pt")
    assert [r.sample_id for r in convert("ahmedml", one, root=copy, **SETTINGS).having("converted")] == ["run_2"]
    with pytest.raises(SourceError, match="by the content of their files, not by version"):
        convert("ahmedml", one, root=source, fingerprint="version", **SETTINGS)
    with pytest.raises(SourceError, match="not one of version, content"):
        convert("ahmedml", one, root=source, fingerprint="moon", **SETTINGS)


def test_a_sample_that_cannot_be_hashed_fails_alone(
    tmp_path: Path, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hashed = SampleTree.with_content

    def failing(self: SampleTree, sample: SourceSample) -> SourceSample:
        if sample.sample_id == "run_2":
            raise OSError("connection reset")
        return hashed(self, sample)

    monkeypatch.setattr(SampleTree, "with_content", failing)
    report = convert("ahmedml", tmp_path / "store", root=source, fingerprint="content", **SETTINGS)
    assert sorted((r.sample_id, r.status) for r in report.results) == [
        ("run_1", "converted"),
        ("run_2", "failed"),
        ("run_3", "converted"),
    ]
    assert not report.ok


@pytest.mark.skipif(not SHARED.is_dir(), reason="../shared (16 real RANS runs) is not beside this clone")
def test_the_real_runs_both_ways_in(tmp_path: Path) -> None:
    real = SHARED / "data" / "ahmed_rans"
    splits = ["train", "val", "test"]
    convert("ahmedml", tmp_path / "a", root=real, splits=splits, workers=2, chunk_points=4096)
    convert("ahmedml", tmp_path / "b", source_url=str(real), chunk_points=4096)
    assert objects(tmp_path / "a") == objects(tmp_path / "b")
    assert len(load_manifest(tmp_path / "a").samples) == 16
    attributes = json.loads(
        (tmp_path / "a" / load_manifest(tmp_path / "a").samples["run_1"].relpath / "zarr.json").read_text()
    )
    assert attributes["attributes"]["zarr_core"]["parameters"]["inflow_velocity_m_s"] == 26.27


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="peak memory is read from Linux's /proc")
def test_a_worker_needs_a_tensor_a_permutation_and_a_fixed_rest(tmp_path: Path) -> None:
    """Peak resident memory of a process that converts one sample of six million points."""
    n = 6_000_000
    (tmp_path / "data" / "a").mkdir(parents=True)
    torch.save(torch.rand(n, 3), tmp_path / "data" / "a" / "p.pt")
    torch.save(torch.rand(n, 3), tmp_path / "data" / "a" / "v.pt")
    (tmp_path / "own.yaml").write_text(
        "name: own\nsamples: '*'\nfiles: {volume_position: p.pt, volume_velocity: v.pt}\n"
    )
    # The fixed rest is what the process holds before the conversion; builds of torch differ in it by hundreds of MB.
    code = (
        "import torch; from zarr_core.points.convert.conversion import convert; "
        "status = lambda name: [int(row.split()[1]) for row in open('/proc/self/status') if row.startswith(name)][0]; "
        "rest = status('VmRSS'); assert convert('own.yaml', 'store', root='data').ok; print(status('VmHWM') - rest)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=tmp_path)
    needed = int(done.stdout) * 1024
    source, permutation, shard = n * 12, n * 8, n * 12
    assert needed < source + permutation + shard + 50e6


def test_a_missing_library_is_reported_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in (1, 2):
        (tmp_path / "source" / f"run_{number}").mkdir(parents=True)
        (tmp_path / "source" / f"run_{number}" / "a.vtp").write_text("anything")
    kind = {"name": "cars", "samples": "run_*", "meshes": {"surface": {"file": "*.vtp"}}}
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "vtkmodules" else find_spec(name))
    with pytest.raises(SourceError, match=r"\*\.vtp cannot be read: pip install 'zarr-core\[vtk\]'"):
        convert(SourceDescription.model_validate(kind), tmp_path / "store", root=tmp_path / "source")
    assert not (tmp_path / "store").exists()


def test_arrays_have_the_units_of_their_fields(tmp_path: Path) -> None:
    (tmp_path / "source" / "run_1").mkdir(parents=True)
    np.savez(tmp_path / "source" / "run_1" / "a.npz", xyz=np.eye(3), p=np.ones(3), q=np.ones(3))
    files = {
        "volume_position": {"file": "a.npz", "array": "xyz", "units": "m"},
        "volume_pressure": {"file": "a.npz", "array": "p", "scale": 100.0, "units": "Pa"},
        "volume_humidity": {"file": "a.npz", "array": "q"},
    }
    kind = SourceDescription.model_validate({"name": "air", "samples": "run_*", "files": files})
    assert convert(kind, tmp_path / "store", root=tmp_path / "source").ok
    folder = next((tmp_path / "store").rglob("volume"))
    units = {
        name: dict(zarr.open_array(folder / name, mode="r").attrs) for name in ("position", "pressure", "humidity")
    }
    assert units == {"position": {"units": "m"}, "pressure": {"units": "Pa"}, "humidity": {}}
    assert dict(zarr.open_group(folder.parent, mode="r")["volume/pressure"].attrs) == {"units": "Pa"}
    assert verify_store(str(tmp_path / "store"), source=str(tmp_path / "source")).ok


@pytest.mark.parametrize("place", ["a folder", "memory"])
def test_what_other_machines_wrote_is_looked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str) -> None:
    """Processes of a pool have the disks of this one; an executor may be of other machines, memory is of a process."""
    source, asked = write_source(tmp_path / "source", sample_ids=("run_1",)), []
    store = str(tmp_path / "store") if place == "a folder" else "memory://written_elsewhere"
    check = Storage.check_shared
    monkeypatch.setattr(Storage, "check_shared", lambda self, name: asked.append(name) or check(self, name))
    with WorkerPool(1) as pool:
        (result,) = iter_convert("ahmedml", store, root=source, executor=pool)
    if place == "memory":
        assert (result.status, len(asked)) == ("failed", 1)
        assert "a worker has it, but it is not here" in result.reason
        return
    assert (result.status, asked) == ("converted", [])
    with ThreadPoolExecutor(1) as other:
        (result,) = iter_convert("ahmedml", tmp_path / "another", root=source, executor=other)
    assert (result.status, len(asked)) == ("converted", 1)
