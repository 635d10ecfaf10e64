"""Indices that say how often they occurred before."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import ConcatDataset, Subset, TensorDataset

from zarr_core._util.repeated import CountedIndices, Repeated, repetition_of
from zarr_core.errors import ZarrCoreError
from zarr_core.loader import EpochBatchSampler


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda value: pickle.loads(pickle.dumps(value))])
def test_a_repeated_index_is_an_integer_that_keeps_its_repetition(copied: Callable[[Any], Any]) -> None:
    index = copied(Repeated(3, 2))
    assert index == 3
    assert repetition_of(index) == 2
    assert repetition_of(3) == 0
    assert torch.arange(5)[index].item() == [0, 1, 2, 3, 4][index] == 3
    counted = copied(CountedIndices([4, 7, 4]))
    assert counted == [4, 7, 4]
    assert repetition_of(counted[2]) == 1


def test_places_of_a_subset_count_the_repetitions_of_its_indices() -> None:
    counted = CountedIndices([4, 7, 4, 5])
    taken = [counted[place] for place in (*range(4), Repeated(0, 1), Repeated(2, 1), Repeated(1, 3), -2)]
    assert taken == [4, 7, 4, 5, 4, 4, 7, 4]
    assert [repetition_of(index) for index in taken] == [0, 0, 1, 0, 2, 3, 3, 1]
    assert counted[1:3] == [7, 4]


@pytest.mark.parametrize(
    "mask", [[True, False, True], np.array([True, False]), torch.tensor([False]), [[1], [2]], ["a"]]
)
def test_a_mask_is_no_list_of_indices(mask: Any) -> None:
    with pytest.raises(ZarrCoreError, match=r"must be a list of whole numbers, not .* np\.flatnonzero\(mask\)"):
        EpochBatchSampler.of(Subset(TensorDataset(torch.arange(4)), mask), 1)
    for given in ([], range(2), np.arange(2), torch.arange(2), list(torch.arange(2))):
        assert CountedIndices(given) == list(range(len(given)))


def test_wrappers_of_torch_pass_repetitions_on() -> None:
    class Seen(list[Any]):
        def __getitem__(self, index: Any) -> Any:
            return super().__getitem__(index), repetition_of(index)

    nested = Subset(Subset(Seen("abc"), CountedIndices([2, 2, 0])), CountedIndices([0, 1, 2]))  # type: ignore[arg-type]
    joined: Any = ConcatDataset([Seen("xy"), nested])  # type: ignore[list-item]
    taken = [joined[index] for index in (1, Repeated(1, 4), 2, 3, Repeated(3, 1), Repeated(4, 2))]
    assert taken == [("y", 0), ("y", 4), ("c", 0), ("c", 1), ("c", 3), ("a", 2)]
