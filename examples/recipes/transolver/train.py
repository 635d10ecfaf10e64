"""A small Transolver, which attends to slices of the points, for all fields of surface and volume."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from zarr_core import EpochBatchSampler, ResumableLoader, ZarrChunkReader, build_dataset, to_device

sys.path.append(str(Path(__file__).parents[1]))
from common import new_parser
from plain_loop.train import train

DOMAINS = ("surface", "volume")


class Block(nn.Module):
    """A transformer's block; attention is between slices, weighted means of points (Wu et al., arXiv 2402.02366)."""

    def __init__(self, width: int, heads: int, slices: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm, self.norm_out = nn.LayerNorm(width), nn.LayerNorm(width)
        self.keys, self.values, self.out = (nn.Linear(width, width) for _ in range(3))
        self.to_slices = nn.Linear(width // heads, slices)
        self.temperature = nn.Parameter(torch.full((heads, 1, 1), 0.5))
        self.attention = nn.Linear(width // heads, 3 * width // heads, bias=False)
        self.expand = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))

    def forward(self, points: Tensor) -> Tensor:
        """(samples, points, width), from the same."""
        normed = self.norm(points)
        keys, values = (of(normed).unflatten(-1, (self.heads, -1)).transpose(1, 2) for of in (self.keys, self.values))
        weights = torch.softmax(self.to_slices(keys) / self.temperature, dim=-1)  # (samples, heads, points, slices)
        means = weights.transpose(2, 3) @ values / (weights.sum(dim=2)[..., None] + 1e-5)
        slices = scaled_dot_product_attention(*self.attention(means).chunk(3, dim=-1))
        points = points + self.out((weights @ slices).transpose(1, 2).flatten(2))
        return points + self.expand(self.norm_out(points))


class Transolver(nn.Module):
    """Fields at the points of all domains, from their positions.

    Args:
        components: number of each field by its name, "surface_pressure".
    """

    def __init__(self, components: Mapping[str, int], width: int = 32, heads: int = 4, slices: int = 16) -> None:
        super().__init__()
        self.encode = nn.ModuleDict({domain: nn.Linear(3, width) for domain in DOMAINS})
        self.blocks = nn.Sequential(*(Block(width, heads, slices) for _ in range(2)), nn.LayerNorm(width))
        self.decode = nn.ModuleDict({field: nn.Linear(width, count) for field, count in components.items()})

    def forward(self, positions: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """(samples, points, components) by field, from (samples, points, 3) by domain."""
        encoded = [self.encode[domain](positions[domain]) for domain in DOMAINS]
        points = self.blocks(torch.cat(encoded, dim=1)).split([part.shape[1] for part in encoded], dim=1)
        of_domain = dict(zip(DOMAINS, points, strict=True))
        return {field: decode(of_domain[field.partition("_")[0]]) for field, decode in self.decode.items()}


def loss_of(model: nn.Module, batch: Mapping[str, Tensor]) -> Tensor:
    """Sum of the mean squared errors of the normalized fields."""
    predicted = model({domain: batch[f"{domain}_position"] for domain in DOMAINS})
    return sum((values - batch[field]).square().mean() for field, values in predicted.items())


def main(arguments: Sequence[str] | None = None) -> None:
    """Train, and write ``model.pt`` at the end."""
    options = new_parser(__doc__).parse_args(arguments)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    columns = ZarrChunkReader(options.store).manifest.fields
    fields = [field for field in columns if field.partition("_")[0] in DOMAINS]
    positions = [f"{domain}_position" for domain in DOMAINS]
    dataset = build_dataset(
        {
            "kind": "point",
            "root": options.store,
            "split": "train",
            "fields": fields,
            "num_surface_points": options.points,
            "num_volume_points": options.points,
            "normalizers": dict.fromkeys(fields, "mean_std") | dict.fromkeys(positions, "position"),
            "scalar_axis": True,
        }
    )
    sampler = EpochBatchSampler.of(dataset, options.batch_size, seed=1)
    loader = ResumableLoader(dataset, sampler, num_threads=2, pin_memory=device == "cuda")
    batches = to_device(loader, device)
    components = {field: columns[field].dim for field in fields if field not in positions}
    torch.manual_seed(0)  # equal weights at the start of every run
    model = Transolver(components).to(device)
    train(model, loss_of, batches, options.out, options.epochs, options.save_every)
    torch.save({"model": model.state_dict(), "normalizers": dataset.normalizers}, options.out / "model.pt")


if __name__ == "__main__":
    main()
