"""A message passing network of PyTorch Geometric, on edges between drawn points."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from scipy.spatial import cKDTree
from torch import Tensor, nn
from torch_geometric.nn import MessagePassing

from zarr_core import EpochBatchSampler, ResumableLoader, build_dataset, to_device

sys.path.append(str(Path(__file__).parents[1]))
from common import new_parser, pressure_of
from plain_loop.train import train

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
    options = new_parser(__doc__).parse_args(arguments)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    config = pressure_of(options.store, options.points) | {"transform": with_neighbours, "collate": "concat"}
    dataset = build_dataset(config)
    sampler = EpochBatchSampler.of(dataset, options.batch_size, seed=1)
    loader = ResumableLoader(dataset, sampler, num_threads=2, pin_memory=device == "cuda")
    batches = to_device(loader, device)
    torch.manual_seed(0)  # equal weights at the start of every run
    model = Network().to(device)
    train(model, loss_of, batches, options.out, options.epochs, options.save_every)
    torch.save(model.state_dict(), options.out / "model.pt")


if __name__ == "__main__":
    main()
