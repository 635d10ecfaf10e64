"""Training on several GPUs, started by torchrun, which restarts it after a process died."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from zarr_core import EpochBatchSampler, ResumableLoader, build_dataset, to_device

sys.path.append(str(Path(__file__).parents[1]))
from common import loss_of, make_model, new_parser, pressure_of
from plain_loop.train import train


def main(arguments: Sequence[str] | None = None) -> None:
    """Train as one of the processes that torchrun has started; rank 0 writes ``model.pt`` at the end."""
    options = new_parser(__doc__).parse_args(arguments)
    on_gpu = torch.cuda.is_available()
    device = f"cuda:{os.environ['LOCAL_RANK']}" if on_gpu else "cpu"
    if on_gpu:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if on_gpu else "gloo")
    rank = dist.get_rank()

    dataset = build_dataset(pressure_of(options.store, options.points))
    sampler = EpochBatchSampler.of(dataset, options.batch_size, seed=1)  # each process takes its part of every batch
    loader = ResumableLoader(dataset, sampler, num_threads=2, pin_memory=on_gpu)
    batches = to_device(loader, device)
    model = DistributedDataParallel(make_model().to(device))
    # All processes load the checkpoint that rank 0 has saved.
    train(model, loss_of, batches, options.out, options.epochs, options.save_every, saves=rank == 0)
    if rank == 0:
        torch.save(model.module.state_dict(), options.out / "model.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
