"""Packed samples: the same bytes however they are written, repaired in place, and never replaced by other content."""

from __future__ import annotations

import os
import time
import zipfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import torch

from tests.helpers.counting_store import Requests
from tests.helpers.faults import Kill, is_killed
from tests.helpers.small_source import KIND, load_field, write_source
from tests.helpers.stores import flip, nan, objects, replace_unnoticed, stored_values, write_broken
from zarr_core import ZarrChunkReader, write_sample
from zarr_core.convert import convert, iter_convert, publish
from zarr_core.points.convert.writer import GroupWriter, Repair, SampleContent
from zarr_core.points.store.head import HEAD, load_manifest
from zarr_core.points.store.settings import ConversionSettings
from zarr_core.points.verify.store import verify_store
from zarr_core.sources.description import FieldFile
from zarr_core.storage import Storage, clients
from zarr_core.storage.backends import UnfinishedUpload
from zarr_core.storage.backends.s3 import ConditionalPut, S3Backend
from zarr_core.storage.uploads import unfinished_uploads
from zarr_core.versioning.gc import collect_garbage
from zarr_core.versioning.tags import make_tag

SETTINGS: dict[str, Any] = {"chunk_points": 32, "layout": "packed"}
IDS = ("run_1", "run_2", "run_3")


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return write_source(tmp_path / "source")


def archive(store: Path, sample_id: str = "run_2") -> Path:
    return store / load_manifest(store).samples[sample_id].relpath


def raise_pressure(source: Path, by: float = 1.0) -> np.ndarray:
    """Change a field of run_2 under the same size and time; returns what a store should hold, in any order."""
    values = load_field(source, "run_2", "surface_pressure") + by
    replace_unnoticed(source / "run_2" / "surface_pressure.pt", torch.from_numpy(values[:, 0].copy()))
    return np.sort(values[:, 0].astype(np.float16))


def kept(before: dict[str, bytes], after: dict[str, bytes]) -> bool:
    """Whether everything below the folders of a store is as it was."""
    return all(after.get(name) == data for name, data in before.items() if "/" in name)


def test_a_sample_is_one_object_on_every_storage(source: Path, tmp_path: Path, any_root: str) -> None:
    assert convert(KIND, any_root, source_url=str(source), **SETTINGS).ok
    convert(KIND, tmp_path / "one", root=source, **SETTINGS)
    assert objects(any_root) == objects(tmp_path / "one")
    assert [name for name in objects(any_root) if "run_2" in name] == [load_manifest(any_root).samples["run_2"].relpath]
    assert verify_store(any_root, source=str(source)).problems == []


@pytest.mark.slow
def test_the_same_bytes_however_it_runs(tmp_path: Path, source: Path) -> None:
    convert(KIND, tmp_path / "one", root=source, **SETTINGS)
    convert(KIND, tmp_path / "four", root=source, workers=4, **SETTINGS)
    with ThreadPoolExecutor(3) as executor:
        convert(KIND, tmp_path / "threads", root=source, executor=executor, **SETTINGS)
    expected = objects(tmp_path / "one")
    assert len(expected) == 2 + 3
    assert objects(tmp_path / "four") == objects(tmp_path / "threads") == expected
    times = {path: path.stat().st_mtime_ns for path in (tmp_path / "one").rglob("*.zip")}
    again = convert(KIND, tmp_path / "one", root=source, **SETTINGS)
    assert (len(again.having("up to date")), objects(tmp_path / "one")) == (3, expected)
    assert {path: path.stat().st_mtime_ns for path in times} == times


def test_the_values_are_those_of_a_directory(tmp_path: Path, source: Path) -> None:
    for layout in ("packed", "directory"):
        convert(KIND, tmp_path / layout, root=source, chunk_points=32, layout=layout)
    one, other = ZarrChunkReader(tmp_path / "packed"), ZarrChunkReader(tmp_path / "directory")
    for sample_id in IDS:
        for name, values in one.read_sample(sample_id).items():
            np.testing.assert_array_equal(values, other.read_sample(sample_id)[name])
        recorded = one.read_attributes(sample_id)
        assert recorded.pop("packed")
        expected = other.read_attributes(sample_id)
        del expected["chunk_bytes"], expected["settings"], recorded["settings"]
        sizes = recorded.pop("stored_bytes"), expected.pop("stored_bytes")
        assert sizes[0].keys() == sizes[1].keys()
        assert recorded == expected


def test_changed_settings_keep_the_layout_of_the_store(tmp_path: Path, source: Path) -> None:
    store = tmp_path / "store"
    convert(KIND, store, root=source, **SETTINGS)
    convert(KIND, store, root=source, reconvert=True, values_dtype="float32")
    assert all(entry.head for entry in load_manifest(store).samples.values())
    assert verify_store(str(store), source=str(source)).ok


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A source, and a store that a conversion made of it without being killed."""
    root = tmp_path_factory.mktemp("undisturbed")
    write_source(root / "source", IDS, surface=300, volume=2000)
    convert(KIND, root / "store", root=root / "source", **SETTINGS)
    return root


@pytest.mark.slow
@pytest.mark.parametrize(
    "kill",
    [
        Kill("create", r"run_1/.*\.zip"),
        Kill("rename", r"run_1/.*\.zip$"),
        Kill("create", r"run_2/.*\.zip"),
        Kill("rename", r"run_2/.*\.zip$"),
        Kill("create", r"run_3/.*\.zip"),
        Kill("create", "/.manifest.json"),
        Kill("rename", "/manifest.json$"),
        Kill("create", "/generations/"),
        Kill("link", "/generations/"),
        Kill("unlink", "/generations/"),
    ],
    ids=str,
)
def test_a_conversion_that_is_killed_is_finished_by_the_next(tmp_path: Path, undisturbed: Path, kill: Kill) -> None:
    store, options = tmp_path / "store", {"root": undisturbed / "source", **SETTINGS}
    assert is_killed(kill, convert, KIND, store, **options)
    assert convert(KIND, store, **options).ok
    expected = objects(undisturbed / "store")
    if kill.path == "/generations/" and kill.operation != "unlink":
        del expected["generations/00000001.json"]  # the manifest is committed; the next commit archives it
    assert {name: data for name, data in objects(store).items() if not name.endswith(".tmp")} == expected
    for path in store.rglob("*"):
        os.utime(path, (time.time() - 1e6, time.time() - 1e6))
    collect_garbage(Storage(store), HEAD, 0)
    left = {name for name in objects(store) if not name.startswith(("manifest", "generations"))}
    assert left == {name for name in expected if name.startswith("samples/") or name.endswith(".txt")}


def test_a_bucket_that_is_gone_holds_no_earlier_attempt(s3_root: str) -> None:
    writer = GroupWriter(s3_root.replace("//bucket-", "//missing-"), ConversionSettings())
    assert writer.find("run_1", "0" * 16) is None


@pytest.mark.parametrize("kill", [Kill("put", "run_1"), Kill("put", "run_3"), Kill("put_if", "manifest")], ids=str)
def test_a_conversion_to_s3_that_is_killed_is_finished_by_the_next(s3_root: str, undisturbed: Path, kill: Kill) -> None:
    pytest.importorskip("obstore", reason="needs the obstore extra")
    options = {"root": undisturbed / "source", **SETTINGS}
    assert is_killed(kill, convert, KIND, s3_root, **options)
    assert convert(KIND, s3_root, **options).ok
    assert objects(s3_root) == objects(undisturbed / "store")


@pytest.mark.parametrize("kill", [Kill("put", "run_1"), Kill("put", "run_3"), Kill("put_if", "manifest")], ids=str)
def test_a_conversion_to_oci_that_is_killed_is_finished_by_the_next(
    oci_root: str, undisturbed: Path, kill: Kill
) -> None:
    """A sample is one request there, of any size."""
    options = {"root": undisturbed / "source", **SETTINGS}
    assert is_killed(kill, convert, KIND, oci_root, **options)
    assert convert(KIND, oci_root, **options).ok
    assert objects(oci_root) == objects(undisturbed / "store")


def write_in_parts(root: str) -> None:
    """Write a sample whose archive is an upload of three parts."""
    ConditionalPut.single_put_bytes, ConditionalPut.part_bytes = 6 << 20, 5 << 20
    values = np.random.default_rng(0).random((1_000_000, 3), np.float32)
    write_sample(root, "a", {"volume_position": values}, layout="packed", codec="none")


def write_in_parts_by_obstore(root: str) -> None:
    """The same as if s3fs were not installed; obstore makes the requests of an upload by itself."""
    with patch.object(clients, "find_spec", return_value=None):
        write_in_parts(root)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("write", "kill"),
    [
        (write_in_parts, Kill("create_multipart_upload")),
        *((write_in_parts, Kill("upload_part", "", number)) for number in (1, 2, 3)),
        (write_in_parts, Kill("complete_multipart_upload")),
        (write_in_parts, Kill("put_if", "manifest")),
        (write_in_parts_by_obstore, Kill("request", r"POST .*\?uploads")),
        *((write_in_parts_by_obstore, Kill("request", r"PUT .*\?partNumber=", number)) for number in (1, 2, 3)),
        (write_in_parts_by_obstore, Kill("request", r"POST .*\?uploadId=")),
        (write_in_parts_by_obstore, Kill("request", r"PUT .*/manifest\.json")),
    ],
    ids=lambda value: getattr(value, "__name__", str(value)),
)
def test_an_upload_in_parts_that_is_killed_is_finished_and_its_parts_are_collected(
    s3_root: str, tmp_path: Path, write: Callable[[str], None], kill: Kill, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("s3fs", reason="needs the s3 extra")
    pytest.importorskip("obstore", reason="needs the obstore extra")
    for name in ("single_put_bytes", "part_bytes"):
        monkeypatch.setattr(ConditionalPut, name, getattr(ConditionalPut, name))  # put back in the end
    assert is_killed(kill, write, s3_root)
    storage = Storage(s3_root)
    left = unfinished_uploads(storage)
    has_begun = any(word in str(kill) for word in ("upload_part", "partNumber", "complete", "uploadId"))
    assert [upload.path.rpartition("/")[2][16:] for upload in left] == [".zip"] * has_begun
    write(s3_root)
    write_in_parts(str(tmp_path / "store"))
    assert objects(s3_root) == objects(tmp_path / "store")
    age, listed = 600.0, S3Backend.unfinished_uploads

    async def of_this_age(backend: S3Backend, prefix: str) -> list[UnfinishedUpload]:  # moto has one time for all
        return [upload._replace(started=time.time() - age) for upload in await listed(backend, prefix)]

    monkeypatch.setattr(S3Backend, "unfinished_uploads", of_this_age)
    assert collect_garbage(storage, HEAD, 0).temporary.objects == 0, "its writer may be at work"
    age = 86400.0
    assert collect_garbage(storage, HEAD, 3600, dry_run=True).temporary.objects == len(left)
    assert collect_garbage(storage, HEAD, 2 * 86400).temporary.objects == 0
    assert collect_garbage(storage, HEAD, 3600).temporary.objects == len(left)
    assert unfinished_uploads(storage) == []
    assert objects(s3_root) == objects(tmp_path / "store")


def test_the_leftover_of_a_killed_writer_is_collected_without_its_sample(tmp_path: Path, undisturbed: Path) -> None:
    """No generation names the archive that it would have become."""
    store, options = tmp_path / "store", {"root": undisturbed / "source", **SETTINGS}
    convert(KIND, store, sample_ids=["run_1"], **options)
    assert is_killed(Kill("rename", r"run_2/.*\.zip$"), convert, KIND, store, **options)
    (left,) = store.rglob("*.tmp")
    os.utime(left, (time.time() - 1e6, time.time() - 1e6))
    collect_garbage(Storage(store), HEAD, 3600)
    assert not left.exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("size", "instead"),
    [(0, "nothing"), (20, "nothing"), (9000, "nothing"), (-1, "nothing"), (0, "zeros"), (20, "zeros")],
)
def test_what_a_power_cut_left_of_an_archive_is_written_again(
    tmp_path: Path, undisturbed: Path, size: int, instead: str
) -> None:
    """Some file systems lose the end of a file, others have zeros there."""
    store, options = tmp_path / "store", {"root": undisturbed / "source", **SETTINGS}
    for _ in iter_convert(KIND, store, **options):
        pass
    (lost,) = store.glob("samples/run_1/*.zip")
    whole = lost.stat().st_size
    os.truncate(lost, size if size >= 0 else whole + size)
    if instead == "zeros":
        os.truncate(lost, whole)
    assert convert(KIND, store, **options).ok
    assert objects(store) == objects(undisturbed / "store")


def test_a_half_lost_archive_of_other_content_is_left_alone(tmp_path: Path, source: Path) -> None:
    """A kept generation may name it."""
    store = tmp_path / "store"
    convert(KIND, store, root=source, codec="none", values_dtype="float32", **SETTINGS)
    lost = archive(store)
    os.truncate(lost, lost.stat().st_size - 1)
    half = lost.read_bytes()
    raise_pressure(source)
    assert convert(KIND, store, root=source, force=True).ok
    assert lost.read_bytes() == half
    assert archive(store) != lost
    assert verify_store(str(store), source=str(source)).ok


def test_force_repairs_what_differs_and_touches_nothing_else(tmp_path: Path, source: Path) -> None:
    store = tmp_path / "store"
    convert(KIND, store, root=source, **SETTINGS)
    whole, times = objects(store), {path: path.stat().st_mtime_ns for path in store.rglob("*") if path.is_file()}
    flip(archive(store), archive(store).stat().st_size // 2)
    assert {result.status for result in convert(KIND, store, root=source, **SETTINGS).results} == {"up to date"}
    assert [result.status for result in convert(KIND, store, root=source, force=True).results] == ["converted"] * 3
    assert objects(store) == whole, "no new generation either"
    changed = {path for path, time in times.items() if path.stat().st_mtime_ns != time}
    assert {path for path in changed if path.suffix != ".lock"} == {archive(store)}
    assert verify_store(str(store), source=str(source)).ok


def test_force_reads_a_sample_in_a_bucket_by_large_ranges(
    source: Path, memory_root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    convert(KIND, memory_root, source_url=str(source), **SETTINGS)
    requests = Requests(memory_root, monkeypatch)
    assert convert(KIND, memory_root, source_url=str(source), force=True).ok
    assert requests.counts == {"info": 3, "read": 3}
    values = raise_pressure(source)
    assert convert(KIND, memory_root, source_url=str(source), force=True).ok
    # The sample of other content has another name, at which there is nothing yet.
    assert (requests.counts["write"], requests.counts["read"]) == (1, 3 + 4)
    np.testing.assert_array_equal(np.sort(stored_values(memory_root, "run_2", "surface/pressure")[:, 0]), values)


@pytest.mark.slow
@pytest.mark.parametrize("lost", ["chunk", "head", "end", "chunk and head", "everything"])
@pytest.mark.parametrize("by", [0.0, 1.0])
def test_a_repair_needs_the_same_content(tmp_path: Path, source: Path, lost: str, by: float) -> None:
    """What is left of the archive tells what its content was."""
    store, url = tmp_path / "store", str(tmp_path / "store")
    convert(KIND, store, root=source, codec="none", values_dtype="float32", **SETTINGS)
    whole, path = objects(store), archive(store)
    head, size = load_manifest(store).samples["run_2"].head, path.stat().st_size
    expected = raise_pressure(source, by)
    if "chunk" in lost:
        flip(path, head + 200)
    if "head" in lost:
        flip(path, 100)
    if lost == "end":
        os.truncate(path, size - 10)
    if lost == "everything":
        path.unlink()
    damaged = objects(store)
    manifest = convert(KIND, store, root=source, force=True).manifest
    read = ZarrChunkReader(url).read_sample("run_2", fields=["surface_pressure"])["surface_pressure"]
    np.testing.assert_array_equal(np.sort(read[:, 0].astype(np.float16)), expected)
    if lost == "everything" or (by == 0.0 and lost in ("chunk", "head")):
        assert manifest.generation == 1
        assert by or objects(store) == whole
    elif by:
        assert manifest.generation == 2
        assert kept(damaged, objects(store)), "the earlier generation stays damaged, but is not another one"
    assert verify_store(url, source=str(source)).ok


def test_another_content_under_the_same_version_is_another_archive(tmp_path: Path, source: Path) -> None:
    store, url = tmp_path / "store", str(tmp_path / "store")
    convert(KIND, store, root=source, **SETTINGS)
    make_tag(Storage(url), HEAD, "paper")
    before, pinned = objects(store), stored_values(store, "run_2", "surface/pressure")
    expected = raise_pressure(source)
    report = convert(KIND, store, root=source, force=True)
    assert report.manifest.generation == 2
    assert kept(before, objects(store))
    np.testing.assert_array_equal(np.sort(stored_values(store, "run_2", "surface/pressure")[:, 0]), expected)
    old = ZarrChunkReader(url, generation="paper").read_sample("run_2", fields=["surface_pressure"])
    np.testing.assert_array_equal(old["surface_pressure"], pinned)
    for force in (True, False):
        assert convert(KIND, store, root=source, force=force).manifest.generation == 2
    flip(archive(store), archive(store).stat().st_size // 2)
    assert convert(KIND, store, root=source, force=True).manifest.generation == 2
    assert verify_store(url, source=str(source)).ok


@pytest.mark.parametrize("change", ["places", "parameters"])
def test_what_only_the_chunks_or_only_the_head_tell_is_another_content(
    tmp_path: Path, source: Path, change: str
) -> None:
    parameters = source / "run_2" / "params.json"
    parameters.write_text('{"speed": 30.5}')
    store, path = tmp_path / "store", source / "run_2" / "surface_pressure.pt"
    convert(KIND, store, root=source, codec="none", values_dtype="float32", **SETTINGS)
    if change == "places":
        replace_unnoticed(path, torch.load(path, weights_only=True).flip(0).clone())
    else:
        written = parameters.stat()
        parameters.write_text('{"speed": 31.5}')
        os.utime(parameters, ns=(written.st_atime_ns, written.st_mtime_ns))
    before = objects(store)
    assert convert(KIND, store, root=source, force=True).manifest.generation == 2
    assert kept(before, objects(store))
    if change == "parameters":
        assert ZarrChunkReader(store).read_attributes("run_2")["parameters"]["speed"] == 31.5
        assert ZarrChunkReader(store, generation=1).read_attributes("run_2")["parameters"]["speed"] == 30.5
    assert verify_store(str(store), source=str(source)).ok


def test_parameters_are_content(tmp_path: Path, layout: str) -> None:
    """A forced conversion to the path of a group with other parameters."""
    files = [FieldFile(domain="surface", name="position", filename="p.pt")]
    writer = GroupWriter(tmp_path, ConversionSettings(layout=layout))
    contents = [
        SampleContent("a", "f", files, lambda name: torch.zeros(9, 3), {}, {"speed": speed}, {}) for speed in (1, 2)
    ]
    first = writer.write_sample(contents[0])
    before = objects(tmp_path)
    assert writer.write_sample(contents[0], repair=Repair(first.relpath)) == first
    assert objects(tmp_path) == before
    second = writer.write_sample(contents[1], repair=Repair(first.relpath))
    assert kept(before, objects(tmp_path))
    assert second.relpath != first.relpath


def test_a_refused_sample_is_converted_when_it_is_repaired(tmp_path: Path, source: Path) -> None:
    store, path = tmp_path / "store", source / "run_2" / "surface_pressure.pt"
    good = torch.load(path, weights_only=True)
    write_broken(source, "run_2", "surface_pressure.pt", nan(77))
    for _ in range(2):
        report = convert(KIND, store, root=source, **SETTINGS)
        assert [result.sample_id for result in report.having("quarantined")] == ["run_2"]
    assert [name for name in objects(store) if "run_2" in name and not name.endswith("/quarantine.json")] == []
    replace_unnoticed(path, good)
    report = convert(KIND, store, root=source, retry_quarantined=True, **SETTINGS)
    assert [result.sample_id for result in report.having("converted")] == ["run_2"]
    assert not report.manifest.quarantine
    assert verify_store(str(store), source=str(source)).ok


def test_retired_samples_and_earlier_layouts_are_collected(tmp_path: Path, source: Path) -> None:
    store = tmp_path / "store"
    convert(KIND, store, root=source, chunk_points=32)
    convert(KIND, store, root=source, reconvert=True, layout="packed", limit=2)
    assert sum(entry.head > 0 for entry in load_manifest(store).samples.values()) == 2
    assert verify_store(str(store), source=str(source)).ok
    reader = ZarrChunkReader(store)
    before = {sample_id: reader.read_sample(sample_id) for sample_id in IDS}
    convert(KIND, store, root=source)
    manifest = load_manifest(store)
    assert all(entry.head for entry in manifest.samples.values())
    (source / "run_3").rename(tmp_path / "away")
    convert(KIND, store, root=source, retire_vanished=True, max_retired_share=0.5)
    for path in store.rglob("*"):
        os.utime(path, (time.time() - 1e6, time.time() - 1e6))
    collect_garbage(Storage(store), HEAD, 3600)
    left = {name for name in objects(store) if name.startswith("samples/")}
    assert left == {manifest.samples[sample_id].relpath for sample_id in ("run_1", "run_2")}
    for sample_id in ("run_1", "run_2"):
        for name, values in ZarrChunkReader(store).read_sample(sample_id).items():
            np.testing.assert_array_equal(values, before[sample_id][name])
    # The tombstones of deleted archives are not written again.
    (tmp_path / "away").rename(source / "run_3")
    again = convert(KIND, store, root=source).manifest.samples["run_3"]
    assert again.relpath != manifest.samples["run_3"].relpath
    assert again.relpath.endswith(".zip")
    assert verify_store(str(store), source=str(source)).ok


def test_results_of_iter_convert_are_published(tmp_path: Path, source: Path) -> None:
    store = tmp_path / "store"
    assert [result.status for result in iter_convert(KIND, store, root=source, **SETTINGS)] == ["converted"] * 3
    assert publish(KIND, store, root=source, **SETTINGS).added == list(IDS)
    convert(KIND, tmp_path / "other", root=source, **SETTINGS)
    assert objects(store) == objects(tmp_path / "other")
    assert [result.status for result in iter_convert(KIND, store, root=source)] == ["up to date"] * 3


def test_names_are_unique_in_an_archive_with_two_meshes(tmp_path: Path) -> None:
    from zarr_core.points.store.packing import Packing

    with closing(Packing("samples/a/0123456789abcdef.zip")) as packing:
        for domain in ("surface", "volume"):
            packing.write(f"{packing.relpath}/_mesh/zarr.json", [b"{}"])
            packing.write(f"{packing.relpath}/{domain}/zarr.json", [b"{}"])
        group = {"attributes": {"zarr_core": {}}}
        (tmp_path / "a.zip").write_bytes(b"".join(packing.pieces(packing.arrange(group, []))))
    with zipfile.ZipFile(tmp_path / "a.zip") as opened:
        names = ["zarr.json", "_mesh/zarr.json", "surface/zarr.json", "volume/zarr.json"]
        assert opened.namelist() == names
        assert opened.testzip() is None
