"""Remove old generations, and everything that no kept generation names: ``zarr-core gc STORE``."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import partial
from typing import Annotated, Any

from zarr_core._util.command_line import DONE, All, Json, Quiet, Store, flag, option, run, show, verb
from zarr_core._util.units import format_size, parse_duration
from zarr_core.storage import Storage
from zarr_core.stores.kinds import find_head
from zarr_core.versioning.gc import DEFAULT_GRACE, GcReport, collect_garbage

app = verb(
    "gc",
    """
zarr-core gc /data/store --dry-run
zarr-core gc s3://bucket/store --grace 7d
""",
)


@app.default
def _command(
    store: Store,
    *,
    dry_run: Annotated[bool, flag("Only show what would be removed.")] = False,
    grace: Annotated[
        str, option("Keep everything that was replaced or written less than this ago: 90m, 24h, 7d.", metavar="TIME")
    ] = DEFAULT_GRACE,
    all: All = False,
    quiet: Quiet = False,
    json: Json = False,
) -> int:
    storage = Storage(store)
    report = collect_garbage(storage, find_head(storage), parse_duration(grace), dry_run=dry_run)
    show(summary(report, storage.url, everything=all), _document(report, storage.url), json=json, quiet=quiet)
    return DONE


def summary(report: GcReport, store: str, *, everything: bool = False) -> str:
    """Result of a garbage collection in a few lines."""
    removed = "would remove" if report.dry_run else "removed"
    size = format_size(report.bytes)
    lines = [
        f"  {prefix} ({garbage.objects} objects, {format_size(garbage.bytes)})"
        for prefix, garbage in sorted(report.prefixes.items())
    ]
    if len(lines) > 20 and not everything:
        lines[20:] = [f"  and {len(lines) - 20} more (--all shows them)"]
    expired = f"generations {_ranges(report.expired)}" if report.expired else "no generation"
    return "\n".join(
        [
            f"{removed} {len(report.prefixes)} groups and statistics that no kept generation names ({size}), "
            f"{expired}, and {report.temporary.objects} incomplete files",
            *lines,
            f"kept generations {_ranges(report.kept)}; {report.young} unnamed groups are too young to go",
            *([f"left alone: {report.foreign} objects that zarr_core did not write"] if report.foreign else []),
            f"store: {store}",
        ]
    )


def _ranges(numbers: Sequence[int]) -> str:
    """Numbers as ranges: "1 to 4, 7"."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ", ".join(str(first) if first == last else f"{first} to {last}" for first, last in runs)


def _document(report: GcReport, store: str) -> dict[str, Any]:
    return {
        "store": store,
        "dry_run": report.dry_run,
        "kept_generations": report.kept,
        "removed_generations": report.expired,
        "removed": {prefix: garbage.bytes for prefix, garbage in sorted(report.prefixes.items())},
        "removed_bytes": report.bytes,
        "incomplete_files": report.temporary.objects,
        "too_young": report.young,
        "foreign_objects": report.foreign,
    }


main = partial(run, app)


if __name__ == "__main__":
    sys.exit(main())
