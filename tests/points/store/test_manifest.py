"""The manifest: its document, splits, and documents that cannot be read."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zarr_core.errors import ManifestError, UnknownFieldError
from zarr_core.points.store.head import load_manifest
from zarr_core.points.store.manifest import (
    ArrayColumn,
    DomainGrid,
    DomainLayout,
    Quarantine,
    SampleEntry,
    StoreManifest,
)

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


def published() -> dict:
    """A manifest with the keys of the published format and no others."""
    document = json.loads(manifest("a").to_json())
    for key in ("generation", "dataset_kind", "splits", "excluded", "quarantine"):
        del document[key]
    for entry in document["samples"].values():
        for key in ("fingerprint", "settings", "bytes"):
            del entry[key]
    return document


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
        (b'{"format_version":1,"x":' + b"[" * 100_000 + b"]" * 100_000 + b"}", "recursion limit exceeded"),
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
