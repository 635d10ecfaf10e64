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
    optimizer = torch.optim.Adam(model.parameters())

    options.out.mkdir(parents=True, exist_ok=True)
    checkpoint = options.out / "checkpoint.pt"
    step = 0
    if checkpoint.exists():  # all processes load the state that rank 0 has saved
        saved = torch.load(checkpoint, map_location=device, weights_only=True)
        model.module.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        batches.load_state_dict(saved["batches"])
        step = saved["step"]

    for epoch in range(batches.epoch, options.epochs):
        batches.set_epoch(epoch)
        for batch in batches:
            loss = loss_of(model, batch)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
            if rank == 0 and step % options.save_every == 0:
                saved = {
                    "model": model.module.state_dict(),
                    "optimizer": optimizer.state_dict(),
                    "batches": batches.state_dict(),
                    "step": step,
                }
                torch.save(saved, f"{checkpoint}.new")
                os.replace(f"{checkpoint}.new", checkpoint)
    if rank == 0:
        torch.save(model.module.state_dict(), options.out / "model.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
