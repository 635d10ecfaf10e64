"""Runs the code blocks of a page of the documentation from top to bottom, in the working directory."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import yaml

from zarr_core.__main__ import main

# Title of a block for a library that cannot be installed beside this one.
NOT_RUN = "before (not run by our tests)"
DOCS = Path(__file__).parents[2] / "docs"
# Blocks of shell and Python, and of YAML with the name of a file.
BLOCK = re.compile(r'^```(sh|python|yaml)(?: title="([^"]+)")?\n(.*?)^```', re.DOTALL | re.MULTILINE)


def blocks(page: str) -> list[tuple[str, str, str]]:
    """Language, title and text of each block, by the path of the page below ``docs``."""
    return BLOCK.findall((DOCS / page).read_text())


def run_page(page: str, places: Mapping[str, str] = MappingProxyType({})) -> dict[str, Any]:
    """Run a page.

    Args:
        page: path below ``docs``.
        places: what stands in the place of URLs that the page names.

    Returns:
        The names that its Python has defined.
    """
    names: dict[str, Any] = {"__name__": "docs"}
    for language, title, text in blocks(page):
        for url, place in places.items():
            text = text.replace(url, place)
        if language == "python":
            code = compile(text, page, "exec")
            if title != NOT_RUN:
                exec(code, names)
        elif language == "sh":
            run_commands(text)
        elif title:
            file = Path(title)
            if not file.exists():
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_text(text)
            assert yaml.safe_load(file.read_text()) == yaml.safe_load(text), (
                f"a command of {page} wrote another {title}"
            )
    return names


def run_commands(text: str) -> None:
    """Run lines of ``zarr-core``, each in this process."""
    for line in text.replace("\\\n", " ").splitlines():
        command, *words = shlex.split(line)
        assert (command, main(words)) == ("zarr-core", 0), line
