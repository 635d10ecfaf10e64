"""A store keeps its dataset and its conversion settings; a later conversion takes them from there."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.helpers.described_source import FILES, SPEED, Source, as_an_earlier_version_wrote_it, ids
from zarr_core import load_manifest, verify_store
from zarr_core.convert import publish
from zarr_core.errors import ManifestError, SourceError, StoreError
from zarr_core.info import format_store
from zarr_core.points.store.settings import ConversionSettings, describe_changes, held_settings
from zarr_core.storage import Storage
from zarr_core.stores.summary import store_info


@pytest.fixture
def source(tmp_path: Path) -> Source:
    return Source(tmp_path)


def test_a_second_conversion_takes_the_settings_of_the_store(source: Source) -> None:
    source.write("s1", low=1e5)
    source.convert(values_dtype="float32", chunk_points=8, codec="zstd:1")
    source.write("s2", low=1e5)
    report = source.convert()
    assert (ids(report.having("converted")), ids(report.having("up to date"))) == (["s2"], ["s1"])
    assert {entry.settings for entry in report.manifest.samples.values()} == {report.manifest.conversion.current}
    batch = source.dataset().__getitems__([0, 1]).tensors
    assert batch is not None
    assert batch["surface_temperature"].min() == 1e5


def test_shards_of_packed_samples_are_refused(source: Source) -> None:
    source.write("s1")
    with pytest.raises(SourceError, match="packed samples have no shards; leave it out"):
        source.convert(layout="packed", shard_points=64)
    source.convert(shard_points=64)
    assert source.convert(layout="packed", reconvert=True).ok, "shards of the store are no obstacle"
    source.write("s2")
    with pytest.raises(SourceError, match="packed samples have no shards"):
        source.convert(shard_points=64)
    assert source.convert().ok


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"values_dtype": "float32"}, "values_dtype is 'float16' in the store, not 'float32'"),
        ({"chunk_points": 4}, "chunk_points is 8 in the store, not 4"),
        ({"field_dtypes": {"surface_temperature": "float64"}}, "field_dtypes is"),
        ({"codec": "zstd:1"}, "codec is 'none' in the store, not 'zstd:1'"),
        ({"shuffle_seed": 1}, "shuffle_seed is 0 in the store, not 1"),
        ({"shard_points": 16}, "shard_points is None in the store, not 16"),
    ],
)
def test_other_settings_than_the_stores_are_refused_unless_all_is_converted_again(
    source: Source, changed: dict[str, Any], named: str
) -> None:
    source.write("s1", "s2")
    source.convert(chunk_points=8)
    before = load_manifest(source.store)
    with pytest.raises(StoreError, match="--reconvert") as refused:
        source.convert(**changed)
    assert named in str(refused.value)
    assert load_manifest(source.store) == before
    # The first sample alone: the other one is still to be done, which the manifest shows, and still read.
    manifest = source.convert(reconvert=True, sample_ids=["s1"], **changed).manifest
    others = [i for i, entry in manifest.samples.items() if entry.settings != manifest.conversion.current]
    assert others == ["s2"]
    info = store_info(source.store)
    assert info.settings["to_convert"] == 1
    (setting,) = changed
    assert info.settings["migration"].startswith(f"{setting}: ")
    assert sorted(manifest.conversion.settings) == sorted({before.conversion.current, manifest.conversion.current})
    for sample_id in ("s1", "s2"):
        assert len(source.reader().read_sample(sample_id)) == 2
    assert ids(source.convert().having("converted")) == ["s2"]
    assert list(load_manifest(source.store).conversion.settings) == [manifest.conversion.current]
    assert verify_store(str(source.store), source=str(source.root)).ok


def test_info_shows_the_error_bounds_of_a_store(source: Source) -> None:
    source.write("s1")
    source.convert()
    assert store_info(source.store).settings["max_errors"] == {}
    source.convert(max_errors={"surface_temperature": "1e-3std"}, reconvert=True)
    info = store_info(source.store)
    assert info.settings["max_errors"] == {"surface_temperature": "0.001std"}
    assert "max_errors surface_temperature=0.001std" in format_store(info)


def test_the_dtype_of_one_field_can_be_taken_back(source: Source) -> None:
    source.describe(FILES | SPEED)
    source.write("s1", "s2")
    default = source.convert().manifest.conversion.current
    own = {"surface_temperature": "float64", "surface_speed": "float32"}
    source.convert(field_dtypes=own, reconvert=True)
    back = {"surface_temperature": "default"}
    with pytest.raises(StoreError, match="--reconvert"):
        source.convert(field_dtypes=back)
    manifest = source.convert(field_dtypes=back, reconvert=True).manifest
    assert {name: c.dtype for name, c in manifest.fields.items()} == {
        "surface_position": "float32",
        "surface_temperature": "float16",
        "surface_speed": "float32",
    }
    source.describe(FILES)  # a field that the kind no longer has keeps its entry, which can be removed as well
    manifest = source.convert(field_dtypes={"surface_speed": "default"}, reconvert=True).manifest
    assert manifest.conversion.current == default
    assert ids(source.convert(field_dtypes=back).having("up to date")) == ["s1", "s2"]


def test_an_interrupted_reconversion_is_continued(source: Source, monkeypatch: pytest.MonkeyPatch) -> None:
    source.write("s1", "s2")
    source.convert()
    from zarr_core.points.convert import conversion as module

    def killed(*_: Any) -> Any:
        # Whatever is committed now is what a process killed here leaves behind.
        at_the_kill.append((source.store / "manifest.json").read_bytes())
        raise KeyboardInterrupt
        yield

    at_the_kill: list[bytes] = []
    monkeypatch.setattr(module, "convert_samples", killed)
    with pytest.raises(KeyboardInterrupt):
        source.convert(values_dtype="float32", reconvert=True)
    monkeypatch.undo()
    assert at_the_kill == [(source.store / "manifest.json").read_bytes()], "nothing is committed on the way out"
    assert source.reader().read_sample("s1")["surface_temperature"].dtype == "float16"
    assert ids(source.convert().having("converted")) == ["s1", "s2"]
    assert source.reader().read_sample("s1")["surface_temperature"].dtype == "float32"


def test_what_is_held_and_what_is_declared(source: Source) -> None:
    declared = ConversionSettings(values_dtype="float32", chunk_points=8)
    assert held_settings(None, declared) == declared, "there is no store yet"
    source.write("s1", "s2")
    held = ConversionSettings(chunk_points=4)
    manifest = source.convert(chunk_points=4).manifest
    assert held_settings(manifest, declared) == held
    assert describe_changes(manifest, [held.digest], held) == ""
    assert (
        describe_changes(manifest, [held.digest], declared)
        == "chunk_points: 4 -> 8; values_dtype: 'float16' -> 'float32'"
    )

    begun = source.convert(sample_ids=["s2"], reconvert=True, **declared.to_document()).manifest
    assert held_settings(begun, held) == declared, "whatever is declared"
    unknown = replace(manifest, conversion=None)
    assert describe_changes(unknown, [held.digest], declared) == "other settings, which the store does not record"


def test_another_dataset_is_refused(source: Source, tmp_path: Path) -> None:
    source.write("s1")
    source.convert(dataset_name="cars")
    wings = Source(tmp_path, "wings")
    wings.write("s1", "s2")
    with pytest.raises(StoreError, match=r"kind 'bodies', not 'wings'.*another store"):
        wings.convert()
    with pytest.raises(StoreError, match=r"'cars', not 'wings'.*another store"):
        source.convert(dataset_name="wings")
    with pytest.raises(StoreError, match="'bodies', not 'wings'"):
        publish(str(wings.kind), source.store, root=wings.root)
    assert source.convert().manifest.dataset_name == "cars"


def test_a_store_that_records_no_settings_gets_those_of_the_next_conversion(source: Source) -> None:
    source.write("s1")
    source.convert(chunk_points=4)
    as_an_earlier_version_wrote_it(source.store, "float16")
    manifest = source.convert(chunk_points=8).manifest
    assert manifest.conversion.settings[manifest.conversion.current]["chunk_points"] == 8
    assert manifest.samples["s1"].settings == manifest.conversion.current


@pytest.mark.parametrize(
    "value",
    [
        {"shuffle_seed": 2**63},
        {"shuffle_seed": -(2**63)},
        {"chunk_points": 2**63},
        {"shard_points": 2**70},
        {"chunk_points": "100"},
        {"chunk_points": True},
        {"codec": None},
        {"values_dtype": 16},
        {"field_dtypes": {"surface_temperature": None}},
    ],
)
def test_a_setting_that_no_manifest_holds_is_refused_where_it_enters(source: Source, value: dict[str, Any]) -> None:
    source.write("s1")
    with pytest.raises(SourceError, match=next(iter(value))):
        source.convert(**value)
    assert not source.store.exists() or not list(source.store.iterdir())


@pytest.mark.parametrize("number", [np.int64(8), np.uint8(8)])
def test_numpy_integers_are_settings(source: Source, number: Any) -> None:
    source.write("s1")
    assert source.convert(chunk_points=number).manifest == source.convert(chunk_points=8).manifest


def test_a_state_that_no_reader_opens_is_not_committed(source: Source, monkeypatch: pytest.MonkeyPatch) -> None:
    source.write("s1")
    source.convert()
    before = Storage(source.store).read("manifest.json")
    source.write("s2")
    to_json = type(load_manifest(source.store)).to_json
    monkeypatch.setattr(
        "zarr_core.points.store.manifest.StoreManifest.to_json",
        lambda state: to_json(state).replace(b'"n_chunks":1', b'"n_chunks":0'),
    )
    with pytest.raises(StoreError, match="nothing was committed, because no reader could open it"):
        source.convert()
    assert Storage(source.store).read("manifest.json") == before


@pytest.mark.parametrize("key", ["current", "settings"])
def test_recorded_settings_are_not_trusted(source: Source, key: str) -> None:
    source.write("s1")
    manifest = source.convert().manifest
    document = json.loads(manifest.to_json())
    conversion = document["conversion"]
    if key == "current":
        conversion["current"] = "0" * 16
    else:
        conversion["settings"][conversion["current"]]["chunk_points"] = 7
    (source.store / "manifest.json").write_text(json.dumps(document))
    assert source.reader().sample_ids == ["s1"]
    with pytest.raises(ManifestError, match="the conversion settings .* of the manifest"):
        source.convert()
