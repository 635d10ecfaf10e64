"""Archives of generations: large documents are compressed, and tell what their commit changed."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pytest

from tests.helpers.commits import add
from zarr_core import WideMatrix, gc, log, verify_store, write_sample
from zarr_core.errors import ManifestError, StoreError
from zarr_core.exports.croissant import croissant_document
from zarr_core.matrix.verify import verify_matrix
from zarr_core.points.stage.store import stage_store
from zarr_core.points.store.head import HEAD, load_manifest
from zarr_core.points.store.manifest import SampleEntry, StoreManifest
from zarr_core.storage import Storage
from zarr_core.stores.summary import store_info
from zarr_core.versioning import archive
from zarr_core.versioning.gc import collect_garbage
from zarr_core.versioning.generations import Change, commit, load
from zarr_core.versioning.history import commits
from zarr_core.versioning.tags import make_tag


def many(count: int) -> dict[str, SampleEntry]:
    return {f"run_{number}": SampleEntry(f"samples/run_{number}/x", {}) for number in range(count)}


@pytest.fixture
def storage(tmp_path: Path) -> Storage:
    """A store with three generations: one sample, 1,000 samples, and one more."""
    storage = Storage(tmp_path / "store")
    commit(storage, HEAD, add("a"))
    commit(storage, HEAD, lambda current: replace(current or StoreManifest("test"), samples=many(1000)))
    commit(storage, HEAD, add("b"))
    return storage


@pytest.fixture
def compressed() -> Iterator[None]:
    """Small documents are compressed, too."""
    with patch.object(archive, "_PLAIN_BYTES", 0):
        yield


def test_large_documents_are_compressed_and_remain_manifests(storage: Storage) -> None:
    assert sorted(storage.list("generations")) == [
        "generations/00000001.json",
        "generations/00000002.json.gz",
        "generations/00000003.json.gz",
    ]
    head = storage.read("manifest.json")
    data = storage.read("generations/00000003.json.gz")
    assert 5 * len(data) < len(head)
    document = json.loads(gzip.decompress(data))
    assert document.pop("commit") == {"since": 2, "changes": [{"what": "added", "names": ["b"], "note": ""}]}
    assert document == json.loads(head)
    assert [len(load(storage, HEAD, number).samples) for number in (1, 2, 3)] == [1, 1000, 1001]
    make_tag(storage, HEAD, "paper", 2)
    assert load(storage, HEAD, "paper").generation == 2


def test_a_generation_opens_with_one_read_besides_the_head(storage: Storage) -> None:
    with patch.object(Storage, "read", autospec=True, side_effect=Storage.read) as read:
        load(storage, HEAD, 2)
    done = [call.args[1] for call in read.call_args_list]
    assert done == ["manifest.json", "generations/00000002.json", "generations/00000002.json.gz"], (
        "the first is missing"
    )


def test_the_log_reads_the_beginning_of_each_large_generation(
    storage: Storage, capsys: pytest.CaptureFixture[str]
) -> None:
    with patch("zarr_core.versioning.history.load", side_effect=load) as loaded:
        found = list(commits(storage, HEAD))
    assert [call.args[2:] for call in loaded.call_args_list] == [(), (1,)], "the head, and the small one"
    compared = [HEAD.changes(load(storage, HEAD, number), load(storage, HEAD, number + 1)) for number in (2, 1)]
    assert [commit.changes for commit in found] == [*compared, [Change("added", ("a",))]]
    with patch.object(archive, "_HEAD_BYTES", 10):  # the names need more
        assert list(commits(storage, HEAD)) == found
    archive_of = storage.path("generations/00000002.json.gz")
    Path(archive_of).unlink()
    assert [(commit.generation, commit.since) for commit in commits(storage, HEAD)] == [(3, 1), (1, None)]
    assert "run_999" in next(commits(storage, HEAD)).changes[0].names, "compared with generation 1"
    assert log.main([storage.url]) == 0
    assert "those between have been collected" in capsys.readouterr().out


def test_a_large_generation_that_an_earlier_version_archived_is_read(storage: Storage) -> None:
    with patch.object(archive, "_PLAIN_BYTES", 1 << 30):
        commit(storage, HEAD, add("c"))
    commit(storage, HEAD, add("d"))
    assert storage.exists("generations/00000004.json")
    assert len(load(storage, HEAD, 4).samples) == 1002
    assert [[change.names for change in found.changes] for found in commits(storage, HEAD)][:3] == [
        [("d",)],
        [("c",)],
        [("b",)],
    ]


def test_no_number_is_given_twice(storage: Storage) -> None:
    storage.write("manifest.json", [storage.read("generations/00000001.json")])  # restored from a backup
    assert commit(storage, HEAD, add("b")).generation == 1 + 3


def test_a_committer_that_died_is_archived_by_the_next(storage: Storage) -> None:
    storage.delete(["generations/00000003.json.gz"])
    commit(storage, HEAD, add("c"))
    assert len(load(storage, HEAD, 3).samples) == 1001
    assert [[change.names for change in found.changes] for found in commits(storage, HEAD)][:2] == [[("c",)], [("b",)]]


@pytest.mark.usefixtures("compressed")
def test_every_verb_knows_them(tmp_path: Path) -> None:
    store, copy = str(tmp_path / "store"), str(tmp_path / "copy")
    for number in range(3):
        write_sample(store, f"run_{number}", {"surface_position": [[float(number), 0, 0]] * 5})
    assert verify_store(store, deep=True).generations == 3
    assert verify_store(store, deep=True).ok
    assert store_info(store, generation=2).committed == pytest.approx(store_info(store).committed, abs=60)
    stage_store(store, copy, generation=2)
    assert list(load_manifest(copy).samples) == ["run_0", "run_1"]
    manifest = croissant_document(store, generation=2)["distribution"][0]
    assert (manifest["contentUrl"][-7:], manifest["encodingFormat"]) == ("json.gz", "application/gzip")
    make_tag(Storage(store), HEAD, "paper", 2)
    assert gc.main([store, "--grace", "0s", "--quiet"]) == 0
    assert sorted(Storage(store).list("generations")) == [
        "generations/00000002.json.gz",
        "generations/00000003.json.gz",
    ]
    Path(store, "generations/00000002.json.gz").write_bytes(b"damaged")
    assert "00000002.json.gz is damaged" in str(verify_store(store, deep=True).problems)


@pytest.mark.usefixtures("compressed")
def test_a_matrix_has_them_too(tmp_path: Path) -> None:
    matrix = WideMatrix.create(tmp_path / "matrix", ["a", "b"])
    for number in range(3):
        values = {name: [[number, 1.0]] for name in matrix.values}
        matrix.append(f"b{number}", [f"s{number}"], {name: np.float32(v) for name, v in values.items()})
    assert sorted(path.suffix for path in Path(matrix.url, "generations").iterdir()) == [".gz"] * 4
    assert WideMatrix.open(matrix.url, generation=2).sample_ids == ["s0"]
    assert verify_matrix(matrix.url).problems == []
    matrix.retire(["s0"])
    matrix.forget_retired()
    with pytest.raises(StoreError, match="collected"):
        WideMatrix.open(matrix.url, generation=2)


@pytest.mark.parametrize("damage", ["cut", "flipped", "empty", "a bomb", "not an object"])
def test_a_damaged_archive_is_named(storage: Storage, damage: str, monkeypatch: pytest.MonkeyPatch) -> None:
    path = Path(storage.path("generations/00000002.json.gz"))
    data = path.read_bytes()
    match damage:
        case "cut":
            path.write_bytes(data[:-9])
        case "flipped":
            path.write_bytes(data[:-100] + bytes([data[-100] ^ 1]) + data[-99:])
        case "empty":
            path.write_bytes(b"")
        case "a bomb":
            monkeypatch.setattr(archive, "_LARGEST", 10_000)
        case "not an object":
            path.write_bytes(gzip.compress(b'{"commit":[],') + gzip.compress(b"}"))
    with pytest.raises(ManifestError, match="00000002"):
        load(storage, HEAD, 2)
    if damage in ("a bomb", "not an object"):
        with pytest.raises(ManifestError, match="00000002"):
            list(commits(storage, HEAD))


@pytest.mark.usefixtures("compressed")
def test_a_collection_deletes_both_forms(tmp_path: Path) -> None:
    storage = Storage(tmp_path)
    for name in "abc":
        commit(storage, HEAD, add(name))
    storage.create("generations/00000001.json", storage.read("manifest.json"))
    collect_garbage(storage, HEAD, 0)
    assert list(storage.list("generations")) == ["generations/00000003.json.gz"]
