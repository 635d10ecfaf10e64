"""Copies in another form: of the other layout, of some fields, of the first points."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.helpers.examples import examples
from tests.helpers.published_store import make_samples, write_published_store
from tests.helpers.small_source import KIND, write_source
from tests.helpers.stores import flip, objects
from tests.points.store.test_mesh import place as place  # a fixture
from zarr_core import write_sample
from zarr_core.errors import StoreError
from zarr_core.format.packed import parse_head
from zarr_core.points.convert.conversion import convert
from zarr_core.points.read.engines import ENGINES
from zarr_core.points.read.reader import ZarrChunkReader
from zarr_core.points.stage.store import StageReport, stage_store
from zarr_core.points.statistics import calculate_store_statistics
from zarr_core.points.store.head import load_manifest
from zarr_core.points.verify.store import verify_store
from zarr_core.sources.description import SourceDescription
from zarr_core.storage import Storage
from zarr_core.stores.summary import store_info

LAYOUTS = ("directory", "packed")
FIELDS = ["surface_position", "volume_pressure", "volume_velocity"]
SAMPLES = ["run_1", "run_2", "run_3"]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Stores of the same samples in both layouts, with several shards, a compressor, or neither."""
    root = tmp_path_factory.mktemp("made")
    write_source(root / "source")
    for codec in ("none", "zstd"):
        for layout in LAYOUTS:
            store = root / f"{layout}_{codec}"
            shards = {"shard_points": 48} if layout == "directory" else {}
            convert(KIND, store, root=root / "source", chunk_points=16, codec=codec, layout=layout, **shards)
    return root


def is_packed(report: StageReport) -> set[bool]:
    return {entry.head > 0 and entry.relpath.endswith(".zip") for entry in report.manifest.samples.values()}


def rounded(points: int, n: int) -> int:
    """Points in whole chunks of 16."""
    return min(n, math.ceil(points / 16) * 16)


@settings(max_examples=examples(25))
@given(
    source=st.sampled_from([f"{layout}_{codec}" for layout in LAYOUTS for codec in ("none", "zstd")]),
    layout=st.none() | st.sampled_from(LAYOUTS),
    fields=st.none() | st.lists(st.sampled_from(FIELDS), min_size=1, unique=True),
    points=st.none() | st.dictionaries(st.sampled_from(["surface", "volume"]), st.integers(1, 300), min_size=1),
)
def test_a_copy_equals_its_source_by_all_engines(
    made: Path,
    tmp_path_factory: pytest.TempPathFactory,
    source: str,
    layout: Any,
    fields: list[str] | None,
    points: dict[str, int] | None,
) -> None:
    original, copy = made / source, tmp_path_factory.mktemp("copy") / "store"
    if fields and points:
        domains = {field.partition("_")[0] for field in fields}
        points = {domain: n for domain, n in points.items() if domain in domains} or None
    options: Mapping[str, Any] = {"layout": layout, "fields": fields, "points": points}
    report = stage_store(original, copy, **options)
    assert [sample.problem for sample in report.samples] == [""] * 3
    assert is_packed(report) == {(layout or source.partition("_")[0]) == "packed"}
    expected = ZarrChunkReader(original, engine="zarr")
    for engine in ENGINES:
        if engine == "tensorstore":
            pytest.importorskip("tensorstore", reason="needs the tensorstore extra")
        reader = ZarrChunkReader(copy, engine=engine)
        for sample_id in SAMPLES:
            read, whole = reader.read_sample(sample_id), expected.read_sample(sample_id, fields=fields)
            assert read.keys() == whole.keys()
            for name, values in read.items():
                domain = name.partition("_")[0]
                n = rounded((points or {}).get(domain, 10**9), len(whole[name]))
                np.testing.assert_array_equal(values, whole[name][:n])
    assert verify_store(copy, source=str(made / "source")).problems == []
    for check in (False, True):
        again = stage_store(original, copy, check=check, **options)
        assert (again.copied, again.kept) == (0, report.copied)
        assert again.manifest.generation == 1
    shutil.rmtree(copy)


@pytest.mark.parametrize("codec", ["none", "zstd"])
@pytest.mark.parametrize(("source", "layout"), [("directory", "packed"), ("packed", "directory")])
def test_a_repacked_sample_has_the_bytes_of_a_converted_one(
    made: Path, tmp_path: Path, codec: str, source: str, layout: Any
) -> None:
    """Apart from what names its source and its settings."""
    converted = tmp_path / "converted"
    convert(KIND, converted, root=made / "source", chunk_points=16, codec=codec, layout=layout)
    stage_store(made / f"{source}_{codec}", tmp_path / "copy", layout=layout)
    for sample_id in SAMPLES:
        found = group_of(tmp_path / "copy", sample_id)
        expected = group_of(converted, sample_id)
        assert found.keys() == expected.keys()
        one, other = json.loads(found.pop("zarr.json")), json.loads(expected.pop("zarr.json"))
        assert found == expected
        of_one, of_other = (document["attributes"].pop("zarr_core") for document in (one, other))
        assert one == other
        for key in ("staged_from", "settings", "packed"):
            of_one.pop(key, None)
            of_other.pop(key, None)
        assert of_one == of_other


def group_of(root: Path, sample_id: str) -> dict[str, bytes]:
    """The objects of a sample's group by their names in it."""
    storage, relpath = Storage(root), load_manifest(root).samples[sample_id].relpath
    return {name.removeprefix(f"{relpath}/"): storage.read(name) for name in storage.list(relpath)}


def test_parameters_stay(tmp_path: Path) -> None:
    arrays = {"surface_position": np.random.default_rng(0).random((50, 3))}
    write_sample(tmp_path / "store", "a", arrays, chunk_points=8, parameters={"angle": 3.5}, layout="packed")
    stage_store(tmp_path / "store", tmp_path / "copy", layout="directory", points="20%")
    assert ZarrChunkReader(tmp_path / "copy").read_attributes("a")["parameters"] == {"angle": 3.5}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_meshes_are_carried_along_unless_points_are_left_out(place: Path, tmp_path: Path, layout: Any) -> None:
    stage_store(place / "store", tmp_path / "copy", layout=layout)
    original, copy = ZarrChunkReader(place / "store"), ZarrChunkReader(tmp_path / "copy")
    for domain, mesh in original.read_mesh("run_1").items():
        found = copy.read_mesh("run_1")[domain]
        np.testing.assert_array_equal(found.connectivity, mesh.connectivity)
        np.testing.assert_array_equal(found.points, mesh.points)
        assert found.at == mesh.at
    assert verify_store(tmp_path / "copy").problems == []
    own: Any = "packed" if original.manifest.samples["run_1"].head else "directory"
    stage_store(tmp_path / "copy", tmp_path / "back", layout=own)
    assert group_of(tmp_path / "back", "run_1").keys() == group_of(place / "store", "run_1").keys()
    stage_store(tmp_path / "copy", tmp_path / "thin", points="volume=1")
    assert not [name for name in group_of(tmp_path / "thin", "run_1") if "_mesh" in name]
    assert verify_store(tmp_path / "thin").problems == []


def test_each_point_of_a_thin_copy_is_drawn_equally_often(tmp_path: Path) -> None:
    n, wanted, kept = 100, 10, 48
    numbers = np.arange(n, dtype=np.float32)
    arrays = {"volume_position": np.repeat(numbers[:, None], 3, axis=1), "volume_number": numbers}
    own = {"volume_number": "float32"}
    write_sample(tmp_path / "store", "a", arrays, chunk_points=16, layout="packed", field_dtypes=own)
    stage_store(tmp_path / "store", tmp_path / "copy", points="volume=33")
    reader = ZarrChunkReader(tmp_path / "copy")
    there = reader.read_sample("a")["volume_number"][:, 0].astype(int)
    assert len(there) == kept
    counts = np.zeros(n, int)
    draws = 3000
    for epoch in range(draws):
        drawn = reader.read_sample("a", {"volume": wanted}, epoch=epoch)["volume_number"][:, 0].astype(int)
        assert len(set(drawn)) == wanted
        counts[drawn] += 1
    assert set(np.flatnonzero(counts)) == set(there)
    share = wanted / kept
    assert np.abs(counts[there] - draws * share).max() < 5 * math.sqrt(draws * share * (1 - share))


def test_statistics_of_a_thin_copy_are_those_of_its_source(made: Path, tmp_path: Path) -> None:
    report = stage_store(made / "packed_none", tmp_path / "copy", points="10%")
    assert report.manifest.origin["points"] == "10%"
    assert calculate_store_statistics(tmp_path / "copy") == calculate_store_statistics(made / "packed_none")
    assert store_info(tmp_path / "copy").origin["points"] == "10%"
    stage_store(tmp_path / "copy", tmp_path / "again", points="volume=16")
    assert load_manifest(tmp_path / "again").origin["points"] == "volume=16 of 10%"
    assert verify_store(tmp_path / "again", source=str(made / "source")).problems == []


def test_samples_of_other_points_are_not_mixed(made: Path, tmp_path: Path) -> None:
    stage_store(made / "packed_none", tmp_path / "copy", sample_ids=["run_1"], points="10%")
    with pytest.raises(StoreError, match="1 more samples, with 10% points"):
        stage_store(made / "packed_none", tmp_path / "copy", sample_ids=["run_2"])
    both = stage_store(made / "packed_none", tmp_path / "copy", sample_ids=["run_2"], points="10%")
    assert sorted(both.manifest.samples) == ["run_1", "run_2"]
    more = stage_store(made / "packed_none", tmp_path / "copy", sample_ids=["run_1", "run_2"], points="volume=100")
    assert {entry.domains["volume"].n_points for entry in more.manifest.samples.values()} == {112}
    whole = stage_store(made / "packed_none", tmp_path / "copy", sample_ids=["run_1", "run_2"])
    assert {entry.domains["volume"].n_points for entry in whole.manifest.samples.values()} == {230, 237}
    assert verify_store(tmp_path / "copy").problems == []


def test_a_copy_on_its_way_to_other_points_names_no_sample_with_the_former_ones(made: Path, tmp_path: Path) -> None:
    shutil.copytree(made / "packed_none", tmp_path / "store")
    stage_store(tmp_path / "store", tmp_path / "copy", points="volume=16")
    archive = tmp_path / "store" / load_manifest(tmp_path / "store").samples["run_2"].relpath
    flip(archive, parse_head(archive.read_bytes()).entries["volume/velocity/c/3/0"].start)
    assert [sample.sample_id for sample in stage_store(tmp_path / "store", tmp_path / "copy").failed] == ["run_2"]
    assert sorted(load_manifest(tmp_path / "copy").samples) == ["run_1", "run_3"]
    assert verify_store(tmp_path / "copy", source=str(made / "source")).problems == []


def test_a_copy_may_have_both_layouts(made: Path, tmp_path: Path) -> None:
    stage_store(made / "directory_none", tmp_path / "copy", sample_ids=["run_1"], layout="packed")
    report = stage_store(made / "directory_none", tmp_path / "copy", sample_ids=["run_2"])
    assert is_packed(report) == {True, False}
    assert verify_store(tmp_path / "copy", source=str(made / "source")).problems == []


@pytest.mark.parametrize("source", LAYOUTS)
def test_a_damaged_chunk_is_not_copied_in_any_form(made: Path, tmp_path: Path, source: str) -> None:
    shutil.copytree(made / f"{source}_none", tmp_path / "store")
    entry = load_manifest(tmp_path / "store").samples["run_2"]
    path = tmp_path / "store" / entry.relpath
    if source == "packed":
        places = parse_head(path.read_bytes()).chunks_of("volume/pressure")
        flip(path, int(places.starts[1]) + 3)
    else:
        flip(path / "volume/pressure/c/0/0", 16 * 2 + 4 + 3)
    for number, options in enumerate(({"layout": "packed"}, {"layout": "directory"}, {"points": "volume=20"})):
        (failed,) = stage_store(tmp_path / "store", tmp_path / f"copy{number}", **options).failed
        assert failed.sample_id == "run_2"
        assert "volume/pressure/c/" in failed.problem
        assert "checksum mismatch" in failed.problem
    assert stage_store(tmp_path / "store", tmp_path / "first", points="volume=16").ok  # the others are not read


def test_a_thin_copy_reads_one_range_per_field(made: Path, memory_root: str, tmp_path: Path, monkeypatch: Any) -> None:
    stage_store(made / "directory_none", memory_root)
    ranges, whole = [], Storage._read

    def read(self: Storage, name: str, start: int | None = None, stop: int | None = None) -> bytes:
        data = whole(self, name, start, stop)
        if "/c/" in name and self.root == memory_root:
            ranges.append((name, len(data)))
        return data

    monkeypatch.setattr(Storage, "_read", read)
    stage_store(memory_root, tmp_path / "copy", points="volume=16,surface=16", sample_ids=["run_1"])
    assert len(ranges) == len({name for name, _ in ranges}) == 7
    assert sorted(size for _, size in ranges) == sorted(16 * width + 4 for width in (12, 2, 6, 12, 2, 6, 6))


def test_some_fields_of_a_packed_sample_are_one_range(
    made: Path, memory_root: str, tmp_path: Path, monkeypatch: Any
) -> None:
    stage_store(made / "packed_none", memory_root)
    names, whole = [], Storage._read

    def read(self: Storage, name: str, start: int | None = None, stop: int | None = None) -> bytes:
        if self.root == memory_root and name.startswith("samples/"):
            names.append(name)
        return whole(self, name, start, stop)

    monkeypatch.setattr(Storage, "_read", read)
    stage_store(memory_root, tmp_path / "copy", fields=FIELDS, sample_ids=["run_1"])
    assert len(names) == 2  # the head, and the chunks with what lies between them


@pytest.mark.parametrize("options", [{"layout": "packed"}, {"points": "50%"}])
def test_samples_of_other_programs_are_not_rewritten(tmp_path: Path, options: Any) -> None:
    store = write_published_store(tmp_path / "store", make_samples(2), checksum=True)
    with pytest.raises(StoreError, match="another program wrote it.* without --layout and --points"):
        stage_store(store, tmp_path / "copy", **options)


def test_a_repacked_copy_that_rots_is_repaired(made: Path, tmp_path: Path) -> None:
    for source, layout in (("directory_none", "packed"), ("packed_none", "directory")):
        copy = tmp_path / layout
        first = stage_store(made / source, copy, layout=layout)
        before = objects(copy)
        entry = first.manifest.samples["run_2"]
        rotten = copy / entry.relpath if layout == "packed" else copy / entry.relpath / "volume/velocity/c/0/0"
        # Within a chunk: what is between them holds no values.
        chunk = parse_head(rotten.read_bytes()).chunks_of("volume/velocity").starts[0] if layout == "packed" else 0
        flip(rotten, chunk + 3)
        assert stage_store(made / source, copy, layout=layout).copied == 0
        assert stage_store(made / source, copy, layout=layout, check=True).copied == entry.bytes
        assert objects(copy) == before


def test_units_stay(tmp_path: Path) -> None:
    (tmp_path / "source" / "run_1").mkdir(parents=True)
    np.savez(tmp_path / "source" / "run_1" / "a.npz", xyz=np.eye(3), p=np.ones(3))
    files = {
        "volume_position": {"file": "a.npz", "array": "xyz", "units": "m"},
        "volume_pressure": {"file": "a.npz", "array": "p"},
    }
    kind = SourceDescription.model_validate({"name": "air", "samples": "run_*", "files": files})
    convert(kind, tmp_path / "store", root=tmp_path / "source")
    stage_store(tmp_path / "store", tmp_path / "copy", layout="packed")
    found = {name: field.units for name, field in store_info(tmp_path / "copy").fields.items()}
    assert found == {"volume_position": "m", "volume_pressure": ""}
