"""Rank and world size of this process in a training run."""

from __future__ import annotations

import os

from zarr_core.errors import ZarrCoreError


def rank_and_world() -> tuple[int, int]:
    """(rank, world size) of torch.distributed if initialised, else of ``RANK`` and ``WORLD_SIZE``, else (0, 1).

    Never creates a process group.

    Raises:
        ZarrCoreError: only one of the variables is set, or the values are invalid.
    """
    import torch.distributed

    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return torch.distributed.get_rank(), torch.distributed.get_world_size()
    return rank_and_world_of_environment() or (0, 1)


def rank_and_world_of_environment() -> tuple[int, int] | None:
    """(rank, world size) from ``RANK`` and ``WORLD_SIZE``; None if they are not set.

    Raises:
        ZarrCoreError: only one of the variables is set, or the values are invalid.
    """
    rank, world = os.environ.get("RANK"), os.environ.get("WORLD_SIZE")
    if rank is None and world in (None, "1"):
        return None
    try:
        numbers = int(rank or ""), int(world or "")
    except ValueError:
        numbers = (-1, -1)
    if not 0 <= numbers[0] < numbers[1]:
        raise ZarrCoreError(f"RANK={rank} and WORLD_SIZE={world} are invalid: set both, with 0 <= RANK < WORLD_SIZE")
    return numbers
