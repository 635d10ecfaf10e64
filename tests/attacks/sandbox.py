"""Fuzzing in a process with limited memory, which reports hangs and crashes.

Every round is a function of one number, which the notes name: ``python -m attacks.sandbox TARGETS ROUNDS SEED FOLDER``
(targets joined by commas, an equal number of rounds each).
"""

from __future__ import annotations

import faulthandler
import importlib
import json
import random
import resource
import signal
import sys
import warnings
from pathlib import Path
from typing import Any

from tests.attacks.processes import PATIENCE, Command
from tests.attacks.tally import Attack, Tally

# In addition to what the libraries have mapped; a store of these tests holds a few kilobytes.
_MEMORY = 2 << 30
# A round takes milliseconds. Processor time finds endless loops on a busy machine as well, time on the clock waiting.
_PROCESSOR_SECONDS_PER_ROUND = 30

TARGETS = {
    **dict.fromkeys(("manifest", "group", "array", "shard", "forged"), "tests.attacks.fuzz_store"),
    **dict.fromkeys(("archive", "forged_archive"), "tests.attacks.fuzz_store"),
    **dict.fromkeys(("head", "beside", "cells", "forged_cells"), "tests.attacks.fuzz_matrix"),
    **dict.fromkeys(("mapped", "mapped_archive", "mapped_matrix"), "tests.attacks.fuzz_maps"),
    "tensors": "tests.attacks.fuzz_sources",
    **dict.fromkeys(("description", "splits", "config", "state", "statistics", "cache"), "tests.attacks.fuzz_settings"),
}


def fuzz(*targets: str) -> Attack:
    """An attack on these targets, an equal number of rounds each."""

    def attack(rounds: int, folder: Path, tally: Tally, chance: random.Random) -> None:
        names, seed = ",".join(targets), str(chance.randrange(2**32))
        each = max(rounds // len(targets), 1)
        arguments = ["-m", "tests.attacks.sandbox", names, str(each), seed, folder]
        # The C library reserves 64 MB of addresses for every thread of TensorStore, up to this number of times.
        _, errors = Command(arguments, MALLOC_ARENA_MAX="2").finish(
            tally, f"{names}, seed {seed}", 2 * PATIENCE + rounds
        )
        result = folder / "tally.json"
        if not result.exists():
            tally.add("tracebacks", 1, f"{names}, seed {seed}: the process ended: {errors[-1500:]}")
            return
        tally.add_counts(result)

    return attack


def main() -> None:
    """In the process of its own."""
    targets, rounds, seed, folder = sys.argv[1].split(","), int(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4])
    warnings.simplefilter("ignore")
    counted = Tally()
    ones = {}
    for target in targets:
        (folder / target).mkdir(parents=True)
        ones[target] = importlib.import_module(TARGETS[target]).make(folder / target, target, counted)
        ones[target](random.Random(0))  # everything is imported, and every pool is there, before memory is limited
    _watch_for_escapes(counted)
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + _MEMORY
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))

    faulthandler.register(signal.SIGPROF, chain=True)  # prints the stack, then the process ends
    numbers = random.Random(seed)
    for target in targets * rounds:
        number = numbers.randrange(2**64)
        before = (counted.wrong, counted.tracebacks)
        print(
            f"{target}: one(random.Random({number}))", file=sys.stderr
        )  # the last one is the round that hung or crashed
        signal.setitimer(signal.ITIMER_PROF, _PROCESSOR_SECONDS_PER_ROUND)
        faulthandler.dump_traceback_later(PATIENCE, exit=True)
        ones[target](random.Random(number))
        counted.add("rounds")
        if before != (counted.wrong, counted.tracebacks):
            counted.notes.append(f"{target}: again by one(random.Random({number}))")
    signal.setitimer(signal.ITIMER_PROF, 0)
    faulthandler.cancel_dump_traceback_later()
    result = {key: value for key, value in vars(counted).items() if not key.startswith("_")}
    (folder / "tally.json").write_text(json.dumps(result))


def _watch_for_escapes(tally: Tally) -> None:
    """Count every attempt to open the file outside the store that hostile paths point to."""

    def look(event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open" and "etc/passwd" in str(arguments[0]):
            tally.add("wrong", 1, f"opens {arguments[0]}")

    sys.addaudithook(look)


if __name__ == "__main__":
    main()
