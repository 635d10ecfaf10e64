"""Opening a manifest of 25,000 samples: seconds and memory of a fresh process.

``python -m benchmarks.manifest`` writes such a store (entries as large as those of real samples, no arrays) and
opens it in a process of its own, imports included.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile

from benchmarks.result import Result, add_arguments
from zarr_core.points.head import HEAD
from zarr_core.points.manifest import ArrayColumn, DomainGrid, DomainLayout, SampleEntry, StoreManifest
from zarr_core.storage import Storage
from zarr_core.versioning.generations import commit

SAMPLES = 25_000
OPEN = """
import resource, sys, time
started = time.perf_counter()
from zarr_core.points.head import load_manifest
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
        relpath = f"samples/run_{number}/{number:016x}"
        samples[f"run_{number}"] = SampleEntry(relpath, grids, f"{number:016x}", f"{number:016x}", 300_000_000 + number)
    return StoreManifest("large", domains=domains, samples=samples, splits={"train": list(samples)})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    add_arguments(parser)
    result = Result("manifest", "Opening a large manifest", "A fresh process, imports included.", parser.parse_args())
    with tempfile.TemporaryDirectory() as root:
        storage = Storage(root)
        commit(storage, HEAD, lambda current: manifest())
        size = storage.size("manifest.json") / 1e6
        opening = [sys.executable, "-c", OPEN, root, str(SAMPLES)]
        done = subprocess.run(opening, check=True, capture_output=True, text=True)
    imported, opened, peak = map(float, done.stdout.split())
    columns = ("samples", "manifest.json, MB", "import, s", "open, s", "peak memory, MiB")
    result.add_table("Cost", columns, [(f"{SAMPLES:,}", size, imported, opened, peak)])
    result.add_target("opening", opened, "at most", 1, " s")
    result.add_target("peak memory", peak, "at most", 200, " MiB")
    result.save()


if __name__ == "__main__":
    main()
