"""Draws from local disk with this library and with others: ``python -m benchmarks.rivals``.

Synthetic samples of 1 M points and four fields, points in random order; 16,384 of them drawn, the same ones by every
rival. Each rival is measured in a process of its own: a DataLoader with 0, 1 and 2 workers, cold (files dropped from
the page cache, opened anew, each sample once, three times), warm.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.result import Result, Value, parse
from benchmarks.rivals import (
    COMPRESSED,
    DIRECT,
    LITDATA,
    LITDATA_PIECES,
    MDS,
    NPY,
    RIVALS,
    UNCOMPRESSED,
    Rival,
)
from benchmarks.synthetic import DRAWN, POINTS, make_source, make_store
from zarr_core.points.read.reader import ZarrChunkReader
from zarr_core.shootout.formats import Draws, Runs

CHECKOUT = Path(__file__).parents[2]
HOW_TO_INSTALL = "not measured: pip install -e '.[rivals]'"
HOW_TO_INSTALL_MDS = "not measured: make .venv-mds first"
COLUMNS = {
    "rival": "",
    "ms p50, warm": "warm ms p50",
    "ms p99, warm": "warm ms p99",
    "samples/s, no workers": "samples/s, 0 workers",
    "1 worker": "samples/s, 1 workers",
    "2 workers": "samples/s, 2 workers",
    "CPU ms per sample": "CPU ms",
    "kB per sample by read calls": "warm bytes by read calls",
    "peak MB above idle": "peak MB above idle",
    "peak MB": "peak MB",
    "ms p50, cold": "cold ms p50",
    "ms p99, cold": "cold ms p99",
    "kB per sample from disk, cold": "cold bytes from disk",
}


def prepare_samples(folder: Path, count: int, points: int, num_points: int, epochs: int) -> Draws:
    """Write the stores, ``store-CODEC``, the same rows as ``samples/SAMPLE/FIELD.npy``, and ``draws.json``."""
    source = make_source(folder / "source", count, points)
    for codec in (UNCOMPRESSED, COMPRESSED):
        make_store(source, folder / f"store-{codec}", codec, chunk_points=num_points)
    reader = ZarrChunkReader(folder / f"store-{UNCOMPRESSED}")
    runs: dict[str, list[dict[str, Runs]]] = {}
    for sample in reader.sample_ids:
        (folder / "samples" / sample).mkdir(parents=True)
        for field, array in reader.read_sample(sample).items():
            np.save(folder / "samples" / sample / f"{field}.npy", array)
        runs[sample] = []
        for epoch in range(epochs):
            reads = reader.field_reads(sample, {"volume": num_points}, epoch=epoch)
            runs[sample].append({"volume": next(iter(reads.values())).drawn.runs})
    draws = Draws(runs, {"volume": num_points}, num_points, dict.fromkeys(reader.fields, "volume"))
    (folder / "draws.json").write_text(json.dumps(vars(draws)))
    return draws


def run_child(entry: Rival, python: str, verb: str, *arguments: object) -> str:
    """What ``benchmarks.rivals.child`` prints; errors as for :func:`run_python`."""
    return run_python(python, "-m", "benchmarks.rivals.child", verb, entry.name, *arguments)


def run_python(python: str, *arguments: object) -> str:
    """What a process prints; raises CalledProcessError with the end of its error output."""
    command = [python, *map(str, arguments)]
    surroundings = os.environ | {"PYTHONPATH": str(CHECKOUT), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=CHECKOUT, env=surroundings, capture_output=True, text=True, check=False)
    if done.returncode:
        raise subprocess.CalledProcessError(done.returncode, command, done.stdout, done.stderr[-2000:])
    return done.stdout


def interpreter(entry: Rival, mds_python: Path) -> str | None:
    """The Python that has what a rival needs; None where there is none."""
    if entry.name == MDS:
        return str(mds_python) if mds_python.exists() else None
    if entry.package and importlib.util.find_spec(entry.package) is None:
        return None
    return sys.executable


def row(entry: Rival, measured: dict[str, Any] | str) -> list[Value]:
    """Of the table."""
    if isinstance(measured, str):
        return [entry.name, measured] + [None] * (len(COLUMNS) - 2)
    values = [measured[key] / 1e3 if "bytes" in key else measured[key] for key in list(COLUMNS.values())[1:]]
    return [entry.name, *values]


def measure_rival(entry: Rival, codec: str, folder: Path, python: str, seconds: float) -> dict[str, Any]:
    """Prepare and measure."""
    place = folder / codec / entry.name.replace(" ", "-")
    run_child(entry, python, "prepare", place, folder / "samples", folder / f"store-{codec}")
    last = run_child(entry, python, "measure", place, folder / "draws.json", str(seconds)).splitlines()[-1]
    found: dict[str, Any] = json.loads(last)
    return found


def add_targets(result: Result, found: dict[str, dict[str, Any]]) -> None:
    """Ours against the two that come closest."""
    for rival in (LITDATA, LITDATA_PIECES, NPY):
        ratio = found[rival]["warm ms p50"] / found[DIRECT]["warm ms p50"] if rival in found else None
        result.add_target(f"{rival} / zarr_core, warm, uncompressed", ratio, "at least", 1, "x")
    result.add_note(
        f"A warm {NPY} costs one copy of mapped pages: no checksum, compression or version, and the same pre-shuffled "
        "rows as in a store. A read of a store without compression costs one copy, too, from the page cache into the "
        "output; a chunk is compared with its checksum when a process first reads it. Cold, a memory map reads ahead "
        "bytes that were not requested."
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--samples", type=int, default=6)
    parser.add_argument("--seconds", type=float, default=0.5, help="for each way to measure a rival (default 0.5)")
    parser.add_argument("--only", nargs="+", metavar="RIVAL", help="names as in the table")
    parser.add_argument("--mds-python", type=Path, default=CHECKOUT / ".venv-mds" / "bin" / "python")
    parser.add_argument("--folder", help="where to work (default: the system's folder for temporary files)")
    arguments = parse(parser)
    result = Result("rivals", "Rivals on a local disk", arguments)
    result.describe(
        f"{arguments.samples} samples of {POINTS:,} points, 4 fields (26 bytes per point), {DRAWN:,} drawn; "
        "every rival reads the same points. All store the points in random order, except the one marked as not "
        "shuffled. Bytes by read calls are rchar of /proc/self/io, which does not count mapped files; bytes from disk "
        "are its read_bytes, which counts both."
    )
    with tempfile.TemporaryDirectory(dir=arguments.folder) as name:
        folder = Path(name)
        prepare_samples(folder, arguments.samples, POINTS, DRAWN, epochs=50)
        for codec, title in ((UNCOMPRESSED, "Uncompressed"), (COMPRESSED, f"Compressed (zarr_core: {COMPRESSED})")):
            found: dict[str, dict[str, Any]] = {}
            rows = []
            for entry in RIVALS:
                if codec not in entry.codecs or (arguments.only and entry.name not in arguments.only):
                    continue
                python = interpreter(entry, arguments.mds_python)
                if python is None:
                    rows.append(row(entry, HOW_TO_INSTALL_MDS if entry.name == MDS else HOW_TO_INSTALL))
                    continue
                print(f"{title}: {entry.name}", file=sys.stderr, flush=True)
                try:
                    found[entry.name] = measure_rival(entry, codec, folder, python, arguments.seconds)
                    rows.append(row(entry, found[entry.name]))
                except subprocess.CalledProcessError as error:
                    print(error.stderr, file=sys.stderr)
                    rows.append(row(entry, "failed: " + (error.stderr.strip().splitlines() or ["?"])[-1]))
            result.add_table(title, list(COLUMNS), rows, "samples/s, no workers")
            if codec == UNCOMPRESSED and DIRECT in found:
                add_targets(result, found)
    result.save()


if __name__ == "__main__":
    main()
