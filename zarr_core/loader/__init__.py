"""Epochs that are the same for any number of ranks and workers, and that an interrupted run resumes exactly.

``EpochBatchSampler`` assigns samples to batches, ``ResumableLoader`` is a DataLoader that counts the batches that the
trainer has received, and ``to_device`` copies batches ahead. ``docs/training.md`` shows a complete training loop.
"""

from zarr_core.loader.device import DeviceLoader, to_device
from zarr_core.loader.iterable import ZarrIterableDataset
from zarr_core.loader.loader import ResumableLoader
from zarr_core.loader.permutation import Permutation
from zarr_core.loader.ranks import rank_and_world
from zarr_core.loader.sampler import EpochBatchSampler

__all__ = [
    "DeviceLoader",
    "EpochBatchSampler",
    "Permutation",
    "ResumableLoader",
    "ZarrIterableDataset",
    "rank_and_world",
    "to_device",
]
