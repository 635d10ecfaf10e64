"""``kill -9`` of a converter and its workers at random moments; a normal run then completes the store."""

from __future__ import annotations

import os
import random
import shutil
import signal
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import zarr_core.convert
from tests.attacks.convert_some import convert_some
from tests.attacks.processes import PATIENCE, Command, Forked
from tests.attacks.tally import Attack, Tally
from tests.attacks.truth import CHUNK_POINTS, Sample, check_samples, compare, named_objects, stored_sample
from tests.helpers.faults import Kill, is_killed
from tests.helpers.small_source import write_source
from zarr_core._util.processes import WorkerPool
from zarr_core.errors import ZarrCoreError
from zarr_core.points.convert.conversion import convert
from zarr_core.points.store.head import load_if_any, load_manifest
from zarr_core.storage import Storage

_FIRST = 3  # samples that are committed before the attack
_SAMPLES = 10
# Two rounds at a time: one imports while the other is killed.
_AT_A_TIME = 2

# Converts the rest of the source into the store in a process that is killed.
Killer = Callable[[Path, Path, Path], None]


def killed_converters(rounds: int, folder: Path, tally: Tally, chance: random.Random) -> None:
    """In each round, a converter that adds seven samples to a store with three is killed at a random moment."""

    def killers(seconds: float) -> list[Killer]:
        # Mostly after the first object has appeared: before that, the process only imports. A new command with workers
        # of its own takes ten times the CPU of a forked one.
        hows = chance.choices(("forked", "command", "command, from its start"), (90, 5, 5), k=rounds)
        return [partial(_kill_after, tally, chance.uniform(0, 2 * seconds), how) for how in hows]

    _with_killers(killers, folder, tally)


def converters_killed_at(*kills: Kill) -> Attack:
    """The same, one round per operation at which the converter is killed."""

    def attack(rounds: int, folder: Path, tally: Tally, chance: random.Random) -> None:
        _with_killers(lambda _: [partial(_kill_at, kill) for kill in kills], folder, tally)

    return attack


def _kill_at(kill: Kill, source: Path, store: Path, begun: Path) -> None:
    shutil.copytree(begun, store)
    assert is_killed(kill, convert, "ahmedml", store, root=source, chunk_points=CHUNK_POINTS), kill


def _kill_after(tally: Tally, delay: float, how: str, source: Path, store: Path, begun: Path) -> None:
    while True:
        shutil.copytree(begun, store)
        if _was_killed(source, store, delay, how, tally):
            return
        delay /= 2  # it had ended before the kill
        shutil.rmtree(store)


def _with_killers(killers: Callable[[float], list[Killer]], folder: Path, tally: Tally) -> None:
    sample_ids = tuple(f"run_{n}" for n in range(1, _SAMPLES + 1))
    source = write_source(folder / "source", sample_ids, surface=400, volume=4000)
    begun, undisturbed = folder / "begun", folder / "undisturbed"
    convert("ahmedml", begun, root=source, limit=_FIRST, chunk_points=CHUNK_POINTS)
    shutil.copytree(begun, undisturbed)
    started = time.monotonic()
    convert("ahmedml", undisturbed, root=source, chunk_points=CHUNK_POINTS)
    seconds = time.monotonic() - started
    expected = named_objects(str(undisturbed))
    truth = {sample_id: stored_sample(source, sample_id) for sample_id in sample_ids}
    committed = set(load_manifest(begun).samples)

    def one_round(number: int, killer: Killer) -> None:
        store = folder / f"store_{number}"
        killer(source, store, begun)
        tally.add("faults")
        left = load_if_any(Storage(store))
        named = set(left.samples) if left else set()
        if committed - named:
            tally.add("lost", len(committed - named), f"round {number}: a kill took {committed - named}")
        check_samples(str(store), {i: truth[i] for i in named}, tally, f"round {number}, after the kill")
        with tally.ours(f"round {number}"):
            report = convert("ahmedml", store, root=source, chunk_points=CHUNK_POINTS)
            if not report.ok:
                tally.add("lost", 1, f"round {number}: the run after the kill failed: {report.having('failed')[:1]}")
        compare(str(store), expected, tally, f"round {number}")
        check_samples(str(store), {i: truth[i] for i in committed}, tally, f"round {number}, generation 1", 1)
        tally.add("rounds")
        shutil.rmtree(store)

    with ThreadPoolExecutor(_AT_A_TIME) as pool:
        for _ in pool.map(lambda item: one_round(*item), enumerate(killers(seconds))):
            pass


def _was_killed(source: Path, store: Path, delay: float, how: str, tally: Tally) -> bool:
    """Start a converter and kill it some seconds after its first write; False if it had ended before."""
    samples = store / "samples"
    before = len(os.listdir(samples))
    arguments = ["--dataset-kind", "ahmedml", "--root", str(source), "--output", str(store)]
    arguments += ["--chunk-points", str(CHUNK_POINTS), "--workers", "2", "--quiet"]
    process: Forked | Command
    if how == "forked":
        process = Forked(zarr_core.convert.main, arguments)
    else:
        process = Command(["-m", "zarr_core.convert", *arguments])
    while how != "command, from its start" and process.running and len(os.listdir(samples)) == before:
        time.sleep(0.002)
    time.sleep(delay)
    return process.kill_and_look(tally, "a converter that was to be killed")


def _die(*_: object) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


class _KillingPool(WorkerPool):
    """Kills the worker that gets one of the samples, as the system does for lack of memory."""

    def __init__(self, workers: int, sample_id: str) -> None:
        super().__init__(workers)
        self._sample_id = sample_id

    def submit(self, function: Callable[..., Any], /, *arguments: Any, **options: Any) -> Future[Any]:
        dies = isinstance(function, partial) and function.args[2].sample_id == self._sample_id
        return super().submit(_die if dies else function, *arguments, **options)


def workers_killed_for_memory(rounds: int, folder: Path, tally: Tally, chance: random.Random) -> None:
    """Each round one sample kills each worker that converts it: the others must be converted by the same run."""
    sample_ids = tuple(f"run_{n}" for n in range(1, 6))
    source = write_source(folder / "source", sample_ids, surface=100, volume=400)
    convert("ahmedml", folder / "undisturbed", root=source, chunk_points=CHUNK_POINTS)
    expected = {name: digest for name, digest in named_objects(str(folder / "undisturbed")).items() if "/" in name}
    truth = {sample_id: stored_sample(source, sample_id) for sample_id in sample_ids}
    for number in range(rounds):
        store, killer = folder / f"store_{number}", chance.choice(sample_ids)
        with tally.ours(f"round {number}"), _KillingPool(chance.randint(1, 3), killer) as pool:
            report = convert("ahmedml", store, root=source, chunk_points=CHUNK_POINTS, executor=pool)
            tally.add("faults")
            failed = [result.sample_id for result in report.having("failed")]
            if failed != [killer]:
                tally.add("lost", 1, f"round {number}: {killer} kills its worker, {failed} failed")
            convert("ahmedml", store, root=source, chunk_points=CHUNK_POINTS)
        check_samples(str(store), truth, tally, f"round {number}")
        found = {name: digest for name, digest in named_objects(str(store)).items() if "/" in name}
        if found != expected:
            tally.add("wrong", 1, f"round {number}: the named objects differ from an undisturbed run's")
        tally.add("rounds")
        shutil.rmtree(store)


def _read_while_they_write(
    root: str, processes: list[Forked], truth: dict[str, Sample], tally: Tally, what: str
) -> None:
    """Read the manifest in a loop, and sometimes the samples that it names: a reader must never see incomplete data."""
    storage = Storage(root)
    generation, started = 0, time.monotonic()
    while any(process.running for process in processes) and time.monotonic() - started < PATIENCE:
        with tally.ours(what):
            try:
                found = load_if_any(storage)
            except ZarrCoreError as error:
                tally.add("lost", 1, f"{what}: {error}")
                return
            if found is None or found.generation == generation:
                time.sleep(0.001)  # let the converters have the processor
                continue
            if found.generation < generation:
                tally.add("lost", 1, f"{what}: generation {generation} became {found.generation}")
            generation = found.generation
            check_samples(root, {i: truth[i] for i in found.samples}, tally, what, generation)


def rival_converters(roots: list[str], folder: Path, tally: Tally, chance: random.Random) -> None:
    """Four concurrent converters, each of a random choice of samples, on one store; one round per root."""
    sample_ids = tuple(f"run_{n}" for n in range(1, 9))
    source = write_source(folder / "source", sample_ids, surface=100, volume=400)
    convert("ahmedml", folder / "undisturbed", root=source, chunk_points=CHUNK_POINTS)
    expected = {name: digest for name, digest in named_objects(str(folder / "undisturbed")).items() if "/" in name}
    truth = {sample_id: stored_sample(source, sample_id) for sample_id in sample_ids}
    for number, root in enumerate(roots):
        chosen = [sorted(chance.sample(sample_ids, 5)) for _ in range(4)]
        chosen[0] = sorted(set(sample_ids) - set().union(*chosen[1:])) or chosen[0]
        processes = [Forked(convert_some, source, root, some) for some in chosen]
        tally.add("faults", len(processes) - 1)
        _read_while_they_write(root, processes, truth, tally, f"round {number}, meanwhile")
        for process, some in zip(processes, chosen, strict=True):
            status, errors = process.finish(tally, f"round {number}")
            if status != 0:
                tally.add("lost", len(some), f"round {number}: a converter failed: {errors[-300:]}")
        converted = set().union(*chosen)
        check_samples(root, {i: truth[i] for i in sorted(converted)}, tally, f"round {number}")
        found = {name: digest for name, digest in named_objects(root).items() if "/" in name}
        if found != {name: digest for name, digest in expected.items() if name.split("/")[1] in converted}:
            tally.add("wrong", 1, f"round {number}: the named objects differ from an undisturbed run's")
        generation = load_manifest(root).generation
        for earlier in range(1, generation + 1):
            then = load_manifest(root, generation=earlier).samples
            check_samples(root, {i: truth[i] for i in then}, tally, f"round {number}, generation {earlier}", earlier)
        tally.add("rounds")
