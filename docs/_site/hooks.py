"""Hooks of MkDocs: pages that lie elsewhere in the repository or are made from the code, and links between them all."""

from __future__ import annotations

import json
import os
import re
import sys
from functools import cache
from pathlib import Path
from typing import Any

PROJECT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(PROJECT), str(Path(__file__).parent)]

import reference  # noqa: E402
from mkdocs.structure.files import File  # noqa: E402

# Pages of the root. What they and the pages of docs/ link to becomes a page as well.
ROOT_PAGES = ("README.md", "ARCHITECTURE.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md")
_LINK = re.compile(r"(\]\()([^)\s#]+)((?:#[^)\s]*)?\))")
_ROLE = re.compile(r":(?:class|func|meth|attr|mod|data):<code>~?([^<]*)</code>")
_IMAGES = (".png", ".svg", ".jpg")


def site_path(path: str) -> str:
    """Where a file of the repository is on the site: ``docs/format.md`` at ``format.md``, others below ``project``."""
    if path.startswith("docs/"):
        return path.removeprefix("docs/")
    return f"project/{path}" if path.endswith((".md", *_IMAGES)) else f"project/{path}.md"


@cache
def linked_pages() -> dict[str, str]:
    """Files outside ``docs`` that are pages: the path in the repository by that on the site."""
    waiting = [*ROOT_PAGES]
    for folder, _, names in os.walk(PROJECT / "docs"):
        waiting += [os.path.relpath(os.path.join(folder, name), PROJECT) for name in names if name.endswith(".md")]
    found: dict[str, str] = {}
    seen = set(waiting)
    while waiting:
        path = waiting.pop()
        if not path.startswith("docs/"):
            found[site_path(path)] = path
        if not path.endswith(".md"):
            continue
        for _, link, _ in _LINK.findall((PROJECT / path).read_text()):
            target = resolved(path, link)
            if target is not None and target not in seen and not target.startswith("docs/"):
                seen.add(target)
                waiting.append(target)
    return found


def resolved(page: str, link: str) -> str | None:
    """The file of the repository that a page links to; of a folder its README. None if the link leads elsewhere."""
    if "://" in link or link.startswith("mailto:"):
        return None
    target = os.path.normpath(os.path.join(os.path.dirname(page), link))
    if (PROJECT / target).is_dir():
        target = f"{target}/README.md"
    return target if (PROJECT / target).is_file() else None


def on_files(files: Any, config: Any) -> Any:
    """Add the pages from elsewhere and the reference."""
    for place, path in linked_pages().items():
        if path.endswith(_IMAGES):
            files.append(File.generated(config, place, abs_src_path=str(PROJECT / path)))
            continue
        text = (PROJECT / path).read_text()
        if path.endswith(".ipynb"):
            text = notebook(text)
        elif not path.endswith(".md"):
            kind = {"py": "python"}.get(path.rpartition(".")[2], path.rpartition(".")[2])
            text = f"---\nsearch:\n  exclude: true\n---\n# `{path}`\n\n````{kind}\n{text}````\n"
        files.append(File.generated(config, place, content=text))
    for place, text in reference.pages().items():
        files.append(File.generated(config, f"reference/{place}", content=text))
    return files


def notebook(text: str) -> str:
    """The cells of a notebook as a page."""
    cells = []
    for cell in json.loads(text)["cells"]:
        source = "".join(cell["source"])
        cells.append(source if cell["cell_type"] == "markdown" else f"```python\n{source}\n```")
    return "\n\n".join(cells)


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Lead each link to the page that the file has on the site."""
    place = page.file.src_uri
    own = linked_pages().get(place, f"docs/{place}")

    def led(match: re.Match[str]) -> str:
        target = resolved(own, match[2])
        if target is None:
            return match[0]
        return f"{match[1]}{os.path.relpath(site_path(target), os.path.dirname(place) or '.')}{match[3]}"

    blocks = re.split(r"(?ms)(^ *```.*?^ *```)", markdown)
    return "".join(block if at % 2 else _LINK.sub(led, block) for at, block in enumerate(blocks))


def on_page_content(html: str, page: Any, config: Any, files: Any) -> str:
    """Show the roles of docstrings as the names that they mark."""
    return _ROLE.sub(r"<code>\1</code>", html)
