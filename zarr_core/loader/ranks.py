"""Rank and world size of this process in a training run."""

from __future__ import annotations

import os
import sys
import warnings

from zarr_core.errors import ZarrCoreError

# Classes of Accelerate that give each process a part of what they wrap. The third iterates on one process only.
_DIVIDERS = {"BatchSamplerShard", "IterableDatasetShard", "DataLoaderDispatcher"}


def check_divided_once() -> None:
    """Raise ZarrCoreError if one of Accelerate's classes, which divides among several processes, is the caller.

    What it wraps is the part of one rank already. Nothing else tells an object that it was wrapped: Accelerate builds a
    loader anew from the parts of the one that it is given.
    """
    frame = sys._getframe(1)
    while frame.f_back is not None:
        frame = frame.f_back
        wrapper = type(frame.f_locals.get("self"))
        if wrapper.__name__ in _DIVIDERS and wrapper.__module__.startswith("accelerate."):
            world = vars(frame.f_locals["self"]).get("num_processes")
            world = world or sys.modules["accelerate.state"].PartialState().num_processes
            if world > 1:
                raise ZarrCoreError(
                    f"Accelerate would divide the batches of each of {world} processes among the processes again. Pass "
                    "a ResumableLoader(dataset, EpochBatchSampler.of(dataset, batch_size)) to accelerator.prepare, "
                    "which leaves it as it is, or iterate over this loader without preparing it"
                )


def rank_and_world() -> tuple[int, int]:
    """(rank, world size) of this process.

    Taken from torch.distributed if it is initialised, else from ``RANK`` and ``WORLD_SIZE``, else from
    ``SLURM_PROCID`` and ``SLURM_NTASKS``, else (0, 1). Never creates a process group.

    Raises:
        ZarrCoreError: only one of a pair of variables is set, or its values are invalid.
    """
    return rank_and_world_of_launcher() or _rank_and_world_of_slurm() or (0, 1)


def rank_and_world_of_launcher() -> tuple[int, int] | None:
    """(rank, world size) from torch.distributed, else from ``RANK`` and ``WORLD_SIZE``; None without either.

    Raises:
        ZarrCoreError: only one of the variables is set, or the values are invalid.
    """
    import torch.distributed

    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return torch.distributed.get_rank(), torch.distributed.get_world_size()
    if "RANK" not in os.environ and os.environ.get("WORLD_SIZE") in (None, "1"):
        return None
    return _pair("RANK", "WORLD_SIZE")


def _rank_and_world_of_slurm() -> tuple[int, int] | None:
    """(rank, world size) of a task of a Slurm job; None outside a job, in a job of one task and in an ``salloc`` shell.

    Raises:
        ZarrCoreError: the values are invalid.
    """
    if "SLURM_PROCID" not in os.environ or os.environ.get("SLURM_NTASKS") in (None, "1"):
        return None
    rank, world = _pair("SLURM_PROCID", "SLURM_NTASKS")
    if "SLURM_STEP_ID" not in os.environ:  # srun sets it; a batch script has SLURM_PROCID=0 without it
        warnings.warn(
            f"this process takes 1/{world} of each batch, because SLURM_PROCID={rank} and SLURM_NTASKS={world}, but it "
            "was not started by srun. Start it with srun, or set RANK and WORLD_SIZE (0 and 1 for a single process)",
            stacklevel=3,
        )
    return rank, world


def _pair(rank_name: str, world_name: str) -> tuple[int, int]:
    rank, world = os.environ.get(rank_name), os.environ.get(world_name)
    try:
        numbers = int(rank or ""), int(world or "")
    except ValueError:
        numbers = (-1, -1)
    if not 0 <= numbers[0] < numbers[1]:
        raise ZarrCoreError(
            f"{rank_name}={rank} and {world_name}={world} are invalid: set both, with 0 <= {rank_name} < {world_name}"
        )
    return numbers
