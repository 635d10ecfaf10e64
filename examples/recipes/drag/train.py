"""The drag coefficient of a body, from points drawn from its surface and from parameters of the sample."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor, nn

from zarr_core import EpochBatchSampler, ResumableLoader, build_dataset, to_device

sys.path.append(str(Path(__file__).parents[1]))
from common import new_parser
from plain_loop.train import train

FIELDS = {"surface_position": "position", "surface_pressure": "mean_std"}  # and how each is normalized


class Network(nn.Module):
    """A network of each point, and one of their mean and the parameters.

    Args:
        components: of a point: its position, pressure and the parameters.
        parameters: of a sample.
        width: of the hidden layers.
    """

    def __init__(self, components: int, parameters: int, width: int = 32) -> None:
        super().__init__()
        self.of_point = nn.Sequential(nn.Linear(components, width), nn.GELU(), nn.Linear(width, width), nn.GELU())
        self.of_body = nn.Sequential(nn.Linear(width + parameters, width), nn.GELU(), nn.Linear(width, 1))

    def forward(self, points: Tensor, parameters: Tensor) -> Tensor:
        """Drag (samples,), from (samples, points, components) and (samples, parameters)."""
        mean = self.of_point(points).mean(dim=1)
        return self.of_body(torch.cat([mean, parameters], dim=-1)).squeeze(-1)


def loss_of(model: nn.Module, batch: Mapping[str, Tensor]) -> Tensor:
    """Mean squared error of the normalized drag coefficient."""
    return (model(batch["points"], batch["parameters"]) - batch["drag"]).square().mean()


def main(arguments: Sequence[str] | None = None) -> None:
    """Train, and write ``model.pt`` at the end."""
    parser = new_parser(__doc__)
    parser.add_argument("--drag", default="cd", help="the parameter of the samples to predict")
    parser.add_argument("--inputs", nargs="+", required=True, help="parameters of the samples to predict it from")
    options = parser.parse_args(arguments)

    device = "cuda" if torch.cuda.is_available() else "cpu"
    parameters = [options.drag, *options.inputs]
    dataset = build_dataset(
        {
            "kind": "point",
            "root": options.store,
            "split": "train",
            "num_surface_points": options.points,
            "parameters": parameters,
            "normalizers": FIELDS | dict.fromkeys(parameters, "mean_std"),
            "item": {
                "points": [*FIELDS, *options.inputs],  # parameters are repeated for each point
                "parameters": options.inputs,
                "drag": options.drag,
            },
        }
    )
    sampler = EpochBatchSampler.of(dataset, options.batch_size, seed=1)
    loader = ResumableLoader(dataset, sampler, num_threads=2, pin_memory=device == "cuda")
    batches = to_device(loader, device)
    torch.manual_seed(0)  # equal weights at the start of every run
    model = Network(4 + len(options.inputs), len(options.inputs)).to(device)
    train(model, loss_of, batches, options.out, options.epochs, options.save_every)
    torch.save({"model": model.state_dict(), "normalizers": dataset.normalizers}, options.out / "model.pt")


if __name__ == "__main__":
    main()
