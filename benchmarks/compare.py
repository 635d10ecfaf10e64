"""CPU time of this tree compared with that of another checkout, side by side in one run.

``python -m benchmarks.compare --base /tmp/old`` converts the same samples, and draws from the same store, with the code
of both. Each checkout runs in one process. The processes take turns, so that other load affects both alike. Printed
are the median CPU times, the median of the ratios of pairs with its quartiles, and the ratio of the fastest turns.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.conversion import make_samples

# Runs in either tree, with its public API. Reads lines "KERNEL ARGUMENT" and answers each with seconds of CPU time.
PROGRAM = """
import resource, shutil, sys
import torch
from zarr_core import ZarrChunkReader
from zarr_core.convert import convert
torch.set_num_threads(1)
source, output = sys.argv[1:]
readers, epoch = {}, 0
def conversion(name):
    shutil.rmtree(output, ignore_errors=True)
    convert("ahmedml", output, source_url=source, chunk_points=16384)
def draws(store):
    global epoch
    reader = readers.get(store) or readers.setdefault(store, ZarrChunkReader(store))
    for sample in reader.sample_ids:
        for _ in range(500 // len(reader.sample_ids)):
            epoch += 1
            reader.read_sample(sample, {"volume": 16384, "surface": 4096}, epoch=epoch)
for line in sys.stdin:
    kernel, argument = line.split()
    before = resource.getrusage(resource.RUSAGE_SELF)
    globals()[kernel](argument)
    after = resource.getrusage(resource.RUSAGE_SELF)
    print(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, flush=True)
"""


class Tree:
    """A process that runs the code of one checkout."""

    def __init__(self, checkout: Path, source: Path, output: Path) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, str(source), str(output)],
            cwd=checkout,
            env={**os.environ, "PYTHONPATH": str(checkout.resolve())},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def seconds(self, kernel: str, argument: Path) -> float:
        """CPU time of one run."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(kernel, argument, file=self._process.stdin, flush=True)
        return float(self._process.stdout.readline())

    def close(self) -> None:
        """End the process."""
        self._process.communicate()


def compare(kernel: str, base: Tree, ours: Tree, argument: Path, pairs: int) -> None:
    """Print the CPU time of both trees, and their ratio."""
    for tree in (base, ours):
        tree.seconds(kernel, argument)  # imports, and caches of files
    times = [
        (base.seconds(kernel, argument), ours.seconds(kernel, argument))
        if pair % 2
        else (ours.seconds(kernel, argument), base.seconds(kernel, argument))[::-1]
        for pair in range(pairs)
    ]
    low, middle, high = statistics.quantiles([ours / base for base, ours in times], n=4)
    columns = list(zip(*times, strict=True))
    theirs, own = (statistics.median(column) for column in columns)
    fastest = min(columns[1]) / min(columns[0])
    print(f"{kernel}: base {theirs:.3f} s, this tree {own:.3f} s", end=", ")
    print(f"ratio {middle:.3f} ({low:.3f} to {high:.3f}), of the fastest {fastest:.3f}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--base", type=Path, required=True, help="checkout of the tree to compare with")
    parser.add_argument("--tree", type=Path, default=Path(__file__).parents[1], help="default: this checkout")
    parser.add_argument("--source", type=Path, help="samples in AhmedML's layout (default: four synthetic ones)")
    parser.add_argument("--kernels", nargs="*", choices=("conversion", "draws"), default=["conversion", "draws"])
    parser.add_argument("--pairs", type=int, default=9)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        store, source = Path(folder, "store"), arguments.source
        if source is None:
            source = Path(folder, "source")
            make_samples(source, 4)
        base = Tree(arguments.base, source.resolve(), Path(folder, "base"))
        ours = Tree(arguments.tree, source.resolve(), Path(folder, "ours"))
        base.seconds("conversion", store)
        shutil.copytree(Path(folder, "base"), store)
        for kernel in arguments.kernels:
            compare(kernel, base, ours, store, arguments.pairs)
        for tree in (base, ours):
            tree.close()


if __name__ == "__main__":
    main()
