"""The plain loop with Hydra: every setting is in config.yaml, and on the command line."""

from __future__ import annotations

import sys
from pathlib import Path

import hydra
import torch
from omegaconf import DictConfig, OmegaConf

from zarr_core import EpochBatchSampler, ResumableLoader, build_dataset, to_device

sys.path.append(str(Path(__file__).parents[1]))
from common import loss_of, make_model
from plain_loop.train import train


@hydra.main(version_base=None, config_path=str(Path(__file__).parent), config_name="config")
def main(config: DictConfig) -> None:
    """Train, and write ``model.pt`` at the end."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    # As plain dicts and lists, which any library can save and print.
    dataset = build_dataset(OmegaConf.to_container(config.data, resolve=True))
    sampler = EpochBatchSampler.of(dataset, **config.batches)
    batches = to_device(ResumableLoader(dataset, sampler, num_threads=2, pin_memory=device == "cuda"), device)
    model = make_model().to(device)
    train(model, loss_of, batches, Path(config.out), config.epochs, config.save_every)
    torch.save(model.state_dict(), Path(config.out) / "model.pt")


if __name__ == "__main__":
    main()
