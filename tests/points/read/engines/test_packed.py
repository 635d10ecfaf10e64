"""Packed samples: every library reads the values of a directory, and every byte range lies where the page says."""

from __future__ import annotations

import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
import zarr
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.helpers.arrays import assert_equal
from tests.helpers.examples import examples
from tests.helpers.page_reader import read_packed
from tests.helpers.small_source import KIND
from tests.points.read.engines.conftest import CHUNK, upload
from zarr_core import write_sample
from zarr_core.format.codecs import CODECS
from zarr_core.points.convert.conversion import convert
from zarr_core.points.read.engines import ENGINES, direct
from zarr_core.points.read.reader import ZarrChunkReader
from zarr_core.points.store.head import load_manifest
from zarr_core.storage.byte_ranges import Objects, Request, open_objects

RUNS = ["run_1", "run_2", "run_3"]
FIELDS = st.none() | st.lists(st.sampled_from(["surface_pressure", "volume_position", "volume_velocity"]), min_size=1)
WIDTHS = {"surface_position": 3, "surface_pressure": 1, "surface_spectrum": 5, "volume_position": 3, "volume_sdf": 1}


class Recorded(Objects):
    """Opens objects, which then keep the requests that they were asked for."""

    def __init__(self) -> None:
        self.requests: list[Request] = []

    def __call__(self, root: str) -> Recorded:
        self._objects = open_objects(root)
        self.remote = self._objects.remote
        return self

    def fetch(self, requests: Sequence[Request]) -> Iterator[Any]:
        self.requests += requests
        return self._objects.fetch(requests)


def arrays_of(chance: np.random.Generator, points: dict[str, int], fields: set[str]) -> dict[str, np.ndarray]:
    """Values of the positions of domains, and of other fields, (points, components)."""
    chosen = {f"{domain}_position" for domain in points} | {name for name in fields if name.partition("_")[0] in points}
    return {
        name: chance.normal(3, 2, (points[name.partition("_")[0]], WIDTHS[name])).astype(np.float32)
        for name in sorted(chosen)
    }


@settings(max_examples=examples(12))
@given(
    points=st.dictionaries(st.sampled_from(["surface", "volume"]), st.integers(1, 300), min_size=1),
    fields=st.sets(st.sampled_from(sorted(WIDTHS))),
    chunk_points=st.integers(1, 120) | st.just(4096),
    codec=st.sampled_from(CODECS),
    values_dtype=st.sampled_from(["float16", "float32", "float64"]),
    wanted=st.dictionaries(st.sampled_from(["surface", "volume"]), st.none() | st.integers(1, 320)),
    seed=st.integers(0, 2**31),
    never=st.booleans(),
)
def test_a_packed_sample_is_the_directory(
    points: dict[str, int],
    fields: set[str],
    chunk_points: int,
    codec: str,
    values_dtype: str,
    wanted: dict[str, int | None],
    seed: int,
    never: bool,
) -> None:
    """For draws and whole samples, whichever library reads it, mapped or not."""
    arrays = arrays_of(np.random.default_rng(seed), points, fields)
    wanted = {domain: count for domain, count in wanted.items() if domain in points}
    with TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        if never:
            patch.setenv("ZARR_CORE_MMAP", "never")
        for layout in ("directory", "packed"):
            options: Any = {"chunk_points": chunk_points, "codec": codec, "values_dtype": values_dtype}
            write_sample(f"{folder}/{layout}", "a", arrays, layout=layout, **options)
        directory = ZarrChunkReader(f"{folder}/directory", engine="zarr")
        whole, drawn = directory.read_sample("a"), directory.read_sample("a", wanted, epoch=seed % 5)
        for engine in ENGINES:
            reader = ZarrChunkReader(f"{folder}/packed", engine=engine)
            for _ in range(3 if engine == "direct" else 1):  # intact chunks are read another way
                assert_equal(reader.read_sample("a"), whole)
                assert_equal(reader.read_sample("a", wanted, epoch=seed % 5), drawn)
                selection = reader.selection(wanted)
                batch = reader.read_batch([reader.draws(selection, "a", epoch=seed % 5)] * 2)
                for values in () if batch is None else batch.items():
                    np.testing.assert_array_equal(values[1], np.stack([drawn[values[0]]] * 2))
        archive = Path(folder, "packed", load_manifest(f"{folder}/packed").samples["a"].relpath)
        group = zarr.open_group(zarr.storage.ZipStore(archive), mode="r", zarr_format=3)
        assert_equal({name: group[name.replace("_", "/", 1)][:] for name in whole}, whole)
        with zipfile.ZipFile(archive) as opened:
            assert opened.testzip() is None
        if codec in ("none", "zstd"):
            by_page = read_packed(Path(folder, "packed"), "a")
            assert_equal({name.replace("/", "_", 1): values for name, values in by_page.items()}, whole)


@pytest.mark.parametrize("codec", ["none", "zstd:1"])
def test_a_reader_of_the_page_reads_every_field(source: Path, tmp_path: Path, codec: str) -> None:
    assert len((Path(__file__).parents[3] / "helpers" / "page_reader.py").read_text().splitlines()) <= 60
    convert(KIND, tmp_path / "store", root=source, chunk_points=CHUNK, codec=codec, layout="packed")
    reader = ZarrChunkReader(tmp_path / "store", engine="zarr")
    for sample_id in reader.sample_ids:
        found = read_packed(tmp_path / "store", sample_id)
        assert_equal({name.replace("/", "_", 1): each for name, each in found.items()}, reader.read_sample(sample_id))


@settings(max_examples=examples(40))
@given(
    points=st.dictionaries(st.sampled_from(["surface", "volume"]), st.none() | st.integers(1, 260)),
    fields=st.none()
    | st.lists(st.sampled_from(["surface_pressure", "volume_position", "volume_velocity"]), min_size=1),
    epoch=st.integers(0, 99),
)
def test_every_range_is_one_of_the_chunks_of_the_draw(
    packed: Path, points: dict[str, int | None], fields: list[str] | None, epoch: int
) -> None:
    objects = Recorded()
    reader = ZarrChunkReader(packed, objects_factory=objects)
    entry = reader.manifest.samples["run_2"]
    reader.read_sample("run_2", points, fields, epoch=epoch)
    assert objects.requests.pop(0) == Request(entry.relpath, 0, entry.head)
    assert {request.key for request in objects.requests} == {entry.relpath}
    with zipfile.ZipFile(packed / entry.relpath) as archive, (packed / entry.relpath).open("rb") as file:
        places = {}
        for info in archive.infolist():
            file.seek(info.header_offset + 26)
            name, extra = np.frombuffer(file.read(4), "<u2").tolist()
            start = info.header_offset + 30 + name + extra
            places[start] = (info.filename, start + info.file_size)
    asked: list[str] = []
    for request in objects.requests:
        name, stop = places[request.start]
        assert request.stop == stop
        asked.append(name)
    wanted = []
    for read in reader.field_reads("run_2", points, fields, epoch=epoch).values():
        chunks = {chunk for start, stop in read.drawn.runs for chunk in range(start // CHUNK, -(-stop // CHUNK))}
        wanted += [f"{read.column.array_name}/c/{chunk}/0" for chunk in sorted(chunks)]
    assert sorted(asked) == sorted(wanted)
    assert [request.start for request in objects.requests] == sorted(request.start for request in objects.requests)


@pytest.mark.slow
@pytest.mark.parametrize("engine", ENGINES)
def test_a_packed_store_on_s3(packed: Path, s3_root: str, engine: str) -> None:
    reader, local = ZarrChunkReader(upload(packed, s3_root), engine=engine), ZarrChunkReader(packed, engine="zarr")
    for points in ({}, {"surface": 20, "volume": 30}):
        assert_equal(reader.read_sample("run_2", points), local.read_sample("run_2", points))
    assert reader.read_attributes("run_2") == local.read_attributes("run_2")


@pytest.mark.parametrize("is_small", [True, False])
def test_a_domain_is_one_request(packed: Path, s3_root: str, monkeypatch: pytest.MonkeyPatch, is_small: bool) -> None:
    """The first request for a small archive fetches all of it; that for another one, its head."""
    objects = Recorded()
    reader = ZarrChunkReader(upload(packed, s3_root), objects_factory=objects)
    fields = ["volume_position", "volume_pressure", "volume_velocity"]
    entry = reader.manifest.samples["run_1"]
    assert entry.size == (packed / entry.relpath).stat().st_size
    monkeypatch.setattr(direct, "_WHOLE_BYTES", entry.size if is_small else entry.size - 1)
    for epoch in range(3):
        expected = ZarrChunkReader(packed, engine="zarr").read_sample("run_1", {"volume": CHUNK}, fields, epoch=epoch)
        assert_equal(reader.read_sample("run_1", {"volume": CHUNK}, fields, epoch=epoch), expected)
        assert len(objects.requests) == epoch + (1 if is_small else 2)
    assert objects.requests[0] == Request(entry.relpath, 0, entry.size if is_small else entry.head)


def test_a_sample_that_a_batch_repeats_costs_as_many_requests_again(packed: Path, s3_root: str) -> None:
    objects = Recorded()
    reader = ZarrChunkReader(upload(packed, s3_root), objects_factory=objects)
    chosen = reader.selection()
    first, other = (reader.draws(chosen, sample_id) for sample_id in reader.sample_ids[:2])
    reader.read_items([first, other])
    counts = []
    for batch in ([first], [other], [first, other, first]):
        objects.requests.clear()
        items = reader.read_items(batch)
        counts.append(len(objects.requests))
    assert counts[2] == 2 * counts[0] + counts[1]
    assert_equal(items[0], items[2])
    assert_equal(items[0], reader.read_sample(first.sample_id))


@pytest.mark.parametrize("kept", ["on a disk", "in memory"])
def test_what_a_cache_keeps_is_not_fetched_again(packed: Path, s3_root: str, tmp_path: Path, kept: str) -> None:
    options: Any = {"cache_dir": tmp_path / "cache"} if kept == "on a disk" else {"cache_bytes": 1 << 20}
    objects = Recorded()
    reader = ZarrChunkReader(upload(packed, s3_root), objects_factory=objects, **options)
    expected = ZarrChunkReader(packed, engine="zarr").read_sample("run_2", {"volume": 30})
    assert_equal(reader.read_sample("run_2", {"volume": 30}), expected)
    assert objects.requests
    objects.requests.clear()
    for _ in range(2):
        assert_equal(reader.read_sample("run_2", {"volume": 30}), expected)
    assert objects.requests == []


@pytest.mark.slow
def test_a_store_of_both_layouts(source: Path, tmp_path: Path) -> None:
    for sample_ids, options in ((RUNS, {}), (["run_2"], {"reconvert": True, "layout": "packed"})):
        convert(KIND, tmp_path / "store", root=source, chunk_points=CHUNK, sample_ids=sample_ids, **options)
    heads = {i: entry.head for i, entry in load_manifest(tmp_path / "store").samples.items()}
    assert [i for i in RUNS if heads[i]] == ["run_2"]
    convert(KIND, tmp_path / "other", root=source, chunk_points=CHUNK)
    expected = ZarrChunkReader(tmp_path / "other", engine="zarr")
    for engine in ENGINES:
        reader = ZarrChunkReader(tmp_path / "store", engine=engine)
        selection, points = reader.selection({"surface": 20, "volume": 40}), {"surface": 20, "volume": 40}
        for _ in range(3):
            items = reader.read_items([reader.draws(selection, run) for run in RUNS])
            for run, item in zip(RUNS, items, strict=True):
                assert_equal(item, expected.read_sample(run, points))
            batch = reader.read_batch([reader.draws(selection, run) for run in RUNS])
            assert batch is not None
            for name, values in batch.items():
                assert_equal({name: values[1]}, {name: expected.read_sample("run_2", points)[name]})
