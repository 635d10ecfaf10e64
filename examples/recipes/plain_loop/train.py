"""A plain training loop that continues where it was stopped."""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
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
    parser.add_argument("out", type=Path, help="folder of the checkpoint and of the trained model")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch-size", type=int, default=4)
    parser.add_argument("--points", type=int, default=4096)
    parser.add_argument("--save-every", type=int, default=100, help="steps from one checkpoint to the next")
    options = parser.parse_args(arguments)

    device = "cuda" if torch.cuda.is_available() else "cpu"
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
    loader = ResumableLoader(dataset, sampler, num_threads=2, pin_memory=device == "cuda")
    batches = to_device(loader, device)
    model = make_model().to(device)
    optimizer = torch.optim.Adam(model.parameters())

    options.out.mkdir(parents=True, exist_ok=True)
    checkpoint = options.out / "checkpoint.pt"
    step = 0
    if checkpoint.exists():
        saved = torch.load(checkpoint, map_location=device, weights_only=True)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        batches.load_state_dict(saved["batches"])
        step = saved["step"]

    for epoch in range(batches.epoch, options.epochs):
        batches.set_epoch(epoch)  # another order and other points; a resumed epoch goes on with its next batch
        for batch in batches:
            loss = loss_of(model, batch)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
            if step % options.save_every == 0:
                saved = {
                    "model": model.state_dict(),
                    "optimizer": optimizer.state_dict(),
                    "batches": batches.state_dict(),
                    "step": step,
                }
                torch.save(saved, f"{checkpoint}.new")
                os.replace(f"{checkpoint}.new", checkpoint)  # a killed run leaves the old one or the new one
    torch.save(model.state_dict(), options.out / "model.pt")


if __name__ == "__main__":
    main()
