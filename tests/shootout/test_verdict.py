"""The recommendation follows from the numbers."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from zarr_core.shootout.candidates import ENTRIES, MATRIX_ENTRIES, Candidate, candidate
from zarr_core.shootout.verdict import Measurement, choose, judge

TIERS = {
    "scratch": {"name": "scratch", "url": "/scratch", "local": True, "inodes_free": 1000},
    "bucket": {"name": "bucket", "url": "s3://bucket", "local": False},
}
FACTS: dict[str, Any] = {
    "source": "/data/store",
    "is_store": True,
    "dataset_kind": "ahmedml",
    "dataset_name": "cars",
    "samples": 8,
    "samples_total": 500,
    "bytes_raw": 8e6,
    "codec": "none",
    "chunk_points": 4096,
    "unit": "points",
    "reads": {"draws": "draws", "samples": "whole samples"},
}


def ours(tier: str, *rates: float, **more: Any) -> Measurement:
    chosen = candidate(ENTRIES[0], "blosc-lz4", 16384, "points")
    return Measurement(tier, chosen, "draws", list(rates), **{"bytes": 1e6, "inodes": 20.0, **more})


def mapped(*rates: float, **more: Any) -> Measurement:
    return Measurement("scratch", Candidate(ENTRIES[1]), "draws", list(rates), first=100.0, memory=3050.0, **more)


def verdict(*measured: Measurement, **more: Any) -> dict[str, Any]:
    arguments: dict[str, Any] = {"batch_size": 8, **more}
    return judge(measured, TIERS, FACTS, {"scratch": 1e8}, **arguments)


def test_the_bucket_is_named_as_bottleneck_with_the_way_out() -> None:
    found = verdict(
        ours("scratch", 2000, 2100, 2165, memory=2200.0),
        ours("bucket", 90, 95, 100, memory=2200.0, requests=4.0),
        price_per_1000_gets=0.5,
    )
    assert found["headline"] == (
        "zarr_core, chunk_points 16384, blosc-lz4:5, no workers, on scratch. "
        "bucket is the bottleneck: stage to scratch."
    )
    text = "\n".join(found["reasons"])
    assert "It waits for storage 96% of the time in later epochs." in text
    # 500 samples of 1 MB at 100 MB/s take 5 s, reading them from the bucket 5.26 s; an epoch saves 5.02 s.
    assert "Staging 500 MB from bucket to scratch pays after about 2 epochs." in text
    assert "zarr_core needs 20 inodes and 1 MB per sample: more than the 1,000 inodes that are free on scratch" in text
    assert "An epoch of 500 samples from bucket costs 1 for 2,000 requests." in text
    assert found["command"].splitlines() == [
        "zarr-core convert /data/store --source SOURCE --dataset-kind ahmedml --reconvert --chunk-points 16384 "
        "--codec blosc-lz4:5",
        "zarr-core stage /scratch/cars --source /data/store",
        "DataLoader(dataset, batch_size=8, num_workers=0)",
    ]


def test_another_format_wins_where_it_is_faster_and_the_best_store_is_named_too() -> None:
    found = verdict(
        ours("scratch", 1000, 1001, memory=1000.0),
        mapped(3000.0, 3100.0, inodes=8),
    )
    assert found["headline"].startswith(".npy, no workers, on scratch. scratch is the bottleneck of the first epoch")
    assert found["store"]["format"] == "zarr_core"
    assert "zarr-core does not write .npy" in found["command"]


def test_the_command_of_a_matrix_copies_it_with_the_settings_and_derives_columns() -> None:
    ours, columns = MATRIX_ENTRIES[0], MATRIX_ENTRIES[-1]
    reads = {"samples": "whole samples", "features": "features of 8 samples"}
    facts = FACTS | {"unit": "features", "chunk_features": 100, "dataset_name": "betas", "reads": reads}
    few = Measurement("scratch", candidate(columns, "none", 100, "features"), "features", [10.0])
    for codec, command in (
        ("zstd:3", "matrix reindex /data/store /scratch/betas --chunk-features 100 --codec zstd:3"),
        ("none", "matrix /data/store --derive-columns"),
    ):
        whole = Measurement("scratch", candidate(ours, codec, 100, "features"), "samples", [5.0])
        found = judge([whole, few], TIERS, facts, {}, batch_size=8)
        assert found["command"].splitlines()[0] == f"zarr-core {command}"
    assert "To read features of 8 samples: zarr_core, column-major copy, chunk_features 100, none, no" in str(found)
    exported = Measurement("scratch", Candidate(MATRIX_ENTRIES[2]), "samples", [9.0])
    found = judge([whole, exported], TIERS, facts, {}, batch_size=8)
    assert found["command"].splitlines() == [
        "zarr-core export h5ad /data/store /scratch/betas.h5ad",
        "DataLoader(dataset, batch_size=8, num_workers=0)",
        "# or the best setting of a store:",
        "zarr-core stage /scratch/betas --source /data/store",
        "DataLoader(dataset, batch_size=8, num_workers=0)",
    ]


def test_only_settings_that_took_all_their_turns_are_compared() -> None:
    quiet, compared = ours("scratch", 2000), ours("scratch", 1000, workers=1, compared=True)
    assert choose([quiet, compared]) is compared


def test_without_a_slow_tier_decoding_is_the_bottleneck() -> None:
    assert verdict(ours("scratch", 1000, memory=1100.0))["bottleneck"] == (
        "Decoding and copying are the bottleneck, not storage."
    )


def test_first_epochs_decide_where_the_data_do_not_fit_into_memory() -> None:
    npy = mapped(3000.0, bytes=1e6)
    store = ours("scratch", 1000, first=400.0, memory=1000.0)
    small = verdict(npy, store, memory_bytes=10**9)
    assert small["setting"]["format"] == ".npy"
    assert any(reason.startswith("In the first epoch, and in each epoch of data that") for reason in small["reasons"])
    large = verdict(npy, store, memory_bytes=10**8)
    assert large["setting"]["format"] == "zarr_core"
    assert large["reasons"][0].startswith("All samples take 500 MB, more than the memory of this machine")


measurements = st.builds(
    lambda rates, workers, size: ours("scratch", *rates, workers=workers, bytes=size),
    st.lists(st.floats(1, 1e4), min_size=1, max_size=6),
    st.integers(0, 4),
    st.floats(1, 1e7),
)


@settings(max_examples=50)
@given(st.lists(measurements, min_size=1, max_size=6))
def test_the_setting_named_is_the_best_one_within_its_error(measured: list[Measurement]) -> None:
    named, best = choose(measured), max(measured, key=lambda m: m.median)
    assert named.median >= 0.95 * best.median
    assert named is best or named.high >= best.low
    assert named.workers <= best.workers


def test_of_two_that_cannot_be_told_apart_the_one_without_workers_is_named() -> None:
    with_workers, without = ours("scratch", 1000, 1100, 1200, workers=2), ours("scratch", 990, 1050, 1150)
    assert choose([with_workers, without]) is without
    clearly_slower = ours("scratch", 700, 710, 720)
    assert choose([with_workers, clearly_slower]) is with_workers
