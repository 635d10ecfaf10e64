"""Tar shards: content, evenness, resuming, keys, and reading them by other tools."""

from __future__ import annotations

import hashlib
import io
import json
import pickle
import shutil
import tarfile
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.helpers.arrays import assert_equal
from tests.helpers.examples import SAMPLE_NAMES, examples
from tests.helpers.faults import Kill, is_killed
from tests.helpers.published_store import make_samples, write_published_store
from zarr_core import ZarrChunkReader, export_webdataset, write_sample
from zarr_core.__main__ import main
from zarr_core.errors import StoreError, UnknownFieldError, ZarrCoreError
from zarr_core.exports.shard_index import ShardIndex, item_key, read_index
from zarr_core.exports.webdataset import deal
from zarr_core.format.names import check_sample_id
from zarr_core.storage import Storage

IDS = ["param0/1.a", "param0/2", "run.1", "run_2", "ümlaut"]
DRAWS: dict[str, Any] = {"draws_per_sample": 3, "num_points": {"surface": 16}, "seed": 7}


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("exports") / "store"
    rng = np.random.default_rng(0)
    for number, sample_id in enumerate(IDS):
        n = 40 + 10 * number
        arrays = {"surface_position": rng.random((n, 3)), "surface_pressure": rng.random(n)}
        settings = {} if number else {"chunk_points": 8}
        split = "train" if number < 4 else "test"
        write_sample(root, sample_id, arrays, split=split, parameters={"speed": 30.5 + number}, **settings)
    return root


def parse_key(key: str) -> tuple[str, int | None]:
    """Sample id and draw of a key."""
    sample_id, _, draw = key.partition(",")
    return unquote(sample_id), int(draw) if draw else None


def contents(out: Path) -> dict[str, dict[str, bytes]]:
    """Members by name of each tar, in order."""
    found = {}
    for path in sorted(out.glob("*.tar")):
        with tarfile.open(path) as tar:
            found[path.name] = {info.name: tar.extractfile(info).read() for info in tar}  # type: ignore[union-attr]
    return found


def items(out: Path) -> dict[tuple[str, int | None], dict[str, np.ndarray]]:
    """Arrays of every item, by sample and draw."""
    found: dict[tuple[str, int | None], dict[str, np.ndarray]] = {}
    for members in contents(out).values():
        for name, data in members.items():
            key, _, field = name.partition(".")
            if field.endswith(".npy"):
                found.setdefault(parse_key(key), {})[field.removesuffix(".npy")] = np.load(io.BytesIO(data))
    return found


def test_whole_samples(store: Path, tmp_path: Path) -> None:
    index = export_webdataset(store, tmp_path, shards=2)
    assert (index.items, index.planned, index.complete, index.generation) == (5, 2, True, 5)
    assert index.evenness["items"] == (2, 3)
    reader, found = ZarrChunkReader(store), items(tmp_path)
    assert set(found) == {(sample_id, None) for sample_id in IDS}
    for (sample_id, _), arrays in found.items():
        assert_equal(arrays, reader.read_sample(sample_id))
    about = {name: data for members in contents(tmp_path).values() for name, data in members.items() if ".json" in name}
    assert json.loads(about["run%2E1.json"]) == {"sample_id": "run.1", "draw": None, "parameters": {"speed": 32.5}}
    for name, shard in index.shards.items():
        data = (tmp_path / name).read_bytes()
        assert (hashlib.sha256(data).hexdigest(), len(data)) == (shard.sha256, shard.bytes)
    document = json.loads((tmp_path / "index.json").read_bytes())
    assert (document["items"], document["complete"]) == (5, True)
    assert document["evenness"] == {"items": [2, 3], "bytes": [10240, 20480]}


def test_draws_are_those_of_the_reader(store: Path, tmp_path: Path) -> None:
    index = export_webdataset(
        store, tmp_path, split="train", fields=["surface_pressure"], ranks=2, loader_workers=2, **DRAWS
    )
    assert (index.planned, index.items, index.evenness["items"]) == (4, 12, (3, 3))
    reader, found = ZarrChunkReader(store), items(tmp_path)
    assert len(found) == 12
    for (sample_id, draw), arrays in found.items():
        assert draw is not None
        assert_equal(arrays, reader.read_sample(sample_id, {"surface": 16}, ["surface_pressure"], seed=7, epoch=draw))


class _Pickling(ThreadPoolExecutor):
    """Passes calls on as processes get them."""

    def submit(self, function: Any, /, *arguments: Any, **options: Any) -> Future[Any]:
        return super().submit(pickle.loads(pickle.dumps(function)), *arguments, **options)


def test_equal_exports_have_equal_bytes(store: Path, tmp_path: Path) -> None:
    with _Pickling(2) as executor:
        for name, workers in (("a", None), ("b", executor)):
            export_webdataset(store, tmp_path / name, shards=3, executor=workers, **DRAWS)
    files = [{path.name: path.read_bytes() for path in (tmp_path / name).iterdir()} for name in "ab"]
    assert files[0] == files[1]
    assert len(files[0]) == 4


def test_an_interrupted_export_is_continued(store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Killed(BaseException):
        pass

    original, written = Storage.write, []

    def write(self: Storage, name: str, pieces: Any) -> int:
        written.append(name)
        if len(written) == 6:  # the index, two shards with the index after each, and the third shard
            raise Killed
        return original(self, name, pieces)

    monkeypatch.setattr(Storage, "write", write)
    with pytest.raises(Killed):
        export_webdataset(store, tmp_path, shards=3)
    index = read_index(Storage(tmp_path))
    assert index is not None
    assert (sorted(index.shards), index.complete) == (["000000.tar", "000001.tar"], False)
    (tmp_path / "000001.tar").write_bytes(b"")  # the power failed
    written.clear()
    assert export_webdataset(store, tmp_path, shards=3).complete
    assert [name for name in written if name.endswith(".tar")] == ["000001.tar", "000002.tar"]
    whole = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    damaged = bytearray(whole["000000.tar"])
    damaged[600] ^= 1
    (tmp_path / "000000.tar").write_bytes(damaged)
    written.clear()
    export_webdataset(store, tmp_path, shards=3)
    assert written == ["index.json"]
    export_webdataset(store, tmp_path, shards=3, check=True)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == whole


@pytest.mark.parametrize("kill", [Kill("create", r"000000\.tar"), Kill("rename", r"index\.json", 2)], ids=str)
def test_the_next_export_deletes_what_a_killed_one_left(store: Path, tmp_path: Path, kill: Kill) -> None:
    assert is_killed(kill, export_webdataset, store, tmp_path / "out")
    assert [path for path in (tmp_path / "out").iterdir() if path.suffix == ".tmp"]
    export_webdataset(store, tmp_path / "out")
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"000000.tar", "index.json"}


def test_samples_that_another_program_wrote_are_exported_again(tmp_path: Path) -> None:
    for seed in (0, 1):  # the same paths with other content
        samples = make_samples(seed=seed)
        shutil.rmtree(tmp_path / "store", ignore_errors=True)
        write_published_store(tmp_path / "store", samples)
        export_webdataset(tmp_path / "store", tmp_path / "out", shards=2)
        for (sample_id, _), fields in items(tmp_path / "out").items():
            np.testing.assert_array_equal(fields["surface_velocity"], samples[sample_id]["surface_velocity"])


def test_other_exports_are_never_mixed(store: Path, tmp_path: Path) -> None:
    export_webdataset(store, tmp_path / "out", shards=2)
    with pytest.raises(StoreError, match="another export .* Write to another folder, or delete this one"):
        export_webdataset(store, tmp_path / "out", shards=3)
    (tmp_path / "foreign").mkdir()
    (tmp_path / "foreign" / "imagenet.tar").write_bytes(b"")
    with pytest.raises(StoreError, match=r"holds imagenet\.tar"):
        export_webdataset(store, tmp_path / "foreign")
    index = tmp_path / "out" / "index.json"
    index.write_text(index.read_text().replace('"name":"000001.tar"', '"name":"../000001.tar"'))
    with pytest.raises(StoreError, match="not an index of tar shards: .*leaves the folder"):
        export_webdataset(store, tmp_path / "out", shards=2)
    index.write_text('{"format": "zarr_core shards", "shards": 3}')
    with pytest.raises(StoreError, match="not an index of tar shards"):
        export_webdataset(store, tmp_path / "out", shards=2)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"shards": 3, "ranks": 2}, ZarrCoreError, "use 4"),
        ({"shards": 6}, ZarrCoreError, "use at most 5"),
        ({"ranks": 3, "loader_workers": 2}, ZarrCoreError, "too few"),
        ({"num_points": {"surface": 4}}, ZarrCoreError, "draws need both"),
        ({"draws_per_sample": 2}, ZarrCoreError, "draws need both"),
        ({"draws_per_sample": 2, "num_points": {"volume": 4}}, UnknownFieldError, "no domain 'volume'"),
        ({"fields": ["surface_sdf"]}, UnknownFieldError, "no field 'surface_sdf'"),
        ({"shard_bytes": "many"}, ZarrCoreError, "a number with a unit"),
        ({"sample_ids": []}, ZarrCoreError, "none of the requested samples"),
    ],
)
def test_wrong_arguments(
    store: Path, tmp_path: Path, arguments: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        export_webdataset(store, tmp_path / "out", **arguments)
    assert not (tmp_path / "out").exists()


@settings(max_examples=examples(30))
@given(
    sizes=st.lists(st.integers(1, 1000), min_size=1, max_size=60),
    shards=st.integers(1, 60),
    seed=st.integers(-3, 3),
)
def test_shards_are_as_even_as_items_allow(sizes: list[int], shards: int, seed: int) -> None:
    shards = min(shards, len(sizes))
    dealt = deal(sizes, shards, seed)
    assert sorted(item for held in dealt for item in held) == list(range(len(sizes)))
    counts, totals = [len(held) for held in dealt], [sum(sizes[item] for item in held) for held in dealt]
    assert max(counts) - min(counts) <= 1
    assert max(totals) - min(totals) <= max(sizes)


def test_each_shard_is_a_mixture() -> None:
    """Of 20 groups of neighbouring items of equal size, each shard has items of most, in an order of the seed."""
    dealt = deal([1] * 400, 10, seed=1)
    assert min(len({item // 20 for item in held}) for held in dealt) >= 15
    assert all(held != sorted(held) for held in dealt)
    assert dealt != deal([1] * 400, 10, seed=2)


@pytest.mark.slow
@settings(max_examples=examples(30))
@given(st.lists(SAMPLE_NAMES, min_size=1, max_size=2).map("/".join), st.none() | st.integers(0, 10**7))
def test_keys_name_their_sample(sample_id: str, draw: int | None) -> None:
    key = item_key(check_sample_id(sample_id), draw)
    assert "." not in key
    assert "/" not in key
    assert parse_key(key) == (sample_id, draw)


def test_the_webdataset_library_reads_the_same_items(store: Path, tmp_path: Path) -> None:
    wds = pytest.importorskip("webdataset", reason="needs the extra rivals")
    export_webdataset(store, tmp_path, shards=2, **DRAWS)
    urls = [str(path) for path in sorted(tmp_path.glob("*.tar"))]
    found = {}
    for item in wds.WebDataset(urls, shardshuffle=False).decode():
        arrays = {name.removesuffix(".npy"): value for name, value in item.items() if name.endswith(".npy")}
        assert item["json"]["sample_id"] == parse_key(item["__key__"])[0]
        found[parse_key(item["__key__"])] = arrays
    expected = items(tmp_path)
    assert set(found) == set(expected)
    for key, arrays in expected.items():
        assert_equal(found[key], arrays)


def test_command_line(store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    line = ["export", "webdataset", str(store), str(tmp_path / "out"), "--draws-per-sample", "2", "--ranks", "2"]
    assert main([*line, "--num-points", "surface=8", "--quiet", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["items"], document["shards"], document["evenness"]["items"]) == (10, 2, [5, 5])
    assert main([*line, "--num-points", "surface"]) == 2
    assert main([*line, "--num-points", "surface=9", "--quiet"]) == 1
    assert "another export" in capsys.readouterr().err


def test_an_index_survives_its_document(store: Path, tmp_path: Path) -> None:
    index = export_webdataset(store, tmp_path, shards=1, **DRAWS)
    assert isinstance(index, ShardIndex)
    assert read_index(Storage(tmp_path)) == index
