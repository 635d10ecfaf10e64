"""From a long warehouse to a wide matrix: scattering compared with other implementations, and a first and later load.

``python -m benchmarks.warehouse``; a batch of 64 samples x 450,000 features by default. Scattering runs on one core.
"""

from __future__ import annotations

import argparse
import multiprocessing
import tempfile
import time
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from benchmarks.result import Result, parse
from benchmarks.timing import best_of
from zarr_core.matrix import WideMatrix
from zarr_core.matrix.ingest.loader import MatrixLoader
from zarr_core.matrix.ingest.scatter import WideBlock, scatter
from zarr_core.warehouses import DuckDBWarehouse

ROWS_EACH = 1 << 17
# pandas holds some 200 bytes a row while it pivots; its rate does not grow with the rows.
PIVOT_SAMPLES = 8


def names(n_samples: int, n_features: int) -> tuple[list[str], list[str]]:
    """Sample ids and feature ids."""
    return [f"sample{number:04d}" for number in range(n_samples)], [f"cg{number:08d}" for number in range(n_features)]


def positioned(n_samples: int, n_features: int) -> Iterator[pa.RecordBatch]:
    """Rows as an unload gives them, sample after sample, the features of each in an order of its own."""
    rng = np.random.default_rng(0)
    for sample in range(n_samples):
        features = rng.permutation(n_features).astype("int32")
        values = rng.random(n_features, dtype=np.float32)
        for start in range(0, n_features, ROWS_EACH):
            part = features[start : start + ROWS_EACH]
            samples = np.full(len(part), sample, "int32")
            yield pa.record_batch({"sample": samples, "feature": part, "value": values[start : start + ROWS_EACH]})


def scatter_ids(batches: list[pa.RecordBatch], sample_ids: list[str], feature_ids: list[str]) -> np.ndarray:
    """The same from ids, each looked up in a hash table by Arrow: the fastest way that we know without a join."""
    wide = np.full((len(sample_ids), len(feature_ids)), np.nan, np.float32)
    rows = pa.Table.from_batches(batches)  # at once, so that the hash tables are made once
    sample = pc.index_in(rows.column("sample"), pa.array(sample_ids))
    feature = pc.index_in(rows.column("feature"), pa.array(feature_ids))
    wide[sample.to_numpy(), feature.to_numpy()] = rows.column("value").to_numpy()
    return wide


def with_ids(batches: list[pa.RecordBatch], sample_ids: list[str], feature_ids: list[str]) -> list[pa.RecordBatch]:
    """The rows with ids in the place of positions."""
    samples, features = pa.array(sample_ids), pa.array(feature_ids)
    return [
        pa.record_batch(
            {
                "sample": samples.take(rows.column("sample")),
                "feature": features.take(rows.column("feature")),
                "value": rows.column("value"),
            }
        )
        for rows in batches
    ]


def peak_of_scattering(n_samples: int, n_features: int) -> float:
    """Bytes that scattering adds to the process at its peak, over the bytes of the wide block."""
    block = WideBlock("b", "beta", *names(n_samples, n_features))
    small = WideBlock("b", "beta", block.sample_ids[:1], block.feature_ids)
    scatter(lambda: positioned(1, n_features), small)  # what is allocated once
    Path("/proc/self/clear_refs").write_text("5")  # begin a new peak
    before = memory("VmRSS")
    scatter(lambda: positioned(n_samples, n_features), block)
    return (memory("VmHWM") - before) / (4 * n_samples * n_features)


def memory(kind: str) -> int:
    """Bytes of this process, as Linux counts them."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith(f"{kind}:"))


def measure_scatter(result: Result, n_samples: int, n_features: int) -> None:
    """Rows per second, and memory."""
    block = WideBlock("b", "beta", *names(n_samples, n_features))
    ours, expected = rate_of_positions(list(positioned(n_samples, n_features)), block)
    few = min(PIVOT_SAMPLES, n_samples)
    texts = with_ids(list(positioned(few, n_features)), list(block.sample_ids), list(block.feature_ids))
    ids = rate_of_ids(texts, block, expected[:few])
    pivot = rate_of_pivot(texts, expected[:few])
    rates = {"zarr_core, integer positions": ours, "ids as strings": ids, "DataFrame.pivot": pivot}
    result.add_table(
        f"Scattering, one core (all but the first way: {few} samples)",
        ("way", "M rows/s"),
        [[name, rate / 1e6] for name, rate in rates.items()],
        chart="M rows/s",
    )
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        peak = pool.apply(peak_of_scattering, (n_samples, n_features))
    result.add_target("scattering, one core", ours / 1e6, "at least", 40, " M rows/s")
    result.add_target("scattering, speed / speed with string ids", ours / ids, "at least", 3)
    result.add_target("scattering, speed / speed of DataFrame.pivot", ours / pivot, "at least", 15)
    result.add_target("scattering, peak memory / size of the wide batch", peak, "at most", 1.5)


def rate_of_positions(batches: list[pa.RecordBatch], block: WideBlock) -> tuple[float, np.ndarray]:
    """Rows per second, and the block."""
    expected = scatter(lambda: batches, block).values
    return expected.size / best_of(3, lambda: scatter(lambda: batches, block), time.process_time), expected


def rate_of_ids(texts: list[pa.RecordBatch], block: WideBlock, expected: np.ndarray) -> float:
    """Rows a second."""
    sample_ids, feature_ids = list(block.sample_ids[: len(expected)]), list(block.feature_ids)
    assert np.array_equal(scatter_ids(texts, sample_ids, feature_ids), expected)
    return expected.size / best_of(3, lambda: scatter_ids(texts, sample_ids, feature_ids), time.process_time)


def rate_of_pivot(texts: list[pa.RecordBatch], expected: np.ndarray) -> float:
    """Rows a second."""
    frame = pa.Table.from_batches(texts).to_pandas()
    assert np.array_equal(frame.pivot(index="sample", columns="feature", values="value").to_numpy(), expected)
    return expected.size / best_of(
        1, lambda: frame.pivot(index="sample", columns="feature", values="value"), time.process_time
    )


def measure_loading(result: Result, n_samples: int, n_features: int) -> None:
    """Seconds of the first load and of later ones."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "long" / "batch_id=b0"
        folder.mkdir(parents=True)
        sample_ids, feature_ids = names(n_samples, n_features)
        with duckdb.connect() as connection:
            connection.execute(
                f"""COPY (
                    SELECT 'sample' || lpad((i // {n_features})::VARCHAR, 4, '0') AS sample_id,
                           'cg' || lpad((i % {n_features})::VARCHAR, 8, '0') AS cpg_id,
                           random()::FLOAT AS beta, (1 + random() * 100)::INT AS coverage
                    FROM range({n_samples * n_features}) AS rows (i)
                ) TO '{folder}/part-0.parquet' (FORMAT parquet, COMPRESSION zstd)"""
            )
        matrix = WideMatrix.create(f"{scratch}/matrix", feature_ids)
        loader = MatrixLoader(DuckDBWarehouse(f"{scratch}/long/*/*.parquet"), matrix)
        taken = []
        for _ in range(4):
            started = time.perf_counter()
            loaded = loader.load(sample_ids)
            taken.append(time.perf_counter() - started)
            assert loaded.shape == (n_samples, n_features)
            assert not np.isnan(loaded).any()
            del loaded
        first, *later = taken
        again = sorted(later)[1]
    result.add_table(
        "Loading beta and coverage from Parquet through DuckDB", ("load", "s"), [["first", first], ["later", again]]
    )
    result.add_target("later load, speed / speed of the first load", first / again, "at least", 50)


def main() -> None:
    """Measure both."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.warehouse", description=__doc__.splitlines()[0])
    parser.add_argument("--samples", type=int, default=64)
    parser.add_argument("--features", type=int, default=450_000)
    options = parse(parser)
    rows = options.samples * options.features
    result = Result("warehouse", "From a long warehouse to a wide matrix", options)
    result.describe(
        f"{options.samples} samples x {options.features:,} features, {rows / 1e6:.1f} M rows; "
        + ", ".join(f"{name} {version(name)}" for name in ("duckdb", "pyarrow", "pandas"))
    )
    measure_scatter(result, options.samples, options.features)
    measure_loading(result, options.samples, options.features)
    result.save()


if __name__ == "__main__":
    main()
