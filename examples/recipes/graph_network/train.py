"""A message passing network of PyTorch Geometric, on edges between drawn points."""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from scipy.spatial import cKDTree
from torch import Tensor, nn
from torch_geometric.nn import MessagePassing

from zarr_core import EpochBatchSampler, ResumableLoader, build_dataset, to_device

NEIGHBOURS = 6


def with_neighbours(item: dict[str, Tensor]) -> dict[str, Any]:
    """An item with the nearest other points of each of its points: (points, NEIGHBOURS), numbered within the item."""
    position = item["volume_position"].numpy()
    _, nearest = cKDTree(position).query(position, k=range(2, NEIGHBOURS + 2))  # the first one is the point itself
    return item | {"volume_neighbours": torch.from_numpy(nearest)}


def edges_of(batch: Mapping[str, Tensor]) -> Tensor:
    """Edges of all samples of a batch, from neighbours to points: (2, edges), numbered within the batch."""
    first = batch["volume_ptr"][batch["volume_batch"]]  # of the sample of each point
    sources = batch["volume_neighbours"] + first[:, None]
    targets = torch.arange(len(sources), device=sources.device)[:, None].expand_as(sources)
    return torch.stack([sources.flatten(), targets.flatten()])


class Layer(MessagePassing):
    """Messages of features and relative positions, averaged at each point."""

    def __init__(self, width: int) -> None:
        super().__init__(aggr="mean")
        self.of_edge = nn.Sequential(nn.Linear(2 * width + 3, width), nn.GELU(), nn.Linear(width, width))

    def forward(self, features: Tensor, position: Tensor, edges: Tensor) -> Tensor:
        """The features of each point after one exchange of messages, (points, width)."""
        return features + self.propagate(edges, features=features, position=position)

    def message(self, features_i: Tensor, features_j: Tensor, position_i: Tensor, position_j: Tensor) -> Tensor:
        """The message of each edge, from j to i, (edges, width)."""
        return self.of_edge(torch.cat([features_i, features_j, position_j - position_i], dim=-1))


class Network(nn.Module):
    """Pressure from positions and edges."""

    def __init__(self, width: int = 16, layers: int = 2) -> None:
        super().__init__()
        self.encode = nn.Linear(3, width)
        self.layers = nn.ModuleList(Layer(width) for _ in range(layers))
        self.decode = nn.Linear(width, 1)

    def forward(self, position: Tensor, edges: Tensor) -> Tensor:
        """Pressure at each point, (points,)."""
        features = self.encode(position)
        for layer in self.layers:
            features = layer(features, position, edges)
        return self.decode(features).squeeze(-1)


def loss_of(model: nn.Module, batch: Mapping[str, Tensor]) -> Tensor:
    """Mean squared error of the pressure."""
    predicted = model(batch["volume_position"], edges_of(batch))
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
            "transform": with_neighbours,
            "collate": "concat",
        }
    )
    sampler = EpochBatchSampler.of(dataset, options.batch_size, seed=1)
    loader = ResumableLoader(dataset, sampler, num_threads=2, pin_memory=device == "cuda")
    batches = to_device(loader, device)
    torch.manual_seed(0)  # equal weights at the start of every run
    model = Network().to(device)
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
        batches.set_epoch(epoch)
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
                os.replace(f"{checkpoint}.new", checkpoint)
    torch.save(model.state_dict(), options.out / "model.pt")


if __name__ == "__main__":
    main()
