"""A draw is exact (every point T/n), pure, and one short row of chunks."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from tests.helpers.draws import indices_of
from zarr_core.errors import ZarrCoreError
from zarr_core.points.read.sampling import Draw, block_around, block_count, draw, window

sizes = st.integers(1, 3000)


@given(n=sizes, c=sizes, t=sizes, seed=st.integers(), epoch=st.integers(0, 1000), sample=st.text(max_size=20))
def test_a_draw_is_t_different_points_in_few_chunks_and_pure(
    n: int, c: int, t: int, seed: int, epoch: int, sample: str
) -> None:
    drawn = draw(n, c, t, seed=seed, epoch=epoch, sample_id=sample)
    assert drawn == draw(n, c, t, seed=seed, epoch=epoch, sample_id=sample)
    indices = indices_of(drawn)
    assert indices.dtype == np.int64
    assert drawn.num_points == len(indices) == len(set(indices.tolist())) == min(t, n)
    assert indices.min() >= 0
    assert indices.max() < n
    assert (drawn.chunks.start, drawn.chunks.stop - 1) == (indices.min() // c, indices.max() // c)
    assert drawn.span == (indices.min(), indices.max() + 1)
    if t < n:
        assert len(drawn.chunks) <= 2 * -(-t // c)
    else:
        assert (indices == np.arange(n)).all()


@given(n=st.integers(2, 300), c=st.integers(1, 100), t=st.integers(1, 299), phase_word=st.integers(0, 10**6))
def test_blocks_are_a_partition_into_whole_chunks_of_at_least_t_points(n: int, c: int, t: int, phase_word: int) -> None:
    assume(t < n)
    phase = phase_word % block_count(n, c, t)
    blocks = [block_around(n, c, t, phase, point) for point in range(n)]
    assert all(start <= point < stop for point, (start, stop) in enumerate(blocks))
    in_order = sorted(set(blocks))
    assert [start for start, _ in in_order] == [0, *(stop for _, stop in in_order[:-1])]
    assert in_order[-1][1] == n
    assert all(stop - start >= t and start % c == 0 for start, stop in in_order)


@given(n=st.integers(2, 60), c=st.integers(1, 25), t=st.integers(1, 59))
def test_law_every_point_is_drawn_with_probability_t_over_n(n: int, c: int, t: int) -> None:
    """All pairs (phase, start) are equally likely, so enumerating them gives the exact probabilities."""
    assume(t < n)
    phases = block_count(n, c, t)
    draws = phases * n
    drawn: Counter[int] = Counter()
    for phase in range(phases):
        for start in range(n):
            in_window = window(n, c, t, phase, start)
            assert all(first < stop for first, stop in in_window.runs)
            drawn.update(indices_of(in_window).tolist())
    assert {point: Fraction(drawn[point], draws) for point in range(n)} == dict.fromkeys(range(n), Fraction(t, n))


def test_leftover_chunks_are_spread_over_all_blocks_in_turn() -> None:
    """7 chunks in 3 blocks of at least 2: each phase gives the third chunk to another block."""
    layouts = {tuple(sorted({block_around(70, 10, 20, phase, p) for p in range(70)})) for phase in range(3)}
    assert layouts == {
        ((0, 20), (20, 40), (40, 70)),
        ((0, 20), (20, 50), (50, 70)),
        ((0, 30), (30, 50), (50, 70)),
    }


def test_phases_are_drawn_too() -> None:
    wrapped = [draw(70, 10, 20, epoch=epoch).runs for epoch in range(200)]
    block_ends = {runs[0][1] for runs in wrapped if len(runs) == 2}
    assert block_ends == {20, 30, 40, 50, 70}


def test_a_ragged_chunk_that_is_large_enough_is_a_block_of_its_own() -> None:
    assert block_around(25, 10, 5, 0, 22) == (20, 25)
    assert block_around(25, 10, 6, 0, 22) == block_around(25, 10, 6, 0, 12) == (10, 25)


def test_a_sample_much_larger_than_a_block_costs_one_chunk() -> None:
    assert {len(draw(10**9, 16_384, 4_096, epoch=epoch).chunks) for epoch in range(200)} == {1}
    assert {len(draw(16_384 * 10, 16_384, 16_384, epoch=epoch).chunks) for epoch in range(200)} == {1}


# --- frequencies of real draws ------------------------------------------------------------------------------------

DRAWS = 50_000
CASES = [(28_504, 4_096, 3_586), (28_504, 4_096, 2_048), (100_000, 16_384, 4_096), (100_000, 16_384, 20_000)]
PHASES = 97


def count_inclusions(n: int, runs_of: Callable[[int], Draw]) -> np.ndarray:
    """How many of ``DRAWS`` draws hold each of the n points: +1 where a run starts, -1 where it stops, summed."""
    starts, stops = [], []
    for epoch in range(DRAWS):
        for start, stop in runs_of(epoch).runs:
            starts.append(start)
            stops.append(stop)
    steps = np.bincount(starts, minlength=n + 1) - np.bincount(stops, minlength=n + 1)
    return np.cumsum(steps)[:n]


def smallest_p_value(counts: np.ndarray, n: int, c: int, t: int) -> float:
    """Pearson's chi-square test of "each point with probability t/n", at many sets of points, Bonferroni-corrected.

    Points in one window come together, so the counts of all points are far from independent and a chi-square sum over
    all of them has no chi-square law. But windows stay in their block, and two points of a block that are at least t
    apart both ways round are never in one window. Of a set of such points a draw holds exactly one or none: over
    independent draws the counts of the set, with the count of "none", are multinomial with probabilities
    t/n, ..., t/n and the rest, and Pearson's statistic has its textbook law. Sets at many offsets within the blocks
    look at every part of every block, ragged tail included; the sets are dependent, which Bonferroni allows for.
    """
    from scipy import stats  # a second to import, which processes that collect tests for others are spared

    assert n // c % block_count(n, c, t) == 0  # one partition for all draws, so that the sets below are separated
    blocks = sorted({block_around(n, c, t, 0, point) for point in range(0, n, c)} | {block_around(n, c, t, 0, n - 1)})
    p_values = []
    for phase in range(PHASES):
        points = [
            start + (phase * (stop - start) // PHASES + j * t) % (stop - start)
            for start, stop in blocks
            for j in range((stop - start) // t)
        ]
        observed = counts[points]
        expected = DRAWS * t / n
        none_observed, none_expected = DRAWS - observed.sum(), DRAWS - len(points) * expected
        chi_square = ((observed - expected) ** 2 / expected).sum() + (
            none_observed - none_expected
        ) ** 2 / none_expected
        p_values.append(stats.chi2.sf(chi_square, df=len(points)))
    return min(1.0, min(p_values) * PHASES)


@pytest.mark.parametrize(("n", "c", "t"), CASES)
def test_inclusion_frequencies_are_uniform(n: int, c: int, t: int) -> None:
    counts = count_inclusions(n, lambda epoch: draw(n, c, t, seed=7, epoch=epoch, sample_id="run_1", stream="volume"))
    assert counts.sum() == DRAWS * t
    assert smallest_p_value(counts, n, c, t) > 1e-3


@pytest.mark.slow
@pytest.mark.parametrize(("n", "c", "t"), CASES)
def test_the_same_test_rejects_a_last_chunk_trimmed_from_the_front(n: int, c: int, t: int) -> None:
    """The published reader: as many random chunks as are needed, the last of them cut off after T points."""
    rng = random.Random(7)
    chunk_count, needed = -(-n // c), -(-t // c)

    def trimmed(epoch: int) -> Draw:
        runs, left = [], t
        for chunk in rng.sample(range(chunk_count), needed):
            stop = min(chunk * c + left, (chunk + 1) * c, n)
            runs.append((chunk * c, stop))
            left -= stop - chunk * c
        return Draw(tuple(runs), c)

    assert smallest_p_value(count_inclusions(n, trimmed), n, c, t) < 1e-12


# --- purity and entropy -------------------------------------------------------------------------------------------

PINNED = [
    ((25571, 28504), (24576, 25229)),
    ((80189, 100000), (65536, 65725)),
    ((13981, 32768), (0, 1213)),
    ((23534, 27630),),
]


def test_draws_of_whole_chunks_repeat_as_the_documentation_says() -> None:
    """docs/choosing.md, "Chunks and the variety of draws"."""

    def equal_pairs(chunk_points: int) -> float:
        drawn = [frozenset(indices_of(draw(5312, chunk_points, 2048, epoch=epoch)).tolist()) for epoch in range(300)]
        times = Counter(drawn).values()
        return sum(n * (n - 1) for n in times) / (300 * 299)

    assert equal_pairs(2048) == pytest.approx(1 / 7, abs=0.03)
    assert equal_pairs(4096) < 0.001
    assert block_count(3_000_000, 16_384, 16_384) == 183


def test_draws_never_change() -> None:
    """Published results rest on these numbers: a change here is a new format of draws, not a fix of this test."""
    assert draw(28_504, 4_096, 3_586, seed=0, epoch=0, sample_id="param1/abc", stream="volume").runs == PINNED[0]
    assert draw(100_000, 16_384, 20_000, seed=1, epoch=2, sample_id="run_1", stream="surface").runs == PINNED[1]
    assert draw(120_000, 16_384, 20_000, seed=-5, epoch=3, sample_id="größe", stream="").runs == PINNED[2]
    numpy_drawn = draw(100_000, 16_384, 4_096, generator=np.random.default_rng(0), sample_id="run_1")
    assert numpy_drawn.runs == PINNED[3]


def test_seed_epoch_sample_and_stream_all_matter_and_do_not_run_together() -> None:
    variants = [
        {"seed": 1},
        {"seed": 11},
        {"epoch": 1},
        {"seed": 1, "epoch": 1},
        {"sample_id": "a", "stream": "b"},
        {"sample_id": "ab"},
        {"sample_id": "", "stream": "ab"},
        {"sample_id": 'a","b'},
        {},
    ]
    drawn = {draw(10**15, 1000, 1, **variant).runs for variant in variants}  # type: ignore[arg-type]
    assert len(drawn) == len(variants)


def test_a_generator_replaces_seed_and_epoch_and_moves_on() -> None:
    import torch

    for make in (np.random.default_rng, lambda s: torch.Generator().manual_seed(s)):
        one, other = make(3), make(3)
        first = draw(10**12, 1000, 5, generator=one, seed=1)
        assert first == draw(10**12, 1000, 5, generator=other, seed=2, epoch=4)
        assert first != draw(10**12, 1000, 5, generator=one)
        assert draw(10**12, 1000, 5, generator=make(3), sample_id="x") != first
    with pytest.raises(ZarrCoreError, match=r"numpy\.random\.Generator"):
        draw(10, 2, 3, generator=3)  # type: ignore[arg-type]


@pytest.mark.parametrize("bad", [0, -1, 1.5, True, None, "3"])
@pytest.mark.parametrize("position", [0, 1, 2])
def test_counts_must_be_positive_whole_numbers(bad: object, position: int) -> None:
    counts: list[object] = [10, 4, 3]
    counts[position] = bad
    name = ["n_points", "chunk_points", "num_points"][position]
    with pytest.raises(ZarrCoreError, match=name):
        draw(*counts)  # type: ignore[arg-type]
