"""Error bounds: what is asked for, and that every stored value keeps it."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from tests.helpers.examples import examples
from zarr_core.errors import SourceError
from zarr_core.format.bounds import ErrorBound, integers_for, scale_for, to_multiples
from zarr_core.format.codecs import Codec

CODECS = ("pcodec", "bitshuffle-lz4", "bitshuffle-zstd", "blosc-zstd", "zstd")
VALUES = arrays(
    st.sampled_from(["float32", "float64"]), st.integers(1, 60), elements=st.floats(-(2.0**100), 2.0**100, width=32)
) | arrays("float64", st.integers(1, 60), elements=st.floats(-1e3, 1e3))


@pytest.mark.parametrize("given", ["", "std", "0", "-1", "nan", "inf", "1e-3 sd", "x", True, None, "0std"])
def test_what_is_no_bound_is_refused(given: object) -> None:
    with pytest.raises(SourceError, match="neither a positive number nor one with std, as 1e-3std"):
        ErrorBound.parse(given)


@pytest.mark.parametrize(
    ("given", "text"), [("1e-3std", "0.001std"), (0.5, "0.5"), ("1", "1.0"), (1, "1.0"), ("1e-9", "1e-09")]
)
def test_equal_bounds_are_written_alike(given: object, text: str) -> None:
    assert str(ErrorBound.parse(given)) == text
    assert ErrorBound.parse(text) == ErrorBound.parse(given)


def test_a_relative_bound_is_of_all_components_together() -> None:
    values = torch.tensor([[0.0, 10.0], [0.0, 10.0]])
    assert ErrorBound.parse("1e-3std").of(values) == pytest.approx(5e-3, rel=1e-5)
    assert ErrorBound.parse("1e-3std").of(values) <= 5e-3
    assert ErrorBound.parse(0.25).of(values) == 0.25
    for nothing in (torch.ones(5), torch.tensor([1.0, torch.nan]), torch.tensor([1.0, torch.inf])):
        assert ErrorBound.parse("1std").of(nothing) == 0


def test_a_bound_does_not_depend_on_the_number_of_threads() -> None:
    values = torch.from_numpy(np.random.default_rng(0).normal(size=3_000_001).astype("float32"))
    threads = torch.get_num_threads()
    found = set()
    for number in (1, 2, 4):
        torch.set_num_threads(number)
        found.add(ErrorBound.parse("1e-3std").of(values))
    torch.set_num_threads(threads)
    assert len(found) == 1


@settings(max_examples=examples(150))
@given(values=VALUES, bound=st.floats(1e-12, 1e12), codec=st.sampled_from(CODECS))
def test_every_decoded_value_is_within_the_bound(values: np.ndarray, bound: float, codec: str) -> None:
    scale = scale_for(bound, float(np.abs(values).max()))
    if scale is None:  # stored as they are
        return
    largest = float(np.abs(values).max())
    stored = values.astype("float32")
    to_multiples(stored, scale)
    chosen = Codec(codec, Codec.parse(codec).level, scale, integers_for(scale, largest))
    decoded = np.empty_like(stored)
    chosen.decode(chosen.encode(stored), decoded)
    np.testing.assert_array_equal(decoded, stored)
    assert np.abs(decoded.astype("float64") - values).max() <= bound


@settings(max_examples=examples(60))
@given(values=VALUES)
def test_a_bound_above_a_thousandth_of_the_largest_value_has_a_scale(values: np.ndarray) -> None:
    largest = float(np.abs(values).max())
    if 1e-20 < largest < 1e20:
        assert scale_for(largest / 1000, largest) is not None
        assert scale_for(largest / 1e8, largest) is None


@pytest.mark.parametrize(("largest", "integers"), [(0.0, "<i2"), (16_383.0, "<i2"), (16_384.0, "<i4")])
def test_integers_are_as_short_as_the_largest_value_allows(largest: float, integers: str) -> None:
    assert integers_for(2.0, largest) == integers
    values = np.array([largest, -largest], "float32")
    codec = Codec("zstd", 3, 2.0, integers_for(2.0, largest))
    decoded = np.empty_like(values)
    codec.decode(codec.encode(values), decoded)
    np.testing.assert_array_equal(decoded, values)
    assert Codec.from_zarr_json(codec.to_zarr_json("float32")) == codec
