"""Write the quality report of a wide matrix: ``quality.json`` and ``quality.html``."""

from __future__ import annotations

import json
from pathlib import Path

from zarr_core.matrix.quality.measure import Report, measure_quality
from zarr_core.matrix.wide import WideMatrix
from zarr_core.reports import report_imports
from zarr_core.storage import local_path


def quality_report(
    matrix: WideMatrix,
    output_dir: str | Path,
    *,
    value: str = "beta",
    coverage: str | None = "coverage",
    progress: bool = False,
) -> Report:
    """Measure a matrix and write ``quality.json`` and ``quality.html``.

    Args:
        matrix: the matrix, at its generation.
        output_dir: local folder, created if it is missing. Figures of an earlier report in it are reused.
        value: value table of shares between 0 and 1.
        coverage: value table of the number of measurements per cell; ignored if the matrix has no such table.
        progress: show a progress bar.

    Returns:
        The content of ``quality.json``.

    Raises:
        ZarrCoreError: matplotlib or Jinja is missing, the matrix has no such value or cannot be read, or
            ``output_dir`` is a URL.
    """
    with report_imports():
        from zarr_core.matrix.quality.page import render_page
    folder = local_path(output_dir)
    report = measure_quality(matrix, value, coverage, _read_report(folder / "quality.json"), progress)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "quality.html").write_text(render_page(report))
    (folder / "quality.json").write_text(json.dumps(report, indent=1) + "\n")
    return report


def _read_report(file: Path) -> Report | None:
    """An earlier report; None if there is none that can be read, because it can be measured again."""
    try:
        found = json.loads(file.read_text())
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) and isinstance(found.get("batches"), dict) else None
