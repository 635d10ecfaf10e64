"""Batches as NumPy arrays, for models that are not written in torch: a linear model, trained with NumPy alone."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from zarr_core import EpochBatchSampler, ResumableLoader, build_dataset

sys.path.append(str(Path(__file__).parents[1]))
from common import new_parser, pressure_of


def loss_of(weights: np.ndarray, batch: Mapping[str, np.ndarray]) -> tuple[float, np.ndarray]:
    """Mean squared error of the pressure, and its gradient."""
    positions = batch["volume_position"].reshape(-1, 3)
    inputs = np.concatenate([positions, np.ones((len(positions), 1), np.float32)], axis=1)
    errors = inputs @ weights - batch["volume_pressure"].ravel()
    return float(np.mean(errors**2)), 2 * inputs.T @ errors / len(errors)


def main(arguments: Sequence[str] | None = None) -> None:
    """Train, and write ``model.npy`` at the end."""
    options = new_parser(__doc__).parse_args(arguments)
    dataset = build_dataset(pressure_of(options.store, options.points))
    batches = ResumableLoader(dataset, EpochBatchSampler.of(dataset, options.batch_size, seed=1), num_threads=2)
    weights = np.zeros(4, np.float32)

    options.out.mkdir(parents=True, exist_ok=True)
    checkpoint = options.out / "checkpoint.json"
    step = 0
    if checkpoint.exists():
        saved = json.loads(checkpoint.read_text())
        weights = np.asarray(saved["weights"], np.float32)
        batches.load_state_dict(saved["batches"])
        step = saved["step"]

    for epoch in range(batches.epoch, options.epochs):
        batches.set_epoch(epoch)
        for tensors in batches:
            batch = {field: values.numpy() for field, values in tensors.items()}  # views, without a copy
            _, gradient = loss_of(weights, batch)
            weights -= 1e-4 * gradient
            step += 1
            if step % options.save_every == 0:
                saved = {"weights": weights.tolist(), "batches": batches.state_dict(), "step": step}
                temporary = checkpoint.with_suffix(".new")
                temporary.write_text(json.dumps(saved))
                os.replace(temporary, checkpoint)
    np.save(options.out / "model.npy", weights)


if __name__ == "__main__":
    main()
