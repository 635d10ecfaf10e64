"""Deep verification: each kind of damage is found wherever it lies, with the commit that brought the sample."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

import zarr_core.points.verify.generations
import zarr_core.points.verify.store
from tests.helpers.small_source import KIND, write_source
from zarr_core.errors import UnknownFieldError
from zarr_core.points.convert.conversion import convert, iter_convert
from zarr_core.points.convert.publish import publish
from zarr_core.points.store.head import HEAD, load_manifest
from zarr_core.points.store.manifest import StoreManifest
from zarr_core.points.verify.store import verify_store
from zarr_core.storage import Storage
from zarr_core.verify import main
from zarr_core.versioning.gc import collect_garbage
from zarr_core.versioning.tags import make_tag


@pytest.fixture(scope="module")
def pristine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Generation 1 brings run_1 and run_2, 2 brings run_3, 3 replaces run_1."""
    store = tmp_path_factory.mktemp("pristine") / "store"
    source = write_source(store.parent / "source")
    settings = {"source_url": str(source), "chunk_points": 16, "shard_points": 64}
    convert(KIND, store, sample_ids=["run_1", "run_2"], **settings)
    convert(KIND, store, **settings)
    other = settings | {"chunk_points": 32, "reconvert": True}
    assert len(list(iter_convert(KIND, store, sample_ids=["run_1"], **other))) == 1
    publish(KIND, store, **other)
    return store


@pytest.fixture
def store(pristine: Path, tmp_path: Path) -> Path:
    shutil.copytree(pristine, tmp_path / "store")
    return tmp_path / "store"


def group(store: Path, sample_id: str, generation: int | None = None) -> Path:
    return store / load_manifest(store, generation).samples[sample_id].relpath


def problems(store: Path, **options: bool) -> list[str]:
    return [str(problem) for problem in verify_store(str(store), deep=True, **options).problems]


def edit(path: Path, change: Callable[[dict], None]) -> None:
    document = json.loads(path.read_text())
    change(document)
    path.write_text(json.dumps(document, separators=(",", ":")) + "\n")


def edit_manifest(store: Path, change: Callable[[dict], None]) -> None:
    """In the manifest and in the generation that keeps it, so that they still agree."""
    edit(store / "manifest.json", change)
    edit(store / "generations" / "00000003.json", change)


def test_an_intact_store_has_no_problems(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report = verify_store(str(store), deep=True)
    assert report.ok
    assert (report.samples, report.generations) == (4, 3)  # run_1 is there twice
    assert main([str(store), "--deep", "--workers", "2"]) == 0
    assert "all sound: 4 samples, 28 arrays" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("sample_id", "generation", "commit"),
    [
        ("run_2", 3, "generation 1"),
        ("run_3", 3, "generation 2"),
        ("run_1", 3, "generation 3"),
        ("run_1", 1, "generation 1"),
    ],
)
def test_a_flipped_byte(store: Path, sample_id: str, generation: int, commit: str) -> None:
    shard = group(store, sample_id, generation) / "surface/pressure/c/0/0"
    data = bytearray(shard.read_bytes())
    data[1] ^= 4
    shard.write_bytes(data)
    where = f"{sample_id}, surface_pressure: chunk 0: checksum mismatch (surface/pressure/c/0/0)"
    assert problems(store) == [f"{where}; committed in {commit}"]


def test_a_missing_shard(store: Path) -> None:
    (group(store, "run_3") / "volume/velocity/c/1/0").unlink()
    found = problems(store)
    assert found
    assert all(line.startswith("run_3, volume_velocity: shard 1:") for line in found)
    assert all(line.endswith("; committed in generation 2") for line in found)


def test_an_extra_object_in_a_group(store: Path) -> None:
    (group(store, "run_2") / "surface/pressure/c/9").mkdir()
    (group(store, "run_2") / "surface/pressure/c/9/0").write_bytes(b"extra")
    (group(store, "run_1", 2) / "notes").write_bytes(b"extra")
    assert problems(store) == [
        "run_2: surface/pressure/c/9/0 belongs to no array of the manifest; committed in generation 1",
        "run_1: notes belongs to no array of the manifest; committed in generation 1",
    ]


def test_extra_objects_elsewhere(store: Path) -> None:
    for name in ("samples/readme", "samples/run_1/notes.txt", "generations/backup.json"):
        (store / name).write_bytes(b"extra")
    (store / "notes.txt").write_bytes(b"beside the store's own objects one may keep others")
    assert sorted(problems(store)) == [
        "generations/backup.json is not the archive of a generation",
        "samples/readme is not an object that a conversion writes",
        "samples/run_1/notes.txt is not an object that a conversion writes",
    ]


def test_a_manifest_entry_without_a_group(store: Path) -> None:
    gone = group(store, "run_3")
    shutil.rmtree(gone)
    name = gone.relative_to(store)
    assert problems(store) == [f"run_3: {name}/zarr.json is missing; committed in generation 2"]


def test_a_group_whose_grid_disagrees(store: Path) -> None:
    def shrink(document: dict) -> None:
        document["samples"]["run_1"]["domains"]["surface"] |= {"n_points": 64, "n_chunks": 2}

    edit_manifest(store, shrink)
    found = problems(store)
    assert "run_1, surface_pressure: points: the array has 70, the manifest says 64; committed in generation 3" in found
    assert all(line.startswith("run_1, surface_") for line in found)


def test_a_group_whose_grid_disagrees_with_an_earlier_generation_only(store: Path) -> None:
    def shrink(document: dict) -> None:
        document["samples"]["run_2"]["domains"]["surface"] |= {"n_points": 64, "n_chunks": 4}

    edit(store / "generations" / "00000002.json", shrink)
    assert verify_store(str(store)).ok
    found = problems(store)
    assert "run_2, surface_pressure: points: the array has 77, the manifest says 64; committed in generation 1" in found


def test_earlier_generations_that_cannot_be_read(store: Path) -> None:
    (store / "generations" / "00000001.json").write_text("{}")
    edit(store / "generations" / "00000002.json", lambda document: document.update(generation=7))
    found = problems(store)
    assert len(found) == 2
    assert "00000002.json holds generation 7" in found[0]
    assert "00000001.json is not a store manifest" in found[1]


def test_a_tag_of_a_generation_whose_committer_died_before_it_archived_it(store: Path) -> None:
    make_tag(Storage(store), HEAD, "current")
    archive = store / "generations" / "00000003.json"
    archive.unlink()
    assert verify_store(store, deep=True).ok, "the next commit archives it"


def test_leftovers_of_a_garbage_collection(store: Path) -> None:
    make_tag(Storage(store), HEAD, "first", 1)
    for path in store.rglob("*"):
        os.utime(path, (1e9, 1e9))
    orphan = store / "samples" / "run_9" / "0123456789abcdef" / "zarr.json"
    orphan.parent.mkdir(parents=True)
    orphan.write_text("{}")
    collect_garbage(Storage(store), HEAD, 3600)
    report = verify_store(str(store), deep=True)
    assert (report.ok, report.generations, report.unnamed) == (True, 2, 1)
    (store / "generations" / "00000001.json").unlink()
    shard = group(store, "run_3") / "surface/pressure/c/0/0"
    shard.write_bytes(shard.read_bytes()[:-1])
    found = problems(store)
    assert any("tag 'first' names generation 1, but" in line for line in found)
    assert any(line.endswith("; committed in generation 3 or before") for line in found)


def test_a_collection_while_it_is_verified_is_no_damage(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before the generations are looked up, between the documents of two, and between a document and its groups."""
    for path in store.rglob("*"):
        os.utime(path, (1e9, 1e9))
    load = zarr_core.points.verify.generations.load_manifest
    for moment in (None, 2, 1):
        copy = shutil.copytree(store, store.parent / f"copy_{moment}")

        def collected(
            storage: Storage, generation: int | None = None, moment: int | None = moment, copy: Path = copy
        ) -> StoreManifest:
            found = load(storage, generation)
            if generation == moment:
                collect_garbage(Storage(copy), HEAD, 3600)
            return found

        with monkeypatch.context() as patched:
            patched.setattr(
                zarr_core.points.verify.generations if moment else zarr_core.points.verify.store,
                "load_manifest",
                collected,
            )
            assert problems(copy) == []
        assert not (copy / "generations" / "00000001.json").exists()


def test_temporary_files_of_committers_are_no_damage(store: Path) -> None:
    for name in (f".00000004.json.{'0' * 32}.tmp", ".create.lock"):
        (store / "generations" / name).write_bytes(b"")
    assert problems(store) == []


def test_only_some_samples(store: Path) -> None:
    (store / "samples" / "readme").write_bytes(b"extra")
    shutil.rmtree(group(store, "run_3"))
    report = verify_store(str(store), deep=True, sample_ids=["run_1"])
    assert (report.ok, report.samples) == (True, 2)


def test_a_sample_that_only_an_earlier_generation_holds_can_be_requested(store: Path) -> None:
    """Only of a deep verification: the current generation does not hold it."""
    edit_manifest(store, lambda document: document["samples"].pop("run_2"))
    with pytest.raises(UnknownFieldError, match="run_2"):
        verify_store(str(store), sample_ids=["run_2"])
    with pytest.raises(UnknownFieldError, match="run_9"):
        verify_store(str(store), deep=True, sample_ids=["run_2", "run_9"])
    shutil.rmtree(group(store, "run_2", 2))
    assert verify_store(str(store), deep=True, sample_ids=["run_2"]).damaged == ["run_2"]
