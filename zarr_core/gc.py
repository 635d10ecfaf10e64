"""Remove old generations, and everything that no kept generation names: ``zarr-core gc STORE``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from zarr_core._util import command_line as cli
from zarr_core._util.units import format_size, parse_duration
from zarr_core.storage import Storage
from zarr_core.stores.kinds import find_head
from zarr_core.versioning.gc import DEFAULT_GRACE, GcReport, collect_garbage

_PREFIXES_SHOWN = 20

app = cli.verb(
    "gc",
    """
zarr-core gc /data/store --dry-run
zarr-core gc s3://bucket/store --grace 7d
""",
)


@app.default
@cli.command()
def _command(
    store: cli.Store,
    *,
    dry_run: Annotated[bool, cli.flag("Only show what would be removed.")] = False,
    grace: Annotated[
        str,
        cli.option("Keep everything that was replaced or written less than this ago: 90m, 24h, 7d.", metavar="TIME"),
    ] = DEFAULT_GRACE,
    all: cli.All = False,
    quiet: cli.Quiet = False,
) -> cli.Result:
    storage = Storage(store)
    head, seconds = find_head(storage), parse_duration(grace)
    report = collect_garbage(storage, head, seconds, dry_run=dry_run, progress=not quiet)
    document = {
        "store": storage.url,
        "dry_run": report.dry_run,
        "kept_generations": report.kept,
        "removed_generations": report.expired,
        "removed": {prefix: garbage.bytes for prefix, garbage in sorted(report.prefixes.items())},
        "removed_bytes": report.bytes,
        "incomplete_files": report.temporary.objects,
        "too_young": report.young,
        "foreign_objects": report.foreign,
    }
    return cli.Result(_summary(report, storage.url, everything=all), document)


def _summary(report: GcReport, store: str, *, everything: bool) -> str:
    """Result of a garbage collection in a few lines."""
    removed = "would remove" if report.dry_run else "removed"
    expired = f"generations {_ranges(report.expired)}" if report.expired else "no generation"
    lines = [
        f"{removed} {len(report.prefixes)} groups and statistics that no kept generation names "
        f"({format_size(report.bytes)}), {expired}, and {report.temporary.objects} incomplete files and uploads"
    ]
    shown = len(report.prefixes) if everything else _PREFIXES_SHOWN
    for prefix, garbage in sorted(report.prefixes.items())[:shown]:
        lines.append(f"  {prefix} ({garbage.objects} objects, {format_size(garbage.bytes)})")
    if len(report.prefixes) > shown:
        lines.append(f"  and {len(report.prefixes) - shown} more (--all shows them)")
    lines.append(f"kept generations {_ranges(report.kept)}; {report.young} unnamed groups are too young to go")
    if report.foreign:
        lines.append(f"left alone: {report.foreign} objects that zarr_core did not write")
    lines.append(f"store: {store}")
    return "\n".join(lines)


def _ranges(numbers: Sequence[int]) -> str:
    """Numbers as ranges: "1 to 4, 7"."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ", ".join(str(first) if first == last else f"{first} to {last}" for first, last in runs)


main = cli.program(app, __name__)
