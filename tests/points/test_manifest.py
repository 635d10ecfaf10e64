"""The manifest: parsing, commits, generations."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.helpers import fork_server
from zarr_core.errors import ManifestError, StoreError, UnknownFieldError
from zarr_core.points.manifest import (
    HEAD,
    ArrayColumn,
    DomainGrid,
    DomainLayout,
    Quarantine,
    SampleEntry,
    StoreManifest,
    load_manifest,
)
from zarr_core.storage import Storage
from zarr_core.versioning.generations import commit, generation_name

GRID = DomainGrid(100, 30, 120, 4)
COLUMN = ArrayColumn("surface/position", "surface_position", "float32", 3)


def manifest(*sample_ids: str) -> StoreManifest:
    return StoreManifest(
        "cars",
        domains={"surface": DomainLayout("surface_position", {"surface_position": COLUMN})},
        samples={i: SampleEntry(f"samples/{i}/0", {"surface": GRID}, "f", "s", 7) for i in sample_ids},
        splits={"train": ["a", "b", "zz"]},
        excluded=frozenset({"b"}),
        quarantine={"q": Quarantine("f", "s", "surface_pressure", "NaN")},
    )


def add(sample_id: str):
    def change(current: StoreManifest | None) -> StoreManifest:
        start = current or manifest()
        entry = SampleEntry(f"samples/{sample_id}/0", {"surface": GRID})
        return replace(start, samples=dict(start.samples) | {sample_id: entry})

    return change


ids = st.text("abcXYZ019._-", min_size=1, max_size=8).filter(lambda text: text not in (".", ".."))


@given(st.lists(ids, unique=True))
def test_a_manifest_survives_its_json(sample_ids: list[str]) -> None:
    before = manifest(*sample_ids)
    assert StoreManifest.from_json(before.to_json()) == before
    assert StoreManifest.from_json(before.to_json()).to_json() == before.to_json()


def test_splits_leave_out_what_is_blacklisted_or_absent() -> None:
    assert manifest("a", "b").split_ids("train") == ["a"]
    assert manifest("a", "b").split_ids("train", present_only=False) == ["a", "zz"]
    with pytest.raises(UnknownFieldError, match="no split 'val'; it has: train"):
        manifest("a").split_ids("val")


def test_generations_are_numbered_and_kept(any_root: str) -> None:
    storage = Storage(any_root)
    for number, sample_id in enumerate("abc", start=1):
        assert commit(storage, HEAD, add(sample_id)).generation == number
    assert list(load_manifest(any_root).samples) == ["a", "b", "c"]
    assert list(load_manifest(any_root, generation=2).samples) == ["a", "b"]
    assert list(load_manifest(any_root, generation=1).samples) == ["a"]
    with pytest.raises(StoreError, match="no generation 9; the current one is 3"):
        load_manifest(any_root, generation=9)


def test_nothing_changed_is_nothing_committed(tmp_path: Path) -> None:
    storage = Storage(tmp_path)
    commit(storage, HEAD, add("a"))
    before = storage.list()
    assert commit(storage, HEAD, lambda current: current).generation == 1
    assert storage.list() == before


def _commit_many(root: str, prefix: str, count: int) -> None:
    for number in range(count):
        commit(Storage(root), HEAD, add(f"{prefix}{number}"))


def test_no_update_is_lost_between_processes(tmp_path: Path) -> None:
    processes = [fork_server.start(_commit_many, str(tmp_path), name, 5) for name in "abcd"]
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0] * 4
    final = load_manifest(tmp_path)
    assert sorted(final.samples) == sorted(f"{name}{number}" for name in "abcd" for number in range(5))
    assert final.generation == 20
    for generation in range(1, 21):
        assert len(load_manifest(tmp_path, generation=generation).samples) == generation


def test_a_committer_that_died_before_archiving_loses_no_generation(tmp_path: Path) -> None:
    storage = Storage(tmp_path)
    commit(storage, HEAD, add("a"))
    Path(tmp_path, generation_name(1)).unlink()  # as if it had been killed right after the swap
    assert list(load_manifest(tmp_path, generation=1).samples) == ["a"]
    commit(storage, HEAD, add("b"))
    assert list(load_manifest(tmp_path, generation=1).samples) == ["a"]


def published() -> dict:
    """A manifest with the keys of the published format and no others."""
    document = json.loads(manifest("a").to_json())
    for key in ("generation", "dataset_kind", "splits", "excluded", "quarantine"):
        del document[key]
    for entry in document["samples"].values():
        for key in ("fingerprint", "settings", "bytes"):
            del entry[key]
    return document


def test_a_published_store_keeps_its_splits_in_files(tmp_path: Path) -> None:
    (tmp_path / "manifest.json").write_text(json.dumps(published()))
    (tmp_path / "train_design_ids.txt").write_text("a\nb\n\n")
    (tmp_path / "blacklist.txt").write_text("/x/b.vtk\n")
    read = load_manifest(tmp_path)
    assert (read.generation, read.splits, read.excluded) == (0, {"train": ["a", "b"]}, {"b"})
    assert commit(Storage(tmp_path), HEAD, add("c")).generation == 1
    assert list(load_manifest(tmp_path, generation=0).samples) == ["a"]


def damaged(**changes: object) -> bytes:
    return json.dumps(published() | changes).encode()


def grid(**changes: object) -> dict:
    entry = published()["samples"]["a"]
    entry["domains"]["surface"] |= changes
    return {"a": entry}


def column(**changes: object) -> dict:
    domains = published()["domains"]
    domains["surface"]["arrays"]["surface_position"] |= changes
    return domains


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "not a store manifest"),
        (b"\xff\x00", "not a store manifest"),
        (b"[]", "not a store manifest"),
        (b"{}", "not a store manifest"),
        (damaged(format_version=2), "format version 2"),
        (damaged(format_version=True), "format_version is True, expected int"),
        (damaged(domains=None), "domains is None: input should be a valid dictionary"),
        (damaged(retention={"tags": []}), "retention"),
        (damaged(domains={"surface": []}), "domains.surface is []: input should be a dictionary"),
        (damaged(samples={"a": {"relpath": "a"}}), "samples.a.domains is missing"),
        (damaged(samples=[]), "samples is []: input should be a valid dictionary"),
        (b'{"format_version":1,"x":' + b"[" * 100_000 + b"]" * 100_000 + b"}", "nested too deeply"),
        (json.dumps({"format_version": 1, "dataset_name": "a"}).encode(), "shuffle_seed is missing"),
        (damaged(dataset_name=["x"]), "dataset_name is ['x']: input should be a valid string"),
        (damaged(generation=1.5), "generation is 1.5: input should be a valid integer"),
        (damaged(generation=-1), "generation is -1"),
        (damaged(splits={"train": "abc"}), "splits.train is 'abc': input should be a valid list"),
        (
            damaged(quarantine={"q": {"fingerprint": 1}}),
            "quarantine.q.fingerprint is 1: input should be",
        ),
        (damaged(domains=column(array_name="surface/pressure")), "cannot be stored as 'surface/pressure'"),
        (damaged(domains=column(array_name="surface/../../../etc")), "leaves the folder"),
        (damaged(domains=column(dtype="load")), "surface_position.dtype is 'load'"),
        (damaged(domains=column(dim=10**15)), "is 1000000000000000"),
        (damaged(samples={"a": published()["samples"]["a"] | {"relpath": "a\0b"}}), "leaves the folder"),
        (
            damaged(samples={"a": published()["samples"]["a"] | {"bytes": True}}),
            "samples.a.bytes is True",
        ),
        (damaged(samples={"../x": published()["samples"]["a"]}), "'../x'"),
        (damaged(samples={"a": published()["samples"]["a"] | {"relpath": "../../etc"}}), "leaves the folder"),
        (damaged(samples={"a": published()["samples"]["a"] | {"relpath": "/etc"}}), "leaves the folder"),
        (damaged(samples=grid(n_chunks=5)), "samples.a.domains.surface: 5 chunks of 30 points cannot hold 100 points"),
        (damaged(samples=grid(n_points=0)), "samples.a.domains.surface.n_points is 0"),
        (damaged(samples=grid(chunk_points="many")), "chunk_points is 'many': input should be a valid integer"),
        (damaged(samples=grid(n_points=10**15)), "is 1000000000000000"),
        (damaged(samples=grid(n_points=10**11, chunk_points=1, n_chunks=10**11)), "is 100000000000"),
    ],
)
def test_an_unreadable_manifest_is_a_clear_error(tmp_path: Path, data: bytes, reason: str) -> None:
    (tmp_path / "manifest.json").write_bytes(data)
    with pytest.raises(ManifestError, match="manifest.json") as caught:
        load_manifest(tmp_path)
    assert reason in str(caught.value)


def test_a_place_without_a_store(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="holds no manifest.json"):
        load_manifest(tmp_path)
