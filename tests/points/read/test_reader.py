"""Reader: the right rows, only the requested bytes, clear errors, every kind of process."""

from __future__ import annotations

import json
import multiprocessing
import os
import pickle
import shutil
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from zarr.abc.store import ByteRequest, RangeByteRequest, Store
from zarr.core.buffer import Buffer, BufferPrototype
from zarr.storage import WrapperStore

import zarr_core.points.read.engines.reference
from tests.helpers.counting_store import CountingStore, Kept
from tests.helpers.draws import indices_of
from tests.helpers.examples import examples
from tests.helpers.published_store import make_samples, write_published_store
from tests.helpers.small_source import KIND, write_source
from tests.helpers.waiting import LIMIT_SECONDS
from zarr_core import write_sample
from zarr_core.errors import CorruptChunkError, ManifestError, StoreError, UnknownFieldError, ZarrCoreError
from zarr_core.points.convert.conversion import convert
from zarr_core.points.read.reader import ZarrChunkReader
from zarr_core.points.read.sampling import draw
from zarr_core.storage.zarr_stores import make_store

CHUNK = 16
FIELDS = [f"{d}_{f}" for d in ("surface", "volume") for f in ("position", "pressure", "velocity")]


@pytest.fixture(scope="module")
def samples() -> dict[str, dict[str, np.ndarray]]:
    return make_samples()


@pytest.fixture(scope="module")
def root(samples: dict[str, dict[str, np.ndarray]], tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_published_store(tmp_path_factory.mktemp("store"), samples, CHUNK, split="train")


def counting() -> Kept[CountingStore]:
    return Kept(lambda root: CountingStore(make_store(root)))


def test_repr_names_store_generation_and_engine(root: Path) -> None:
    reader = ZarrChunkReader(root, engine="zarr")
    assert repr(reader) == f"<ZarrChunkReader {root}, generation 0, engine zarr: {len(reader.sample_ids)} samples>"


# --- rows ---------------------------------------------------------------------------------------------------------


def test_a_store_in_the_published_format_opens_and_reads_whole(root: Path, samples: dict[str, Any]) -> None:
    reader = ZarrChunkReader(root)
    assert reader.sample_ids == list(samples)
    assert reader.fields == FIELDS
    for sample_id, fields in samples.items():
        read = reader.read_sample(sample_id)
        assert list(read) == FIELDS
        for name, values in read.items():
            assert values.dtype == fields[name].dtype
            np.testing.assert_array_equal(values, fields[name])
        assert reader.read_attributes(sample_id) == {}


@settings(max_examples=examples(40), suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(
    surface=st.none() | st.integers(1, 70),
    volume=st.none() | st.integers(1, 140),
    seed=st.integers(0, 99),
    epoch=st.integers(0, 99),
    shard_chunks=st.sampled_from([None, 2, 3]),
)
def test_drawn_rows_are_the_rows_of_the_draw_in_every_field(
    tmp_path_factory: pytest.TempPathFactory,
    samples: dict[str, Any],
    surface: int | None,
    volume: int | None,
    seed: int,
    epoch: int,
    shard_chunks: int | None,
) -> None:
    store = tmp_path_factory.getbasetemp() / f"sharded_{shard_chunks}"
    if not store.exists():
        write_published_store(store, samples, CHUNK, shard_chunks and shard_chunks * CHUNK)
    read = ZarrChunkReader(store).read_sample("run_2", {"surface": surface, "volume": volume}, seed=seed, epoch=epoch)
    for name, values in read.items():
        stored = samples["run_2"][name]
        domain = name.partition("_")[0]
        wanted = {"surface": surface, "volume": volume}[domain] or len(stored)
        drawn = draw(len(stored), CHUNK, wanted, seed=seed, epoch=epoch, sample_id="run_2", stream=domain)
        np.testing.assert_array_equal(values, stored[indices_of(drawn)])


def test_draws_of_domains_coordinates_samples_and_epochs_are_their_own(tmp_path: Path) -> None:
    samples = make_samples(n_samples=2, surface=5000, volume=5000)
    for fields in samples.values():  # equal point counts, so that equal draws would be equal numbers
        for name in fields:
            fields[name] = fields[name][:5000]
    reader = ZarrChunkReader(write_published_store(tmp_path, samples, 1024))

    def rows(sample_id: str = "run_1", domain: str = "surface", epoch: int = 0, seed: int = 0) -> tuple[float, ...]:
        read = reader.read_sample(sample_id, {domain: 9}, [f"{domain}_pressure"], seed=seed, epoch=epoch)
        return tuple(read[f"{domain}_pressure"][:, 0])

    def coordinates(**arguments: Any) -> tuple[float, ...]:
        return tuple(reader.read_coords("run_1", num_points=9, **arguments)[:, 0])

    drawn = [rows(), rows("run_2"), rows(domain="volume"), rows(epoch=1), rows(seed=1)]
    drawn += [coordinates(), coordinates(domain="volume"), coordinates(stream="query"), coordinates(epoch=1)]
    assert len(set(drawn)) == len(drawn)
    assert drawn[0] == rows()
    assert coordinates() == coordinates()


def test_a_generator_is_the_source_of_randomness(root: Path) -> None:
    reader = ZarrChunkReader(root)

    def rows(generator: np.random.Generator, seed: int = 0) -> list[float]:
        read = reader.read_sample("run_1", {"volume": 5}, ["volume_pressure"], seed=seed, generator=generator)
        return read["volume_pressure"][:, 0].tolist()

    one, other = np.random.default_rng(5), np.random.default_rng(5)
    assert [rows(one, seed=1) for _ in range(4)] == [rows(other, seed=2) for _ in range(4)]
    assert len({tuple(rows(one)) for _ in range(20)}) > 10


# --- requests -----------------------------------------------------------------------------------------------------


def test_unrequested_fields_cost_nothing(root: Path) -> None:
    counted = counting()
    reader = ZarrChunkReader(root, store_factory=counted)
    reader.read_sample("run_1", {"surface": 4, "volume": 4}, ["surface_pressure"])
    store = counted.only
    assert set(store.by_key) == {"run_1/zarr.json", "run_1/surface/pressure/c/0/0"}
    assert store.by_key["run_1/zarr.json"][0] == 1
    store.reset()
    reader.read_coords("run_1", num_points=4)
    assert set(store.by_key) == {"run_1/surface/position/c/0/0"}


def test_a_sample_costs_one_metadata_request_once_and_a_draw_touches_only_its_chunks(root: Path) -> None:
    counted = counting()
    reader = ZarrChunkReader(root, store_factory=counted)
    for epoch in range(20):
        reader.read_sample("run_3", {"volume": CHUNK // 2}, ["volume_pressure"], epoch=epoch)
    store = counted.only
    assert store.by_key.pop("run_3/zarr.json")[0] == 1
    ((key, (requests, _)),) = store.by_key.items()
    assert key == "run_3/volume/pressure/c/0/0"
    # An index and a chunk each; two chunks where the block holds the ragged one as well, which zarr-python 3.4 fetches
    # as one range.
    drawn = [draw(133, CHUNK, CHUNK // 2, epoch=e, sample_id="run_3", stream="volume") for e in range(20)]
    assert requests in (sum(1 + len(d.chunks) for d in drawn), 2 * len(drawn))
    assert requests < 2.5 * 20


class VanishingChunks(WrapperStore[Store]):
    """Chunks that are gone once the index of their shard has been read."""

    async def get(self, key: str, prototype: BufferPrototype, byte_range: ByteRequest | None = None) -> Buffer | None:
        if isinstance(byte_range, RangeByteRequest):
            return None
        return await super().get(key, prototype, byte_range)


class FailingChunks(WrapperStore[Store]):
    """Chunks that the network does not deliver."""

    async def get(self, key: str, prototype: BufferPrototype, byte_range: ByteRequest | None = None) -> Buffer | None:
        if isinstance(byte_range, RangeByteRequest):
            raise ConnectionError("cut off")
        return await super().get(key, prototype, byte_range)


def test_a_chunk_that_vanishes_during_a_read_is_an_error(tmp_path: Path) -> None:
    convert(KIND, tmp_path / "store", root=write_source(tmp_path / "source"), chunk_points=CHUNK)
    for faulty, error, words in (
        (VanishingChunks, CorruptChunkError, "is missing"),
        (FailingChunks, StoreError, "ConnectionError: cut off"),
    ):
        reader = ZarrChunkReader(tmp_path / "store", store_factory=lambda root, faulty=faulty: faulty(make_store(root)))
        with pytest.raises(error, match=words):
            reader.read_sample(reader.sample_ids[0], {"volume": CHUNK}, ["volume_pressure"])


def test_open_samples_are_bounded(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(zarr_core.points.read.engines.reference, "_OPEN_SAMPLES", 2)
    counted = counting()
    reader = ZarrChunkReader(root, store_factory=counted)
    for sample_id in ("run_1", "run_2", "run_1", "run_3", "run_1", "run_2"):
        reader.read_sample(sample_id, fields=["surface_pressure"])
    opened = {key: count for key, (count, _) in counted.only.by_key.items() if key.endswith("zarr.json")}
    # run_1 was used last when run_3 came, so run_2 had to go.
    assert opened == {"run_1/zarr.json": 1, "run_2/zarr.json": 2, "run_3/zarr.json": 1}


def test_attributes_cost_no_further_request(tmp_path: Path, samples: dict[str, Any]) -> None:
    store = write_published_store(tmp_path, samples, CHUNK)
    metadata = json.loads((store / "run_1/zarr.json").read_text())
    metadata["attributes"] = {"zarr_core": {"format": 1, "parameters": {"length_m": 1.08}}}
    (store / "run_1/zarr.json").write_text(json.dumps(metadata))
    counted = counting()
    reader = ZarrChunkReader(store, store_factory=counted)
    assert reader.read_attributes("run_1")["parameters"] == {"length_m": 1.08}
    reader.read_sample("run_1", {"surface": 3}, ["surface_pressure"])
    assert counted.only.by_key["run_1/zarr.json"][0] == 1


# --- errors -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"fields": ["surface_presure"]}, UnknownFieldError, "surface_presure.*surface_pressure, surface_velocity"),
        ({"fields": "surface_pressure"}, UnknownFieldError, r"\['surface_pressure'\]"),
        ({"num_points": {"surfaces": 4}}, UnknownFieldError, "surfaces.*surface, volume"),
        ({"num_points": {"surface": 0}}, ZarrCoreError, "surface.*positive, not 0"),
        ({"num_points": {"volume": -3}}, ZarrCoreError, "volume.*positive, not -3"),
        # also when no field of the domain is read
        ({"num_points": {"volume": -3}, "fields": ["surface_position"]}, ZarrCoreError, "volume.*positive"),
        ({"sample_id": "run_9"}, UnknownFieldError, "run_9.*holds 3.*run_1, run_2, run_3"),
    ],
)
def test_wrong_arguments_are_named(root: Path, arguments: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        ZarrChunkReader(root).read_sample(**{"sample_id": "run_1", **arguments})


def test_a_generator_may_be_the_fourth_argument(root: Path) -> None:
    reader = ZarrChunkReader(root)
    one, other = (
        reader.read_coords("run_1", "surface", 9, np.random.default_rng(5)),
        reader.read_coords("run_1", "surface", 9, generator=np.random.default_rng(5)),
    )
    np.testing.assert_array_equal(one, other)
    with pytest.raises(ZarrCoreError, match="generator must be"):
        reader.read_coords("run_1", "surface", 9, 5)  # type: ignore[arg-type]


def test_wrong_coordinates_are_named(root: Path) -> None:
    reader = ZarrChunkReader(root)
    with pytest.raises(UnknownFieldError, match=r"wake.*surface, volume"):
        reader.read_coords("run_1", "wake")
    with pytest.raises(ZarrCoreError, match="positive"):
        reader.read_coords("run_1", num_points=0)
    with pytest.raises(ZarrCoreError, match="read_concurrency"):
        ZarrChunkReader(root, read_concurrency=0)


def test_the_error_distinguishes_refused_from_unknown_samples(tmp_path: Path, samples: dict[str, Any]) -> None:
    refused = {"fingerprint": "", "settings": "", "field": "volume_vorticity", "reason": "holds NaN"}
    store = write_published_store(tmp_path, samples, CHUNK, quarantine={"run_9": refused})
    with pytest.raises(UnknownFieldError, match=r"run_9.*refused at conversion.*volume_vorticity: holds NaN"):
        ZarrChunkReader(store).read_sample("run_9")


def test_a_root_without_a_store(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"manifest\.json"):
        ZarrChunkReader(tmp_path)


def test_a_sample_without_a_domain_of_the_store(tmp_path: Path, samples: dict[str, Any]) -> None:
    some = dict(samples)
    some["run_2"] = {name: values for name, values in some["run_2"].items() if name.startswith("surface")}
    reader = ZarrChunkReader(write_published_store(tmp_path, some, CHUNK))
    assert set(reader.read_sample("run_2", fields=["surface_position"])) == {"surface_position"}
    with pytest.raises(UnknownFieldError, match=r"run_2.*no volume_pressure"):
        reader.read_sample("run_2", fields=["volume_pressure"])


def test_a_selection_serves_readers_of_several_generations(tmp_path: Path) -> None:
    store, source = tmp_path / "store", tmp_path / "source"
    readers = []
    for points in (40, 60):
        convert(KIND, store, root=write_source(source, ("run_1",), volume=points))
        readers.append(ZarrChunkReader(store))
        shutil.rmtree(source)
    selection = readers[0].selection({"volume": 50})
    for _ in range(2):
        assert [reader.draws(selection, "run_1").draws["volume"].num_points for reader in readers] == [40, 50]


def test_a_manifest_that_its_groups_contradict(tmp_path: Path, samples: dict[str, Any]) -> None:
    store = write_published_store(tmp_path, samples, CHUNK)
    document = json.loads((store / "manifest.json").read_text())
    document["samples"]["run_1"]["domains"]["surface"] |= {"n_points": 52}
    document["samples"]["run_2"]["relpath"] = "elsewhere"
    arrays = document["domains"]["volume"]["arrays"]
    arrays["volume_sdf"] = arrays["volume_pressure"] | {"array_name": "volume/sdf", "field": "volume_sdf"}
    (store / "manifest.json").write_text(json.dumps(document))
    reader = ZarrChunkReader(store)
    with pytest.raises(ManifestError, match=r"run_1, surface_position.*says \(52, .*is \(51, 3\)"):
        reader.read_sample("run_1", fields=["surface_position"])
    with pytest.raises(ManifestError, match=r"run_2.*elsewhere.*missing"):
        reader.read_sample("run_2")
    with pytest.raises(ManifestError, match="run_3, volume_sdf"):
        reader.read_sample("run_3", fields=["volume_sdf"])


def test_damaged_metadata_is_named(tmp_path: Path, samples: dict[str, Any]) -> None:
    store = write_published_store(tmp_path, samples, CHUNK)
    path = store / "run_1/zarr.json"
    whole = path.read_bytes()
    for damaged in (b"", whole[:100], whole[:-20], b"[]", whole.replace(b'"zstd"', b'"zstx"', 1)):
        path.write_bytes(damaged)
        with pytest.raises(CorruptChunkError, match="run_1"):
            ZarrChunkReader(store).read_sample("run_1")


@pytest.mark.slow
@pytest.mark.parametrize("damage", ["flip", "truncate"])
def test_damaged_bytes_are_never_returned(tmp_path: Path, samples: dict[str, Any], damage: str) -> None:
    """Every seventh byte flipped, every seventh length: an error that names the field, or a read that is right."""
    store = write_published_store(tmp_path, samples, CHUNK, checksum=True, fingerprint="f")
    path = store / "run_1/volume/velocity/c/0/0"
    whole = path.read_bytes()
    noticed = 0
    for position in range(0, len(whole), 7):
        flipped = bytes([whole[position] ^ 0x10])
        path.write_bytes(whole[:position] + (flipped + whole[position + 1 :] if damage == "flip" else b""))
        with pytest.raises(CorruptChunkError, match=r"run_1, volume_velocity: points 0 to 131"):
            ZarrChunkReader(store).read_sample("run_1", fields=["volume_velocity", "surface_position"])
        noticed += 1
        try:
            part = ZarrChunkReader(store).read_sample("run_1", {"volume": 5}, ["volume_velocity"], epoch=position)
        except CorruptChunkError:
            continue
        drawn = indices_of(draw(131, CHUNK, 5, epoch=position, sample_id="run_1", stream="volume"))
        np.testing.assert_array_equal(part["volume_velocity"], samples["run_1"]["volume_velocity"][drawn])
    assert noticed > 50


def test_a_missing_object_is_an_error(tmp_path: Path, samples: dict[str, Any]) -> None:
    store = write_published_store(tmp_path, samples, CHUNK, 2 * CHUNK, checksum=True, fingerprint="f")
    (store / "run_1/volume/velocity/c/1/0").unlink()
    with pytest.raises(CorruptChunkError, match=r"run_1, volume_velocity.*volume/velocity/c/1/0 is missing"):
        ZarrChunkReader(store).read_sample("run_1")


def test_a_published_store_may_leave_out_chunks_of_zeros(tmp_path: Path, samples: dict[str, Any]) -> None:
    zeros = {"run_1": samples["run_1"] | {"surface_pressure": np.zeros((51, 1), np.float16)}}
    store = write_published_store(tmp_path, zeros, CHUNK)
    assert not (store / "run_1/surface/pressure/c").exists()
    assert not ZarrChunkReader(store).read_sample("run_1")["surface_pressure"].any()


def test_network_errors_are_not_reported_as_damage(root: Path) -> None:
    class Offline(CountingStore):
        async def get(self, key: str, *args: Any, **kwargs: Any) -> Any:
            if "/c/" in key:
                raise ConnectionResetError("cable cut")
            return await super().get(key, *args, **kwargs)

    reader = ZarrChunkReader(root, store_factory=lambda root: Offline(make_store(root)))
    with pytest.raises(StoreError, match="run_1, surface_position.*ConnectionResetError: cable cut"):
        reader.read_sample("run_1")


# --- threads and processes ----------------------------------------------------------------------------------------


def test_threads_read_the_same(root: Path) -> None:
    one, many = ZarrChunkReader(root), ZarrChunkReader(root, read_concurrency=4)
    expected = {i: one.read_sample(i, {"surface": 9, "volume": 40}) for i in one.sample_ids}
    with ThreadPoolExecutor(4) as threads:
        read = threads.map(lambda i: (i, many.read_sample(i, {"surface": 9, "volume": 40})), one.sample_ids * 8)
        for sample_id, fields in read:
            assert list(fields) == list(expected[sample_id])
            for name, values in fields.items():
                np.testing.assert_array_equal(values, expected[sample_id][name])


def read_in_child(readers: list[ZarrChunkReader], expected: dict[str, np.ndarray], results: Any) -> None:
    equal = True
    for reader in readers:
        read = reader.read_sample("run_1", {"surface": 9, "volume": 40}, seed=3)
        equal &= all((read[name] == values).all() for name, values in expected.items())
    results.put((os.getpid(), equal))


@pytest.mark.parametrize("method", ["fork", "forkserver"])
def test_readers_in_use_work_in_child_processes(root: Path, method: str) -> None:
    readers = [ZarrChunkReader(root, read_concurrency=threads) for threads in (1, 3)]
    expected, _ = (reader.read_sample("run_1", {"surface": 9, "volume": 40}, seed=3) for reader in readers)
    context = multiprocessing.get_context(method)
    results = context.Queue()
    children = [context.Process(target=read_in_child, args=(readers, expected, results)) for _ in range(2)]
    for child in children:
        child.start()
    equal_in_child = dict(results.get(timeout=LIMIT_SECONDS) for _ in children)
    for child in children:
        child.join(timeout=LIMIT_SECONDS)
        assert child.exitcode == 0
    assert os.getpid() not in equal_in_child
    assert list(equal_in_child.values()) == [True, True]


@pytest.fixture
def store_on_s3(root: Path, s3_root: str) -> str:
    """The store on an S3 server in this process."""
    import s3fs

    s3fs.S3FileSystem().put(f"{root}/", f"{s3_root}/", recursive=True)
    return s3_root


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["obstore", "fsspec"])
def test_a_reader_in_use_on_s3_works_in_a_forked_child(
    store_on_s3: str, monkeypatch: pytest.MonkeyPatch, engine: str
) -> None:
    """Threads of remote filesystems and Rust runtimes do not survive a fork; a child that reused them would hang."""
    if engine == "obstore":
        pytest.importorskip("obstore", reason="needs the obstore extra")
    else:
        monkeypatch.setitem(sys.modules, "obstore.store", None)  # as if it were not installed
    reader = ZarrChunkReader(store_on_s3)
    expected = reader.read_sample("run_1", {"surface": 9, "volume": 40}, seed=3)
    context = multiprocessing.get_context("fork")
    results = context.Queue()
    child = context.Process(target=read_in_child, args=([reader], expected, results), daemon=True)
    child.start()
    try:
        assert results.get(timeout=LIMIT_SECONDS)[1] is True
    finally:
        child.kill()


def test_a_pickled_reader_holds_no_handles_and_keeps_its_generation(tmp_path: Path, samples: dict[str, Any]) -> None:
    store = write_published_store(tmp_path, samples, CHUNK, checksum=True, fingerprint="0" * 16)
    reader = ZarrChunkReader(store, read_concurrency=2)
    before = reader.read_sample("run_1", {"volume": 7})
    packed = pickle.dumps(reader)
    assert b"Lock" not in packed
    (store / "manifest.json").unlink()  # the copy reads no metadata again
    after = pickle.loads(packed).read_sample("run_1", {"volume": 7})
    for name, values in before.items():
        np.testing.assert_array_equal(after[name], values)


def test_zarr_python_alone_reads_what_the_reader_reads(root: Path) -> None:
    array = zarr.open_array(root / "run_1" / "volume" / "velocity", mode="r")
    np.testing.assert_array_equal(array[:], ZarrChunkReader(root).read_sample("run_1")["volume_velocity"])


def test_draws_of_other_fields_are_no_batch(tmp_path: Path) -> None:
    """With the same number of fields, dtypes and points."""
    arrays = {"surface_position": np.zeros((40, 3)), "surface_pressure": np.ones(40), "surface_heat": np.ones(40)}
    write_sample(tmp_path, "a", arrays, dataset_name="cars")
    reader = ZarrChunkReader(tmp_path)
    one, other = (reader.draws(reader.selection({"surface": 8}, [f"surface_{f}"]), "a") for f in ("pressure", "heat"))
    assert reader.read_batch([one, other]) is None
    batch = reader.read_batch([other, other])
    assert batch is not None
    assert list(batch) == ["surface_heat"]
