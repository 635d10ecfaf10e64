"""Disks that are full or read-only."""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
from pathlib import Path

import zarr_core.convert
from tests.attacks.processes import environment
from tests.attacks.tally import Tally
from tests.attacks.truth import CHUNK_POINTS, check_samples, compare, named_objects, stored_sample
from tests.helpers.small_source import write_source
from zarr_core.points.convert.conversion import convert
from zarr_core.points.store.head import load_if_any
from zarr_core.points.verify.store import verify_store
from zarr_core.statistics import main as main_of_statistics
from zarr_core.storage import Storage

# Mounts below belong to a namespace of the process: whatever becomes of it, nothing stays mounted.
_ALONE = [["unshare", "--mount"], ["unshare", "--map-root-user", "--mount"]]


def own_mounts() -> list[str]:
    """Command prefix that gives a process its own mounts; empty if the system does not allow that."""
    for command in _ALONE:
        try:
            probe = [*command, "mount", "-t", "tmpfs", "none", "/mnt"]
            if subprocess.run(probe, capture_output=True, timeout=30).returncode == 0:
                return command
        except (OSError, subprocess.TimeoutExpired):
            continue
    return []


def full_disks(rounds: int, folder: Path, tally: Tally, chance: random.Random) -> None:
    """A converter on a small tmpfs that a ballast file fills, each round with a different amount of free space."""
    _in_own_mounts("full_disk_rounds", rounds, folder, tally, chance)


def full_disk_rounds(rounds: int, folder: Path, tally: Tally, chance: random.Random) -> None:
    """The same, inside the namespace: in each round a different object no longer fits."""
    sample_ids = tuple(f"run_{n}" for n in range(1, 5))
    source = write_source(folder / "source", sample_ids, surface=400, volume=4000)
    truth = {sample_id: stored_sample(source, sample_id) for sample_id in sample_ids}
    undisturbed = folder / "undisturbed"
    convert("ahmedml", undisturbed, root=source, limit=1, chunk_points=CHUNK_POINTS)
    first = {"run_1": truth["run_1"]}
    convert("ahmedml", undisturbed, root=source, chunk_points=CHUNK_POINTS)
    expected = named_objects(str(undisturbed))
    size = sum(path.stat().st_blocks * 512 for path in undisturbed.rglob("*"))
    disk = folder / "disk"
    disk.mkdir()
    for number in range(rounds):
        subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={2 * size}", "none", disk], check=True)
        store, ballast = disk / "store", disk / "ballast"
        convert("ahmedml", store, root=source, limit=1, chunk_points=CHUNK_POINTS)
        left = os.statvfs(disk)
        room = chance.randrange(0, size)
        with ballast.open("wb") as file:
            os.posix_fallocate(file.fileno(), 0, max(left.f_bavail * left.f_frsize - room, 4096))
        with tally.ours(f"round {number}, full"):
            try:
                report = convert("ahmedml", store, root=source, chunk_points=CHUNK_POINTS)
                tally.add("faults", len(report.having("failed")))
                if report.having("quarantined"):
                    tally.add("wrong", 1, f"round {number}: a full disk was blamed on a sample")
            except OSError:  # of the commit; the command line prints it
                tally.add("faults")
        check_samples(str(store), first, tally, f"round {number}, full")
        found = load_if_any(Storage(store))
        if found is not None:
            check_samples(str(store), {i: truth[i] for i in found.samples}, tally, f"round {number}, full")
        ballast.unlink()
        with tally.ours(f"round {number}, freed"):
            report = convert("ahmedml", store, root=source, chunk_points=CHUNK_POINTS)
            if not report.ok:
                tally.add("lost", 1, f"round {number}: {report.having('failed')[:1]}")
        compare(str(store), expected, tally, f"round {number}, freed")
        check_samples(str(store), first, tally, f"round {number}, generation 1", 1)
        subprocess.run(["umount", disk], check=True)
        tally.add("rounds")


def read_only_stores(rounds: int, folder: Path, tally: Tally, chance: random.Random) -> None:
    """Readers and writers of a store on a disk that is mounted read-only."""
    _in_own_mounts("read_only_rounds", rounds, folder, tally, chance)


def read_only_rounds(rounds: int, folder: Path, tally: Tally, chance: random.Random) -> None:
    """The same, inside the namespace."""
    sample_ids = ("run_1", "run_2", "run_3")
    source = write_source(folder / "source", sample_ids)
    truth = {sample_id: stored_sample(source, sample_id) for sample_id in sample_ids}
    made, seen = folder / "made", folder / "seen"
    convert("ahmedml", made, root=source, limit=2, chunk_points=CHUNK_POINTS)
    seen.mkdir()
    subprocess.run(["mount", "--bind", made, seen], check=True)
    subprocess.run(["mount", "-o", "remount,bind,ro", seen], check=True)
    before = {path: path.read_bytes() for path in made.rglob("*") if path.is_file()}
    arguments = ["--dataset-kind", "ahmedml", "--root", str(source), "--output", str(seen)]
    writers = {
        "convert": (zarr_core.convert.main, arguments),
        "statistics": (main_of_statistics, ["--store", str(seen)]),
    }
    for number in range(rounds):
        check_samples(str(seen), {i: truth[i] for i in ("run_1", "run_2")}, tally, f"round {number}")
        with tally.ours("verify of a read-only store"):
            report = verify_store(str(seen), source=str(source))
            if not report.ok:
                tally.add("lost", 1, f"verify of a read-only store: {report.problems[:3]}")
        for name, (main_of, arguments) in writers.items():
            tally.add("faults")
            with tally.ours(f"{name} of a read-only store"):
                if main_of(arguments) == 0:
                    tally.add("wrong", 1, f"{name} reports that it wrote to a read-only store")
        tally.add("rounds")
    if before != {path: path.read_bytes() for path in made.rglob("*") if path.is_file()}:
        tally.add("wrong", 1, "a read-only store has changed")
    subprocess.run(["umount", seen], check=True)


def _in_own_mounts(name: str, rounds: int, folder: Path, tally: Tally, chance: random.Random) -> None:
    """Run one of the functions above in a process with its own mounts, and add up what it counted."""
    folder.mkdir(parents=True, exist_ok=True)
    seed, result = str(chance.randrange(2**32)), folder / "tally.json"
    command = [
        *own_mounts(),
        sys.executable,
        "-m",
        "tests.attacks.disk",
        name,
        str(rounds),
        str(folder),
        seed,
        str(result),
    ]
    done = subprocess.run(command, capture_output=True, text=True, env=environment(), timeout=60 + 60 * rounds)
    if done.returncode != 0 or not result.exists():
        tally.add("tracebacks", 1, f"{name}: status {done.returncode}: {done.stderr[-800:]}")
        return
    tally.add_counts(result)


def main() -> None:
    """Inside the namespace."""
    name, rounds, folder, seed, result = sys.argv[1:]
    tally = Tally()
    globals()[name](int(rounds), Path(folder), tally, random.Random(int(seed)))
    counted = {key: value for key, value in vars(tally).items() if not key.startswith("_")}
    Path(result).write_text(json.dumps(counted))
    shutil.rmtree(Path(folder) / "source", ignore_errors=True)


if __name__ == "__main__":
    main()
