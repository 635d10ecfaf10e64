"""Fuzzing in a process with little memory, where a hang and a crash are seen and named.

Every round is a function of one number, which the notes name: ``python -m attacks.sandbox TARGET ROUNDS SEED FOLDER``.
"""

from __future__ import annotations

import faulthandler
import importlib
import json
import random
import resource
import sys
import warnings
from pathlib import Path

from attacks.tally import PATIENCE, Tally, finish, start

# Beyond what the libraries have mapped; a store of these tests holds some kilobytes.
_MEMORY = 2 << 30
_SECONDS_A_ROUND = 30

TARGETS = {
    **dict.fromkeys(("manifest", "group", "array", "shard", "forged"), "attacks.fuzz_store"),
    "tensors": "attacks.fuzz_sources",
    **dict.fromkeys(("description", "splits", "config", "state", "statistics", "cache"), "attacks.fuzz_settings"),
}


def fuzz(targets: tuple[str, ...]):
    """An attack on these targets, an equal number of rounds each."""

    def attack(rounds: int, folder: Path, tally: Tally, chance: random.Random) -> None:
        for target in targets:
            below = folder / target
            below.mkdir(parents=True)
            seed = str(chance.randrange(2**32))
            arguments = ["-m", "attacks.sandbox", target, str(max(rounds // len(targets), 1)), seed, below]
            run = finish(start(arguments), tally, f"{target}, seed {seed}", PATIENCE + rounds)
            result = below / "tally.json"
            if not result.exists():
                tally.add("tracebacks", 1, f"{target}, seed {seed}: the process ended: {run.errors[-1500:]}")
                continue
            for key, value in json.loads(result.read_text()).items():
                if key == "notes":
                    tally.notes += value
                else:
                    tally.add(key, value)

    return attack


def main() -> None:
    """In the process of its own."""
    target, rounds, seed, folder = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4])
    warnings.simplefilter("ignore")
    counted = Tally()
    one = importlib.import_module(TARGETS[target]).make(folder, target, counted)
    one(random.Random(0))  # everything is imported, and every pool is there, before memory is limited
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + _MEMORY
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))

    numbers = random.Random(seed)
    for _ in range(rounds):
        number = numbers.randrange(2**64)
        before = (counted.wrong, counted.tracebacks)
        faulthandler.dump_traceback_later(_SECONDS_A_ROUND, exit=True)
        one(random.Random(number))
        counted.add("rounds")
        if before != (counted.wrong, counted.tracebacks):
            counted.notes.append(f"{target}: again by one(random.Random({number}))")
    faulthandler.cancel_dump_traceback_later()
    result = {key: value for key, value in vars(counted).items() if not key.startswith("_")}
    (folder / "tally.json").write_text(json.dumps(result))


if __name__ == "__main__":
    main()
