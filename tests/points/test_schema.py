"""A store knows what it is: its columns, its settings, its dataset. Whatever is converted into it can be read."""

from __future__ import annotations

import contextlib
import itertools
import json
import shutil
import tempfile
import warnings
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.helpers.documents import edit
from zarr_core import ZarrChunkReader, ZarrPointDataset, ZarrPointDatasetConfig, load_manifest, verify_store
from zarr_core.convert import convert, iter_convert, publish
from zarr_core.errors import ManifestError, SourceError, StoreError, UnknownFieldError, ZarrCoreError
from zarr_core.points import convert as convert_module
from zarr_core.points.settings import ConversionSettings
from zarr_core.points.store_settings import describe_changes, held_settings
from zarr_core.storage import Storage

FILES = {"surface_position": "position.pt", "surface_temperature": "temperature.pt"}
SPEED = {"surface_speed": "speed.pt"}
POINTS = 20


class Source:
    """A dataset of tiny samples, and the store that it is converted to."""

    def __init__(self, folder: Path, name: str = "bodies") -> None:
        self.root, self.store, self.kind = folder / name, folder / "store", folder / f"{name}.yaml"
        self.root.mkdir()
        self.describe(FILES, name)

    def describe(self, files: dict[str, str], name: str = "bodies") -> None:
        self.kind.write_text(json.dumps({"name": name, "samples": "*", "files": files}))

    def write(self, *sample_ids: str, width: int = 1, low: float = 300.0, step: float = 1.0) -> None:
        for sample_id in sample_ids:
            folder = self.root / sample_id
            folder.mkdir(exist_ok=True)
            values = low + step * torch.arange(POINTS * width, dtype=torch.float32).reshape(POINTS, width)
            torch.save(torch.arange(POINTS * 3.0).reshape(POINTS, 3), folder / "position.pt")
            torch.save(values[:, 0].clone() if width == 1 else values, folder / "temperature.pt")
            torch.save(torch.arange(float(POINTS)), folder / "speed.pt")
        ids = sorted(path.name for path in self.root.iterdir() if path.is_dir())
        (self.root / "train_design_ids.txt").write_text("\n".join(ids) + "\n")

    def convert(self, **arguments: Any) -> Any:
        return convert(str(self.kind), self.store, root=self.root, **arguments)

    def reader(self, **arguments: Any) -> ZarrChunkReader:
        return ZarrChunkReader(self.store, **arguments)

    def dataset(self, **arguments: Any) -> ZarrPointDataset:
        return ZarrPointDataset(ZarrPointDatasetConfig(root=str(self.store), split="train", **arguments))


@pytest.fixture
def source(tmp_path: Path) -> Source:
    return Source(tmp_path)


def ids(results: Collection[Any]) -> list[str]:
    return sorted(result.sample_id for result in results)


def test_one_sample_of_another_width_is_refused_alone(source: Source) -> None:
    """On be0f88d it fixed the width of the column, and three good samples were left out of a run that ended with 0."""
    source.write("s0", width=2)
    source.write("s1", "s2", "s3")
    report = source.convert()
    assert (ids(report.having("converted")), ids(report.having("quarantined"))) == (["s1", "s2", "s3"], ["s0"])
    assert "2 components per point, the store's samples have 1" in report.having("quarantined")[0].reason
    assert not report.ok
    assert source.reader().sample_ids == ["s1", "s2", "s3"]
    source.write("s0")
    assert (ids(source.convert().having("converted")), source.reader().sample_ids) == (["s0"], ["s0", "s1", "s2", "s3"])


@pytest.mark.parametrize("how", ["repaired", "retired"])
def test_what_a_misfit_kept_out_comes_in_when_it_is_gone(source: Source, how: str) -> None:
    source.write("s0", width=2)
    source.convert()
    source.write("s1", "s2")
    assert ids(source.convert().having("quarantined")) == ["s1", "s2"]
    written = {path: path.stat().st_mtime_ns for path in source.store.glob("samples/s[12]/**/c/0/0")}
    assert len(written) == 4
    shutil.rmtree(source.root / "s0")
    if how == "repaired":
        source.write("s0")
    report = source.convert(retire_vanished=True)
    assert report.ok
    assert source.reader().sample_ids == (["s0", "s1", "s2"] if how == "repaired" else ["s1", "s2"])
    assert load_manifest(source.store).quarantine == {}
    assert {path: path.stat().st_mtime_ns for path in written} == written
    assert source.reader().manifest.fields["surface_temperature"].dim == 1


def test_a_tie_goes_to_the_first_by_id_and_what_is_committed_wins(source: Source) -> None:
    source.write("s1", width=2)
    source.write("s2")
    assert ids(source.convert().having("quarantined")) == ["s2"]
    source.write("s3", "s4", "s5")
    assert ids(source.convert().having("quarantined")) == ["s2", "s3", "s4", "s5"]


def test_a_misfit_is_refused_before_it_is_published(source: Source) -> None:
    source.write("s1")
    source.convert()
    source.write("s2", width=2)
    results = {r.sample_id: r.status for r in iter_convert(str(source.kind), source.store, root=source.root)}
    assert results == {"s1": "up to date", "s2": "quarantined"}
    report = publish(str(source.kind), source.store, root=source.root)
    assert list(report.misfits) == list(report.quarantined) == ["s2"]


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


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"values_dtype": "float32"}, "values_dtype is 'float16' in the store, not 'float32'"),
        ({"chunk_points": 4}, "chunk_points is 8 in the store, not 4"),
        ({"field_dtypes": {"surface_temperature": "float64"}}, "field_dtypes is"),
        ({"codec": "none"}, "codec is"),
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
    assert sorted(manifest.conversion.settings) == sorted({before.conversion.current, manifest.conversion.current})
    for sample_id in ("s1", "s2"):
        assert len(source.reader().read_sample(sample_id)) == 2
    assert ids(source.convert().having("converted")) == ["s2"]
    assert list(load_manifest(source.store).conversion.settings) == [manifest.conversion.current]
    assert verify_store(str(source.store), source=str(source.root)).ok


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
    from zarr_core.points import convert as module

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
    storage = Storage(source.store)
    assert held_settings(storage, None, declared) == declared, "there is no store yet"
    source.write("s1", "s2")
    held = ConversionSettings(chunk_points=4)
    manifest = source.convert(chunk_points=4).manifest
    assert held_settings(storage, manifest, declared) == held
    assert describe_changes(manifest, [held.digest], held) == ""
    assert (
        describe_changes(manifest, [held.digest], declared)
        == "chunk_points: 4 -> 8; values_dtype: 'float16' -> 'float32'"
    )

    begun = source.convert(sample_ids=["s2"], reconvert=True, **declared.to_document()).manifest
    assert held_settings(storage, begun, held) == declared, "whatever is declared"
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


def test_columns_shrink_with_the_samples(source: Source) -> None:
    source.describe(FILES | SPEED)
    source.write("s1", "s2")
    source.convert()
    assert "surface_speed" in source.reader().fields
    source.describe(FILES)
    assert ids(source.convert(sample_ids=["s1"]).having("converted")) == ["s1"]
    assert list(source.reader().read_sample("s1")) == list(FILES)
    source.convert()
    assert source.reader().fields == list(FILES)
    assert list(source.reader().read_sample("s2")) == list(FILES)
    assert len(source.dataset()) == 2


def test_samples_without_an_added_field_are_named_and_can_be_left_out(source: Source) -> None:
    source.write("s1", "s2")
    source.convert()
    source.describe(FILES | SPEED)
    source.convert(sample_ids=["s2"])
    assert list(source.reader().read_sample("s1")) == list(FILES)
    assert list(source.reader().read_sample("s2")) == ["surface_position", "surface_speed", "surface_temperature"]
    with pytest.raises(UnknownFieldError, match="s1: this sample has no surface_speed, like 1 of the store's 2"):
        source.reader().read_sample("s1", fields=["surface_speed"])
    with pytest.raises(UnknownFieldError, match=r"1 of 2 samples lack a field \(s1 has no surface_speed\)"):
        source.dataset()
    assert len(source.dataset(fields=tuple(FILES))) == 2
    with pytest.warns(UserWarning, match=r"s1 has no surface_speed\) and are skipped"):
        assert source.dataset(missing_fields="skip").sample_ids == ["s2"]


def as_an_earlier_version_wrote_it(store: Path, dtype: str) -> None:
    """Without recorded settings and fields, and with one dtype for all samples: that of the last conversion."""
    document = json.loads((store / "manifest.json").read_text())
    document.pop("conversion", None)
    for entry in document["samples"].values():
        entry.pop("fields", None)
    document["domains"]["surface"]["arrays"]["surface_temperature"]["dtype"] = dtype
    document["values_dtype"] = dtype
    (store / "manifest.json").write_text(json.dumps(document))
    shutil.rmtree(store / "generations", ignore_errors=True)


def mixed(source: Source) -> None:
    """Make s1 float32 and s2 float16 in one store."""
    source.write("s1", low=1e5)
    source.write("s2")
    source.convert(values_dtype="float32")
    source.convert(values_dtype="float16", reconvert=True, sample_ids=["s2"])


@pytest.mark.parametrize("earlier", [True, False])
@pytest.mark.parametrize("engine", ["direct", "zarr"])
@pytest.mark.parametrize("dtype", ["float32", "stored"])
def test_a_batch_of_several_dtypes_is_its_items(source: Source, earlier: bool, engine: str, dtype: str) -> None:
    mixed(source)
    if earlier:
        as_an_earlier_version_wrote_it(source.store, "float16")
    dataset = source.dataset(engine=engine, dtype=dtype)
    for indices in ([0, 1], [1, 0], [0], [0, 0]):
        items = dataset.__getitems__(indices)
        for item, index in zip(items, indices, strict=True):
            for name, values in dataset[index].items():
                assert torch.equal(item[name], values)
                assert item[name].dtype == values.dtype
    loader = torch.utils.data.DataLoader(dataset, batch_size=2)  # type: ignore[var-annotated]
    (batch,) = loader
    assert batch["surface_temperature"][0].min() == 1e5
    assert verify_store(str(source.store), source=str(source.root)).ok


@pytest.mark.parametrize("engine", ["direct", "zarr", "tensorstore"])
def test_the_width_of_a_sample_is_that_of_its_array(source: Source, engine: str) -> None:
    source.write("s1", "s2", width=2)
    source.convert()
    as_an_earlier_version_wrote_it(source.store, "float16")
    edit(source.store / "manifest.json", "domains", "surface", "arrays", "surface_temperature", "dim", value=1)
    dataset = source.dataset(engine=engine)
    assert dataset[0]["surface_temperature"].shape == (POINTS, 2)
    for item, index in zip(dataset.__getitems__([0, 1]), (0, 1), strict=True):
        assert torch.equal(item["surface_temperature"], dataset[index]["surface_temperature"])
    fixed = {"surface_temperature": {"kind": "fixed", "shift": [1.0], "unit": [2.0]}}
    normalized = source.dataset(engine=engine, normalizers=fixed)
    for read in (normalized.__getitem__, lambda index: normalized.__getitems__([index])):
        with pytest.raises(ZarrCoreError, match="s1.*2 components per point, its normalizer has 1"):
            read(0)


def test_a_store_of_an_earlier_version_is_continued_with_its_settings(source: Source) -> None:
    source.write("s1")
    chosen = {
        "values_dtype": "float32",
        "chunk_points": 4,
        "shard_points": 9,
        "codec": "zstd:1",
        "shuffle_seed": 5,
        "field_dtypes": {"surface_temperature": "float64"},
    }
    source.convert(**chosen)
    digest = load_manifest(source.store).conversion.current
    as_an_earlier_version_wrote_it(source.store, "float64")
    source.write("s2")
    report = source.convert()
    assert (ids(report.having("converted")), report.manifest.conversion.current) == (["s2"], digest)
    as_an_earlier_version_wrote_it(source.store, "float64")
    with pytest.raises(StoreError, match="codec is 'zstd:1' in the store, not 'none'"):
        source.convert(codec="none")


def test_settings_of_an_earlier_version_that_cannot_be_found_are_asked_for(source: Source) -> None:
    source.write("s1")
    source.convert(chunk_points=1000)  # more than the sample has, and no power of two
    as_an_earlier_version_wrote_it(source.store, "float16")
    source.write("s2")
    with pytest.raises(StoreError, match=r"Give the settings .* --reconvert"):
        source.convert()
    assert ids(source.convert(chunk_points=1000).having("converted")) == ["s2"]
    assert ids(source.convert().having("up to date")) == ["s1", "s2"]


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


def test_a_field_of_more_components_than_readers_open_is_refused(source: Source) -> None:
    source.write("s1")
    source.write("wide", width=10_001)
    report = source.convert()
    assert ids(report.having("quarantined")) == ["wide"]
    assert "10,001 components per point" in report.having("quarantined")[0].reason
    assert source.reader().sample_ids == ["s1"]


def test_more_chunks_than_readers_open_are_refused(source: Source, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("zarr_core.format.array_metadata.MAX_CHUNKS", POINTS - 1)
    source.write("s1")
    (refused,) = source.convert(chunk_points=1).having("quarantined")
    assert "20 chunks (maximum 19)" in refused.reason


def test_a_state_that_no_reader_opens_is_not_committed(source: Source, monkeypatch: pytest.MonkeyPatch) -> None:
    source.write("s1")
    source.convert()
    before = Storage(source.store).read("manifest.json")
    source.write("s2")
    to_json = type(load_manifest(source.store)).to_json
    monkeypatch.setattr(
        "zarr_core.points.manifest.StoreManifest.to_json",
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


@pytest.mark.parametrize("split", ["train-a", "fold 1", "2024.1"])
def test_a_split_of_any_name_can_be_opened(source: Source, split: str) -> None:
    source.write("s1", "s2")
    (source.root / f"{split}_design_ids.txt").write_text("s2\n")
    rule = {"rule": "files", "names": [split]}
    document = {"name": "bodies", "samples": "*", "files": FILES, "splits": rule}
    source.kind.write_text(json.dumps(document))
    source.convert()
    config = {"kind": "zarr_core.datasets.ZarrPointDataset", "root": str(source.store)}
    for name in (split, f"{split}[0]", f"{split}[:1]"):
        assert ZarrPointDataset(ZarrPointDatasetConfig(**config, split=name)).sample_ids == ["s2"]


SAMPLES = ("a", "b", "c")
SETTINGS: list[dict[str, Any]] = [
    {},
    {},
    {"values_dtype": "float16"},
    {"values_dtype": "float32"},
    {"field_dtypes": {"surface_temperature": "float64"}},
    {"field_dtypes": {"surface_temperature": "default"}},
    {"chunk_points": 8},
    {"codec": "zstd:1"},
]
ONLY = st.sampled_from([None, *SAMPLES])
STEPS = {
    # A sample that is new or repaired, of another width, or (1e5 with float16) refused, like 1e39 with any dtype.
    "write": st.tuples(st.sampled_from(SAMPLES), st.sampled_from([1, 1, 2]), st.sampled_from([300.0, 1e5, 1e39])),
    "remove": st.tuples(st.sampled_from(SAMPLES)),
    "describe": st.tuples(st.booleans()),
    "convert": st.tuples(
        st.fixed_dictionaries(
            {name: st.booleans() for name in ("reconvert", "force", "retry_quarantined", "retire_vanished")}
        ),
        st.sampled_from(SETTINGS),
        ONLY,
    ),
    "publish": st.tuples(st.sampled_from(SETTINGS), st.booleans(), ONLY),
    "interrupt": st.tuples(st.sampled_from(SETTINGS), st.integers(0, 2)),
    "other kind": st.tuples(),
    "earlier version": st.tuples(st.sampled_from(["float16", "float32", "float64"])),
}


@settings(max_examples=6)
@given(st.lists(st.one_of([st.tuples(st.just(name), arguments) for name, arguments in STEPS.items()]), max_size=10))
def test_whatever_is_converted_the_store_can_be_read_and_names_what_it_leaves_out(steps: list[Any]) -> None:
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        machine = Machine(Source(Path(folder)))
        machine.source.write("a", "z")
        for name, arguments in [*steps, ("convert", ({"retire_vanished": True}, {}, None))]:
            try:
                getattr(machine, name.replace(" ", "_"))(*arguments)
            except StoreError as error:
                if "--reconvert" not in str(error):  # what contradicts the store is refused
                    raise
            machine.check_store()


class Machine:
    """Every step that changes a source or its store, and what must hold after each."""

    def __init__(self, source: Source) -> None:
        self.source = source

    def write(self, sample_id: str, width: int, low: float) -> None:
        self.source.write(sample_id, width=width, low=low, step=1 if low < 1e30 else 1e36)

    def remove(self, sample_id: str) -> None:
        shutil.rmtree(self.source.root / sample_id, ignore_errors=True)

    def describe(self, speed: bool) -> None:
        self.source.describe(FILES | SPEED if speed else FILES)

    def convert(self, flags: dict[str, bool], chosen: dict[str, Any], only: str | None) -> None:
        selected = None if only is None else [only, "z"]
        report = self.source.convert(sample_ids=selected, max_retired_share=1, **flags, **chosen)
        self._check_results({result.sample_id: result.status for result in report.results}, report.manifest, selected)
        assert all(result.reason for result in report.having("quarantined"))
        if flags.get("retire_vanished"):
            assert set(report.manifest.samples) | set(report.manifest.quarantine) <= self._present()

    def publish(self, chosen: dict[str, Any], reconvert: bool, only: str | None) -> None:
        """As the platform does it."""
        selected = None if only is None else [only, "z"]
        arguments = {"root": self.source.root, "reconvert": reconvert, **chosen}
        converted = iter_convert(str(self.source.kind), self.source.store, sample_ids=selected, **arguments)
        results = {result.sample_id: result.status for result in converted}
        report = publish(str(self.source.kind), self.source.store, **arguments)
        results |= dict.fromkeys((i for i in report.misfits if i in results), "quarantined")
        self._check_results(results, report.manifest, selected)

    def interrupt(self, chosen: dict[str, Any], after: int) -> None:
        """Convert everything anew, and interrupt it after some samples."""
        real = convert_module.convert_samples

        def interrupted(*arguments: Any) -> Any:
            yield from itertools.islice(real(*arguments), after)
            raise KeyboardInterrupt

        with patch.object(convert_module, "convert_samples", interrupted), contextlib.suppress(KeyboardInterrupt):
            self.source.convert(reconvert=True, **chosen)

    def other_kind(self) -> None:
        if not self._stored():
            return
        before = load_manifest(self.source.store)
        kind = self.source.root.parent / "wings.yaml"
        kind.write_text(json.dumps({"name": "wings", "samples": "*", "files": FILES}))
        for other in ({}, {"reconvert": True}, {"dataset_name": before.dataset_name}):
            with pytest.raises(StoreError, match="kind 'bodies', not 'wings'"):
                convert(str(kind), self.source.store, root=self.source.root, **other)
        assert load_manifest(self.source.store) == before

    def earlier_version(self, dtype: str) -> None:
        fields = [{*load_manifest(self.source.store).fields_of(i)} for i in self._stored()]
        if fields and fields.count({*FILES}) == len(fields):
            as_an_earlier_version_wrote_it(self.source.store, dtype)

    def check_store(self) -> None:
        """Every sample that the manifest names reads, in every way alike."""
        if not (self.source.store / "manifest.json").exists():
            return
        reader = self.source.reader()
        manifest = reader.manifest
        for sample_id in reader.sample_ids:
            sample = reader.read_sample(sample_id)
            assert sample.keys() == manifest.fields_of(sample_id).keys()
            if manifest.conversion is not None:
                assert {name: (str(values.dtype), values.shape[1]) for name, values in sample.items()} == {
                    name: (column.dtype, column.dim) for name, column in manifest.fields_of(sample_id).items()
                }
        assert set(reader.fields) == {name for i in manifest.samples for name in manifest.fields_of(i)}
        if any(i in manifest.samples for i in manifest.split_ids("train")):
            for dtype in ("float32", "stored"):
                check_batches(self.source.dataset(fields=tuple(FILES), dtype=dtype, num_surface_points=7))
        assert verify_store(str(self.source.store)).problems == []

    def _present(self) -> set[str]:
        return {path.name for path in self.source.root.iterdir() if path.is_dir()}

    def _stored(self) -> list[str]:
        return list(load_manifest(self.source.store).samples) if (self.source.store / "manifest.json").exists() else []

    def _check_results(self, results: dict[str, str], manifest: Any, selected: list[str] | None) -> None:
        """Whatever was selected is in the store as it is now, or is refused by name."""
        wanted = self._present() if selected is None else self._present() & set(selected)
        refused = {sample_id for sample_id, status in results.items() if status == "quarantined"}
        assert set(results) == wanted
        assert set(results.values()) <= {"converted", "up to date", "quarantined"}
        assert refused == {i for i in wanted if i in manifest.quarantine}
        assert wanted - refused <= set(manifest.samples)
        # A refused sample keeps the group of an earlier version of its source.
        current = sorted(wanted - refused)
        if current:
            report = verify_store(str(self.source.store), source=str(self.source.root), sample_ids=current)
            assert report.problems == []


def check_batches(dataset: ZarrPointDataset) -> None:
    dataset.set_epoch(1)
    indices = list(range(len(dataset)))
    for item, index in zip(dataset.__getitems__(indices), indices, strict=True):
        alone = dataset[index]
        assert item.keys() == alone.keys()
        assert all(torch.equal(item[name], values) for name, values in alone.items())
