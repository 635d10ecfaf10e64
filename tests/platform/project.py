"""A copy of the platform's files, to declare other datasets in."""

from __future__ import annotations

import shutil
from pathlib import Path

from tests.platform.trial import PROJECT

WINGS = (
    "  name: wings",
    "  kind: emmi_wing",
    "  source: s3://bucket/wings",
    "  store: s3://bucket/store",
    "  report: reports/wings",
)


class Project:
    """The copy, in a folder of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for name in ("assets", "resources", "sensors"):
            shutil.copytree(PROJECT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
        for name in ("definitions.py", "workspace.yaml", "pyproject.toml"):
            shutil.copy(PROJECT / name, folder)

    def declare(self, name: str, *lines: str) -> Path:
        """A dataset of points."""
        path = self.folder / "assets" / "datasets" / name / "defs.yaml"
        path.parent.mkdir()
        path.write_text("\n".join(["type: assets.component.PointDataset", "attributes:", *lines]) + "\n")
        return path

    def hold_conversions(self) -> None:
        """Use a pool whose conversions a test can hold."""
        path = self.folder / "definitions.py"
        text = path.read_text()
        changed = text.replace(
            "from resources.pools import ConversionPool",
            "from tests.platform.held_pool import HeldPool as ConversionPool",
        )
        assert changed != text
        path.write_text(changed)
