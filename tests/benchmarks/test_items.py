"""The benchmark of items reads every dataset in turn, on samples that are too small to tell anything."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.items import COPY, MIXTURE, PLAIN, SAMPLES, datasets, make_stores, measure, ratios


@pytest.mark.slow
def test_every_dataset_is_measured(tmp_path: Path) -> None:
    stores = make_stores(tmp_path, {"volume": 60, "surface": 40})
    opened = datasets(stores, {"num_volume_points": 16, "num_surface_points": 8})
    assert {len(dataset) for dataset in opened.values()} == {SAMPLES}
    assert opened["with parameters"][0]["inflow"].shape == (3,)
    found = measure(opened, rounds=2, warm=1)
    assert found.keys() == opened.keys()
    assert {len(seconds) for seconds in found.values()} == {2}
    assert min(map(min, found.values())) > 0


def test_the_mixture_is_compared_with_both_stores_in_each_turn() -> None:
    """The machine is ten times slower in the second turn."""
    found = {PLAIN: [1.0, 10.0], COPY: [3.0, 30.0], MIXTURE: [2.0, 20.0]}
    assert ratios(found) == {PLAIN: 1.0, COPY: 3.0, MIXTURE: 1.0}
