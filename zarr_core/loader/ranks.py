"""Which of the processes of a training run this one is."""

from __future__ import annotations

import os

from zarr_core.errors import ZarrCoreError


def rank_and_world() -> tuple[int, int]:
    """(rank, number of ranks): of torch.distributed if it has been initialised, else ``RANK`` and ``WORLD_SIZE``.

    Neither is there: (0, 1). A process group is never made here.

    Raises:
        ZarrCoreError: only one of the variables is set, or they make no sense.
    """
    import torch.distributed

    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return torch.distributed.get_rank(), torch.distributed.get_world_size()
    return rank_and_world_of_environment() or (0, 1)


def rank_and_world_of_environment() -> tuple[int, int] | None:
    """What ``RANK`` and ``WORLD_SIZE`` say; None where they are not set.

    Raises:
        ZarrCoreError: only one of them is set, or they make no sense.
    """
    rank, world = os.environ.get("RANK"), os.environ.get("WORLD_SIZE")
    if rank is None and world in (None, "1"):
        return None
    try:
        numbers = int(rank or ""), int(world or "")
    except ValueError:
        numbers = (-1, -1)
    if not 0 <= numbers[0] < numbers[1]:
        raise ZarrCoreError(f"RANK={rank} and WORLD_SIZE={world} must both be set, with 0 <= RANK < WORLD_SIZE")
    return numbers
