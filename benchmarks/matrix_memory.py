"""Peak memory of a wide matrix with as many features as whole-genome bisulfite sequencing has, by step.

``python -m benchmarks.matrix_memory [--features 28000000] [--samples 16] [--steps create append load ...]``. Each step
runs in a process of its own, and its peak resident memory is compared with that after the imports. The ratio is the
difference over the wide size of the batch: samples x features x 4 bytes for each of two values. ``load`` reads Parquet
files of a long table through DuckDB. Prints a table in Markdown. Everything is written below TMPDIR and deleted at the
end: the long table, the matrix with two batches, and one export at a time.
"""

from __future__ import annotations

import argparse
import importlib
import multiprocessing
import re
import resource
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks import environment
from benchmarks.result import table_markdown
from zarr_core.matrix import WideMatrix
from zarr_core.matrix.ingest.loader import MatrixLoader
from zarr_core.matrix.store.axis_file import read_feature_ids
from zarr_core.warehouses import DuckDBWarehouse

VALUES = {"beta": "float32", "coverage": "float32"}
_ROWS = 1 << 20


def write_inputs(root: Path, features: int, samples: int, long: bool, group: int = _ROWS) -> None:
    """Names of loci as a Parquet file and, if ``long``, a batch of them as a long table, row group by row group."""
    folder = root / "long" / "batch_id=b"
    folder.mkdir(parents=True)
    names = pq.ParquetWriter(root / "loci.parquet", pa.schema({"locus": pa.string()}))
    schema = pa.schema({"sample_id": pa.string(), "cpg_id": pa.string(), "beta": pa.float32(), "coverage": pa.int32()})
    rows = pq.ParquetWriter(folder / "part-0.parquet", schema) if long else None
    rng = np.random.default_rng(0)
    for start in range(0, features, group):
        count = min(group, features - start)
        loci = pa.array([f"chr{1 + n * 22 // features:02d}:{n * 100:09d}" for n in range(start, start + count)])
        names.write_table(pa.table({"locus": loci}))
        for sample in range(samples if rows else 0):
            ids = pa.DictionaryArray.from_arrays(np.zeros(count, np.int32), [f"s{sample}"]).cast(pa.string())
            beta, coverage = rng.random(count, np.float32), rng.integers(1, 60, count, np.int32)
            rows.write_table(pa.table([ids, loci, beta, coverage], schema=schema))  # type: ignore[union-attr]
    names.close()
    if rows:
        rows.close()


def create(root: Path, samples: int) -> None:
    """An empty matrix from the file of names."""
    WideMatrix.create(root / "matrix", read_feature_ids(str(root / "loci.parquet")), VALUES)


def append(root: Path, samples: int) -> None:
    """A batch that is in memory: the wide size is part of the peak."""
    matrix = WideMatrix.open(root / "matrix")
    shape = samples, matrix.shape[1]
    tables = {value: np.full(shape, 0.5, np.float32) for value in VALUES}
    matrix.append("appended", [f"a{n}" for n in range(samples)], tables)


def load(root: Path, samples: int) -> None:
    """The same batch from the long table, into another matrix."""
    MatrixLoader(DuckDBWarehouse(f"{root}/long/*/*.parquet"), WideMatrix.open(root / "matrix")).ingest(["b"])


def read(root: Path, samples: int) -> None:
    """Ten thousand features by name, of all samples."""
    matrix = WideMatrix.open(root / "matrix")
    names = matrix.feature_ids[:: max(1, matrix.shape[1] // 10_000)]
    assert not np.isnan(matrix.read(matrix.sample_ids, names)).all()


def axis(root: Path, samples: int) -> None:
    """The names of the features, as every reader by name holds them."""
    assert len(WideMatrix.open(root / "matrix").feature_ids)


def export(kind: str, root: Path, samples: int) -> None:
    """As many samples as a batch has, in another format."""
    from zarr_core import exports
    from zarr_core.exports.matrix import MatrixRows

    matrix = WideMatrix.open(root / "matrix")
    try:
        rows = MatrixRows(matrix, sample_ids=matrix.sample_ids[:samples])
        getattr(exports, f"export_{kind}")(rows, root / "export" / kind)
    finally:
        shutil.rmtree(root / "export")


STEPS: dict[str, Callable[[Path, int], None]] = {
    "create": create,
    "axis": axis,
    "append": append,
    "load": load,
    "read": read,
    **{f"export {kind}": partial(export, kind) for kind in ("npy", "parquet", "h5ad")},
}


def prepare(step: str) -> None:
    """Import what a step imports when it needs it. DuckDB imports pandas; exports import torch."""
    imports = {"load": ("duckdb", "pandas"), "export": ("zarr_core.exports.matrix", "h5py")}
    for name in imports.get(step.split()[0], ()):
        importlib.import_module(name)


def _measured(
    step: Callable[[Path, int], None],
    before: Callable[[], object],
    root: Path,
    samples: int,
    results: multiprocessing.Queue[tuple[float, float]],
) -> None:
    before()
    peak = _peak()  # of the imports, because the process is new
    started = time.process_time()
    step(root, samples)
    results.put((_peak() - peak, time.process_time() - started))


def _peak() -> int:
    """Peak resident memory of this process in bytes."""
    status = Path("/proc/self/status")
    if status.exists():  # ``getrusage`` counts the memory of the parent before the exec, too
        return int(re.search(r"VmHWM:\s+(\d+) kB", status.read_text())[1]) * 1024  # type: ignore[index]
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def measure(
    step: Callable[[Path, int], None], root: Path, samples: int, before: Callable[[], object] = int
) -> tuple[float, float]:
    """Bytes of the peak above that after ``before``, and seconds of CPU time, of a step in a new process."""
    context = multiprocessing.get_context("spawn")
    results: multiprocessing.Queue[tuple[float, float]] = context.Queue()
    process = context.Process(target=_measured, args=(step, before, root, samples, results))
    process.start()
    process.join()
    if process.exitcode:
        raise SystemExit(f"{step} failed with status {process.exitcode}")
    return results.get()


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.matrix_memory", description=__doc__.splitlines()[0])
    parser.add_argument("--features", type=int, default=28_000_000)
    parser.add_argument("--samples", type=int, default=16)
    parser.add_argument("--steps", nargs="+", choices=STEPS, default=list(STEPS))
    options = parser.parse_args()
    wide = options.samples * options.features * 4 * len(VALUES)
    print(environment.describe())
    print(f"{options.samples} samples x {options.features:,} features x {len(VALUES)} values: {wide / 1e9:.2f} GB wide")
    rows: list[list[float | str]] = []
    with tempfile.TemporaryDirectory() as folder:
        write_inputs(Path(folder), options.features, options.samples, "load" in options.steps)
        for step in options.steps:
            peak, seconds = measure(STEPS[step], Path(folder), options.samples, partial(prepare, step))
            rows.append([step, peak / 1e9, peak / wide, seconds])
            print(*rows[-1], flush=True)
    print(table_markdown({"columns": ["step", "peak memory, GB", "peak / wide size", "CPU, s"], "rows": rows}))


if __name__ == "__main__":
    main()
