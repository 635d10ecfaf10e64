"""What a store buys: is it equal to its source, how many bytes does a training step read, how many samples a second.

``zarr-core benchmark STORE --source SOURCE`` measures the three ways to get a training sample
(load the ``.pt`` files and subsample, read the whole sample from the store, read a draw from the store) side by side.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from zarr_core.benchmark.wording import console_text, headline_markdown
from zarr_core.reports import report_imports

__all__ = ["console_text", "headline_markdown", "run_benchmark"]

Report = dict[str, Any]


def run_benchmark(
    pt_root: str,
    zarr_root: str,
    output_dir: str | Path,
    *,
    num_surface_points: int = 4096,
    num_volume_points: int = 4096,
    samples: int | None = None,
    repeats: int = 3,
    progress: bool = False,
) -> Report:
    """Measure a store against its source and write ``report.json`` and ``report.html``.

    Args:
        pt_root: folder or URL of the ``.pt`` tree that the store was made from.
        zarr_root: path or URL of the store.
        output_dir: local folder for the report, made if it is missing.
        num_surface_points: points drawn of every domain whose name starts with "surface".
        num_volume_points: points drawn of every other domain.
        samples: measure the first so many samples of the store; all by default.
        repeats: reads of each sample each way.
        progress: show progress bars.

    Returns:
        What ``report.json`` holds.

    Raises:
        ZarrCoreError: matplotlib is missing, a number makes no sense, or store or source cannot be read.
    """
    # First of all: a report that cannot be drawn should not cost minutes of measuring.
    render_page = _page_renderer()
    from zarr_core.benchmark.measure import measure

    report, picture = measure(
        str(pt_root),
        str(zarr_root),
        num_surface_points=num_surface_points,
        num_volume_points=num_volume_points,
        n_samples=samples,
        repeats=repeats,
        progress=progress,
    )
    folder = Path(output_dir)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "report.json").write_text(json.dumps(report, indent=1) + "\n")
    (folder / "report.html").write_text(render_page(report, picture))
    return report


def _page_renderer() -> Callable[[Report, dict[str, Any] | None], str]:
    with report_imports():
        from zarr_core.benchmark.page import render_page
    return render_page
