"""Batches as JAX arrays: a small network in JAX, trained with jax.grad."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from zarr_core import EpochBatchSampler, ResumableLoader, build_dataset

sys.path.append(str(Path(__file__).parents[1]))
from common import new_parser, pressure_of

WIDTHS = (3, 16, 1)
LEARNING_RATE = 1e-3


def make_weights() -> list[dict[str, jax.Array]]:
    """A small network: pressure from position."""
    keys = jax.random.split(jax.random.key(0), len(WIDTHS) - 1)  # equal weights at the start of every run
    layers = []
    for key, inputs, outputs in zip(keys, WIDTHS[:-1], WIDTHS[1:], strict=True):
        weight = jax.random.normal(key, (inputs, outputs)) / jnp.sqrt(inputs)
        layers.append({"weight": weight, "bias": jnp.zeros(outputs)})
    return layers


def loss_of(layers: list[dict[str, jax.Array]], batch: Mapping[str, jax.Array]) -> jax.Array:
    """Mean squared error of the pressure."""
    values = batch["volume_position"]
    for layer in layers[:-1]:
        values = jax.nn.gelu(values @ layer["weight"] + layer["bias"])
    predicted = values @ layers[-1]["weight"] + layers[-1]["bias"]
    return jnp.mean((predicted.squeeze(-1) - batch["volume_pressure"]) ** 2)


@jax.jit
def learn(layers: list[dict[str, jax.Array]], batch: Mapping[str, jax.Array]) -> list[dict[str, jax.Array]]:
    """The weights after a step of gradient descent, along the normalized gradient."""
    gradients = jax.grad(loss_of)(layers, batch)
    squares = [jnp.sum(gradient**2) for gradient in jax.tree.leaves(gradients)]
    scale = LEARNING_RATE / (jnp.sqrt(sum(squares)) + 1e-8)
    return jax.tree.map(lambda weight, gradient: weight - scale * gradient, layers, gradients)


def main(arguments: Sequence[str] | None = None) -> None:
    """Train, and write ``model.npz`` at the end."""
    options = new_parser(__doc__).parse_args(arguments)
    dataset = build_dataset(pressure_of(options.store, options.points))
    batches = ResumableLoader(dataset, EpochBatchSampler.of(dataset, options.batch_size, seed=1), num_threads=2)
    layers = make_weights()
    structure = jax.tree.structure(layers)

    options.out.mkdir(parents=True, exist_ok=True)
    checkpoint = options.out / "checkpoint.npz"
    step = 0
    if checkpoint.exists():
        with np.load(checkpoint) as saved:
            leaves = [jnp.asarray(saved[f"arr_{number}"]) for number in range(structure.num_leaves)]
            position = json.loads(str(saved["position"]))
        layers = jax.tree.unflatten(structure, leaves)
        batches.load_state_dict(position["batches"])
        step = position["step"]

    for epoch in range(batches.epoch, options.epochs):
        batches.set_epoch(epoch)
        for tensors in batches:
            batch = {field: jnp.asarray(values.numpy()) for field, values in tensors.items()}  # to JAX's device
            layers = learn(layers, batch)
            step += 1
            if step % options.save_every == 0:
                position = json.dumps({"batches": batches.state_dict(), "step": step})
                temporary = options.out / "checkpoint.new.npz"
                np.savez(temporary, *jax.tree.leaves(layers), position=position)
                os.replace(temporary, checkpoint)
    np.savez(options.out / "model.npz", *jax.tree.leaves(layers))


if __name__ == "__main__":
    main()
