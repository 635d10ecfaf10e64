"""A plain training loop that continues where it was stopped."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from zarr_core import EpochBatchSampler, ResumableLoader, build_dataset, to_device

sys.path.append(str(Path(__file__).parents[1]))
from common import loss_of, make_model, new_parser, pressure_of


def train(
    model: nn.Module,
    loss_of: Callable[[nn.Module, Mapping[str, Tensor]], Tensor],
    batches: Any,
    out: Path,
    epochs: int,
    save_every: int,
    saves: bool = True,
) -> None:
    """Train until the end of the last epoch, from the checkpoint of an earlier run if there is one.

    Args:
        model: on the device of the batches; may be wrapped in ``DistributedDataParallel``.
        loss_of: the loss of a batch.
        batches: a ``ResumableLoader``, or what ``to_device`` makes of it.
        out: folder of the checkpoint.
        epochs: number of epochs, with those of earlier runs.
        save_every: steps from one checkpoint to the next.
        saves: whether this process writes the checkpoints, from which all processes of a run continue.
    """
    trained = getattr(model, "module", model)  # without the wrapper
    optimizer = torch.optim.Adam(model.parameters())
    out.mkdir(parents=True, exist_ok=True)
    checkpoint = out / "checkpoint.pt"
    step = 0
    if checkpoint.exists():
        saved = torch.load(checkpoint, map_location="cpu", weights_only=True)  # the model moves it to its device
        trained.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        batches.load_state_dict(saved["batches"])
        step = saved["step"]

    for epoch in range(batches.epoch, epochs):
        batches.set_epoch(epoch)  # another order and other points; a resumed epoch goes on with its next batch
        for batch in batches:
            loss = loss_of(model, batch)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
            if saves and step % save_every == 0:
                saved = {
                    "model": trained.state_dict(),
                    "optimizer": optimizer.state_dict(),
                    "batches": batches.state_dict(),
                    "step": step,
                }
                torch.save(saved, f"{checkpoint}.new")
                os.replace(f"{checkpoint}.new", checkpoint)  # a killed run leaves the old one or the new one


def main(arguments: Sequence[str] | None = None) -> None:
    """Train, and write ``model.pt`` at the end."""
    options = new_parser(__doc__).parse_args(arguments)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    dataset = build_dataset(pressure_of(options.store, options.points))
    sampler = EpochBatchSampler.of(dataset, options.batch_size, seed=1)
    loader = ResumableLoader(dataset, sampler, num_threads=2, pin_memory=device == "cuda")
    model = make_model().to(device)
    train(model, loss_of, to_device(loader, device), options.out, options.epochs, options.save_every)
    torch.save(model.state_dict(), options.out / "model.pt")


if __name__ == "__main__":
    main()
