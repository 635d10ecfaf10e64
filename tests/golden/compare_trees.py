"""Compare two trees of this project: the new one must continue the old one's stores, byte for byte.

    git worktree add /tmp/old TAG
    python tests/golden/compare_trees.py --old /tmp/old --points AHMEDML_RUNS --matrix METHYLATION --work /tmp/compare

The old tree writes point stores (every codec, shard caps, float32 values, several generations, a tag, a quarantined
sample), a staged copy and wide matrices with column-major copies, all from the first half of the data. Then each tree
continues its own copy of them: it verifies, reads, converts the samples that are new or changed, recalculates the
statistics, stages, tags and collects garbage. At the end both copies must have the same files with the same bytes, both
trees must have read the same values, and each must be able to read and verify the copy of the other. Only documented
command lines and the public Python API are used, so that one script drives both trees.

Exempt, because newer trees record more or differently:

* ``statistics/``, and the statistics of a copy of an earlier generation: statistics belong to a generation;
* the statistics of parameters, and those that a conversion writes: they are recorded since;
* ``conversion`` and ``fingerprints`` of a manifest, and ``fields`` of its samples: a store knows what it is;
* ``rounding`` of a group's attributes: loss is measured;
* ``zarr_conventions`` of a group's attributes: they are declared;
* ``dimension_names`` of a sample's arrays: xarray opens them;
* ``shape`` and ``attributes`` of a matrix's arrays, and the lock of a replacement: an array has as many rows as were
  claimed, not room for all that it may ever get;
* ``source`` of a matrix's batches: they record the state of the warehouse;
* the fingerprint of a dataset: it is a digest of content now.

Exempt in any case: ``writer`` in ``claims/`` of a matrix, which is random; times of pending deletions in ``retention``;
the reason of a quarantine, which is text; the exit status of ``convert``, which is 1 while a sample is quarantined.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

import yaml

# Files that only one of the trees may have.
EXEMPT = re.compile(r"[^/]+/statistics/|(?:staged-first|fresh)/stats\.|[^/]+/[^/]+\.zarr/zarr\.json\.lock")
# Files of statistics, and how those of fields begin.
STATISTICS = re.compile(r"(stats|recalculated-.*)\.(json|yaml)")
DOMAINS = ("surface_", "volume_")
CONVERT = ("convert", "--dataset-kind", "ahmedml", "--source-url", "../data")
LZ4 = ("--codec", "blosc-lz4:5")
# Name of a store: the options of its first conversion. Each names its codec: the trees may have other defaults.
STORES = {
    "blosc-lz4": LZ4,
    "blosc-zstd": ("--codec", "blosc-zstd:3"),
    "zstd": ("--codec", "zstd"),
    "none": ("--codec", "none"),
    "capped": ("--chunk-points", "1000", "--shard-points", "3000", *LZ4),
    "capped-zstd": ("--chunk-points", "512", "--shard-points", "4096", "--codec", "zstd:5", "--shuffle-seed", "7"),
    "float32": ("--values-dtype", "float32", *LZ4),
    "mixed": ("--field-dtype", "volume_vorticity=float32", "--field-dtype", "surface_pressure=float64", *LZ4),
    "generations": ("--limit", "4", *LZ4),
}
STAGE = (
    ("stage", "blosc-lz4", "staged"),
    ("stage", "mixed", "staged-part", "--split", "train", "--fields", "volume_position", "volume_velocity"),
)
MATRICES = ("none", "zstd:1")

# Programs that run in either tree, with its command lines and public API.
VERBS = """
import json, runpy, sys
for verb, *arguments in json.load(sys.stdin):
    sys.argv[1:] = arguments
    try:
        runpy.run_module(f"zarr_core.{verb}", run_name="__main__", alter_sys=True)
    except SystemExit as end:
        if end.code and (verb, end.code) != ("convert", 1):
            sys.exit(f"{verb} {arguments} ended with {end.code}")
"""
APPEND = """
import sys
import duckdb
from zarr_core import DuckDBWarehouse, MatrixLoader, WideMatrix
url, codec, files, axis, *batches = sys.argv[1:]
try:
    matrix = WideMatrix.open(url)
except Exception:
    ids = [row[0] for row in duckdb.sql(f"SELECT * FROM '{axis}'").fetchall()]
    values = {"beta": "float32", "coverage": "float32"}
    matrix = WideMatrix.create(url, ids, values=values, codec=codec, shard_rows=20)
for batch in batches:
    query = f"SELECT DISTINCT sample_id FROM '{files}' WHERE batch_id = '{batch}' ORDER BY 1"
    MatrixLoader(DuckDBWarehouse(files), matrix).load([row[0] for row in duckdb.sql(query).fetchall()])
matrix.derive_columns()
"""
READ = """
import hashlib, json, sys
import numpy as np
from zarr_core import WideMatrix, ZarrChunkReader, ZarrPointDataset, ZarrPointDatasetConfig
digests = {}
def add(name, value):
    value = np.ascontiguousarray(value)
    digests[name] = [str(value.dtype), list(value.shape), hashlib.sha256(value).hexdigest()]
for root in sys.argv[1:]:
    if "matrix" in root:
        matrix = WideMatrix.open(root)
        add(f"{root} rows", matrix.read(matrix.sample_ids))
        add(f"{root} columns", matrix.read(matrix.sample_ids, list(matrix.feature_ids)[::1000]))
        continue
    for engine in ("direct", "zarr"):
        reader = ZarrChunkReader(root, engine=engine)
        for sample in reader.sample_ids:
            for field, values in reader.read_sample(sample).items():
                add(f"{root} {engine} {sample} {field}", values)
            digests[f"{root} {sample} attributes"] = {**reader.read_attributes(sample), "rounding": None}
    counts = {f"num_{domain}_points": 700 for domain in reader.manifest.domains}
    dataset = ZarrPointDataset(ZarrPointDatasetConfig(root=root, split="train", sampling_seed=3, **counts))
    for epoch in range(2):
        dataset.set_epoch(epoch)
        for index in range(len(dataset)):
            for field, tensor in dataset[index].items():
                add(f"{root} epoch {epoch} draw {index} {field}", tensor.numpy())
print(json.dumps(digests, sort_keys=True))
"""


class Tree:
    """A checkout of the project, and the folder in which it works."""

    def __init__(self, checkout: Path, folder: Path) -> None:
        self.checkout, self.folder = checkout.resolve(), folder

    def python(self, program: str, *arguments: str, stdin: str = "") -> str:
        """Standard output of a program that runs with this tree's packages."""
        done = subprocess.run(
            [sys.executable, "-W", "ignore::RuntimeWarning:runpy", "-c", program, *arguments],
            cwd=self.folder,
            env={**os.environ, "PYTHONPATH": str(self.checkout)},
            input=stdin,
            capture_output=True,
            text=True,
        )
        if done.returncode:
            sys.exit(f"{self.checkout}: {arguments} {stdin}\n{done.stdout}{done.stderr}")
        return done.stdout

    def verbs(self, lines: Iterable[Sequence[str]]) -> None:
        """Run ``python -m zarr_core.VERB ARGUMENTS`` for each (verb, arguments), in one process."""
        self.python(VERBS, stdin=json.dumps(list(lines)))

    def append(self, matrix: Path, batches: list[str]) -> None:
        """Load batches into every matrix, and write their column-major copies."""
        for codec in MATRICES:
            name = f"matrix-{codec.replace(':', '')}"
            self.python(APPEND, name, codec, f"{matrix}/long/*/*.parquet", f"{matrix}/cpgs.parquet", *batches)

    def read(self) -> dict[str, object]:
        """A digest of each array that readers and datasets return."""
        stores = sorted(path.name for path in self.folder.iterdir() if path.is_dir())
        read: dict[str, object] = json.loads(self.python(READ, *stores))
        return read


def arrive(runs: list[Path], data: Path) -> None:
    """Copy runs into the source with their file times, which are part of a sample's fingerprint."""
    for run in runs:
        shutil.copytree(run, data / run.name)


def break_field(run: Path) -> None:
    """Truncate a tensor, so that the sample is quarantined."""
    import torch

    file = run / "surface_pressure.pt"
    torch.save(torch.load(file)[:-5], file)


def build(tree: Tree, matrix: Path, batches: list[str]) -> None:
    """Write stores with the old tree."""
    lines = [(*CONVERT, "--output", name, *options) for name, options in STORES.items()]
    lines += [("statistics", "--store", "generations", "--split", "train"), ("tag", "generations", "first")]
    lines += [(*CONVERT, "--output", "generations"), *STAGE]
    tree.verbs(lines)
    tree.append(matrix, batches)


def carry_on(tree: Tree, matrix: Path, batches: list[str]) -> None:
    """Continue the tree's copy of the stores: verify, convert new samples, recalculate statistics, stage, collect."""
    lines: list[tuple[str, ...]] = [("verify", name, "--deep") for name in (*STORES, "staged")]
    for name, options in STORES.items():
        again = tuple(option for option in options if option not in ("--limit", "4"))
        recalculated = f"recalculated-{name}.json"
        lines += [(*CONVERT, "--output", name, *again), ("verify", name, "--source", "../data")]
        lines += [("statistics", "--store", name, "--split", "train")]
        lines += [("statistics", "--store", name, "--recompute", "--output-json", recalculated)]
    lines += [(*CONVERT, "--output", "fresh", "--workers", "2", *LZ4), *STAGE]
    lines += [("stage", "generations", "staged-first", "--generation", "first"), ("tag", "capped", "latest")]
    lines += [("log", "generations", "--all"), ("diff", "generations", "first")]
    tree.verbs(lines)
    tree.append(matrix, batches)
    tree.verbs([("matrix", "matrix-none")])


def without_exempt(path: Path) -> bytes:
    """Bytes of a file without the parts that may differ."""
    content = path.read_bytes()
    if STATISTICS.fullmatch(path.name):
        statistics = yaml.safe_load(content)
        return json.dumps({key: value for key, value in statistics.items() if key.startswith(DOMAINS)}).encode()
    if path.suffix != ".json":
        return content
    document = json.loads(content)
    if path.parent.parent.name == "claims":
        document["writer"] = None
    elif path.name == "zarr.json" and path.parent.suffix == ".zarr":
        del document["shape"], document["attributes"]
    elif path.name == "zarr.json":
        inline = document.get("consolidated_metadata", {}).get("metadata", {})
        attributes = document.get("attributes", {})
        newer = [attributes.get("zarr_core", {}).pop("rounding", None), attributes.pop("zarr_conventions", None)]
        newer += [array.pop("dimension_names", None) for array in (document, *inline.values())]
        if not any(newer):
            return content
        return (json.dumps(document, separators=(",", ":")) + "\n").encode()
    else:
        for key in ("conversion", "fingerprints"):
            document.pop(key, None)
        for sample in document.get("samples", {}).values():
            sample.pop("fields", None)
        for batch in document.get("batches", {}).values():
            batch.pop("source", None)
        for refusal in (document, *document.get("quarantine", {}).values()):
            refusal.pop("reason", None)
        if pending := document.get("retention", {}).get("condemned"):
            document["retention"]["condemned"] = sorted(pending)
    return json.dumps(document).encode()


def differences(one: Path, other: Path) -> list[str]:
    """Files that only one folder has, or that differ."""
    files, others = (
        {name for file in root.rglob("*") if file.is_file() and not EXEMPT.match(name := str(file.relative_to(root)))}
        for root in (one, other)
    )
    found = [f"only in {one.name}: {file}" for file in sorted(files - others)]
    found += [f"only in {other.name}: {file}" for file in sorted(others - files)]
    found += [
        f"differs: {file}"
        for file in sorted(files & others)
        if without_exempt(one / file) != without_exempt(other / file)
    ]
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--old", type=Path, required=True, help="checkout of the tree before the change")
    parser.add_argument("--new", type=Path, default=Path(__file__).parents[2], help="default: this checkout")
    parser.add_argument("--points", type=Path, required=True, help="folder with AhmedML's run_<id> of .pt files")
    parser.add_argument("--matrix", type=Path, required=True, help="folder with cpgs.parquet and long/batch_id=*/")
    parser.add_argument("--work", type=Path, required=True, help="empty folder for stores, about twenty times the data")
    options = parser.parse_args()
    work, matrix = options.work.resolve(), options.matrix.resolve()
    # A copy records the absolute path of its source: every tree works below the same path.
    stores, base, data = work / "stores", work / "base", work / "data"
    for folder in (stores, data):
        folder.mkdir(parents=True)
    runs = sorted(options.points.resolve().glob("run_*"))
    batches = sorted(folder.name.removeprefix("batch_id=") for folder in (matrix / "long").iterdir())
    half = len(runs) // 2

    arrive(runs[:half], data)
    break_field(data / runs[1].name)
    build(Tree(options.old, stores), matrix, batches[: len(batches) // 2])
    stores.rename(base)
    problems = []
    if Tree(options.old, base).read() != Tree(options.new, base).read():
        problems.append("the trees read other values from the old stores")

    arrive(runs[half:], data)
    shutil.rmtree(data / runs[1].name)
    arrive([runs[1]], data)  # repaired
    break_field(data / runs[half].name)  # quarantined now
    old, new = Tree(options.old, work / "old"), Tree(options.new, work / "new")
    for tree in (old, new):
        shutil.copytree(base, stores)
        carry_on(Tree(tree.checkout, stores), matrix, batches[len(batches) // 2 :])
        stores.rename(tree.folder)

    problems += differences(old.folder, new.folder)
    read = [Tree(side.checkout, folder).read() for side in (old, new) for folder in (old.folder, new.folder)]
    if any(other != read[0] for other in read):
        problems.append("the trees read other values from the stores that they continued")
    deep = [("verify", name, "--deep", "--source", "../data") for name in STORES]
    Tree(options.old, new.folder).verbs(deep)
    Tree(options.new, old.folder).verbs(deep)
    for tree in (old, new):
        tree.verbs(("gc", name, "--grace", "0s") for name in ("generations", "capped", "matrix-none"))
    problems += [f"after gc: {problem}" for problem in differences(old.folder, new.folder)]

    files = sum(file.is_file() for file in old.folder.rglob("*"))
    print("\n".join(problems) or f"no difference: {files} files, {len(read[0])} arrays read")
    sys.exit(bool(problems))


if __name__ == "__main__":
    main()
