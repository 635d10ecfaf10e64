"""The benchmark of training on a GPU, on the CPU and on samples that are too small to tell anything."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from benchmarks.gpu import MAPS, NO_THREADS, ON_DEVICE, THREADS, Step, measure, ways
from benchmarks.synthetic import FIELDS, make_source, make_store
from zarr_core.format.codecs import DEFAULT_CODEC


def test_every_way_gives_normalized_batches(tmp_path: Path) -> None:
    source = make_source(tmp_path / "source", samples=4, points=60)
    store = make_store(source, tmp_path / "store", str(DEFAULT_CODEC), chunk_points=16)
    device = torch.device("cpu")
    opened = ways(source, store, device, drawn=60, batch_size=4)
    assert list(opened) == [NO_THREADS, THREADS, ON_DEVICE, MAPS]
    sums = []
    for way in opened.values():
        (batch,) = way(0)
        assert set(batch) == set(FIELDS)
        assert {values.dtype for values in batch.values()} == {torch.float32}
        sums.append(torch.stack([values.double().sum() for _, values in sorted(batch.items())]))
    # All points of all samples, in other orders; the store has rounded them to float16.
    for found in sums[1:]:
        torch.testing.assert_close(found, sums[0], rtol=0.01, atol=0.05)
    found = measure(opened, Step(device, 0.0001, size=8), rounds=1, warm=0)
    assert found.keys() == opened.keys()
    assert min(found.values()) > 0


@pytest.mark.slow
@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_it_says_so() -> None:
    run = subprocess.run([sys.executable, "-m", "benchmarks.gpu"], capture_output=True, text=True)
    assert (run.returncode, run.stdout) == (1, "")
    assert run.stderr == "benchmarks.gpu needs a CUDA device, and torch finds none\n"
