"""The order of an epoch: a permutation, computed index by index."""

from __future__ import annotations

import itertools
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.helpers.examples import examples
from zarr_core.errors import ZarrCoreError
from zarr_core.loader import Permutation, permutation


@given(size=st.integers(1, 3000), seed=st.integers(), epoch=st.integers(0, 10**6))
def test_the_order_is_a_bijection_and_any_part_of_it_can_be_had_alone(size: int, seed: int, epoch: int) -> None:
    order = Permutation(size, seed=seed, epoch=epoch)
    whole = order(np.arange(size))
    assert sorted(whole.tolist()) == list(range(size))
    assert order([size // 2])[0] == whole[size // 2]
    assert order(np.arange(size)[::-1].reshape(1, -1)).tolist() == [whole[::-1].tolist()]


@given(size=st.integers(1, 1 << 17), seed=st.integers(), places=st.sets(st.floats(0, 1, exclude_max=True), max_size=20))
@settings(max_examples=examples(50))
def test_orders_do_not_depend_on_the_tables_of_small_sizes(size: int, seed: int, places: set[float]) -> None:
    positions = [min(int(place * size), size - 1) for place in places]
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(permutation, "_TABLE_BITS", 0)
        without = Permutation(size, seed=seed)(positions)
    assert Permutation(size, seed=seed)(positions).tolist() == without.tolist()


@given(size=st.integers(1, 2**62), places=st.sets(st.floats(0, 1, exclude_max=True), max_size=20))
@settings(max_examples=examples(50))
def test_no_two_places_of_a_large_order_hold_the_same_index(size: int, places: set[float]) -> None:
    positions = {min(int(place * size), size - 1) for place in places}
    indices = Permutation(size)(sorted(positions)).tolist()
    assert len(set(indices)) == len(positions)
    assert all(0 <= index < size for index in indices)


def test_orders_are_the_same_for_ever() -> None:
    """Runs resume by these: other values are another order, and so another version of the state."""
    assert Permutation(10, seed=1)(range(10)).tolist() == [9, 0, 2, 6, 4, 3, 7, 8, 5, 1]
    assert Permutation(5, seed=1)(range(5)).tolist() == [4, 1, 3, 0, 2]
    assert Permutation(10, seed=1, epoch=2)(range(10)).tolist() == [2, 8, 5, 6, 3, 9, 7, 0, 1, 4]
    assert Permutation(10**6, seed=7, epoch=3)([0, 1, 999_999]).tolist() == [44241, 663825, 114042]
    assert Permutation(2**62, seed=-(2**70), epoch=9)([0, 2**62 - 1]).tolist() == [
        1444908417535973224,
        3899140960368295579,
    ]


@pytest.mark.slow
@pytest.mark.parametrize("size", [2, 3, 4])
def test_every_order_of_a_few_is_equally_likely(size: int) -> None:
    from scipy.stats import chisquare  # see test_sampling.py

    seen = Counter(tuple(Permutation(size, epoch=epoch)(range(size)).tolist()) for epoch in range(2000))
    orders = list(itertools.permutations(range(size)))
    assert chisquare([seen[order] for order in orders]).pvalue > 1e-3


@pytest.mark.slow
@pytest.mark.parametrize("size", [37, 64, 1000])
def test_every_index_is_equally_likely_at_every_place_and_after_every_other(size: int) -> None:
    from scipy.stats import chisquare

    epochs = np.stack([Permutation(size, seed=3, epoch=epoch)(np.arange(size)) for epoch in range(600)])
    bins = 8
    width = np.bincount(np.arange(size) * bins // size, minlength=bins)
    any_pair, other_pair = np.outer(width, width), np.outer(width, width) - np.diag(width)
    for first, second, possible in (
        (np.broadcast_to(np.arange(size), epochs.shape), epochs, any_pair),  # place and index
        (epochs[:, :-1], epochs[:, 1:], other_pair),  # index and the next one
        (epochs[:-1], epochs[1:], any_pair),  # index and that of the next epoch
    ):
        pairs = np.stack([first.ravel(), second.ravel()]) * bins // size
        table = np.histogram2d(*pairs, bins=bins)[0]
        expected = possible * table.sum() / possible.sum()
        assert chisquare(table.ravel(), expected.ravel()).pvalue > 1e-4


@pytest.mark.parametrize("size", [0, -1, 2**62 + 1, 2.0])
def test_impossible_sizes_are_refused(size: int) -> None:
    with pytest.raises(ZarrCoreError, match="size must be"):
        Permutation(size)
    with pytest.raises(IndexError):
        Permutation(5)([5])
