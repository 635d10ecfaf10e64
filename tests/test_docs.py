"""The documentation names files that exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

PROJECT = Path(__file__).resolve().parents[1]
PAGES = [
    *(PROJECT / name for name in ("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "SECURITY.md")),
    *sorted((PROJECT / "docs").rglob("*.md")),
]
FOLDERS = "zarr_core|assets|sensors|resources|tests|benchmarks|examples|docs"
# A path from the root of the project, in backticks or anywhere in a run of text between them.
PATH = re.compile(rf"(?<![\w./<-])(?:{FOLDERS})/[\w./-]*\w")
LINK = re.compile(r"\]\(([^)#]+)(?:#[^)]*)?\)")


def named_paths(text: str) -> set[str]:
    without_blocks = re.sub(r"(?ms)^```.*?^```", "", text)
    return {path for quoted in re.findall(r"`([^`\n]+)`", without_blocks) for path in PATH.findall(quoted)}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(PROJECT)))
def test_every_path_in_backticks_exists(page: Path) -> None:
    missing = {path for path in named_paths(page.read_text()) if not (PROJECT / path).exists()}
    assert missing == set()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(PROJECT)))
def test_every_link_to_a_file_leads_somewhere(page: Path) -> None:
    links = {link for link in LINK.findall(page.read_text()) if "://" not in link}
    assert {link for link in links if not (page.parent / link).exists()} == set()


def test_the_paths_of_contributing_are_found() -> None:
    assert "zarr_core/format/codecs.py" in named_paths((PROJECT / "CONTRIBUTING.md").read_text())
    assert named_paths("`tests/no.py` and ```x```") == {"tests/no.py"}
