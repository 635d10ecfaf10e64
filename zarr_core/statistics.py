"""Write the normalisation statistics of a store: ``python -m zarr_core.statistics``."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from zarr_core._util.command_line import exit_status
from zarr_core.points.statistics import calculate_store_statistics, write_statistics

__all__ = ["calculate_store_statistics", "write_statistics"]


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m zarr_core.statistics", description=__doc__)
    parser.add_argument("--store", required=True, metavar="URL", help="path or URL of the store")
    parser.add_argument("--split", help="only the samples of this split")
    parser.add_argument(
        "--split-file",
        metavar="FILE",
        help="only the samples listed in this file; a bare name lies in the store's root",
    )
    parser.add_argument("--workers", type=int, default=1, help="processes that recompute (default 1)")
    parser.add_argument("--read-concurrency", type=int, default=1, help="reads in flight in each (default 1)")
    parser.add_argument("--recompute", action="store_true", help="read every array instead of merging recorded moments")
    parser.add_argument("--output-yaml", metavar="FILE", help="write YAML here instead of stats.yaml in the store")
    parser.add_argument("--output-json", metavar="FILE", help="write JSON here instead of stats.json in the store")
    options = parser.parse_args(arguments)

    def work() -> int:
        statistics = calculate_store_statistics(
            options.store,
            split=options.split,
            split_file=options.split_file,
            recompute=options.recompute,
            workers=options.workers,
            read_concurrency=options.read_concurrency,
            progress=True,
        )
        chosen = [text for text in (options.split and f"split {options.split}", options.split_file) if text]
        written = write_statistics(
            options.store,
            statistics,
            of=" and ".join(chosen) or "all samples",
            output_yaml=options.output_yaml,
            output_json=options.output_json,
        )
        for target in written:
            print(f"wrote {target}")
        return 0

    return exit_status(work)


if __name__ == "__main__":
    sys.exit(main())
