"""Every recipe sees the batches of the plain loop, bit for bit: undisturbed, and resumed after a kill."""

from __future__ import annotations

import importlib
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.helpers.published_store import make_samples, write_published_store
from tests.helpers.recipes import EPOCHS, RECIPES, STEPS, Run, digests, lines_of
from zarr_core import EpochBatchSampler, MatrixDataset, WideMatrix, write_sample
from zarr_core.__main__ import main

pytestmark = pytest.mark.slow

# Recipes that train with torch and resume, and what they need.
TRAINERS = {
    "plain_loop": "torch",
    "torchrun": "torch",
    "accelerate": "accelerate",
    "lightning": "lightning",
    "hydra": "hydra",
    "numpy_batches": "numpy",
    "jax_batches": "jax",
}
# Recipes of one process with data and batches of their own, what they need, and further arguments.
OTHERS = {
    "drag": ("torch", ("--drag=cd", "--inputs", "speed")),
    "transolver": ("torch", ()),
    "graph_network": ("torch_geometric", ()),
}
# Those that one process runs, and one that needs torchrun.
ONE, SEVERAL = ("plain_loop", "hydra", "numpy_batches", "jax_batches"), ("torchrun",)
# Before the second step of an epoch, and before the first of the next one.
KILLS = {"in the middle of an epoch": STEPS + 1, "at the end of an epoch": 2 * STEPS}


# Modules that recipes import, beside those of the library and what it brings, and the packages that have them.
PACKAGES = {
    "accelerate": "accelerate",
    "hydra": "hydra-core",
    "jax": "jax",
    "joblib": "scikit-learn",
    "lightning": "lightning",
    "omegaconf": "hydra-core",
    "scipy": "scipy",
    "sklearn": "scikit-learn",
    "torch_geometric": "torch-geometric",
    "torchmetrics": "lightning",
}
OWN = {"common", "numpy", "plain_loop", "torch", "zarr_core"}


@pytest.mark.parametrize("program", sorted(RECIPES.glob("*/train.py")), ids=lambda program: program.parent.name)
def test_the_readme_of_a_recipe_installs_what_it_imports(program: Path) -> None:
    imported = set(re.findall(r"^(?:from|import) (\w+)", program.read_text(), re.MULTILINE))
    needed = {PACKAGES[module] for module in imported - sys.stdlib_module_names - OWN}
    installed = re.findall(r"^pip install (.*)$", (program.parent / "README.md").read_text(), re.MULTILINE)
    assert set(" ".join(installed).split()) == needed


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = make_samples(10)
    splits = {"train": list(made), "val": list(made)[:3]}
    return write_published_store(tmp_path_factory.mktemp("recipes"), made, 16, splits=splits)


@pytest.fixture(scope="module")
def plain(store: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Batches and weights of the plain loop on one process."""
    run = Run("plain_loop", store, tmp_path_factory.mktemp("plain"))
    batches = run.start()
    return batches, run.weights()


def test_the_plain_loop_sees_other_points_in_each_epoch(plain: Any) -> None:
    batches, _ = plain
    assert [len(batch) for batch in batches] == [4] * STEPS * EPOCHS
    seen = {digest for batch in batches for digest in batch}
    assert len(seen) == 12 * EPOCHS, "the first samples of an epoch, which complete its last batch, have other points"


def trainers() -> Iterator[Any]:
    for name in TRAINERS:
        for world in (1, 2):
            if name not in (SEVERAL if world == 1 else ONE):
                yield pytest.param(name, world, id=f"{name}-{world}")


@pytest.mark.parametrize(("name", "world"), list(trainers()))
def test_a_recipe_sees_the_batches_of_the_plain_loop(
    plain: Any, store: Path, tmp_path: Path, name: str, world: int
) -> None:
    skip_without(TRAINERS[name])
    batches, weights = plain
    options = (f"--devices={world}",) if name == "lightning" else ()
    undisturbed = Run(name, store, tmp_path / "undisturbed", world, options)
    assert undisturbed.start() == batches
    if world == 1 and name not in ("numpy_batches", "jax_batches"):  # another model
        assert_equal(undisturbed.weights(), weights)
    for when, step in KILLS.items():
        assert_resumed(Run(name, store, tmp_path / f"killed_{step}", world, options), step, batches, undisturbed, when)


# Prints the error of validation, and what each sample contributes. Lightning starts the other process with this file.
VALIDATION = """
import sys
import lightning
import torch
from tests.helpers.recipes import load

recipe = load("lightning")
torch.manual_seed(0)
fields = ["volume_position", "volume_pressure"]
data = recipe.ZarrDataModule({"kind": "point", "root": sys.argv[1], "fields": fields, "num_volume_points": 8}, 4)
module = recipe.Surrogate()
devices = int(sys.argv[2])
trainer = lightning.Trainer(
    devices=devices, accelerator="cpu", use_distributed_sampler=False, logger=False, enable_progress_bar=False
)
(found,) = trainer.validate(module, data, verbose=False)
errors = []
for batch in data.val_dataloader() if devices == 1 else ():
    difference = module.model(batch["volume_position"]).squeeze(-1) - batch["volume_pressure"]
    errors += difference.square().mean(1).tolist()
if trainer.is_global_zero:
    print("error", found["error"], *errors)
"""


def test_the_validation_of_lightning_on_two_processes_is_that_of_one(store: Path, tmp_path: Path) -> None:
    skip_without("lightning")
    script = tmp_path / "validate.py"
    script.write_text(VALIDATION)
    found = {}
    for devices in (1, 2):
        command = [sys.executable, str(script), str(store), str(devices)]
        paths = {"PYTHONPATH": str(RECIPES.parents[1]), "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
        done = subprocess.run(
            command, check=True, cwd=tmp_path, timeout=240, capture_output=True, text=True, env=os.environ | paths
        )
        (line,) = [line for line in done.stdout.splitlines() if line.startswith("error ")]
        found[devices] = [float(number) for number in line.split()[1:]]
    error, *errors = found[1]
    assert len(errors) == 3, "two processes have parts of one sample and of two"
    assert error == pytest.approx(np.mean(errors), rel=1e-6)
    assert found[2] == pytest.approx([error], rel=1e-6)


def skip_without(library: str) -> None:
    # A torchvision for another build of torch makes Lightning raise RuntimeError.
    try:
        importlib.import_module(library)
    except (ImportError, RuntimeError) as error:
        pytest.skip(f"{library} cannot be imported: {error}")


def assert_resumed(run: Run, step: int, batches: list[list[str]], undisturbed: Run, when: str) -> None:
    """A run that is killed before a step, and before the next one, ends with the weights of the undisturbed one."""
    assert run.start(die_at=step) == batches[:step], when
    assert run.start(die_at=1) == batches[step : step + 1], when
    assert run.start() == batches[step + 1 :], when
    assert_equal(run.weights(), undisturbed.weights())


@pytest.fixture(scope="module")
def bodies(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Bodies with a drag coefficient and a speed, with the statistics of ``train``."""
    store = tmp_path_factory.mktemp("bodies") / "store"
    random = np.random.default_rng(0)
    for number in range(10):
        fields = {}
        for domain in ("surface", "volume"):
            fields[f"{domain}_position"] = random.uniform(-1, 1, (1000, 3)).astype(np.float32)
            fields[f"{domain}_pressure"] = random.normal(size=1000).astype(np.float32)
        fields["volume_velocity"] = random.normal(size=(1000, 3)).astype(np.float32)
        parameters = {"cd": 0.3 + 0.01 * number, "speed": 20.0 + number}
        write_sample(store, f"body_{number}", fields, split="train", parameters=parameters, chunk_points=8)
    assert main(["statistics", str(store), "--split", "train", "--quiet"]) == 0
    return store


@pytest.mark.parametrize("name", OTHERS)
def test_a_recipe_with_other_batches_continues_with_those_that_are_left(
    bodies: Path, tmp_path: Path, name: str
) -> None:
    library, options = OTHERS[name]
    skip_without(library)
    undisturbed = Run(name, bodies, tmp_path / "undisturbed", options=options)
    batches = undisturbed.start()
    assert [len(batch) for batch in batches] == [4] * STEPS * EPOCHS
    # The first samples of an epoch complete its last batch, with other points.
    assert len({digest for batch in batches for digest in batch}) == 12 * EPOCHS
    for when, step in KILLS.items():
        assert_resumed(Run(name, bodies, tmp_path / f"killed_{step}", 1, options), step, batches, undisturbed, when)


def assert_equal(one: dict[str, Any], other: dict[str, Any]) -> None:
    """Weights are equal, bit for bit."""
    assert one.keys() == other.keys()
    for name, values in one.items():
        assert torch.equal(values, other[name]), name


def test_torchrun_starts_a_killed_run_again(plain: Any, store: Path, tmp_path: Path) -> None:
    record = tmp_path / "batches.jsonl"
    command = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=1", "--max-restarts=1"]
    run = Run("torchrun", store, tmp_path)
    script = ["-m", "tests.helpers.recipes", "torchrun", str(record), str(STEPS + 1), *run.arguments]
    subprocess.run([sys.executable, *command, *script], check=True, cwd=RECIPES.parents[1], timeout=240)
    batches, _ = plain
    assert lines_of(record) == batches, "the first process ends before step 4, the second one continues there"


def test_scikit_learn_sees_the_batches_of_the_matrix(tmp_path: Path) -> None:
    pytest.importorskip("sklearn", reason="scikit-learn is not installed")
    import joblib
    import pyarrow as pa

    random = np.random.default_rng(0)
    ids = [f"s{number}" for number in range(10)]
    betas = random.uniform(size=(10, 6)).astype(np.float32)
    betas[2, 3] = np.nan
    matrix = WideMatrix.create(tmp_path / "matrix", [f"cg{number}" for number in range(6)], {"beta": "float32"})
    betas[:, 5] = np.nan
    matrix.append("b", [*ids, "without an age"], {"beta": np.concatenate([betas, betas[:1]])})
    matrix.set_metadata(pa.table({"sample_id": ids, "age": random.uniform(20, 80, 10)}))
    measured = matrix.feature_ids[:5]
    means = MatrixDataset(matrix, ids, measured).feature_means()
    dataset = MatrixDataset(matrix, ids, measured, columns=["age"], impute=means)
    sampler = EpochBatchSampler.of(dataset, 4, seed=1)
    batches = [digests(dataset.__getitems__(indices).tensors) for _ in range(EPOCHS) for indices in sampler]
    undisturbed = Run("scikit_learn", tmp_path / "matrix", tmp_path / "undisturbed")
    assert undisturbed.start() == batches
    expected = joblib.load(undisturbed.folder / "out" / "model.joblib")
    for step in KILLS.values():
        run = Run("scikit_learn", tmp_path / "matrix", tmp_path / f"killed_{step}")
        assert run.start(die_at=step) == batches[:step]
        assert run.start() == batches[step:]
        model = joblib.load(run.folder / "out" / "model.joblib")
        np.testing.assert_array_equal(model.coef_, expected.coef_)
        np.testing.assert_array_equal(model.intercept_, expected.intercept_)


def test_every_recipe_is_tested_and_described() -> None:
    names = {folder.name for folder in RECIPES.iterdir() if (folder / "train.py").exists()}
    assert names == {*TRAINERS, *OTHERS, "scikit_learn"}
    for name in names:
        assert (RECIPES / name / "README.md").read_text().startswith("# ")
