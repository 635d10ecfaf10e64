"""What works without torch: reading, and the commands that neither convert nor train."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.helpers.small_source import write_source
from zarr_core import EpochBatchSampler, ResumableLoader, build_dataset
from zarr_core.convert import convert
from zarr_core.matrix import WideMatrix

READ = """
import sys
sys.modules["torch"] = None  # an import of it raises ImportError
from zarr_core import DuckDBWarehouse, MatrixLoader, StoreManifest, WideMatrix, ZarrChunkReader, make_store

reader = ZarrChunkReader("store")
drawn = reader.read_sample("run_1", {"surface": 16, "volume": 16}, epoch=3)
assert drawn["volume_velocity"].shape == (16, 3), drawn["volume_velocity"].shape
assert WideMatrix.open("matrix").read(["s2"], ["b"]).tolist() == [[5.0]]
"""
RECIPE = Path(__file__).parents[1] / "examples" / "recipes" / "numpy_batches" / "README.md"
#: Command lines of the program, on a store and on a matrix.
LINES = [
    "info store",
    "info store run_1 --json",
    "info matrix",
    "verify store",
    "verify matrix",
    "stage store copy",
    "stage matrix copied_matrix",
    "statistics store",
    "log store",
    "diff store 1 2",
    "tag store first",
    "gc store --dry-run",
    "matrix matrix --derive-columns",
]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a store of two generations and a matrix."""
    root = tmp_path_factory.mktemp("place")
    write_source(root / "source")
    for ids in (["run_1"], ["run_1", "run_2"]):
        convert("ahmedml", str(root / "store"), source_url=str(root / "source"), sample_ids=ids, chunk_points=32)
    matrix = WideMatrix.create(root / "matrix", ["a", "b"], {"beta": "float32"})
    matrix.append("one", ["s1", "s2"], {"beta": np.float32([[2, 3], [4, 5]])})
    return root


def run(place: Path, code: str) -> None:
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=place, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-1000:] + done.stderr[-2000:]


@pytest.mark.slow
def test_stores_are_read(place: Path) -> None:
    run(place, READ)


@pytest.mark.slow
def test_the_lines_of_the_recipe_read_batches(place: Path) -> None:
    (block,) = re.findall(r"```python\n(.*?)```", RECIPE.read_text(), re.DOTALL)
    code = block.replace("/data/ahmedml_store", "store").replace("4096", "16")
    form = 'batch["volume_pressure"].shape, batch["volume_pressure"].dtype.name'
    run(place, f"import sys\nsys.modules['torch'] = None\n{code}\nassert ({form}) == ((2, 16, 1), 'float16'), ({form})")


def test_the_lines_of_the_recipe_read_what_a_loader_reads(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (block,) = re.findall(r"```python\n(.*?)```", RECIPE.read_text(), re.DOTALL)
    monkeypatch.chdir(place)
    lines: dict[str, Any] = {}
    exec(block.replace("/data/ahmedml_store", "store").replace("4096", "16"), lines)
    config = {"kind": "point", "root": "store", "split": "train", "num_volume_points": 16, "dtype": "stored"}
    dataset = build_dataset(config | {"fields": list(lines["batch"])})
    (batch,) = ResumableLoader(dataset, EpochBatchSampler.of(dataset, batch_size=4, seed=1))
    for field, values in lines["batch"].items():
        drawn = batch[field].numpy().reshape(-1, *values.shape[1:])
        np.testing.assert_array_equal(drawn[: len(values)], values)


@pytest.mark.slow
def test_commands_of_stores_run(place: Path) -> None:
    lines = [line.split() for line in LINES]
    run(
        place,
        f"import sys\nsys.modules['torch'] = None\nfrom zarr_core.__main__ import main\n"
        f"failed = [line for line in {lines} if main(line) != 0]\nassert not failed, failed",
    )
