"""The commands that apply a verdict."""

from __future__ import annotations

import itertools
import shlex
from typing import Any

import pytest

from tests.shootout.test_verdict import FACTS, TIERS
from zarr_core.__main__ import app
from zarr_core.shootout.candidates import ENTRIES, MATRIX_ENTRIES, Loader
from zarr_core.shootout.measurement import Measurement
from zarr_core.shootout.verdict import Case, judge


def test_the_command_of_a_matrix_copies_it_with_the_settings_and_derives_columns() -> None:
    ours, columns = MATRIX_ENTRIES[0], MATRIX_ENTRIES[-1]
    reads = {"samples": "whole samples", "features": "features of 8 samples"}
    facts = FACTS | {"unit": "features", "chunk_features": 100, "dataset_name": "betas", "reads": reads}
    few = Measurement("scratch", columns.with_settings("none", 100), "features", [10.0])
    for codec, command in (
        ("zstd:3", "matrix reindex /data/store /scratch/betas --chunk-features 100 --codec zstd:3"),
        ("none", "matrix /data/store --derive-columns"),
    ):
        whole = Measurement("scratch", ours.with_settings(codec, 100), "samples", [5.0])
        found = judge(Case([whole, few], TIERS, facts, {}, batch_size=8))
        assert found["command"].splitlines()[0] == f"zarr-core {command}"
    assert "To read features of 8 samples: zarr_core, column-major copy, chunk_features 100, none, no" in str(found)
    exported = Measurement("scratch", MATRIX_ENTRIES[2], "samples", [9.0])
    found = judge(Case([whole, exported], TIERS, facts, {}, batch_size=8))
    assert found["command"].splitlines() == [
        "zarr-core export h5ad /data/store /scratch/betas.h5ad",
        "DataLoader(dataset, batch_size=8, num_workers=0)",
        "# or the best setting of a store:",
        "zarr-core stage /scratch/betas --source /data/store",
        "DataLoader(dataset, batch_size=8, num_workers=0)",
    ]


@pytest.mark.parametrize(
    ("chunk", "command"),
    [
        (4096, "zarr-core stage /scratch/cars --source s3://bucket/cars --layout directory"),
        (
            2048,
            "zarr-core convert s3://bucket/cars --source SOURCE --dataset-kind ahmedml --reconvert --chunk-points 2048",
        ),
    ],
)
def test_a_copy_has_another_layout_and_the_store_in_the_bucket_keeps_its_own(chunk: int, command: str) -> None:
    facts = FACTS | {"source": "s3://bucket/cars", "layout": "packed"}
    best = Measurement("scratch", ENTRIES[0].with_settings("none", chunk, "directory"), "draws", [9.0])
    found = judge(Case([best], TIERS, facts, {}, batch_size=8))
    assert found["command"].splitlines()[0].startswith(command)


@pytest.mark.parametrize("unit", ["points", "features"])
def test_every_command_is_accepted_by_the_command_line(unit: str) -> None:
    entries = ENTRIES if unit == "points" else MATRIX_ENTRIES
    kinds = {(entry.is_store, entry.export): entry for entry in entries}.values()
    seen: set[str] = set()
    for source, is_store, tier, entry, codec, with_store in itertools.product(
        ("/scratch/cars", "/scratch2/cars", "s3://bucket/cars"),
        (True, False) if unit == "points" else (True,),
        TIERS,
        kinds,
        ("none", "zstd:3"),
        (True, False),
    ):
        reads = {"samples": "samples", "features": "features"}
        facts = {**FACTS, "source": source, "is_store": is_store, "reads": reads, "unit": unit, f"chunk_{unit}": 100}
        measured = [
            Measurement(tier, entry.with_settings(codec, 100), "samples", [9.0], loader=Loader(2)),
            Measurement(tier, entries[-1].with_settings(codec, 100), "features", [1.0]),
            Measurement(tier, entries[0].with_settings(codec, 100), "samples", [5.0]),
        ]
        seen |= set(judge(Case(measured[: 2 + with_store], TIERS, facts, {}, batch_size=8))["command"].splitlines())
    found = [shlex.split(line)[1:] for line in sorted(seen) if line.startswith("zarr-core ")]
    assert len(found) > 10
    shapes = set()
    for command in found:
        paths = [word for word in command if "/" in word]
        assert len(set(paths)) == len(paths), f"{command}: source and target are the same"
        shape = tuple("PATH" if "/" in word else word for word in command)
        if shape not in shapes:
            app.parse_args(command, exit_on_error=False, print_error=False)
        shapes.add(shape)


def commands(named: Measurement, **facts: Any) -> list[str]:
    found: str = judge(Case([named], TIERS, FACTS | facts, {}, batch_size=8))["command"]
    return [line for line in found.splitlines()[:-1] if not line.startswith("# measured with")]


def test_a_store_is_staged_unless_it_lies_on_the_tier() -> None:
    named = Measurement("scratch", ENTRIES[0].with_settings("none", 4096), "draws", [5.0])
    assert commands(named, source="/scratch2/cars") == ["zarr-core stage /scratch/cars --source /scratch2/cars"]
    assert commands(named, source="/scratch/cars") == []
    matrix = Measurement("scratch", MATRIX_ENTRIES[0].with_settings("zstd:3", 64), "draws", [5.0])
    facts = {"source": "/scratch/cars", "unit": "features", "chunk_features": 100}
    assert commands(matrix, **facts) == [
        "zarr-core matrix reindex /scratch/cars /scratch/cars-64-zstd-3 --chunk-features 64 --codec zstd:3"
    ]


def test_an_export_has_a_shard_for_each_worker_and_a_store_to_read() -> None:
    (webdataset,) = (entry for entry in ENTRIES if entry.name == "WebDataset")
    named = Measurement("scratch", webdataset, "draws", [9.0], Loader(2))
    assert commands(named)[0] == ("zarr-core export webdataset /data/store /scratch/cars.webdataset --loader-workers 2")
    assert commands(named, source="/data/files", is_store=False) == [
        "zarr-core convert /scratch/cars --source /data/files --dataset-kind ahmedml",
        "zarr-core export webdataset /scratch/cars /scratch/cars.webdataset --loader-workers 2",
    ]
