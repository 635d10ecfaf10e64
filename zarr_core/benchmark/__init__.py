"""Compares a store with its source: equality, bytes per training step, samples per second.

``zarr-core benchmark STORE --source SOURCE`` measures three ways to get a training sample side by side: load the
``.pt`` files and subsample, read the whole sample from the store, and read a draw from the store.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from zarr_core.benchmark.wording import Wording, console_text, headline_markdown
from zarr_core.reports import report_imports
from zarr_core.storage import local_path

__all__ = ["Wording", "console_text", "headline_markdown", "run_benchmark"]


def run_benchmark(
    pt_root: str,
    zarr_root: str,
    output_dir: str | Path,
    *,
    num_surface_points: int = 4096,
    num_volume_points: int = 4096,
    samples: int | None = None,
    repeats: int = 3,
    dataset_kind: str | None = None,
    progress: bool = False,
) -> dict[str, Any]:
    """Measure a store against its source and write ``report.json`` and ``report.html``.

    Args:
        pt_root: folder or URL of the files that the store was made from.
        zarr_root: path or URL of the store.
        output_dir: local folder for the report; created if it does not exist.
        num_surface_points: points per draw of each domain whose name starts with "surface".
        num_volume_points: points per draw of every other domain.
        samples: measure only the first ``samples`` samples of the store; all by default.
        repeats: reads per sample and way.
        dataset_kind: kind of the source, as for convert: for a store that another program wrote, and to compare the
            parameters of samples of a kind of your own. [default: guessed]
        progress: show progress bars.

    Returns:
        The content of ``report.json``.

    Raises:
        ZarrCoreError: the ``report`` extra is not installed, ``output_dir`` is a URL, a number is not positive, or
            store or source cannot be read.
    """
    # Fail before minutes of measuring if the report cannot be rendered.
    with report_imports():
        from zarr_core.benchmark.page import render_page
    from zarr_core.benchmark.measure import make_report

    folder = local_path(output_dir)
    report, picture = make_report(
        str(pt_root), str(zarr_root), num_surface_points, num_volume_points, samples, repeats, dataset_kind, progress
    )
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "report.json").write_text(json.dumps(report, indent=1) + "\n")
    (folder / "report.html").write_text(render_page(report, picture))
    return report
