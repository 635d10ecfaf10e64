"""A copy of the platform's files, to declare other datasets in."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from tests.platform.trial import PROJECT

WINGS = (
    "  name: wings",
    "  kind: emmi_wing",
    "  source: s3://bucket/wings",
    "  store: s3://bucket/store",
    "  report: reports/wings",
)
STALLED = (
    "  name: stalled",
    "  kind: ahmedml",
    "  source: s3://stalled/samples",
    "  store: s3://stalled/store",
    "  report: reports/stalled",
)


class Project:
    """The copy, in a folder of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        shutil.copytree(PROJECT / "assets" / "datasets", folder / "assets" / "datasets")
        (folder / "assets" / "__init__.py").touch()
        for name in ("definitions.py", "workspace.yaml", "pyproject.toml"):
            shutil.copy(PROJECT / name, folder)

    def declare(self, folder: str, *lines: str) -> Path:
        """A dataset of points."""
        return self.write(folder, "\n".join(["type: zarr_core.platform.PointDataset", "attributes:", *lines]) + "\n")

    def write(self, folder: str, content: str) -> Path:
        """A declaration as it is."""
        path = self.folder / "assets" / "datasets" / folder / "defs.yaml"
        path.parent.mkdir(parents=True)
        path.write_text(content)
        return path

    def run(self, *command: str) -> subprocess.CompletedProcess[str]:
        """A Python process in the folder."""
        # An installed zarr_core may be another checkout than the one under test.
        modules = os.pathsep.join([str(self.folder), str(PROJECT)])
        environment = {**os.environ, "PYTHONPATH": modules, "NO_COLOR": "1", "COLUMNS": "200"}
        environment |= {"DAGSTER_DISABLE_TELEMETRY": "1", "DAGSTER_HOME": ""}
        return subprocess.run(
            [sys.executable, *command], cwd=self.folder, env=environment, capture_output=True, text=True
        )

    def hold_conversions(self) -> None:
        """Use a pool whose conversions a test can hold, and measure one sample only."""
        self.change("definitions.py", '"assets/datasets")', '"assets/datasets", conversion_pool=HeldPool())')
        imports = "from zarr_core.platform import project_definitions"
        held = f"from tests.platform.held_pool import HeldPool\n{imports}\nfrom zarr_core.platform.assets import report"
        self.change("definitions.py", imports, f"{held}\n\nreport.MEASURED_SAMPLES = 1")

    def add_location(self, name: str, folder: Path) -> None:
        """Another code location in the workspace, with the definitions of a folder."""
        path = self.folder / "workspace.yaml"
        module = f"{{module_name: definitions, working_directory: {folder}, location_name: {name}}}"
        path.write_text(f"{path.read_text()}  - python_module: {module}\n")

    def change(self, file: str, before: str, after: str) -> None:
        """Change a line of a file."""
        path = self.folder / file
        text = path.read_text()
        assert before in text
        path.write_text(text.replace(before, after))
