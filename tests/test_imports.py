"""Import order: between the top-level folders, between the rooms of zarr_core, and between its files."""

from __future__ import annotations

import ast
import graphlib
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

PROJECT = Path(__file__).resolve().parents[1]
LIBRARY = PROJECT / "zarr_core"
# Each top-level folder, and the others that it may import.
ARROWS = {
    "zarr_core": set(),
    "resources": {"zarr_core"},
    "sensors": {"resources", "zarr_core"},
    "assets": {"sensors", "resources", "zarr_core"},
}


def imported(text: str) -> Iterator[str]:
    """Dotted names of everything that a file imports, inside functions as well; ``a.b`` for ``from a import b``."""
    nodes: list[ast.AST] = [ast.parse(text)]
    while nodes:
        node = nodes.pop()
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "relative import"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        # Statements only: a walk through expressions as well takes ten times as long.
        for block in ("body", "orelse", "handlers", "finalbody", "cases"):
            nodes.extend(getattr(node, block, ()))


@pytest.mark.parametrize("folder", ARROWS)
def test_top_level_folders_import_in_one_direction(folder: str) -> None:
    forbidden = {"definitions", *ARROWS} - ARROWS[folder] - {folder} | ({"dagster"} if folder == "zarr_core" else set())
    files = sorted((PROJECT / folder).rglob("*.py"))
    assert files
    tops = {}
    for path in files:
        names = [name.removeprefix("zarr_core.platform.") for name in imported(path.read_text())]
        tops[str(path)] = {name.partition(".")[0] for name in names}
    assert {path: names & forbidden for path, names in tops.items() if names & forbidden} == {}


def documented_rooms(text: str) -> dict[str, set[str]]:
    """Rooms of zarr_core and what each may import, as the table in ARCHITECTURE.md declares them."""
    table = re.search(r"<!-- rooms -->\n(.*?)<!-- /rooms -->", text, re.DOTALL)
    assert table, "ARCHITECTURE.md has no table of rooms"
    rows = [line.strip("|\n ").split("|") for line in table[1].splitlines()[2:]]
    return {
        re.sub(r"/$|\.py$", "", row[0].strip(" `")): set(re.findall(r"`(\w+)`", row[3] if len(row) > 3 else ""))
        for row in rows
    }


ROOMS = documented_rooms((PROJECT / "ARCHITECTURE.md").read_text())


def module_name(path: Path) -> str:
    """Name of a file's module without the leading ``zarr_core.``; "" for the package itself."""
    return re.sub(r"\.?__init__$", "", ".".join(path.relative_to(LIBRARY).with_suffix("").parts))


FILES = {module_name(path): path for path in sorted(LIBRARY.rglob("*.py"))}


def targets(text: str) -> set[str]:
    """Modules of the library that a file imports."""
    names = {
        name.removeprefix("zarr_core").removeprefix(".") for name in imported(text) if name.startswith("zarr_core")
    }
    return {name if name in FILES else name.rpartition(".")[0] for name in names}


@cache
def arrows_between_files() -> dict[str, set[str]]:
    """Each module of the library, and those that it imports."""
    return {module: targets(path.read_text()) for module, path in FILES.items()}


def room_of(module: str) -> str:
    """The folder at the root of zarr_core that a module lies in, or the file at the root that it is."""
    return module.partition(".")[0]


def upward(graph: dict[str, set[str]]) -> set[tuple[str, str]]:
    """Imports between rooms that the table in ARCHITECTURE.md does not allow. Verbs at the root may import any room."""
    pairs = {
        (module, target)
        for module, targets in graph.items()
        if room_of(module) in ROOMS
        for target in targets
        if room_of(target) != room_of(module)
    }
    return {(module, target) for module, target in pairs if room_of(target) not in ROOMS[room_of(module)]}


def test_rooms_import_only_what_architecture_allows() -> None:
    assert upward(arrows_between_files()) == set()


def test_no_files_import_each_other_in_a_circle() -> None:
    graphlib.TopologicalSorter(arrows_between_files()).prepare()  # raises CycleError, which names the circle


def test_no_rooms_are_allowed_to_import_each_other_in_a_circle() -> None:
    graphlib.TopologicalSorter(ROOMS).prepare()


def test_architecture_names_every_room() -> None:
    folders = {path.name for path in LIBRARY.iterdir() if path.is_dir() and any(path.rglob("*.py"))}
    assert folders | {"errors"} == set(ROOMS)


def test_the_root_of_zarr_core_holds_verbs_only() -> None:
    """Every file at the root other than these can be run, because it is a verb of the command line."""
    for path in LIBRARY.glob("*.py"):
        if path.stem not in ("__init__", "errors"):
            assert "program(app, __name__" in path.read_text(), f"{path.name} is no verb: move it into a room"


@pytest.mark.parametrize(
    ("module", "line"),
    [
        ("storage.retries", "from zarr_core.points.store.manifest import StoreManifest"),
        ("format.names", "from zarr_core.storage import Storage"),
        ("points.read.reader", "from zarr_core import matrix"),
        ("warehouses.join", "def f():\n    import zarr_core.matrix.store.axis"),
        ("loader.ranks", "from zarr_core.convert import convert"),
    ],
)
def test_an_upward_import_is_found(module: str, line: str) -> None:
    """The test above fails if one such import is added to a file."""
    added = targets(f"{FILES[module].read_text()}\n{line}\n") - arrows_between_files()[module]
    assert [source for source, _ in upward({module: added})] == [module]


_HEAVY = ["torch", "zarr", "dagster", "duckdb", "pyarrow", "pandas"]
#: What must be absent after the import of a module. One process imports those of a list in their order, because a new
#: process per module takes a second of a core to import torch: nothing that is absent may come with an earlier one.
ABSENT: list[dict[str, list[str]]] = [
    {
        "zarr_core": _HEAVY,
        "zarr_core.points.store.head": _HEAVY,
        "zarr_core.points.read.sampling": _HEAVY,
        "zarr_core.warehouses": [*_HEAVY, "pyiceberg", "awswrangler"],
        "zarr_core.matrix.ingest.loader": _HEAVY,
        "zarr_core.loader": ["zarr", "torchdata", "dagster"],
        "zarr_core.convert": ["dagster", "zarr", "vtkmodules", "h5py"],
        "zarr_core.datasets": ["dagster"],
    },
    {"zarr_core.points.read.reader": ["torch", "dagster"]},
]
_IMPORT_IN_TURN = """
import importlib, json, sys
for name in sys.argv[1:]:
    importlib.import_module(name)
    print(json.dumps([name, sorted({module.partition(".")[0] for module in sys.modules})]))
"""


@pytest.fixture(scope="module")
def loaded() -> dict[str, list[str]]:
    """Top-level packages that are loaded after the import of each module."""
    lines = []
    for modules in ABSENT:
        command = [sys.executable, "-c", _IMPORT_IN_TURN, *modules]
        lines += subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, cwd=PROJECT).stdout.splitlines()
    return dict(map(json.loads, lines))


@pytest.mark.slow
@pytest.mark.parametrize(("module", "absent"), [item for modules in ABSENT for item in modules.items()])
def test_an_import_brings_only_what_it_needs(module: str, absent: list[str], loaded: dict[str, list[str]]) -> None:
    assert module.partition(".")[0] in loaded[module]
    assert set(absent) & set(loaded[module]) == set()
