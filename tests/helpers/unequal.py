"""Evaluates whole samples of different sizes, as one rank of several processes."""

from __future__ import annotations

import json
from pathlib import Path

import torch
import torch.distributed as dist

from tests.helpers.loading import opened
from zarr_core import EpochBatchSampler, ResumableLoader


def evaluate(store: Path, out: Path, way: str, rank: int) -> None:
    """Write, as one of two ranks, the error of each sample that this rank has seen, and the mean."""
    dist.init_process_group("gloo", init_method=f"file://{out}/rendezvous", rank=rank, world_size=2)
    errors = errors_of(store, way)
    total = torch.tensor([sum(error for _, error in errors), len(errors)], dtype=torch.float64)
    dist.all_reduce(total)
    found = {"errors": errors, "mean": float(total[0] / total[1])}
    (out / f"rank{rank}.json").write_text(json.dumps(found))
    dist.destroy_process_group()


def errors_of(store: Path, way: str) -> list[tuple[int, float]]:
    """Number and error of the samples of this rank."""
    dataset = opened(store, num_volume_points=None, collate=way, with_index=True)
    sampler = EpochBatchSampler.of(dataset, batch_size=4, shuffle=False, evaluation=True)
    found = []
    for batch in ResumableLoader(dataset, sampler):
        if way == "list":
            samples = [item["volume_position"] for item in batch]
            indices = [int(item["index"]) for item in batch]
        else:
            values = batch["volume_position"]
            indices = batch["index"].tolist()
            if way == "pad":
                samples = [values[i, mask] for i, mask in enumerate(batch["volume_mask"])]
            else:
                samples = [values[batch["volume_batch"] == i] for i in range(len(indices))]
        for index, points in zip(indices, samples, strict=True):
            found.append((index, float(points.double().square().mean())))
    return found
