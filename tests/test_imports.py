"""Who may import whom."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

PROJECT = Path(__file__).resolve().parents[1]
# Each room and what it may import of the others.
ARROWS = {
    "zarr_core": set(),
    "resources": {"zarr_core"},
    "sensors": {"resources", "zarr_core"},
    "assets": {"sensors", "resources", "zarr_core"},
}


def imported(path: Path) -> set[str]:
    tree = ast.parse(path.read_text())
    names = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    names |= {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    return {name.partition(".")[0] for name in names}


@pytest.mark.parametrize("room", ARROWS)
def test_arrows_go_one_way(room: str) -> None:
    forbidden = {"definitions", *ARROWS} - ARROWS[room] - {room} | ({"dagster"} if room == "zarr_core" else set())
    files = sorted((PROJECT / room).rglob("*.py"))
    assert files
    wrong = {str(path): sorted(imported(path) & forbidden) for path in files if imported(path) & forbidden}
    assert wrong == {}


@pytest.mark.parametrize(
    ("module", "absent"),
    [
        ("zarr_core", ["torch", "zarr", "dagster"]),
        ("zarr_core.points.manifest", ["torch", "zarr", "dagster"]),
        ("zarr_core.points.reader", ["torch", "dagster"]),
        ("zarr_core.datasets", ["dagster"]),
        ("zarr_core.loader", ["zarr", "torchdata", "dagster"]),
        ("zarr_core.points.convert", ["dagster", "zarr"]),
        (
            "zarr_core.warehouses",
            ["torch", "zarr", "dagster", "duckdb", "pyarrow", "pyiceberg", "awswrangler", "pandas"],
        ),
        ("zarr_core.matrix.ingest.loader", ["torch", "zarr", "dagster", "duckdb", "pyarrow", "pandas"]),
    ],
)
def test_an_import_brings_only_what_it_needs(module: str, absent: list[str]) -> None:
    code = f"import sys, {module}; print([m for m in {absent} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=PROJECT)
    assert done.stdout.strip() == "[]"
