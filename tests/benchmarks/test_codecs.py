"""The benchmark of codecs measures bytes, errors and speeds of fields with and without error bounds."""

from __future__ import annotations

import pytest

from benchmarks.codecs import BUNDLED, measure_values


def test_bytes_and_errors_of_values_with_a_bound_and_as_float16() -> None:
    folders = sorted(BUNDLED.glob("run_*"))[:1]
    plain, bounded = (measure_values(folders, bound, "bitshuffle-lz4:5") for bound in (None, "1e-3std"))
    assert plain.points == bounded.points > 0
    assert plain.decoded == 7 * 4 * plain.points
    assert plain.of_float16 == 1, "it is measured against itself"
    assert bounded.stored < plain.stored < 14.1 * plain.points
    assert 0.9 < bounded.of_bound <= 1
    assert bounded.error == pytest.approx(1e-3, rel=0.1)
    assert len(bounded.row("bounded")) == 7
