"""A store has the columns of its samples; a sample that does not fit is refused alone."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch

from tests.helpers.described_source import FILES, POINTS, SPEED, Source, as_an_earlier_version_wrote_it, ids
from tests.helpers.documents import edit
from zarr_core import load_manifest, sample_info, store_info, verify_store
from zarr_core.convert import iter_convert, publish
from zarr_core.errors import UnknownFieldError, ZarrCoreError


@pytest.fixture
def source(tmp_path: Path) -> Source:
    return Source(tmp_path)


def test_one_sample_of_another_width_is_refused_alone(source: Source) -> None:
    """Although it is the first one, its width is not the column's."""
    source.write("s0", width=2)
    source.write("s1", "s2", "s3")
    report = source.convert()
    assert (ids(report.having("converted")), ids(report.having("quarantined"))) == (["s1", "s2", "s3"], ["s0"])
    assert "2 components per point, the store's samples have 1" in report.having("quarantined")[0].reason
    assert store_info(source.store).quarantined["s0"].startswith("surface_temperature: has 2 components per point")
    with pytest.raises(UnknownFieldError, match=r"no sample 's0'; it was refused: surface_temperature: has 2"):
        sample_info(source.store, "s0")
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


def mixed(source: Source) -> None:
    """Make s1 float32 and s2 float16 in one store."""
    source.write("s1", low=1e5)
    source.write("s2")
    source.convert(values_dtype="float32")
    source.convert(values_dtype="float16", reconvert=True, sample_ids=["s2"])


@pytest.mark.slow
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
    report = verify_store(str(source.store), source=str(source.root))
    assert report.ok is not earlier, "the manifest of an earlier version has one dtype for all samples"


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


def test_a_field_of_more_components_than_readers_open_is_refused(source: Source) -> None:
    source.write("s1")
    source.write("wide", width=10_001, step=0.0)
    report = source.convert()
    assert ids(report.having("quarantined")) == ["wide"]
    assert "10,001 components per point" in report.having("quarantined")[0].reason
    assert source.reader().sample_ids == ["s1"]


def test_more_chunks_than_readers_open_are_refused(source: Source, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("zarr_core.format.array_metadata.MAX_CHUNKS", POINTS - 1)
    source.write("s1")
    (refused,) = source.convert(chunk_points=1).having("quarantined")
    assert "20 chunks (maximum 19)" in refused.reason
