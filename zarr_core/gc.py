"""Remove what no kept generation of a store names: ``python -m zarr_core.gc STORE``."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from zarr_core._util.command_line import exit_status
from zarr_core._util.units import format_size, parse_duration
from zarr_core.storage import Storage
from zarr_core.stores.kinds import find_head
from zarr_core.versioning.gc import DEFAULT_GRACE, GcReport, collect_garbage


def summary(result: GcReport, store: str, *, everything: bool = False) -> str:
    """What a person wants to know at the end of a run."""
    removed = "would remove" if result.dry_run else "removed"
    size = format_size(result.bytes)
    lines = [
        f"  {prefix} ({garbage.objects} objects, {format_size(garbage.bytes)})"
        for prefix, garbage in sorted(result.prefixes.items())
    ]
    if len(lines) > 20 and not everything:
        lines[20:] = [f"  and {len(lines) - 20} more (--all shows them)"]
    expired = f"generations {_ranges(result.expired)}" if result.expired else "no generation"
    return "\n".join(
        [
            f"{removed} {len(result.prefixes)} groups that no kept generation names ({size}), {expired}, and "
            f"{result.temporary.objects} half-written files",
            *lines,
            f"kept generations {_ranges(result.kept)}; {result.young} unnamed groups are too young to go",
            *([f"left alone: {result.foreign} objects that are none of ours"] if result.foreign else []),
            f"store: {store}",
        ]
    )


def _ranges(numbers: Sequence[int]) -> str:
    """Numbers as people write them: "1 to 4, 7"."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ", ".join(str(first) if first == last else f"{first} to {last}" for first, last in runs)


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m zarr_core.gc", description=__doc__)
    parser.add_argument("store", metavar="STORE", help="path or URL of the store")
    parser.add_argument("--dry-run", action="store_true", help="only say what would be removed")
    parser.add_argument(
        "--grace",
        default=DEFAULT_GRACE,
        metavar="TIME",
        help="keep what was replaced or written less than this ago, as in 90m, 24h or 7d (default %(default)s)",
    )
    parser.add_argument("--all", action="store_true", help="name everything that goes")
    options = parser.parse_args(arguments)

    def work() -> int:
        storage = Storage(options.store)
        grace = parse_duration(options.grace)
        result = collect_garbage(storage, find_head(storage), grace, dry_run=options.dry_run)
        print(summary(result, storage.url, everything=options.all))
        return 0

    return exit_status(work)


if __name__ == "__main__":
    sys.exit(main())
