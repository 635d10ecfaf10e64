"""Train a few steps on any point store: ``python examples/first_step.py STORE``.

A small network predicts the fields of one domain at a point from its position. It shows that a store can be trained
from; it is no model of anything.
"""

from __future__ import annotations

import argparse

import torch

from zarr_core import ZarrChunkReader


def main(arguments: list[str] | None = None) -> float:
    """Train on all samples of the store and return the last loss."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("store", help="path or URL of the store")
    parser.add_argument("--domain", help="by default the store's last, for example volume")
    parser.add_argument("--steps", type=int, default=1)
    parser.add_argument("--points", type=int, default=1024, help="points per sample and step")
    options = parser.parse_args(arguments)
    torch.manual_seed(0)
    reader = ZarrChunkReader(options.store)
    domain = options.domain or list(reader.manifest.domains)[-1]
    position = f"{domain}_position"
    columns = reader.manifest.domains[domain].arrays
    targets = [field for field in columns if field != position]
    network = torch.nn.Sequential(
        torch.nn.Linear(3, 64), torch.nn.GELU(), torch.nn.Linear(64, sum(columns[field].dim for field in targets))
    )
    optimizer = torch.optim.AdamW(network.parameters(), lr=1e-3)
    loss = torch.zeros(())
    for step in range(options.steps):
        losses = []
        for sample_id in reader.manifest.samples:
            drawn = reader.read_sample(sample_id, {domain: options.points}, [position, *targets], epoch=step)
            fields = {field: torch.from_numpy(values).float() for field, values in drawn.items()}
            target = torch.cat([fields[field].reshape(len(fields[position]), -1) for field in targets], dim=1)
            target = (target - target.mean(dim=0)) / target.std(dim=0).clamp_min(1e-6)
            losses.append(torch.nn.functional.mse_loss(network(fields[position]), target))
        loss = torch.stack(losses).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"step {step + 1}: loss {loss.item():.4f}, {domain}: {', '.join(targets)}")
    return loss.item()


if __name__ == "__main__":
    main()
