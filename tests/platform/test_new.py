"""``zarr-core platform new``."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
import yaml
from dotenv import dotenv_values

from zarr_core.platform.__main__ import main


@pytest.mark.parametrize("name", ["2024-11-27", "a: b #c"])
def test_a_project_takes_its_name_from_the_folder(tmp_path: Path, name: str) -> None:
    folder = tmp_path / name
    assert main(["new", str(folder)]) == 0
    (location,) = yaml.safe_load((folder / "workspace.yaml").read_text())["load_from"]
    project = tomllib.loads((folder / "pyproject.toml").read_text())["tool"]["dagster"]
    assert location["python_module"]["location_name"] == project["code_location_name"] == name
    assert dotenv_values(folder / ".env") == {"DAGSTER_HOME": str(folder / "instance")}
