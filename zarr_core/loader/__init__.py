"""Epochs that any number of ranks and workers walk alike, and that a killed run takes up where it was.

``EpochBatchSampler`` says which samples make which batch, ``ResumableLoader`` is the DataLoader that knows which of
them the trainer has, ``to_device`` copies them ahead. ``docs/training.md`` has the whole loop.
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
