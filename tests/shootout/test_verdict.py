"""The recommendation follows from the numbers."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from zarr_core.shootout.candidates import BOUNDED, ENTRIES, LOSSY, Loader
from zarr_core.shootout.measurement import Measurement, choose
from zarr_core.shootout.page import _cards
from zarr_core.shootout.verdict import Case, format_rate, judge

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
    chosen = ENTRIES[0].with_settings("blosc-lz4", 16384)
    return Measurement(tier, chosen, "draws", list(rates), **{"bytes": 1e6, "inodes": 20.0, **more})


def mapped(*rates: float, **more: Any) -> Measurement:
    return Measurement("scratch", ENTRIES[1], "draws", list(rates), first=100.0, memory=3050.0, **more)


def verdict(*measured: Measurement, **more: Any) -> dict[str, Any]:
    arguments: dict[str, Any] = {"batch_size": 8, **more}
    return judge(Case(measured, TIERS, FACTS, {"scratch": 1e8}, **arguments))


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
        "# measured with `dtype: stored` in the dataset's config, and torch.set_num_threads(1):",
        "DataLoader(dataset, batch_size=8, num_workers=0)",
    ]


def test_a_tier_and_formats_that_the_budget_left_out_are_named() -> None:
    reasons = verdict(ours("scratch", 2000, 2100, 2165))["reasons"]
    assert "bucket was not compared: see what was not measured, and why." in reasons
    assert "No other format than zarr_core was compared: see what was not measured, and why." in reasons
    assert not [text for text in verdict(ours("bucket", 90, 95), mapped(900, 950))["reasons"] if "compared" in text]


def test_another_format_wins_where_it_is_faster_and_the_best_store_is_named_too() -> None:
    found = verdict(
        ours("scratch", 1000, 1001, memory=1000.0),
        mapped(3000.0, 3100.0, inodes=8),
    )
    assert found["headline"].startswith(".npy, no workers, on scratch. scratch is the bottleneck of the first epoch")
    assert found["store"]["format"] == "zarr_core"
    assert "zarr-core does not write .npy" in found["command"]


def test_values_within_a_bound_are_named_but_never_recommended() -> None:
    chosen = BOUNDED.with_settings("pcodec", 16384, "packed")
    lossy = Measurement("scratch", chosen, "draws", [9000.0], first=800.0, bytes=4e5, inodes=1.0, compared=True)
    found = verdict(ours("scratch", 1000, first=500.0), lossy)
    assert found["setting"]["format"] == found["store"]["format"] == "zarr_core"
    assert LOSSY not in found["headline"] + found["command"] + str(found["by_tier"])
    (named,) = (reason for reason in found["reasons"] if LOSSY in reason)
    assert "not compared with the settings above: 400 kB per sample, 9,000 draws/s" in named
    assert not any("first epoch, and in each epoch" in reason for reason in found["reasons"])


def test_only_settings_that_took_all_their_turns_are_compared() -> None:
    quiet, compared = ours("scratch", 2000), ours("scratch", 1000, loader=Loader(1), compared=True)
    assert choose([quiet, compared]) is compared


def test_the_next_format_may_have_left_the_turns_early() -> None:
    def measured(place: int, rate: float, **more: Any) -> Measurement:
        return Measurement("scratch", ENTRIES[place], "draws", [rate], **more)

    fastest, store = mapped(900.0, turns=[900.0], compared=True), ours("scratch", 300, turns=[300.0], compared=True)
    early, never = measured(2, 600.0, turns=[600.0]), measured(3, 800.0)
    reasons = verdict(fastest, store, early, never)["reasons"]
    assert f"The next format on scratch is {early.setting}: 0.67 times as fast." in reasons


def test_the_next_format_is_named_if_a_setting_of_more_threads_was_faster() -> None:
    named = ours("scratch", 970.0, 1000.0, 1030.0)
    faster = ours("scratch", 980.0, 1010.0, 1040.0, loader=Loader(threads=2))
    reasons = verdict(named, faster, mapped(800.0))["reasons"]
    assert any("within the error; the setting named needs fewer threads" in reason for reason in reasons)
    assert f"The next format on scratch is {mapped().setting}: 0.80 times as fast." in reasons


def test_a_store_whose_draws_return_is_named() -> None:
    facts = FACTS | {"points": {"volume": [30_000, 40_000], "surface": [900, 900]}, "num_points": {"volume": 16_384}}
    reasons = judge(Case([ours("scratch", 1000)], TIERS, facts, {}, batch_size=8))["reasons"]
    assert any(reason.startswith("With chunk_points 16384 a draw of 16,384 points of volume") for reason in reasons)
    fewer = judge(Case([ours("scratch", 1000)], TIERS, facts | {"num_points": {"volume": 8192}}, {}, batch_size=8))
    assert not any("is whole chunks" in reason for reason in fewer["reasons"])


@pytest.mark.parametrize(("format", "card"), [("zarr_core", ("2.00x", ".npy")), (".npy", ("1.00x", "zarr_core"))])
def test_the_page_compares_with_the_fastest_other_format(format: str, card: tuple[str, str]) -> None:
    rates = {"zarr_core": 1000.0, LOSSY: 5000.0, ".npy": 500.0 if format == "zarr_core" else 1000.0, ".pt": 10.0}
    rows = [{"format": name, "tier": "disk", "median": rate} for name, rate in rates.items()]
    rows.append({"format": "HDF5", "tier": "memory", "median": 9000.0})
    named = {"reads": "draws", "tier": "disk", "median": 1000.0, "format": format, "bytes": 1e6, "inodes": 1.0}
    report = {"workload": {"reads": {"draws": "draws"}}, "batch_size": 8}
    assert _cards(report, named, rows)[1] == (card[0], f"the speed of {card[1]} there, the fastest other format")


def test_without_a_slow_tier_decoding_is_the_bottleneck() -> None:
    assert verdict(ours("scratch", 1000, memory=1100.0))["bottleneck"] == (
        "Decoding and copying are the bottleneck, not storage."
    )


def test_epochs_from_storage_decide_where_the_data_do_not_fit_into_memory() -> None:
    npy, store = mapped(3000.0, bytes=1e6), ours("scratch", 1000, first=400.0, memory=1000.0)
    small = verdict(npy, store)
    assert small["setting"]["format"] == ".npy"
    assert any(reason.startswith("In the first epoch, and in each epoch of data that") for reason in small["reasons"])
    cold = [
        mapped(90.0, 100.0, 110.0, bytes=1e6, cold=True),
        ours("scratch", 390, 400, 410, memory=1000.0, cold=True, loader=Loader(8)),
    ]
    large = verdict(*cold, too_large=True)
    assert (large["setting"]["format"], large["setting"]["workers"]) == ("zarr_core", 8)
    assert large["reasons"][0] == (
        "All samples take 500 MB, more than the memory of this machine, so that no epoch finds its files in memory: "
        "local files were dropped from memory before each epoch."
    )
    assert (
        "400 draws/s (quartiles 395 to 405 of 3 epochs). It waits for storage 60% of the time in each epoch."
        in (large["reasons"][1])
    )
    kept = verdict(mapped(3000.0), cold[1], too_large=True)
    assert kept["setting"]["format"] == "zarr_core"
    assert kept["reasons"][0].endswith("before each epoch. Not possible, and so not compared: .npy on scratch.")
    warm = verdict(npy, store, too_large=True)
    assert "could not be dropped from memory: expect lower rates" in warm["reasons"][0]


def test_workers_are_named_for_a_bucket_with_more_data_than_memory() -> None:
    slow, fast = ours("bucket", 20, 20, first=19.0), ours("bucket", 149, 150, loader=Loader(8))
    assert verdict(slow, fast, too_large=True)["setting"]["workers"] == 8
    found = verdict(slow, fast, ours("scratch", 2000), too_large=True)
    assert found["setting"]["workers"] == 8
    assert found["reasons"][0].endswith("Not possible, and so not compared: scratch.")


def test_the_reason_for_a_setting_that_is_not_the_fastest_is_true() -> None:
    early = ours("scratch", 2000, loader=Loader(2))
    rated = [
        ours("scratch", 990, 1000, 1010, loader=Loader(1), compared=True),
        ours("scratch", 980, 990, 1000, compared=True),
    ]
    reasons = verdict(early, *rated)["reasons"]
    assert "2,000/s" not in str(reasons), "not measured in the turns that decide"
    assert (
        "1 worker on scratch was measured at 1,000/s, within the error; the setting named needs fewer workers"
        in str(reasons)
    )
    smaller = [ours("scratch", 990, 1000, 1010), ours("scratch", 980, 990, 1000, bytes=9e5)]
    assert "within the error; the setting named needs fewer bytes." in str(verdict(*smaller)["reasons"])


def test_a_tier_without_room_is_not_recommended_for_staging() -> None:
    fast, slow = ours("scratch", 2000, memory=2200.0), ours("bucket", 90, memory=2200.0)

    def found(free: int) -> dict[str, Any]:
        tiers = {**TIERS, "scratch": {**TIERS["scratch"], "bytes_free": free}}
        return judge(Case([fast, slow], tiers, FACTS, {"scratch": 1e8}, batch_size=8))

    assert "stage to scratch" in found(500_000_000)["headline"]
    short = found(10)
    assert short["bottleneck"] == "bucket is the bottleneck, and scratch has no room for all samples."
    text = str(short["reasons"])
    assert "zarr_core needs 500 MB for 500 samples: more than the 10 B that are free on scratch." in text
    assert "Staging" not in text


def test_rates_below_ten_have_three_digits() -> None:
    assert [format_rate(rate) for rate in (12_345.6, 10.4, 9.876, 0.4, 0.01234)] == [
        "12,346",
        "10",
        "9.88",
        "0.4",
        "0.0123",
    ]
    assert "0.3 draws/s (quartiles 0.25 to 0.35 of 3 repetitions)" in str(verdict(ours("bucket", 0.2, 0.3, 0.4)))


def test_samples_with_fewer_points_than_a_draw_need_collate() -> None:
    for wanted, needed in ((2000, False), (2001, True)):
        facts = FACTS | {"num_points": {"surface": wanted}, "points": {"surface": [2000, 300_000]}}
        found = judge(Case([ours("scratch", 2000)], TIERS, facts, {"scratch": 1e8}, batch_size=8))
        reason = "the smallest has 2,000. Batches of such samples need `collate: pad`"
        assert (reason in "\n".join(found["reasons"])) is needed
        assert ("# and `collate: pad`" in found["command"]) is needed


def test_the_fewest_inodes_are_named_once() -> None:
    alone = verdict(ours("bucket", 10, inodes=20.0))["reasons"][-1]
    assert alone == "zarr_core needs 20 inodes and 1 MB per sample; no format measured needs fewer inodes."
    other = verdict(ours("bucket", 10), mapped(1.0, inodes=8))["reasons"][-1]
    assert other == "zarr_core needs 20 inodes and 1 MB per sample; .npy needs the fewest inodes, 8."


measurements = st.builds(
    lambda rates, workers, size: ours("scratch", *rates, loader=Loader(workers), bytes=size),
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
    assert named.loader.workers <= best.loader.workers


def test_threads_are_preferred_to_workers_and_none_to_threads() -> None:
    workers, alone = ours("scratch", 1000, 1100, loader=Loader(1)), ours("scratch", 980, 1080)
    threads = ours("scratch", 990, 1090, loader=Loader(threads=2))
    assert choose([workers, threads]) is threads
    assert choose([workers, threads, alone]) is alone
    text = "2 threads on scratch was measured at 1,040/s, within the error; the setting named needs fewer threads."
    assert text in str(verdict(alone, threads)["reasons"])


def test_of_two_that_cannot_be_told_apart_the_one_without_workers_is_named() -> None:
    with_workers, without = ours("scratch", 1000, 1100, 1200, loader=Loader(2)), ours("scratch", 990, 1050, 1150)
    assert choose([with_workers, without]) is without
    clearly_slower = ours("scratch", 700, 710, 720)
    assert choose([with_workers, clearly_slower]) is with_workers
