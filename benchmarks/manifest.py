"""Opening a manifest of 25,000 samples: seconds and memory of a fresh process.

``python -m benchmarks.manifest`` writes such a store (entries as large as those of real samples, no arrays) and
opens it in a process of its own, imports included.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile

from benchmarks import environment
from zarr_core.manifest import ArrayColumn, DomainGrid, DomainLayout, SampleEntry, StoreManifest, commit
from zarr_core.storage import Storage

SAMPLES = 25_000
OPEN = """
import resource, sys, time
started = time.perf_counter()
from zarr_core.manifest import load_manifest
imported = time.perf_counter()
manifest = load_manifest(sys.argv[1])
opened = time.perf_counter()
assert len(manifest.samples) == int(sys.argv[2])
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
print(f"import {imported - started:.2f} s, open {opened - imported:.2f} s (at most 1)")
print(f"peak memory {peak:.0f} MiB (at most 200)")
"""


def manifest() -> StoreManifest:
    """The manifest of a store of AhmedML's size times fifty."""
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
    print(environment.describe())
    with tempfile.TemporaryDirectory() as root:
        storage = Storage(root)
        commit(storage, lambda current: manifest())
        print(f"{SAMPLES:,} samples, manifest.json of {storage.size('manifest.json') / 1e6:.1f} MB")
        subprocess.run([sys.executable, "-c", OPEN, root, str(SAMPLES)], check=True)


if __name__ == "__main__":
    main()
