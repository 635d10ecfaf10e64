"""Training from tar shards: every item once, equal ranks, resuming, damage."""

from __future__ import annotations

import pickle
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader
from torchdata.stateful_dataloader import StatefulDataLoader

from zarr_core import EpochBatchSampler, ResumableLoader, ShardStream, ZarrChunkReader, export_webdataset, write_sample
from zarr_core.datasets import collate
from zarr_core.errors import CorruptChunkError, StoreError, ZarrCoreError
from zarr_core.exports.stream import ShardItems
from zarr_core.points.convert.conversion import convert
from zarr_core.sources import SourceDescription

SAMPLES, DRAWS = 6, 4


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """24 draws in 4 shards. The first position of an item identifies it."""
    root = tmp_path_factory.mktemp("stream")
    rng = np.random.default_rng(0)
    for number in range(SAMPLES):
        arrays = {"surface_position": rng.random((40, 3)), "surface_pressure": rng.random(40)}
        write_sample(root / "store", f"run_{number}", arrays, **({} if number else {"chunk_points": 8}))
    export_webdataset(root / "store", root / "shards", shards=4, draws_per_sample=DRAWS, num_points={"surface": 8})
    return root / "shards"


def names(batches: Any) -> list[list[float]]:
    return [batch["surface_position"][:, 0, 0].tolist() for batch in batches]


def test_items_are_the_exported_draws(shards: Path) -> None:
    items = ShardItems(shards)
    reader = ZarrChunkReader(shards.parent / "store")
    for number, (_, item) in enumerate(items._items):
        expected = reader.read_sample(item.sample_id, {"surface": 8}, epoch=item.draw or 0)
        found = items[number]
        assert list(found) == list(expected)
        for name, values in expected.items():
            assert found[name].numpy().dtype == values.dtype
            np.testing.assert_array_equal(found[name].numpy(), values)


def test_an_index_names_the_sample_of_each_item(shards: Path) -> None:
    stream = ShardStream(shards, 4, with_index=True)
    reader = ZarrChunkReader(shards.parent / "store")
    for batch in DataLoader(stream, batch_size=4):
        assert batch["index"].dtype == torch.int64
        for index, values in zip(batch["index"].tolist(), batch["surface_position"], strict=True):
            whole = reader.read_sample(stream.items.sample_ids[index])["surface_position"]
            assert set(values[:, 0].tolist()) <= set(whole[:, 0].tolist())


def test_fields_that_some_samples_lack_are_named(tmp_path: Path) -> None:
    kind = SourceDescription(
        name="x",
        samples="*",
        files={"surface_position": "p.npy", "surface_friction": "f.npy"},
        optional=("surface_friction",),
    )
    for sample_id, names in {"a": "pf", "b": "p"}.items():
        (tmp_path / "data" / sample_id).mkdir(parents=True)
        for name in names:
            np.save(tmp_path / "data" / sample_id / f"{name}.npy", np.zeros((5, 3), np.float32))
    convert(kind, tmp_path / "store", root=tmp_path / "data")
    with pytest.warns(UserWarning, match=r"1 of 2 samples lack a field, such as b: .* fields=\['surface_position'\]"):
        export_webdataset(tmp_path / "store", tmp_path / "shards")
    for items in ([0, 1], [1, 0]):
        with pytest.raises(ZarrCoreError, match="surface_friction: 1 of the 2 items of a batch have no such field"):
            collate(ShardItems(tmp_path / "shards").__getitems__(items))


def test_an_epoch_has_every_item_once(shards: Path) -> None:
    found = names(DataLoader(_at(ShardStream(shards, 6, seed=1), 3), batch_size=6))
    assert [len(batch) for batch in found] == [6] * 4
    assert len(set(chain(*found))) == SAMPLES * DRAWS
    assert found != names(DataLoader(_at(ShardStream(shards, 6, seed=1), 4), batch_size=6))


def _at(stream: ShardStream, epoch: int) -> ShardStream:
    stream.set_epoch(epoch)
    return stream


def test_ranks_get_equal_parts_of_the_same_batches(shards: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = names(DataLoader(ShardStream(shards, 6), batch_size=6))
    parts = []
    for rank in range(3):
        monkeypatch.setenv("RANK", str(rank))
        monkeypatch.setenv("WORLD_SIZE", "3")
        parts.append(names(DataLoader(ShardStream(shards, 6), batch_size=2)))
    assert [list(chain(*batch)) for batch in zip(*parts, strict=True)] == whole


def test_a_stream_resumes_within_an_epoch(shards: Path) -> None:
    def loader() -> StatefulDataLoader:
        return StatefulDataLoader(_at(ShardStream(shards, 4, seed=5), 2), batch_size=4)

    whole = names(loader())
    first, resumed = loader(), loader()
    taken = iter(first)
    done = names([next(taken), next(taken)])
    resumed.load_state_dict(first.state_dict())
    assert done + names(resumed) == whole


def test_the_resumable_loader_takes_the_items(shards: Path) -> None:
    items = ShardItems(shards)
    loader = ResumableLoader(items, EpochBatchSampler.of(items, 8, seed=2))
    assert len(set(chain(*names(loader)))) == SAMPLES * DRAWS
    assert loader.state_dict()["fingerprint"] == items.fingerprint
    assert torch.equal(pickle.loads(pickle.dumps(items))[3]["surface_pressure"], items[3]["surface_pressure"])


def test_damage_is_named(shards: Path, tmp_path: Path) -> None:
    copy = tmp_path / "shards"
    copy.mkdir()
    for path in shards.iterdir():
        (copy / path.name).write_bytes(path.read_bytes())
    items = ShardItems(copy)
    shard, item = items._items[0]
    data = bytearray((copy / shard).read_bytes())
    data[item.offset + item.size - 700] ^= 1
    (copy / shard).write_bytes(data)
    with pytest.raises(CorruptChunkError, match=f"{shard}, item of {item.sample_id} at byte 0 is damaged"):
        items[0]
    items[1]
    (copy / items._items[-1][0]).unlink()
    with pytest.raises(CorruptChunkError, match="is missing"):
        items[-1]


def test_unfinished_exports_are_refused(shards: Path, tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="no index"):
        ShardStream(tmp_path, 2)
    text = (shards / "index.json").read_text().replace('"planned":4', '"planned":5')
    (tmp_path / "index.json").write_text(text)
    with pytest.raises(StoreError, match="4 of 5 shards"):
        ShardStream(tmp_path, 2)
