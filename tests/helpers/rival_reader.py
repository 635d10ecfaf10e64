"""Prepares a rival of the benchmarks and writes the rows that it reads, in an interpreter that may lack this library.

``python -m tests.helpers.rival_reader NAME FOLDER SAMPLES STORE DRAWS EPOCHS OUT``
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

from benchmarks.rivals import RIVALS
from benchmarks.rivals.formats import load_draws, prepare


def main(name: str, folder: str, samples: str, store: str, draws_file: str, epochs: str, out: str) -> None:
    """Write an ``.npz`` file whose arrays are named ``SAMPLE EPOCH FIELD``."""
    entry = next(entry for entry in RIVALS if entry.name == name)
    prepare(entry, Path(folder), Path(samples), Path(store))
    rival, draws = entry.make(), load_draws(Path(draws_file))
    rival.open(Path(folder), draws)
    found = {
        f"{sample} {epoch} {field}": rows
        for epoch in range(int(epochs))
        for sample in draws.runs
        for field, rows in rival.read(sample, epoch).items()
    }
    np.savez(out, **found)


if __name__ == "__main__":
    main(*sys.argv[1:])
