"""Runs the recipes of ``examples/recipes`` as processes that record each batch, and that may be killed at a batch."""

from __future__ import annotations

import hashlib
import importlib.util
import itertools
import json
import os
import signal
import socket
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch

from tests.helpers import fork_server

RECIPES = Path(__file__).parents[2] / "examples" / "recipes"
EPOCHS = 3
#: Of 10 samples in batches of 4.
STEPS = 3


def load(name: str) -> Any:
    """The module of a recipe."""
    spec = importlib.util.spec_from_file_location(f"recipe_{name}", RECIPES / name / "train.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # PyTorch Geometric looks for it there
    spec.loader.exec_module(module)
    return module


def digests(batch: Mapping[str, Any]) -> list[str]:
    """One digest of each sample of a batch: of all its values, bit for bit."""
    if "volume_ptr" in batch:  # samples one after the other
        return _digests_of_points(batch)
    columns = [_array(batch[field]) for field in sorted(batch)]
    found = []
    for values in zip(*columns, strict=True):
        digest = hashlib.blake2b(digest_size=8)
        for value in values:
            digest.update(np.ascontiguousarray(value))
        found.append(digest.hexdigest())
    return found


def _array(values: Any) -> np.ndarray:
    """Values of PyTorch, NumPy or JAX, which may lie on a GPU."""
    return np.asarray(values.cpu() if isinstance(values, torch.Tensor) else values)


def _digests_of_points(batch: Mapping[str, Any]) -> list[str]:
    """One digest of each sample of a batch whose points are one after the other."""
    stops = batch["volume_ptr"].tolist()
    points = {field: values for field, values in batch.items() if field not in ("volume_ptr", "volume_batch")}
    found = []
    for start, stop in itertools.pairwise(stops):
        found += digests({field: values[start:stop][None] for field, values in points.items()})
    return found


def run_recipe(name: str, arguments: list[str], record: Path, die_at: int) -> None:
    """Run a recipe in this process.

    Args:
        name: of the recipe.
        arguments: of its command line.
        record: file that gets a line for each step, with the digests of its samples.
        die_at: step of this process, from 0 on, before which it kills itself; never: -1.
    """
    module = load(name)
    step = "learn" if hasattr(module, "learn") else "loss_of"  # the function of a batch
    of_batch, steps = getattr(module, step), itertools.count()

    def recording(model: Any, batch: Mapping[str, Any], *others: Any) -> Any:
        if next(steps) == die_at:
            os.kill(os.getpid(), signal.SIGKILL)
        with record.open("a") as lines:
            lines.write(json.dumps(digests(batch)) + "\n")
        return of_batch(model, batch, *others)

    setattr(module, step, recording)
    with patch.object(sys, "argv", [f"{name}/train.py", *arguments]):
        module.main()


class Run:
    """Runs of one recipe with one output folder.

    Args:
        name: of the recipe.
        store: the samples.
        folder: an empty folder for everything that the recipe writes.
        world: number of processes.
        options: further arguments of its command line.
    """

    def __init__(self, name: str, store: Path, folder: Path, world: int = 1, options: tuple[str, ...] = ()) -> None:
        self.name, self.store, self.folder, self.world, self.options = name, store, folder, world, options
        folder.mkdir(parents=True, exist_ok=True)
        self._starts = 0

    def start(self, die_at: int = -1) -> list[list[str]]:
        """Start all processes, wait for their end, and return the global batches that were seen.

        Args:
            die_at: step before which rank 0 is killed; the others then end with an error.
        """
        self._starts += 1
        port = _free_port()
        records = [self.folder / f"start{self._starts}.rank{rank}.jsonl" for rank in range(self.world)]
        processes = []
        for rank, record in enumerate(records):
            variables: dict[str, object] = {"ACCELERATE_USE_CPU": "true", "OMP_NUM_THREADS": 1}
            if self.world > torch.cuda.device_count():  # NCCL refuses two ranks on one GPU
                variables["CUDA_VISIBLE_DEVICES"] = ""
            if self.world > 1:  # as torchrun does
                variables |= {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": self.world, "GROUP_RANK": 0}
                variables |= {"LOCAL_WORLD_SIZE": self.world, "TORCHELASTIC_RUN_ID": "recipe"}
                variables |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
            arguments = (self.name, self.arguments, record, die_at if rank == 0 else -1)
            processes.append(fork_server.start(run_recipe, *arguments, environment=variables))
        for process in processes:
            process.join(240)
        codes = [process.exitcode for process in processes]
        for process in processes:
            process.kill()  # one that waits for the killed one
        if die_at < 0:
            assert codes == [0] * self.world, f"exit codes {codes}: tracebacks are on standard error"
        else:
            assert codes[0] == -signal.SIGKILL, codes
        return joined([lines_of(record) for record in records])

    @property
    def arguments(self) -> list[str]:
        """Of the command line."""
        out = self.folder / "out"
        if self.name == "hydra":
            data = [f"data.root={self.store}", "data.num_volume_points=8", "batches.batch_size=4"]
            return [*data, f"out={out}", f"epochs={EPOCHS}", "save_every=1"]
        sizes = [f"--epochs={EPOCHS}", "--batch-size=4", "--save-every=1"]
        if self.name != "scikit_learn":
            sizes.append("--points=8")
        return [str(self.store), str(out), *sizes, *self.options]

    def weights(self) -> dict[str, Any]:
        """Of the trained model."""
        import torch

        out = self.folder / "out"
        if self.name == "numpy_batches":
            return {"weights": torch.from_numpy(np.load(out / "model.npy"))}
        if self.name == "jax_batches":
            with np.load(out / "model.npz") as saved:
                return {name: torch.from_numpy(saved[name]) for name in saved.files}
        loaded: dict[str, Any] = torch.load(out / "model.pt", weights_only=True)
        model: dict[str, Any] = loaded.get("model", loaded)
        return model


def joined(ranks: list[list[list[str]]]) -> list[list[str]]:
    """Global batches, from those of each rank; steps that not every rank has seen are left out."""
    return [list(itertools.chain.from_iterable(shares)) for shares in zip(*ranks, strict=False)]


def lines_of(record: Path) -> list[list[str]]:
    """The batches that a process has recorded."""
    return [json.loads(line) for line in record.read_text().splitlines()] if record.exists() else []


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


if __name__ == "__main__":  # under torchrun: the first start is killed
    recipe, path, step, *rest = sys.argv[1:]
    is_first = os.environ["TORCHELASTIC_RESTART_COUNT"] == "0"
    run_recipe(recipe, rest, Path(path), int(step) if is_first else -1)
