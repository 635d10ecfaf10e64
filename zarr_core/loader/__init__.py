"""Epochs that are the same for any number of ranks and workers, and that an interrupted run resumes exactly.

``EpochBatchSampler`` assigns samples to batches, ``ResumableLoader`` is a DataLoader that counts the batches that the
trainer has received, and ``to_device`` copies batches ahead. ``docs/training.md`` shows a complete training loop.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from zarr_core._util import lazy_names
from zarr_core.loader.permutation import Permutation

if TYPE_CHECKING:
    from zarr_core.loader.device import DeviceLoader, to_device
    from zarr_core.loader.iterable import ZarrIterableDataset
    from zarr_core.loader.loader import ResumableLoader
    from zarr_core.loader.ranks import rank_and_world
    from zarr_core.loader.sampler import EpochBatchSampler

# Imported on first use: these need torch, and Permutation does not.
_HOMES = {
    "DeviceLoader": "zarr_core.loader.device",
    "EpochBatchSampler": "zarr_core.loader.sampler",
    "ResumableLoader": "zarr_core.loader.loader",
    "ZarrIterableDataset": "zarr_core.loader.iterable",
    "rank_and_world": "zarr_core.loader.ranks",
    "to_device": "zarr_core.loader.device",
}

__all__ = [
    "DeviceLoader",
    "EpochBatchSampler",
    "Permutation",
    "ResumableLoader",
    "ZarrIterableDataset",
    "rank_and_world",
    "to_device",
]


def __getattr__(name: str) -> Any:
    return lazy_names.find(__name__, name, _HOMES)
