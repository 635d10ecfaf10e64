"""A trainer of one rank: records its batches, saves its state after each step, and may be killed."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

from zarr_core import EpochBatchSampler, ResumableLoader, build_dataset


def train(store: str, out: Path, workers: int, epochs: int, die_after: int) -> None:
    """Train as the rank that ``RANK`` and ``WORLD_SIZE`` name; ``die_after`` steps (never: 0), it kills itself."""
    rank = os.environ["RANK"]
    fields = ["volume_position"]
    dataset = build_dataset(
        {"kind": "point", "root": store, "split": "train", "num_volume_points": 8, "fields": fields}
    )
    loader = ResumableLoader(
        dataset,
        EpochBatchSampler.of(dataset, batch_size=4, seed=5),
        num_workers=workers,
        persistent_workers=workers > 0,
        multiprocessing_context="fork" if workers else None,
    )
    checkpoint, resume = out / "state.json", out / "resume.json"
    if resume.exists():
        loader.load_state_dict(json.loads(resume.read_text()))
    for epoch in range(loader.epoch, epochs):
        loader.set_epoch(epoch)
        for batch in loader:
            state = loader.state_dict()
            with (out / f"rank{rank}.jsonl").open("a") as lines:
                lines.write(json.dumps([state["epoch"], state["position"], batch["volume_position"].tolist()]) + "\n")
            if rank == "0":  # every rank continues from this state
                temporary = checkpoint.with_suffix(".tmp")
                temporary.write_text(json.dumps(state))
                temporary.replace(checkpoint)
            die_after -= 1
            if die_after == 0:
                os.kill(os.getpid(), signal.SIGKILL)
