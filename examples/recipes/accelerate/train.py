"""Training with Hugging Face Accelerate."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import torch
from accelerate import Accelerator

from zarr_core import EpochBatchSampler, ResumableLoader, build_dataset, to_device

sys.path.append(str(Path(__file__).parents[1]))
from common import loss_of, make_model, new_parser, pressure_of


def main(arguments: Sequence[str] | None = None) -> None:
    """Train, and write ``model.pt`` at the end."""
    options = new_parser(__doc__).parse_args(arguments)
    accelerator = Accelerator()
    dataset = build_dataset(pressure_of(options.store, options.points))
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
