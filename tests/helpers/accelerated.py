"""One process of a run with Accelerate: the samples that it sees."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader, TensorDataset

from zarr_core import EpochBatchSampler, ResumableLoader, ZarrIterableDataset
from zarr_core.errors import ZarrCoreError

#: Loaders of 20 samples in global batches of 4, by name.
LOADERS = ("resumable", "sampler", "iterable")
#: Arguments of ``DataLoaderConfiguration``.
CONFIGURATIONS: dict[str, dict[str, bool]] = {
    "default": {},
    "split": {"split_batches": True},
    "dispatch": {"dispatch_batches": True},
    "seedable": {"use_seedable_sampler": True},
    "stateful": {"use_stateful_dataloader": True},
}


def make_loader(kind: str, world: int) -> DataLoader[Any]:
    """A loader over the numbers from 0 to 19."""
    numbers = TensorDataset(torch.arange(20))
    if kind == "iterable":
        return DataLoader(ZarrIterableDataset(numbers, 4, seed=5), batch_size=4 // world)
    sampler = EpochBatchSampler(20, 4, seed=5)
    return (ResumableLoader if kind == "resumable" else DataLoader)(numbers, batch_sampler=sampler)


def epochs_of(loader: Any, epochs: int = 2) -> list[list[list[int]]]:
    """Batches of each epoch, without a call of ``set_epoch``."""
    return [[batch[0].tolist() for batch in loader] for _ in range(epochs)]


def accelerated(kind: str, configuration: dict[str, bool]) -> list[list[list[int]]] | str:
    """The batches of a loader that Accelerate has prepared, in this process; a refusal as text."""
    from accelerate import Accelerator, DataLoaderConfiguration
    from accelerate.state import AcceleratorState, GradientState, PartialState

    for state in (AcceleratorState, PartialState, GradientState):
        state._reset_state()
    accelerator = Accelerator(cpu=True, dataloader_config=DataLoaderConfiguration(**configuration))
    try:
        return epochs_of(accelerator.prepare(make_loader(kind, accelerator.num_processes)))
    except (ZarrCoreError, ValueError) as error:
        return str(error)


def run_rank(out: Path, rank: int) -> None:
    """All loaders with all configurations in turn, as one of two processes."""
    import torch.distributed

    torch.distributed.init_process_group("gloo")
    found = {
        f"{kind} {name}": accelerated(kind, configuration)
        for name, configuration in CONFIGURATIONS.items()
        for kind in LOADERS
    }
    (out / f"{rank}.json").write_text(json.dumps(found))
    torch.distributed.destroy_process_group()
