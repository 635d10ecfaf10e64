"""Training with Hugging Face Accelerate."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from accelerate import Accelerator
from torch import Tensor, nn

from zarr_core import EpochBatchSampler, ResumableLoader, build_dataset, to_device


def make_model() -> nn.Module:
    """A small network: pressure from position."""
    torch.manual_seed(0)  # equal weights at the start of every run
    return nn.Sequential(nn.Linear(3, 16), nn.GELU(), nn.Linear(16, 1))


def loss_of(model: nn.Module, batch: Mapping[str, Tensor]) -> Tensor:
    """Mean squared error of the pressure."""
    predicted = model(batch["volume_position"]).squeeze(-1)
    return (predicted - batch["volume_pressure"]).square().mean()


def main(arguments: Sequence[str] | None = None) -> None:
    """Train, and write ``model.pt`` at the end."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("store")
    parser.add_argument("out", type=Path, help="folder of the checkpoints and of the trained model")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch-size", type=int, default=4, help="of all processes together")
    parser.add_argument("--points", type=int, default=4096)
    parser.add_argument("--save-every", type=int, default=100, help="steps from one checkpoint to the next")
    options = parser.parse_args(arguments)

    accelerator = Accelerator()
    dataset = build_dataset(
        {
            "kind": "point",
            "root": options.store,
            "split": "train",
            "fields": ["volume_position", "volume_pressure"],
            "num_volume_points": options.points,
        }
    )
    sampler = EpochBatchSampler.of(dataset, options.batch_size, seed=1)
    batches = to_device(ResumableLoader(dataset, sampler, num_threads=2), accelerator.device)
    model = make_model()
    optimizer = torch.optim.Adam(model.parameters())
    # The batches are not prepared: each process takes its part of them already, on its device.
    model, optimizer = accelerator.prepare(model, optimizer)
    accelerator.register_for_checkpointing(batches)

    newest = max(options.out.glob("step_*"), default=None)  # the names have equal lengths
    step = 0
    if newest is not None:
        accelerator.load_state(str(newest))
        step = int(newest.name.removeprefix("step_"))

    for epoch in range(batches.epoch, options.epochs):
        batches.set_epoch(epoch)
        for batch in batches:
            loss = loss_of(model, batch)
            optimizer.zero_grad()
            accelerator.backward(loss)
            optimizer.step()
            step += 1
            if step % options.save_every == 0:
                accelerator.save_state(str(options.out / f"step_{step:08d}"))
    accelerator.wait_for_everyone()
    if accelerator.is_main_process:
        torch.save(accelerator.unwrap_model(model).state_dict(), options.out / "model.pt")
    accelerator.end_training()


if __name__ == "__main__":
    main()
