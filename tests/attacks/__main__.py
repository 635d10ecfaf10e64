"""All attacks in full, and a table of their results: ``make attack``, or ``python -m tests.attacks``."""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
import warnings
from pathlib import Path

from tests.attacks.suite import ENTRIES
from tests.attacks.tally import Tally
from tests.helpers import fork_server
from tests.helpers.fork_server import one_fork_server

_COLUMNS = ("attack", "rounds", "faults injected", "samples lost", "wrong bytes returned", "unhandled tracebacks")


def main() -> int:
    """Run and print; returns 1 if an attack found a wrong or lost sample, or a traceback."""
    parser = argparse.ArgumentParser(prog="python -m tests.attacks", description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", help="only attacks whose names contain one of these")
    parser.add_argument("--share", type=float, default=1.0, help="of the rounds, for a shorter run")
    parser.add_argument("--seed", type=int, help="of all that is left to chance (default: the clock's)")
    options = parser.parse_args()
    seed = int(time.time()) if options.seed is None else options.seed
    print(f"seed {seed}", flush=True)
    warnings.simplefilter("ignore")
    sys.warnoptions.append("ignore")  # in processes of multiprocessing, too
    rows, held = [], True
    started = time.monotonic()
    for entry in ENTRIES:
        if options.names and not any(name in entry.name for name in options.names):
            continue
        if reason := entry.skipped():
            rows.append((entry.name, f"skipped: {reason}"))
            print(f"{entry.name}: skipped: {reason}", flush=True)
            continue
        tally, began = Tally(), time.monotonic()
        with tempfile.TemporaryDirectory(prefix="zarr_core_attack_") as folder, fork_server.one_fork_server():
            try:
                entry.attack(max(1, round(entry.full * options.share)), Path(folder), tally, random.Random(seed))
            except Exception as error:
                tally.add("tracebacks", 1, f"the attack itself ended: {type(error).__name__}: {error}")
        counts = (tally.rounds, tally.faults, tally.lost, tally.wrong, tally.tracebacks)
        rows.append((entry.name, *(f"{count:,}" for count in counts)))
        held &= tally.held
        print(f"{entry.name}: {time.monotonic() - began:.0f} s, {'held' if tally.held else 'BROKEN'}", flush=True)
        for note in tally.notes:
            print(f"  {note}", flush=True)
    print(f"\n{_table(rows)}\n\n{time.monotonic() - started:.0f} s, seed {seed}")
    return 0 if held else 1


def _table(rows: list[tuple[str, ...]]) -> str:
    widths = [max(len(row[at]) for row in (_COLUMNS, *rows) if len(row) == 6) for at in range(6)]
    widths[0] = max(len(row[0]) for row in (_COLUMNS, *rows))
    lines = []
    for row in (_COLUMNS, *rows):
        cells = [row[0].ljust(widths[0])]
        cells += (
            [cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True)] if len(row) == 6 else row[1:]
        )
        lines.append("  ".join(cells))
    return "\n".join(lines)


if __name__ == "__main__":
    with one_fork_server():
        sys.exit(main())
