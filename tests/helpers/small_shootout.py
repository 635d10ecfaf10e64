"""Shootouts that end soon, and the commands of their verdicts."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

from zarr_core.__main__ import main as zarr_core_main
from zarr_core.shootout import run_shootout


def shootout(store: Path, tmp_path: Path, **options: Any) -> dict[str, Any]:
    (tmp_path / "tier").mkdir(exist_ok=True)
    arguments: dict[str, Any] = {
        "budget": 60.0,
        "num_surface_points": 32,
        "num_volume_points": 64,
        "batch_size": 2,
        "samples": 2,
        **options,
    }
    return run_shootout(str(store), {"scratch": str(tmp_path / "tier")}, tmp_path / "out", **arguments)


def run_commands(text: str) -> None:
    commands = [shlex.split(line) for line in text.splitlines() if line.startswith("zarr-core ")]
    assert commands
    assert [zarr_core_main(command[1:]) for command in commands] == [0] * len(commands)
