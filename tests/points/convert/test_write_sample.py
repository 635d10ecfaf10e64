"""``write_sample``: arrays in memory become a sample under the rules of a conversion."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import torch

from tests.helpers.odd_arrays import ODD, odd_arrays
from tests.helpers.published_store import make_samples, write_published_store
from tests.helpers.small_source import KIND, write_source
from tests.helpers.stores import objects
from zarr_core import ZarrChunkReader, load_manifest, verify_store, write_sample
from zarr_core.errors import ManifestError, SampleError, SourceError, StoreError
from zarr_core.info import sample_info, store_info
from zarr_core.points.convert import conversion, publish
from zarr_core.points.convert.conversion import convert
from zarr_core.points.stage.store import stage_store
from zarr_core.sources import resolve_kind


def arrays(seed: int = 0, n: int = 50) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    return {
        "surface_position": rng.normal(size=(n, 3)),
        "surface_pressure": rng.normal(size=n).astype(np.float32),
    }


def read(store: Path, sample_id: str) -> dict[str, np.ndarray]:
    """A sample's rows, in the order of their positions."""
    found = ZarrChunkReader(store).read_sample(sample_id)
    order = np.lexsort(found["surface_position"].T)
    return {name: values[order] for name, values in found.items()}


def test_a_sample_is_written_read_and_verified(tmp_path: Path) -> None:
    given = arrays()
    result = write_sample(tmp_path, "car/1", given, split="train", parameters={"u": 30.0}, chunk_points=16)
    assert result.status == "converted"
    order = np.lexsort(given["surface_position"].astype(np.float32).T)
    found = read(tmp_path, "car/1")
    np.testing.assert_array_equal(found["surface_position"], given["surface_position"][order].astype(np.float32))
    np.testing.assert_array_equal(found["surface_pressure"][:, 0], given["surface_pressure"][order].astype(np.float16))
    recorded = ZarrChunkReader(tmp_path).read_attributes("car/1")
    assert recorded["parameters"] == {"u": 30.0}
    assert recorded["moments"]["surface_pressure"]["count"] == 50
    assert 0 < recorded["rounding"]["surface_pressure"]["rms"][0] < 0.01
    assert load_manifest(tmp_path).splits == {"train": ["car/1"]}
    assert verify_store(str(tmp_path)).ok
    (problem,) = verify_store(str(tmp_path), source=str(tmp_path)).problems
    assert "the files that it was made from were not recorded" in problem.message


@pytest.mark.parametrize("name", ODD)
def test_arrays_are_stored_as_they_are_meant_or_refused(tmp_path: Path, name: str) -> None:
    make, expected = odd_arrays(arrays()["surface_position"])[name]
    given = make()
    write_sample(tmp_path, "a", arrays())
    if expected is None or np.isnan(expected).any():
        reason = "is a masked array, and its mask is not stored" if expected is not None else "(is|has) "
        with pytest.raises(SampleError, match=f"b, surface_position: {reason}"):
            write_sample(tmp_path, "b", arrays() | {"surface_position": given})
        assert list(load_manifest(tmp_path).samples) == ["a"]
        return
    write_sample(tmp_path, "b", arrays() | {"surface_position": given})
    for field, values in read(tmp_path, "a").items():
        np.testing.assert_array_equal(read(tmp_path, "b")[field], values)


def test_equal_content_writes_nothing(tmp_path: Path) -> None:
    write_sample(tmp_path, "a", arrays(), split="train", parameters={"u": 1})
    before = objects(tmp_path)
    tensors = {name: torch.from_numpy(values) for name, values in arrays().items()}
    big_endian = {name: values.astype(values.dtype.newbyteorder(">")) for name, values in arrays().items()}
    for same in (arrays(), tensors, big_endian, {name: values.tolist() for name, values in arrays().items()}):
        if isinstance(same["surface_pressure"], list):
            same["surface_pressure"] = np.float32(same["surface_pressure"])  # a list has float64
        assert write_sample(tmp_path, "a", same, split="train", parameters={"u": 1}).status == "up to date"
    assert objects(tmp_path) == before
    for other in ({"arrays": arrays(1)}, {"parameters": {"u": 2}}):
        assert write_sample(tmp_path, **{"sample_id": "a", "arrays": arrays(), **other}).status == "converted"  # type: ignore[arg-type]
    assert load_manifest(tmp_path).generation == 3


def test_the_settings_of_the_store_hold(tmp_path: Path) -> None:
    write_sample(tmp_path, "a", arrays(), chunk_points=16, values_dtype="float32", dataset_name="bodies")
    write_sample(tmp_path, "b", arrays(1))
    manifest = load_manifest(tmp_path)
    assert manifest.samples["b"].domains["surface"].chunk_points == 16
    assert manifest.fields["surface_pressure"].dtype == "float32"
    assert manifest.dataset_name == "bodies"
    with pytest.raises(StoreError, match="chunk_points is 16 in the store, not 8.*write_sample .* in a new store"):
        write_sample(tmp_path, "c", arrays(2), chunk_points=8)
    with pytest.raises(StoreError, match="'arrays', not 'ahmedml'"):
        write_sample(tmp_path, "c", fields_of_kind(), kind=KIND)


def fields_of_kind(kind: str = KIND) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    fields = resolve_kind(kind).required_fields
    return {name: rng.normal(size=(30, file.field.dim or 1)) for name, file in fields.items()}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"surface_pressure": np.full(50, np.nan)}, "c, surface_pressure: 50 of 50 values are NaN"),
        ({"surface_pressure": np.zeros(49)}, "has 49 points, surface_position has 50"),
        ({"surface_pressure": np.zeros((50, 2))}, "2 components per point, pressure has 1"),
        ({"surface_pressure": 1e5 + np.arange(50.0)}, "does not fit float16"),
        ({"surface_pressure": 6e4 + np.arange(50.0)}, "float16 would change its values"),
        ({"surface_pressure": ["a"] * 50}, "surface_pressure: is a list of <U1, not an array of numbers"),
        ({"surface_pressure": np.zeros(50, bool)}, "expected real numbers"),
        (
            {"surface_pressure": np.zeros(50, np.uint16)},
            "has dtype torch.uint16, expected real numbers of one of float16, ",
        ),
        ({"surface_pressure": np.zeros(0)}, "surface_pressure: holds no points"),
        ({"surface_heat": np.zeros((50, 2))}, "has 2 components per point, the store's samples have 1"),
        ({"surface_presure": np.zeros(50)}, "surface_presure: is not a field of this store's samples"),
        ({"surface_pressure": None}, "surface_pressure: is missing; the samples of this store have it"),
    ],
)
def test_a_misfit_is_refused_with_the_reason(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    heat = {"surface_heat": np.arange(50.0)}
    write_sample(tmp_path, "a", arrays() | heat)
    given = {name: values for name, values in (arrays(1) | heat | change).items() if values is not None}
    for _ in range(2):
        with pytest.raises(SampleError, match=message):
            write_sample(tmp_path, "c", given)
    assert list(load_manifest(tmp_path).samples) == ["a"]
    assert verify_store(str(tmp_path), deep=True).ok


def test_a_single_point_of_a_larger_array_is_written(tmp_path: Path) -> None:
    rows = np.arange(24.0).reshape(6, 4)[::6]
    write_sample(tmp_path, "a", {"surface_position": rows[:, ::-1][:, :3], "surface_pressure": rows[:, 2]})
    found = ZarrChunkReader(tmp_path).read_sample("a")
    assert found["surface_position"].tolist() == [[3, 2, 1]]
    assert found["surface_pressure"].tolist() == [[2]]


def test_a_refused_sample_creates_no_store(tmp_path: Path, layout: str) -> None:
    with pytest.raises(SampleError, match="values are NaN"):
        write_sample(tmp_path / "store", "a", arrays() | {"surface_pressure": np.full(50, np.nan)}, layout=layout)
    assert objects(tmp_path / "store") == {}


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"sample_id": "../a"}, SourceError, "cannot be used"),
        ({"sample_id": 5}, SourceError, "sample_id must be a name, not 5"),
        ({"split": ""}, SourceError, "split must be a name"),
        ({"arrays": {"pressure": np.zeros(5)}}, SourceError, "expected <domain>_<name>"),
        ({"arrays": {"surface_pressure": np.zeros(5)}}, SourceError, "has no position"),
        ({"arrays": arrays() | {"design_parameters": {"u": 1}}}, SourceError, "as parameters"),
        ({"parameters": {"u": {"x": 1}}}, SampleError, "'u' is neither a scalar nor a list of numbers"),
        ({"parameters": {"u": [[1, 2]]}}, SampleError, r"'u' has the shape \(1, 2\); expected a scalar, or a list"),
        ({"parameters": {"u": []}}, SampleError, r"'u' has the shape \(0,\)"),
        ({"parameters": {"u": np.zeros(1001)}}, SampleError, r"'u' has the shape \(1001,\)"),
        ({"parameters": {"u": ["fast", "slow"]}}, SampleError, "'u' is .* not an array of numbers"),
        ({"parameters": {"u": [1.0, np.inf]}}, SampleError, "'u' is inf, which JSON cannot represent"),
        ({"chunk_points": 0}, SourceError, "chunk_points must be positive"),
    ],
)
def test_wrong_arguments_are_named(
    tmp_path: Path, arguments: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        write_sample(tmp_path / "store", **{"sample_id": "a", "arrays": arrays(), **arguments})
    assert not (tmp_path / "store").exists()


def test_a_kind_decides_which_fields_are_needed(tmp_path: Path) -> None:
    given = fields_of_kind()
    write_sample(tmp_path, "run_1", given, kind=KIND)
    write_sample(tmp_path, "run_2", given | {"surface_area": np.ones(30)})  # optional, and the store knows its kind
    assert load_manifest(tmp_path).dataset_kind == KIND
    with pytest.raises(SampleError, match=r"volume_pressure: is missing"):
        write_sample(tmp_path, "run_3", {name: values for name, values in given.items() if name != "volume_pressure"})
    with pytest.raises(SampleError, match=r"surface_heat: is not a field"):
        write_sample(tmp_path, "run_3", given | {"surface_heat": np.ones(30)})


def test_splits_of_samples(tmp_path: Path) -> None:
    for sample_id, split in (("a", "train"), ("b", "train"), ("c", "val"), ("a", None), ("b", "val"), ("b", "val")):
        write_sample(tmp_path, sample_id, arrays(ord(sample_id)), split=split)
    assert load_manifest(tmp_path).splits == {"train": ["a"], "val": ["c", "b"]}


def test_splits_and_lists_of_a_converted_store_stay(tmp_path: Path) -> None:
    source = write_source(tmp_path / "source", kind="drivaernet")
    (source / "train_design_ids.txt").write_text("run_1\nrun_2\n")
    (source / "blacklist.txt").write_text("run_2\n")
    store = tmp_path / "store"
    convert("drivaernet", store, root=source)
    before = objects(store)
    given = {name: torch.rand(9, f.field.dim or 1) for name, f in resolve_kind("drivaernet").required_fields.items()}
    write_sample(store, "new", given, split="train")
    manifest = load_manifest(store)
    assert manifest.splits == {"train": ["run_1", "run_2", "new"]}
    assert manifest.excluded == {"run_2"}
    assert objects(store)["train_design_ids.txt"] == before["train_design_ids.txt"]


def test_a_store_of_another_program_keeps_its_splits(tmp_path: Path) -> None:
    write_published_store(tmp_path, make_samples(2))
    (tmp_path / "train_design_ids.txt").write_text("run_1\nrun_2\n")
    write_sample(tmp_path, "new", make_samples(1)["run_1"], split="train")
    manifest = load_manifest(tmp_path)
    assert (manifest.generation, manifest.splits) == (1, {"train": ["run_1", "run_2", "new"]})


def test_another_commit_in_between_loses_nothing(tmp_path: Path) -> None:
    """Between the listing of a sample and its commit, another program commits one."""
    write_sample(tmp_path, "a", arrays(), split="train")
    commit, calls = publish.commit, []

    def overtaken(*arguments: Any) -> Any:
        calls.append(arguments)
        if len(calls) == 1:
            write_sample(tmp_path, "b", arrays(1), split="train")
        return commit(*arguments)

    with patch.object(publish, "commit", overtaken):
        write_sample(tmp_path, "c", arrays(2), split="train")
    manifest = load_manifest(tmp_path)
    assert (sorted(manifest.samples), manifest.splits) == (["a", "b", "c"], {"train": ["a", "b", "c"]})


@pytest.mark.parametrize("when", ["convert_samples", "plan"])
def test_the_first_samples_of_two_programs_have_the_same_fields(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    """The second one to commit is refused as if it had begun later."""
    store, real = tmp_path / "store", getattr(conversion, when)

    def overtaken(*arguments: Any) -> Any:
        monkeypatch.undo()
        write_sample(store, "a", arrays())
        return real(*arguments)

    monkeypatch.setattr(conversion, when, overtaken)
    less = {"surface_position": arrays()["surface_position"]}
    with pytest.raises(SampleError, match="b, surface_pressure: is missing; the samples of this store have it"):
        write_sample(store, "b", less)
    manifest = load_manifest(store)
    assert (list(manifest.samples), manifest.quarantine, manifest.generation) == (["a"], {}, 1)
    with pytest.raises(SampleError, match="b, surface_pressure: is missing"):
        write_sample(store, "b", less)
    assert write_sample(store, "b", arrays(1)).status == "converted"


def test_ids_that_are_archives_are_refused_wherever_they_come_in(tmp_path: Path) -> None:
    """Below such a folder, objects would be taken for the entries of an archive."""
    bad = "a/0123456789abcdef.zip"
    with pytest.raises(SourceError, match=f"{bad}.* name of a packed sample; rename"):
        write_sample(tmp_path / "store", bad, arrays(), split="train")
    write_sample(tmp_path / "store", "a/b", arrays(), split="train")
    manifest = tmp_path / "store" / "manifest.json"
    manifest.write_text(manifest.read_text().replace('"a/b"', f'"{bad}"'))
    for use in (load_manifest, ZarrChunkReader, lambda root: stage_store(root, tmp_path / "copy")):
        with pytest.raises(ManifestError, match=f"{bad}.* name of a packed sample; rename"):
            use(tmp_path / "store")
    kind = tmp_path / "kind.yaml"
    kind.write_text('{"name": "bodies", "samples": "*/*", "files": {"surface_position": "position.pt"}}')
    for sample_id in ("a/good", bad):
        (tmp_path / "source" / sample_id).mkdir(parents=True)
        torch.save(torch.rand(9, 3), tmp_path / "source" / sample_id / "position.pt")
    report = convert(str(kind), tmp_path / "converted", root=tmp_path / "source")
    assert list(report.manifest.samples) == ["a/good"]
    (note,) = [note for note in report.notes if bad in note]
    assert "the name of a packed sample, cannot); rename them" in note


def test_a_conversion_leaves_written_samples_in_their_splits(tmp_path: Path) -> None:
    source, store = write_source(tmp_path / "source", kind="drivaernet"), tmp_path / "store"
    (source / "train_design_ids.txt").write_text("run_1\nrun_2\n")
    options: dict[str, Any] = {"root": source, "chunk_points": 32}
    convert("drivaernet", store, **options)
    for sample_id in ("new", "other"):
        write_sample(store, sample_id, fields_of_kind("drivaernet"), split="train")
    (source / "train_design_ids.txt").write_text("run_1\n")
    (source / "test_design_ids.txt").write_text("run_2\nother\n")
    report = convert("drivaernet", store, **options)
    assert report.manifest.splits == {"train": ["run_1", "new"], "test": ["run_2", "other"]}
    assert "samples that are not of this source and keep their splits (1): new (train)" in report.notes
    assert convert("drivaernet", store, **options).manifest.generation == report.manifest.generation
    gone = convert("drivaernet", store, retire_vanished=True, max_retired_share=1, **options)
    assert gone.manifest.splits == {"train": ["run_1"], "test": ["run_2", "other"]}


def test_a_migration_names_written_samples_and_is_done_without_them(tmp_path: Path) -> None:
    source, store = write_source(tmp_path / "source"), tmp_path / "store"
    convert(KIND, store, root=source, chunk_points=32)
    write_sample(store, "new", fields_of_kind())
    report = convert(KIND, store, root=source, chunk_points=16, reconvert=True)
    kept = "samples that are not of this source and keep other settings, until write_sample writes them again (1): new"
    assert kept in report.notes
    settings = store_info(store).settings
    assert (settings["to_convert"], settings["migration"], settings["chunk_points"]) == (0, "", 16)
    assert sample_info(store, "new").source == {}
    write_sample(store, "new", fields_of_kind())
    (left,) = [note for note in convert(KIND, store, root=source).notes if "new" in note]
    absent = "samples of the store that the source does not have, which --retire-vanished removes"
    assert left == f"{absent} (1): new"


def test_a_sample_that_was_deleted_at_the_source_is_named_until_it_is_retired(tmp_path: Path) -> None:
    source, store = write_source(tmp_path / "source"), tmp_path / "store"
    convert(KIND, store, root=source)
    shutil.rmtree(source / "run_2")
    absent = "samples of the store that the source does not have, which --retire-vanished removes (1): run_2"
    assert absent in convert(KIND, store, root=source).notes
    gone = convert(KIND, store, root=source, retire_vanished=True, max_retired_share=1)
    assert (gone.retired, absent in gone.notes) == (["run_2"], False)
