"""Engines give equal results, in threads and in processes."""

from __future__ import annotations

import json
import multiprocessing
import os
import pickle
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.helpers.arrays import assert_equal
from tests.helpers.examples import examples
from tests.helpers.published_store import make_samples, write_published_store
from tests.helpers.small_source import KIND
from tests.helpers.waiting import LIMIT_SECONDS
from tests.points.read.engines.conftest import CHUNK
from zarr_core.errors import ZarrCoreError
from zarr_core.format.codecs import CODECS
from zarr_core.points.convert.conversion import convert
from zarr_core.points.read.engines import ENGINES
from zarr_core.points.read.reader import ZarrChunkReader
from zarr_core.storage.byte_ranges import open_objects

GOLDEN = Path(__file__).parents[3] / "golden"
FIELDS = ["surface_position", "volume_pressure", "volume_velocity"]


@settings(max_examples=examples(15))
@given(
    codec=st.sampled_from(CODECS),
    shard_points=st.sampled_from([None, 32, 48]),
    points=st.dictionaries(st.sampled_from(["surface", "volume"]), st.none() | st.integers(1, 260)),
    fields=st.none() | st.lists(st.sampled_from(FIELDS), min_size=1),
    epoch=st.integers(0, 99),
    sample=st.sampled_from(["run_1", "run_2", "run_3"]),
)
def test_engines_give_equal_results(
    source: Path,
    tmp_path_factory: pytest.TempPathFactory,
    codec: str,
    shard_points: int | None,
    points: dict[str, int | None],
    fields: list[str] | None,
    epoch: int,
    sample: str,
) -> None:
    pytest.importorskip("tensorstore", reason="needs the tensorstore extra")
    store = tmp_path_factory.getbasetemp() / f"equal_{codec}_{shard_points}"
    if not store.exists():
        convert(KIND, store, root=source, chunk_points=CHUNK, shard_points=shard_points, codec=codec)
    readers = [ZarrChunkReader(store, engine=engine) for engine in ENGINES]
    direct, reference, tensorstore = (reader.read_sample(sample, points, fields, epoch=epoch) for reader in readers)
    assert_equal(direct, reference)
    assert_equal(direct, tensorstore)
    # Chunks that are known to be intact are read another way.
    assert_equal(readers[0].read_sample(sample, points, fields, epoch=epoch), reference)


@pytest.mark.slow
@pytest.mark.parametrize("codec", [*CODECS, *(f"packed/{codec}" for codec in CODECS)])
@pytest.mark.parametrize("engine", ENGINES)
def test_golden_stores_are_read_by_every_engine(codec: str, engine: str) -> None:
    if engine == "tensorstore":
        pytest.importorskip("tensorstore", reason="needs the tensorstore extra")
    reference = ZarrChunkReader(GOLDEN / codec, engine="zarr")
    reader = ZarrChunkReader(GOLDEN / codec, engine=engine)
    for epoch in range(10):
        for wanted in (None, 1, 7, 20):
            arguments: Any = ("a", {"surface": wanted}, None, 0, epoch)
            assert_equal(reader.read_sample(*arguments), reference.read_sample(*arguments))
    assert reader.read_attributes("a") == reference.read_attributes("a")


@pytest.mark.slow
@pytest.mark.parametrize("engine", ENGINES)
def test_published_stores_are_read_by_every_engine(tmp_path: Path, engine: str) -> None:
    """No checksums, chunks of zeros left out, several shards, and an array in a layout that is none of ours."""
    if engine == "tensorstore":
        pytest.importorskip("tensorstore", reason="needs the tensorstore extra")
    samples = make_samples()
    samples["run_2"]["volume_pressure"][20:90] = 0
    samples["run_3"]["surface_pressure"][:] = 0
    store = write_published_store(tmp_path, samples, CHUNK, 2 * CHUNK)
    # One array without shards, and a group that does not say what it holds.
    group = zarr.open_group(store / "run_1", zarr_format=3, use_consolidated=False)
    del group["volume/velocity"]
    group.create_array("volume/velocity", data=samples["run_1"]["volume_velocity"], chunks=(50, 3))
    metadata = json.loads((store / "run_1/zarr.json").read_text())
    metadata.pop("consolidated_metadata")
    (store / "run_1/zarr.json").write_text(json.dumps(metadata))
    reader = ZarrChunkReader(store, engine=engine)
    for sample_id, fields in samples.items():
        assert_equal(reader.read_sample(sample_id), fields)
        out = [np.zeros_like(values) for values in fields.values()]
        reader.execute(list(reader.field_reads(sample_id).values()), out)
        assert_equal(dict(zip(fields, out, strict=True)), fields)


@pytest.mark.parametrize("sharded", [False, True])
def test_arrays_of_other_codecs_are_read(tmp_path: Path, sharded: bool) -> None:
    samples = make_samples(1)
    store = write_published_store(tmp_path, samples, CHUNK)
    group = zarr.open_group(store / "run_1", zarr_format=3, use_consolidated=False)
    for name, codec in (("velocity", zarr.codecs.GzipCodec()), ("pressure", zarr.codecs.ZstdCodec())):
        values = samples["run_1"][f"volume_{name}"]
        del group[f"volume/{name}"]
        shards = (100, values.shape[1]) if sharded else None
        group.create_array(
            f"volume/{name}", data=values, chunks=(50, values.shape[1]), shards=shards, compressors=[codec]
        )
    zarr.consolidate_metadata(group.store)
    for engine in ("direct", "zarr"):
        assert_equal(ZarrChunkReader(store, engine=engine).read_sample("run_1"), samples["run_1"])


def test_engines_are_chosen_by_name(root: Path) -> None:
    assert ZarrChunkReader(root).engine == "direct"
    assert ZarrChunkReader(root, store_factory=lambda root: None).engine == "zarr"  # type: ignore[arg-type,return-value]
    with pytest.raises(ZarrCoreError, match="no engine 'zarrs'; use one of direct, zarr, tensorstore"):
        ZarrChunkReader(root, engine="zarrs")
    with pytest.raises(ZarrCoreError, match="store_factory is for the engine 'zarr'"):
        ZarrChunkReader(root, engine="direct", store_factory=lambda root: None)  # type: ignore[arg-type,return-value]
    with pytest.raises(ZarrCoreError, match="objects_factory is for the engine 'direct'"):
        ZarrChunkReader(root, engine="zarr", objects_factory=open_objects)


def test_threads_share_a_reader(root: Path) -> None:
    reader, reference = ZarrChunkReader(root), ZarrChunkReader(root, engine="zarr")
    expected = [reference.read_sample("run_2", {"volume": 40}, epoch=epoch) for epoch in range(8)]
    with ThreadPoolExecutor(4) as threads:
        read = threads.map(lambda epoch: reader.read_sample("run_2", {"volume": 40}, epoch=epoch % 8), range(80))
        for epoch, fields in enumerate(read):
            assert_equal(fields, expected[epoch % 8])


def read_in_child(
    reader: ZarrChunkReader, expected: dict[str, np.ndarray], results: Any, environment: dict[str, str]
) -> None:
    os.environ.update(environment)  # a fork server may be older than this test's S3 server
    read = reader.read_sample("run_1", {"surface": 9, "volume": 40}, seed=3)
    results.put(all((read[name] == values).all() for name, values in expected.items()))


@pytest.mark.slow
@pytest.mark.parametrize("method", ["fork", "forkserver"])
def test_a_remote_reader_in_use_works_in_child_processes(remote: str, method: str) -> None:
    reader = ZarrChunkReader(remote)
    expected = reader.read_sample("run_1", {"surface": 9, "volume": 40}, seed=3)
    context = multiprocessing.get_context(method)
    results = context.Queue()
    arguments = (reader, expected, results, dict(os.environ))
    child = context.Process(target=read_in_child, args=arguments, daemon=True)
    child.start()
    try:
        assert results.get(timeout=LIMIT_SECONDS) is True
    finally:
        child.kill()


@pytest.mark.parametrize("engine", ENGINES)
def test_a_reader_in_use_can_be_pickled(root: Path, engine: str) -> None:
    if engine == "tensorstore":
        pytest.importorskip("tensorstore", reason="needs the tensorstore extra")
    reader = ZarrChunkReader(root, engine=engine)
    expected = reader.read_sample("run_1", {"volume": 20})
    assert_equal(pickle.loads(pickle.dumps(reader)).read_sample("run_1", {"volume": 20}), expected)
