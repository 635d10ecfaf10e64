"""Runs notebooks without Jupyter: ``python -m tests.helpers.notebooks`` draws their pictures for docs."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib import pyplot as plt

NOTEBOOKS = Path(__file__).parents[2] / "examples" / "notebooks"
IMAGES = Path(__file__).parents[2] / "docs" / "images"


def run_notebook(notebook: Path) -> tuple[dict[str, Any], list[Any]]:
    """Run the code of a notebook in its folder.

    Returns:
        The names that it has defined, and its figures.
    """
    mpl.use("Agg")
    names: dict[str, Any] = {"__name__": "__main__"}
    before = Path.cwd()
    os.chdir(notebook.parent)
    try:
        for cell in json.loads(notebook.read_text())["cells"]:
            if cell["cell_type"] == "code":
                exec(compile("".join(cell["source"]), f"{notebook.name}, {cell['id']}", "exec"), names)
        return names, [plt.figure(number) for number in plt.get_fignums()]
    finally:
        plt.close("all")
        os.chdir(before)


if __name__ == "__main__":
    for path in sorted(NOTEBOOKS.glob("*.ipynb")):
        for number, figure in enumerate(run_notebook(path)[1], 1):
            figure.savefig(IMAGES / f"notebook-{path.stem}-{number}.png", dpi=80)
