"""Train one small surrogate from `.pt` files and from two stores, and compare: ``README.md`` has the table.

All ways start from the same weights and take the same samples in the same order, for as many steps. They differ in how
a step gets its points: from `.pt`, all points of a sample are loaded and most are discarded; from the store, as
many neighbouring points of the shuffled arrays are read as are wanted. The second store has error bounds.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

from zarr_core import EpochBatchSampler, ResumableLoader
from zarr_core.convert import convert
from zarr_core.datasets import AhmedMLDataset, Batch, ZarrAhmedMLDataset, ZarrAhmedMLDatasetConfig
from zarr_core.statistics import calculate_store_statistics, write_statistics

FILES = {
    "surface_position": "surface_position_vtp.pt",
    "surface_pressure": "surface_pressure.pt",
    "volume_position": "volume_cell_position.pt",
    "volume_velocity": "volume_cell_velocity.pt",
}
TARGETS = {"surface": "surface_pressure", "volume": "volume_velocity"}
STORES: dict[str, dict[str, Any]] = {  # settings of the conversion
    "store": {},
    "store, 1e-3 std": {"max_errors": dict.fromkeys(TARGETS.values(), "1e-3std")},
}
POINTS = {"surface": 1024, "volume": 2048}  # of a sample, in each step
BATCH_SIZE = 4
THREADS = 2  # that read the next batches
HELD_OUT = "test"  # AhmedML's own split of the samples; the models are never trained on these


class PtSamples(Dataset[dict[str, Tensor]]):
    """Samples from `.pt` files: load whole files, keep a few points, or with ``points=None`` all."""

    def __init__(self, data: Path, split: str, points: dict[str, int] | None = POINTS, seed: int = 0) -> None:
        self.sample_ids = AhmedMLDataset(data, split).sample_ids
        self.data, self.points = data, points
        self.seed, self.epoch = seed, 0

    def __len__(self) -> int:
        return len(self.sample_ids)

    def set_epoch(self, epoch: int) -> None:
        """Draw other points."""
        self.epoch = epoch

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        random = np.random.default_rng([self.seed, self.epoch, index])  # the same whichever thread comes first
        folder = self.data / self.sample_ids[index]
        item = {field: torch.load(folder / name, weights_only=True) for field, name in FILES.items()}
        for domain, points in (self.points or {}).items():
            chosen = torch.from_numpy(random.permutation(len(item[f"{domain}_position"]))[:points])
            item |= {field: values[chosen] for field, values in item.items() if field.startswith(domain)}
        item["parameters"] = _numbers(json.loads((folder / "params.json").read_text()))
        return item


class StoreSamples(ZarrAhmedMLDataset):
    """Samples from the store: read only the chunks that hold the points, a whole batch at once."""

    def __init__(self, store: Path, split: str, seed: int = 0) -> None:
        config = ZarrAhmedMLDatasetConfig(
            root=str(store),
            split=split,
            fields=tuple(FILES),
            num_surface_points=POINTS["surface"],
            num_volume_points=POINTS["volume"],
            sampling_seed=seed,
            dtype="stored",  # float16, until `normalize`
            normalizers=dict.fromkeys(FILES, "mean_std"),
        )
        super().__init__(config)
        recorded = (self.reader.read_attributes(sample_id)["parameters"] for sample_id in self.sample_ids)
        self.parameters = torch.stack([_numbers(parameters) for parameters in recorded])

    def __getitems__(self, indices: list[int]) -> Batch:
        batch = super().__getitems__(indices)
        batch.tensors["parameters"] = self.parameters[indices]
        return batch

    def normalize(self, batch: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Normalize the fields; the parameters stay as they are."""
        fields = {field: values for field, values in batch.items() if field != "parameters"}
        return super().normalize(fields) | {"parameters": batch["parameters"]}


def _numbers(parameters: dict[str, float]) -> Tensor:
    """Body length, width, ..., inflow velocity, as a vector."""
    return torch.tensor([parameters[name] for name in sorted(parameters)])


class Surrogate(nn.Module):
    """The flow at points near a body: one MLP per domain, of the position and the body's parameters."""

    def __init__(self, parameters: Tensor, width: int = 64) -> None:
        super().__init__()
        self.register_buffer("mean", parameters.mean(0))
        self.register_buffer("std", parameters.std(0))
        self.register_buffer("frequencies", 2.0 ** torch.arange(4))
        features = 3 * (1 + 2 * len(self.frequencies)) + parameters.shape[1]
        self.heads = nn.ModuleDict({"surface": _mlp(features, width, 1), "volume": _mlp(features, width, 3)})

    def forward(self, domain: str, position: Tensor, parameters: Tensor) -> Tensor:
        """Normalised pressure (samples, points) or velocity (samples, points, 3) at normalised positions."""
        angles = (position[..., None] * self.frequencies).flatten(-2)
        body = ((parameters - self.mean) / self.std)[:, None].expand(-1, position.shape[1], -1)
        return self.heads[domain](torch.cat([position, angles.sin(), angles.cos(), body], -1)).squeeze(-1)


def _mlp(features: int, width: int, outputs: int) -> nn.Sequential:
    sizes = [features, width, width, width]
    hidden = [layer for pair in itertools.pairwise(sizes) for layer in (nn.Linear(*pair), nn.SiLU())]
    return nn.Sequential(*hidden, nn.Linear(width, outputs))


def train(samples: Any, store: StoreSamples, held_out: PtSamples, seed: int, steps: int) -> dict[str, float]:
    """Train on samples, normalised by the store's statistics; returns errors on held-out samples, and seconds."""
    torch.manual_seed(seed)
    model = Surrogate(store.parameters)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    loader = ResumableLoader(samples, EpochBatchSampler.of(samples, BATCH_SIZE, seed=seed), num_threads=THREADS)
    stream, waited, started = batches(loader), 0.0, time.perf_counter()
    for _ in range(steps):
        requested = time.perf_counter()
        batch = next(stream)
        waited += time.perf_counter() - requested
        batch = store.normalize(batch)
        loss = torch.zeros(())
        for domain, target in TARGETS.items():
            predicted = model(domain, batch[f"{domain}_position"], batch["parameters"])
            loss = loss + (predicted - batch[target]).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    total = time.perf_counter() - started
    return validate(model, store, held_out) | {"waiting for data, s": waited, "training in all, s": total}


def batches(loader: ResumableLoader[Any]) -> Iterator[dict[str, Tensor]]:
    """Batches, without end."""
    for epoch in itertools.count():
        loader.set_epoch(epoch)
        yield from loader


@torch.no_grad()
def validate(model: Surrogate, store: StoreSamples, held_out: PtSamples) -> dict[str, float]:
    """Relative L2 error of each target, at all points of a held-out `.pt` sample and in physical units; their mean."""
    errors: dict[str, list[float]] = {target: [] for target in TARGETS.values()}
    for truth in (held_out[index] for index in range(len(held_out))):
        sample = store.normalize({field: values[None] for field, values in truth.items()})
        for domain, target in TARGETS.items():
            predicted = store.denormalize(target, model(domain, sample[f"{domain}_position"], sample["parameters"])[0])
            errors[target].append(float((predicted - truth[target]).norm() / truth[target].norm()))
    return {target: statistics.mean(values) for target, values in errors.items()}


def table(runs: dict[str, list[dict[str, float]]]) -> str:
    """Mean ± spread over the seeds per way, in Markdown, and how far the errors of each way are from the first's."""
    columns = list(next(iter(runs.values()))[0])
    found = {
        way: {name: _mean_and_spread([run[name] for run in done]) for name in columns} for way, done in runs.items()
    }
    lines = [f"| trained from | {' | '.join(columns)} |", "|---" * (1 + len(columns)) + "|"]
    for way, numbers in found.items():
        lines.append(f"| {way} | {' | '.join(f'{mean:.3g} ± {spread:.2g}' for mean, spread in numbers.values())} |")
    lines.append("")
    first, *others = found
    for way in others:
        for target in TARGETS.values():
            (one, spread_of_one), (other, spread_of_other) = found[first][target], found[way][target]
            spread = ((spread_of_one**2 + spread_of_other**2) / 2) ** 0.5
            apart = f"{way} and {first} are {abs(one - other):.2g} apart, the seeds of one way {spread:.2g}"
            lines.append(f"* {target}: {apart}.")
    return "\n".join(lines)


def _mean_and_spread(values: list[float]) -> tuple[float, float]:
    return statistics.mean(values), statistics.stdev(values) if len(values) > 1 else 0.0


def make_store(data: Path, store: Path, **settings: Any) -> None:
    """Convert missing samples, and write the statistics of the training samples."""
    generation = convert("ahmedml", store, source_url=str(data), chunk_points=1024, **settings).manifest.generation
    numbers = calculate_store_statistics(str(store), split="train", generation=generation)
    write_statistics(str(store), numbers, of="split train", split="train", generation=generation)


def main(arguments: list[str] | None = None) -> None:
    """Convert, train each way with each seed, print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, default=Path(__file__).parents[1] / "data" / "ahmed_rans")
    parser.add_argument("--stores", type=Path, help="folder that keeps the stores; by default they are not kept")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--seeds", type=int, default=5)
    options = parser.parse_args(arguments)
    warnings.filterwarnings("ignore", message=".*absent and skipped")  # AhmedML has 500 runs, here are a few
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.stores or Path(temporary)
        for way, settings in STORES.items():
            make_store(options.data, folder / way, **settings)
        held_out = PtSamples(options.data, HELD_OUT, points=None)
        runs: dict[str, list[dict[str, float]]] = {way: [] for way in ("`.pt`", *STORES)}
        for seed in range(options.seeds):
            stores = {way: StoreSamples(folder / way, "train", seed) for way in STORES}
            from_store = stores["store"]
            ways: dict[str, PtSamples | StoreSamples] = {"`.pt`": PtSamples(options.data, "train", seed=seed), **stores}
            for way, samples in ways.items():
                runs[way].append(train(samples, from_store, held_out, seed, options.steps))
                numbers = (f"{name} {number:.3g}" for name, number in runs[way][-1].items())
                print(f"seed {seed}, from {way}: {', '.join(numbers)}", file=sys.stderr)
        counts = f"{len(from_store)} samples to train on, {len(held_out)} held out"
        print(f"{counts}; {options.steps} steps, {options.seeds} seeds\n\n{table(runs)}")


if __name__ == "__main__":
    main()
