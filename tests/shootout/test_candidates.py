"""Settings of a loader, and the line of Python that applies them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

from zarr_core import EpochBatchSampler, ResumableLoader
from zarr_core.shootout.candidates import Loader


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (Loader(), "no workers"),
        (Loader(1), "1 worker"),
        (Loader(2, 4), "2 workers, prefetch_factor 4"),
        (Loader(threads=1), "1 thread"),
        (Loader(prefetch=4, threads=2), "2 threads, prefetch_factor 4"),
    ],
)
def test_the_line_of_python_makes_a_loader_with_the_settings(settings: Loader, words: str) -> None:
    assert settings.words == words
    names = {
        "dataset": TensorDataset(torch.arange(8)),
        "DataLoader": DataLoader,
        "EpochBatchSampler": EpochBatchSampler,
        "ResumableLoader": ResumableLoader,
    }
    made: Any = eval(settings.call(4), names)
    assert made.num_workers == settings.workers
    assert getattr(made, "num_threads", 0) == settings.threads
    if settings.threads:
        assert [len(batch) for (batch,) in made] == [4, 4]
