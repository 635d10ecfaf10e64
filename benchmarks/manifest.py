"""Opening a manifest of 25,000 samples: seconds and memory of a fresh process; and the generations of 20 commits.

``python -m benchmarks.manifest`` writes such a store (entries as large as those of real samples, no arrays) in
20 commits and opens it in a process of its own, imports included. It lists the commits twice: with generations as this
version archives them, once with plain ones, as earlier versions did.
"""

from __future__ import annotations

import argparse
import pickle
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from hashlib import sha256
from unittest.mock import patch

from benchmarks.result import Result, parse
from zarr_core.points.read.reader import ZarrChunkReader
from zarr_core.points.store.head import HEAD
from zarr_core.points.store.manifest import ArrayColumn, DomainGrid, DomainLayout, SampleEntry, StoreManifest
from zarr_core.storage import Storage
from zarr_core.versioning import archive
from zarr_core.versioning.generations import commit
from zarr_core.versioning.history import commits

SAMPLES = 25_000
COMMITS = 20
OPEN = """
import resource, sys, time
started = time.perf_counter()
from zarr_core.points.store.head import load_manifest
imported = time.perf_counter()
manifest = load_manifest(sys.argv[1])
opened = time.perf_counter()
assert len(manifest.samples) == int(sys.argv[2])
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
print(imported - started, opened - imported, peak)
"""


def manifest() -> StoreManifest:
    """The manifest of a store fifty times as large as AhmedML."""
    fields = {
        "surface": ("position", "pressure", "friction"),
        "volume": ("position", "pressure", "velocity", "vorticity"),
    }
    domains = {
        domain: DomainLayout(
            f"{domain}_position",
            {f"{domain}_{name}": ArrayColumn(f"{domain}/{name}", f"{domain}_{name}", "float16", 3) for name in names},
        )
        for domain, names in fields.items()
    }
    samples = {}
    for number in range(SAMPLES):
        grids = {
            "surface": DomainGrid(1_000_000 + number % 999, 16_384, 1_015_808, 62),
            "volume": DomainGrid(20_000_000 + number % 999, 16_384, 20_004_864, 1221),
        }
        fingerprint, group = (sha256(f"{what} {number}".encode()).hexdigest()[:16] for what in ("source", "group"))
        relpath = f"samples/run_{number}/{group}"
        samples[f"run_{number}"] = SampleEntry(relpath, grids, fingerprint, "0" * 16, 300_000_000 + number)
    return StoreManifest("large", domains=domains, samples=samples, splits={"train": list(samples)})


def write(root: str) -> float:
    """Write the store in several commits; returns the seconds of all commits."""
    whole, storage = manifest(), Storage(root)
    names = list(whole.samples)
    started = time.perf_counter()
    for number in range(1, COMMITS + 1):
        held = {name: whole.samples[name] for name in names[: SAMPLES * number // COMMITS]}
        generation = number - 1
        commit(storage, HEAD, lambda _, held=held, n=generation: replace(whole, samples=held, generation=n))  # type: ignore[misc]
    return time.perf_counter() - started


def history(root: str) -> tuple[float, float]:
    """Megabytes of the generations of a store, and seconds to list its commits."""
    storage = Storage(root)
    started = time.perf_counter()
    assert [len(one.changes[0].names) for one in commits(storage, HEAD)] == [SAMPLES // COMMITS] * COMMITS
    return sum(storage.list("generations").values()) / 1e6, time.perf_counter() - started


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    result = Result("manifest", "Opening a large manifest", parse(parser))
    result.describe("A fresh process, imports included.")
    with tempfile.TemporaryDirectory() as root:
        storage = Storage(root)
        rows = [("compressed", write(root), *history(root))]
        with tempfile.TemporaryDirectory() as other, patch.object(archive, "_PLAIN_BYTES", 1 << 40):
            rows.append(("plain", write(other), *history(other)))
        reader = ZarrChunkReader(root)
        sizes = [len(pickle.dumps(one)) / 1e6 for one in (reader, reader.with_samples(reader.sample_ids[:400]))]
        size = storage.size("manifest.json") / 1e6
        opening = [sys.executable, "-c", OPEN, root, str(SAMPLES)]
        done = subprocess.run(opening, check=True, capture_output=True, text=True)
    imported, opened, peak = map(float, done.stdout.split())
    columns = ("samples", "manifest.json, MB", "import, s", "open, s", "peak memory, MiB")
    result.add_table("Cost", columns, [(f"{SAMPLES:,}", size, imported, opened, peak)])
    result.add_table(f"{COMMITS} commits", ("generations", "commits, s", "size, MB", "log, s"), rows)
    result.add_table("Pickle of a reader", ("all samples, MB", "400 samples, MB"), [tuple(sizes)])
    result.add_target("opening", opened, "at most", 1, " s")
    result.add_target("peak memory", peak, "at most", 200, " MiB")
    result.save()


if __name__ == "__main__":
    main()
