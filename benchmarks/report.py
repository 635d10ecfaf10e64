"""Creates ``docs/performance.md`` and its plots from ``benchmarks/results/*.json``.

``python -m benchmarks.report``
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from benchmarks.result import RESULTS, is_met, shown, table_markdown

DOCS = Path(__file__).parents[1] / "docs"
ORDER = (
    "local",
    "rivals",
    "s3",
    "bucket",
    "layouts",
    "tars",
    "endurance",
    "resume",
    "items",
    "gpu",
    "conversion",
    "solvers",
    "cluster",
    "dagster_cost",
    "dagster_daemon",
    "dagster_page",
    "shootout",
    "codecs",
    "error_bounds",
    "manifest",
    "matrix",
    "warehouse",
)
HEAD = """# Performance

Created by `python -m benchmarks.report` from the JSON in `benchmarks/results`; do not edit. `make bench` measures again
and writes this page; `make bench-s3` does so for object storage. Each ratio was measured side by side in one run. It
holds for that machine: other disks, processors and a busy neighbour give others.
"""


def place(name: str) -> tuple[int, str]:
    """Where a result stands on the page: variants follow what they vary, and what has no place comes last."""
    benchmark = name.partition("-")[0]
    return ORDER.index(benchmark) if benchmark in ORDER else len(ORDER), name


def page(results: list[dict[str, Any]], images: Path) -> str:
    """The page in Markdown; draws its plots into a folder beside it."""
    parts = [HEAD, "## Targets\n", targets_markdown(results)]
    for result in results:
        parts.append(f"## {result['title']}\n\n{result['conditions']}\n")
        measured = " · ".join(filter(None, (f"`{result['command']}`", result["date"], result["environment"])))
        parts.append(f"{measured}\n")
        for number, table in enumerate(result["tables"], 1):
            parts.append(f"### {table['title']}\n\n{table_markdown(table)}\n")
            if table["chart"]:
                name = f"performance-{result['name']}-{number}.svg"
                draw(table, images / name)
                parts.append(f"![{table['title']}: {table['chart']}]({images.name}/{name})\n")
        parts += [f"{note}\n" for note in result["notes"]]
    return "\n".join(parts)


def targets_markdown(results: list[dict[str, Any]]) -> str:
    """Every target of every benchmark, in one table."""
    words = {True: "reached", False: "**missed**", None: "not measured"}
    rows = [
        [
            result["name"],
            target["what"],
            "" if target["measured"] is None else f"{shown(target['measured'])}{target['unit']}",
            f"{target['relation']} {shown(target['target'])}{target['unit']}",
            words[is_met(target)],
        ]
        for result in results
        for target in result["targets"]
    ]
    return table_markdown({"columns": ["benchmark", "what", "measured", "target", ""], "rows": rows}) + "\n"


def draw(table: dict[str, Any], path: Path) -> None:
    """A table's column as bars on a logarithmic axis."""
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = "zarr_core"  # the same figures give the same file
    import matplotlib.pyplot as plt

    column = table["columns"].index(table["chart"])
    bars = [(row[0], row[column]) for row in table["rows"] if isinstance(row[column], int | float)]
    names, values = zip(*reversed(bars), strict=True)
    figure, axes = plt.subplots(figsize=(8, 0.6 + 0.32 * len(bars)))
    drawn = axes.barh(names, values, color=["#1f6f8b" if is_ours(name) else "#b8bec4" for name in names])
    axes.bar_label(drawn, [shown(value) for value in values], padding=3)
    axes.set_xscale("log")
    axes.set_xlim(min(values) / 2, max(values) * 2.5)
    axes.set_xlabel(table["chart"])
    axes.spines[["top", "right"]].set_visible(False)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, bbox_inches="tight", metadata={"Date": None})
    plt.close(figure)


def is_ours(name: str) -> bool:
    """Whether a row measures this library."""
    return name.startswith(("direct", "zarr_core")) or name.endswith(("worker", "workers"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--docs", type=Path, default=DOCS, help="folder of the page (default: docs)")
    arguments = parser.parse_args()
    files = {path.stem: path for path in arguments.results.glob("*.json")}
    results = [json.loads(files[name].read_text()) for name in sorted(files, key=place)]
    if not results:
        raise SystemExit(f"no results in {arguments.results}: run a benchmark first")
    target = arguments.docs / "performance.md"
    target.write_text(page(results, arguments.docs / "images"))
    print(f"wrote {target}")


if __name__ == "__main__":
    main()
