"""Hostile and damaged data raises errors of the library. Each case was found by ``tests/attacks``."""

from __future__ import annotations

import contextlib
import json
import os
import tracemalloc
from pathlib import Path
from typing import Any

import google_crc32c
import numpy as np
import pytest
from numcodecs import Zstd

from tests.helpers.documents import edit
from tests.helpers.small_source import KIND, write_source
from zarr_core._util.documents import parse_json, parse_yaml
from zarr_core.datasets import build_dataset
from zarr_core.errors import (
    CorruptChunkError,
    ManifestError,
    SampleError,
    SourceError,
    StoreError,
    ZarrCoreError,
)
from zarr_core.format.array_metadata import MAX_CHUNKS, ArrayLayout
from zarr_core.format.codecs import Codec
from zarr_core.format.shards import ChunkIndex, decode_chunk, encode_chunk
from zarr_core.loader import EpochBatchSampler
from zarr_core.points.convert.conversion import convert
from zarr_core.points.convert.writer import GroupWriter, Repair
from zarr_core.points.read.reader import ZarrChunkReader
from zarr_core.points.statistics import calculate_store_statistics
from zarr_core.points.store.group import is_complete
from zarr_core.points.store.head import load_manifest
from zarr_core.points.store.settings import ConversionSettings
from zarr_core.points.verify.store import verify_store
from zarr_core.sources import SampleTree, resolve_kind
from zarr_core.storage import Storage
from zarr_core.storage.byte_ranges import LocalObjects, Request, TruncatedError
from zarr_core.storage.disk_cache import DiskCache

IDS = ("run_1", "run_2")


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return write_source(tmp_path / "source", IDS)


@pytest.fixture
def store(tmp_path: Path, source: Path) -> Path:
    convert(KIND, tmp_path / "store", root=source, chunk_points=16)
    return tmp_path / "store"


def group(store: Path, sample_id: str = "run_1") -> Path:
    return store / load_manifest(store).samples[sample_id].relpath / "zarr.json"


# --- chunks -------------------------------------------------------------------------------------------------------


def signed(data: bytes) -> bytes:
    return data + int(google_crc32c.value(data)).to_bytes(4, "little")


@pytest.mark.parametrize("codec", ["blosc-lz4", "zstd", "none"])
def test_a_chunk_that_decodes_to_less_is_not_filled_up_with_noise(codec: str) -> None:
    half = ArrayLayout(100, 3, 50, 100, "float16", Codec.parse(codec))
    wide = ArrayLayout(100, 3, 50, 100, "float32", Codec.parse(codec))
    data = signed(encode_chunk(half, np.ones((50, 3), "float16")))
    assert (decode_chunk(half, data) == 1).all()
    with pytest.raises(CorruptChunkError, match="300 bytes where 600 belong"):
        decode_chunk(wide, data)


def test_a_frame_that_claims_too_many_bytes_is_not_read_beyond_its_end() -> None:
    layout = ArrayLayout(100, 3, 50, 100, "float32", Codec.parse("blosc-lz4"))
    data = bytearray(encode_chunk(layout, np.random.default_rng(0).normal(size=(50, 3)).astype("float32")))
    data[12:16] = (1 << 30).to_bytes(4, "little")
    with pytest.raises(CorruptChunkError, match="a frame of 1073741824 bytes"):
        decode_chunk(layout, signed(bytes(data)))


@pytest.mark.parametrize("size", [100, 300, 70_000])
def test_the_size_of_a_zstd_frame_is_known_without_decoding(size: int) -> None:
    codec = Codec.parse("zstd")
    assert codec.decoded_bytes(Zstd(3).encode(b"x" * size), 100) == size
    unsized = bytes.fromhex("28b52ffd0458540000100000")  # as `zstd` writes a stream
    with pytest.raises(ValueError, match="content size"):
        codec.decoded_bytes(unsized, len(unsized))


def test_an_index_that_claims_more_than_the_object_holds_takes_no_memory(tmp_path: Path) -> None:
    (tmp_path / "shard").write_bytes(b"x" * 100)
    (data,) = LocalObjects(str(tmp_path)).fetch([Request("shard", 0, 2**62)])
    assert isinstance(data, TruncatedError)


def test_lengths_of_few_chunks_in_a_huge_shard_take_no_memory() -> None:
    layout = ArrayLayout(40, 3, 20, 20 * 10**12, "float32", Codec.parse("none"))
    assert ChunkIndex.from_lengths(layout, [7, 9]).starts.tolist() == [0, 7]


@pytest.mark.parametrize("entry", [(2**63, 5), (2**64 - 2, 5), (2**64 - 1, 5), (0, 2**63)])
def test_an_index_with_impossible_entries_is_refused(entry: tuple[int, int]) -> None:
    layout = ArrayLayout(20, 3, 20, 20, "float32", Codec.parse("none"))
    with pytest.raises(CorruptChunkError, match="impossible"):
        ChunkIndex.from_shards(layout, [np.array([entry], "<u8")])


# --- manifests and groups -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("engine", ["direct", "zarr"])
def test_a_manifest_that_exchanges_two_groups_is_refused(store: Path, engine: str) -> None:
    relpath = load_manifest(store).samples["run_2"].relpath
    edit(store / "manifest.json", "samples", "run_1", "relpath", value=relpath)
    edit(store / "manifest.json", "samples", "run_1", "domains", value=_grids(store))
    with pytest.raises(ManifestError, match="run_1.*made from"):
        ZarrChunkReader(store, engine=engine).read_sample("run_1")
    edit(
        store / "manifest.json",
        "samples",
        "run_1",
        "fingerprint",
        value=load_manifest(store).samples["run_2"].fingerprint,
    )
    if engine == "direct":
        with pytest.raises(ManifestError, match="which is the group of 'run_2'"):
            ZarrChunkReader(store, engine=engine).read_sample("run_1")


def _grids(store: Path) -> Any:
    return json.loads((store / "manifest.json").read_text())["samples"]["run_2"]["domains"]


def test_metadata_that_claims_any_size_is_an_error_and_allocates_nothing(store: Path) -> None:
    claimed = {"n_points": 10**12, "chunk_points": 10**12, "shard_points": 10**12, "n_chunks": 1}
    edit(store / "manifest.json", "samples", "run_1", "domains", "surface", value=claimed)
    path = group(store)
    document = json.loads(path.read_text())
    for name, array in document["consolidated_metadata"]["metadata"].items():
        if name.startswith("surface/"):
            dim = array["shape"][1]
            array["shape"] = array["chunk_grid"]["configuration"]["chunk_shape"] = [10**12, dim]
            array["codecs"][0]["configuration"]["chunk_shape"] = [10**12, dim]
            document["attributes"]["zarr_core"]["chunk_bytes"][name] = "AQAAAA=="
    path.write_text(json.dumps(document))
    with pytest.raises(ManifestError, match=r"a chunk is \(1000000000000, 3\) of float32; only numbers are read"):
        ZarrChunkReader(store).read_sample("run_1", fields=["surface_position"])
    dataset = build_dataset({"kind": KIND, "root": str(store), "split": "train"})
    with pytest.raises(ZarrCoreError, match="1000000000000 points"):
        dataset.__getitems__([dataset.sample_ids.index("run_1")])


def test_metadata_that_claims_millions_of_shards_takes_no_memory(store: Path) -> None:
    shards = ArrayLayout(MAX_CHUNKS, 1, 1, 1, "float16", Codec.parse("none"))
    edit(group(store), "consolidated_metadata", "metadata", "surface/unused", value=shards.to_zarr_json())
    reader = ZarrChunkReader(store)
    tracemalloc.start()
    try:
        reader.read_sample("run_1", fields=["surface_position"])
        assert tracemalloc.get_traced_memory()[1] < 10 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    "text",
    [
        b'{"x":' + b"[" * 100_000,
        b"[]",
        b'{"node_type": "group", "attributes": 5}',
        b'{"node_type": "group", "attributes": {"zarr_core": []}}',
        b'{"node_type": "group", "consolidated_metadata": {"metadata": {"/etc": {"node_type": "array"}}}}',
        b'{"node_type": "group", "attributes": {"zarr_core": {"moments": {"a": 1}}}}',
    ],
)
def test_a_damaged_group_is_an_error_for_every_reader(store: Path, source: Path, text: bytes) -> None:
    whole = ZarrChunkReader(store).read_sample("run_1")
    group(store).write_bytes(text)
    for engine in ("direct", "zarr"):
        with contextlib.suppress(ZarrCoreError):  # a group that inlines nothing is read by the arrays' own metadata
            found = ZarrChunkReader(store, engine=engine).read_sample("run_1")
            assert all(np.array_equal(found[name], values) for name, values in whole.items())
    with pytest.raises(ZarrCoreError):
        calculate_store_statistics(str(store))
    with pytest.raises(ZarrCoreError):
        calculate_store_statistics(str(store), recompute=True)
    report = verify_store(str(store))
    assert {problem.sample_id for problem in report.problems} == {"run_1"}
    # A converter treats it as missing.
    sample = SampleTree(KIND, source).discover()["run_1"]
    assert GroupWriter(store, ConversionSettings(chunk_points=16)).find("run_1", sample.fingerprint) == Repair()


@pytest.mark.parametrize(
    ("name", "value"),
    [("mean", [[1.0, 2.0, 3.0]]), ("mean", [1.0, 2.0]), ("m2", 0.5), ("min", []), ("count", 0), ("count", 1e400)],
)
def test_moments_of_another_form_are_an_error(store: Path, name: str, value: object) -> None:
    edit(group(store), "attributes", "zarr_core", "moments", "surface_position", name, value=value)
    with pytest.raises(StoreError, match="run_1: the moments in .* cannot be read"):
        calculate_store_statistics(str(store))
    assert {problem.sample_id for problem in verify_store(str(store)).problems} == {"run_1"}


def test_samples_that_differ_in_components_have_no_statistics(store: Path) -> None:
    recorded = json.loads(group(store).read_text())["attributes"]["zarr_core"]["moments"]
    shorter = {k: v if k == "count" else v[:2] for k, v in recorded["surface_position"].items()}
    edit(group(store), "attributes", "zarr_core", "moments", "surface_position", value=shorter)
    with pytest.raises(StoreError, match=r"surface_position: samples .* have different numbers of comp.*: \[2, 3\]"):
        calculate_store_statistics(str(store))
    assert {problem.sample_id for problem in verify_store(str(store)).problems} == {"run_1"}


def test_a_damaged_quarantine_record_is_ignored(tmp_path: Path) -> None:
    writer = GroupWriter(tmp_path)
    writer.write_quarantine("a", "f", SampleError("a", "surface_pressure", "NaN"))
    assert writer.find("a", "f") is not None
    path = tmp_path / writer.relpath("a", "f") / "quarantine.json"
    edit(path, "reason", value=["x"])
    assert writer.find("a", "f") == Repair()


def test_a_group_of_another_form_is_not_whole(store: Path) -> None:
    for text in (
        b"[]",
        b'{"attributes": 5}',
        b'{"attributes": {"zarr_core": {"stored_bytes": {"a": "x"}}}}',
        b"[" * 10**5,
    ):
        group(store).write_bytes(text)
        assert not is_complete(Storage(store), load_manifest(store).samples["run_1"].relpath)


# --- settings -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("subfolder: ../..", "leaves the folder"),
        ("blacklists: [../../etc/passwd]", "leaves the folder"),
        ("splits: {rule: files, filename: '../{split}.txt'}", "leaves the folder"),
        ("splits: {rule: files, names: [../../train]}", "leaves the folder"),
        ("splits: {rule: files, filename: '{split.__class__}'}", "no other braces"),
        ("splits: {rule: permutation, count: 9, seed: 1, sizes: {a: 1}, sample_id: '{:>999999999999}'}", "braces"),
        ("splits: {rule: permutation, count: 1000000000000, seed: 1, sizes: {a: 1}}", "less than or equal"),
        ("splits: {rule: permutation, count: 9, seed: 1, sizes: {a: 9}, exclude: [3]}", "add up to 9, but only 8"),
        ("? [a]\n: b", "unhashable"),
        ("since: 2001-99-99", "month"),
    ],
)
def test_a_description_that_reaches_too_far_is_refused(tmp_path: Path, line: str, reason: str) -> None:
    path = tmp_path / "own.yaml"
    path.write_text(f"name: own\nsamples: run_*\nfiles: {{surface_position: p.pt}}\n{line}\n")
    with pytest.raises(SourceError, match="own.yaml") as caught:
        resolve_kind(str(path))
    assert reason in str(caught.value)


@pytest.mark.parametrize(("root", "reason"), [("x" * 100_000, "File name too long"), ("a\0b", "null byte")])
def test_an_impossible_root_is_an_error_of_the_library(root: str, reason: str) -> None:
    with pytest.raises(StoreError, match=f"cannot be used: .*{reason}") as caught:
        build_dataset({"kind": KIND, "root": root, "split": "train"})
    assert len(str(caught.value)) < 1000


def test_an_impossible_split_file_is_an_error_of_the_library(tmp_path: Path) -> None:
    kind = tmp_path / "own.yaml"
    splits = f"{{rule: files, names: [train], filename: '{'x' * 300}{{split}}'}}"
    kind.write_text(f"name: own\nsamples: run_*\nfiles: {{surface_position: p.pt}}\nsplits: {splits}\n")
    with pytest.raises(SourceError, match="cannot be read: File name too long"):
        SampleTree(str(kind), tmp_path).splits(["run_1"])


def test_a_kind_that_begins_with_dots_is_an_error_of_the_library() -> None:
    with pytest.raises(SourceError, match="is not a dotted path"):
        resolve_kind("...a.b")


LAUGHS = "a0: &a0 [1, 1]\n" + "".join(f"a{n}: &a{n} [*a{n - 1}, *a{n - 1}]\n" for n in range(1, 60))


def test_statistics_that_unfold_without_end_are_named_and_not_printed(store: Path) -> None:
    (folder := store / "statistics" / "00000001").mkdir(parents=True)
    (folder / "train.yaml").write_text(f"{LAUGHS}surface_pressure_mean: *a59\nsurface_pressure_std: 1.0\n")
    config = {"kind": KIND, "root": str(store), "split": "train", "normalizers": {"surface_pressure": "mean_std"}}
    with pytest.raises(ZarrCoreError, match="surface_pressure_mean is .*not a finite number") as caught:
        build_dataset(config)
    assert len(str(caught.value)) < 1000
    (folder / "train.yaml").write_text(f"surface_pressure_mean: 1{'0' * 400}\nsurface_pressure_std: 1.0\n")
    with pytest.raises(ZarrCoreError, match="not a finite number"):
        build_dataset(config)


@pytest.mark.parametrize("text", ["[" * 100_000, "2001-99-99", "!!int ''", "!!timestamp x", "? [a]\n: b", "\0"])
def test_parsers_refuse_with_one_error(text: str) -> None:
    with pytest.raises(ValueError, match="."):
        parse_yaml(text)
    with pytest.raises(ValueError, match="."):
        parse_json(text)


@pytest.mark.parametrize(
    "change",
    [{"seed": "1"}, {"epoch": None}, {"position": 1.5}, {"seed": 2**80}, {"fingerprint": ["x"]}, {"position": 99}],
)
def test_a_state_that_is_none_is_refused(change: dict[str, Any]) -> None:
    sampler = EpochBatchSampler(100, 8, fingerprint="a")
    with pytest.raises(ZarrCoreError, match="state"):
        sampler.load_state_dict(sampler.state_dict() | change)
    for name in sampler.state_dict():
        with pytest.raises(ZarrCoreError, match="not a state"):
            sampler.load_state_dict({key: value for key, value in sampler.state_dict().items() if key != name})
    with pytest.raises(ZarrCoreError, match="not a state"):
        sampler.load_state_dict([])  # type: ignore[arg-type]


def test_a_cache_entry_that_has_grown_without_end_is_evicted(tmp_path: Path) -> None:
    cache = DiskCache(tmp_path, "1GB")
    assert cache.store("key", 0, None, b"x" * 100)
    assert cache.lookup("key", 0, None) == b"x" * 100
    (entry,) = (path for path in Path(cache.folder).rglob("*_end") if path.is_file())
    os.truncate(entry, 10**12)  # sparse: it takes no disk
    assert cache.lookup("key", 0, None) is None
    assert cache.corrupt_evicted == 1
