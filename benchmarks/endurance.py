"""Growth of memory and open files over 10,000 reads.

``python -m benchmarks.endurance`` writes 150 small synthetic samples, of more files than are kept open, and reads
draws of them in a random order in one process.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import random
import tempfile
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from benchmarks.result import Result, parse
from benchmarks.synthetic import FIELDS, make_source, make_store
from zarr_core.points.read.reader import ZarrChunkReader

SAMPLES, POINTS, CHUNK_POINTS, READS = 150, 20_000, 4_096, 10_000


def resident_mb() -> float:
    """Memory of this process in MB, without mapped files, which belong to the page cache."""
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(status["RssAnon"].split()[0]) * 1024 / 1e6


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    result = Result("endurance", "Memory over ten thousand reads", parse(parser))
    result.describe(
        f"{READS:,} draws of {CHUNK_POINTS:,} points of {SAMPLES} samples in random order, {len(FIELDS)} fields, one "
        "process. Memory is compared with that after opening the store."
    )
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        source = make_source(Path(folder, "source"), SAMPLES, POINTS)
        for codec in ("none", "blosc-lz4"):
            store = make_store(source, Path(folder, codec), codec, CHUNK_POINTS)
            # In a fresh process: this one has memory to spare from converting.
            with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as fresh:
                memory, grown, files = fresh.submit(growth, store).result()
            rows.append((codec, memory, grown, files))
    columns = ("codec", "memory before, MB", "growth, MB", "open files, maximum")
    result.add_table("Growth", columns, rows)
    result.add_target("growth of the process's memory", max(grown for _, _, grown, _ in rows), "at most", 20, " MB")
    # Without a codec, maps hold a quarter of the files that a process may open.
    result.add_target("open files, blosc-lz4", rows[1][3], "at most", 160)
    result.save()


def growth(store: Path) -> tuple[float, float, int]:
    """Memory before the reads, its growth, and the maximum number of open files."""
    reader = ZarrChunkReader(store)
    before, files = resident_mb(), 0
    for epoch, sample in enumerate(random.Random(0).choices(reader.sample_ids, k=READS)):
        reader.read_sample(sample, {"volume": CHUNK_POINTS}, epoch=epoch)
        if epoch % 100 == 0:
            files = max(files, open_files())
    return before, resident_mb() - before, files


if __name__ == "__main__":
    main()
