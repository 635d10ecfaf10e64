"""The plain loop with Hydra: every setting is in config.yaml, and on the command line."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import hydra
import torch
from omegaconf import DictConfig, OmegaConf
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


@hydra.main(version_base=None, config_path=str(Path(__file__).parent), config_name="config")
def main(config: DictConfig) -> None:
    """Train, and write ``model.pt`` at the end."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    # As plain dicts and lists, because those of OmegaConf are neither.
    dataset = build_dataset(OmegaConf.to_container(config.data, resolve=True))
    sampler = EpochBatchSampler.of(dataset, **config.batches)
    batches = to_device(ResumableLoader(dataset, sampler, num_threads=2, pin_memory=device == "cuda"), device)
    model = make_model().to(device)
    optimizer = torch.optim.Adam(model.parameters())

    checkpoint = Path(config.out) / "checkpoint.pt"
    step = 0
    if checkpoint.exists():
        saved = torch.load(checkpoint, map_location=device, weights_only=True)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        batches.load_state_dict(saved["batches"])
        step = saved["step"]

    for epoch in range(batches.epoch, config.epochs):
        batches.set_epoch(epoch)
        for batch in batches:
            loss = loss_of(model, batch)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
            if step % config.save_every == 0:
                saved = {
                    "model": model.state_dict(),
                    "optimizer": optimizer.state_dict(),
                    "batches": batches.state_dict(),
                    "step": step,
                }
                torch.save(saved, f"{checkpoint}.new")
                os.replace(f"{checkpoint}.new", checkpoint)
    torch.save(model.state_dict(), Path(config.out) / "model.pt")


if __name__ == "__main__":
    main()
