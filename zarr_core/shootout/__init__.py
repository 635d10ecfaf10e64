"""Measures ways to hold and to read a user's data on the user's storage, and recommends one.

``zarr-core shootout STORE_OR_SOURCE --tiers work=/a bucket=s3://... --budget 10min`` holds the same samples in several
formats and settings, reads batches of each with a DataLoader and in threads, and writes ``shootout.json`` and
``shootout.html``.

``workload`` takes samples, ``tiers`` holds them, ``loading`` reads them.
``run`` takes the measurements by importance until the ``budget`` is used; ``turns`` repeats the fastest in turns.
``verdict`` decides from the numbers alone.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from zarr_core.shootout.request import ShootoutRequest

__all__ = ["run_shootout"]


def run_shootout(
    source: str,
    tiers: Mapping[str, str],
    output_dir: str | Path,
    *,
    budget: float = ShootoutRequest.budget,
    dataset_kind: str | None = None,
    num_surface_points: int = ShootoutRequest.num_surface_points,
    num_volume_points: int = ShootoutRequest.num_volume_points,
    num_features: int = ShootoutRequest.num_features,
    batch_size: int = ShootoutRequest.batch_size,
    samples: int | None = None,
    formats: Sequence[str] | None = None,
    price_per_1000_gets: float | None = None,
    progress: bool = False,
) -> dict[str, Any]:
    """Measure and write ``shootout.json`` and ``shootout.html``.

    Args:
        source: path or URL of a point store, of a wide matrix, or of files that ``dataset_kind`` describes.
        tiers: folders and URLs to compare, by name. Each gets a folder of its own, which is removed at the end.
        output_dir: local folder for the results; created if it does not exist.
        budget: seconds that measuring may take. What does not fit is named in the result.
        dataset_kind: kind of the files, as for convert; not needed for a store.
        num_surface_points: points per draw of each domain whose name starts with "surface".
        num_volume_points: points per draw of every other domain.
        num_features: features of a matrix that a selection of features has.
        batch_size: samples per batch.
        samples: measure with at most this many samples; by default 16 of points, and 128 MiB of a matrix.
        formats: only these formats, by their names on the page; by default all.
        price_per_1000_gets: price of 1,000 GET requests of an object store in any currency, for the cost of an epoch.
        progress: show a progress bar.

    Returns:
        The content of ``shootout.json``.

    Raises:
        ZarrCoreError: the ``report`` extra is not installed, an argument is out of range, or nothing could be measured.
        StoreError, SourceError: the source or a tier cannot be used.
        OSError: ``output_dir`` cannot be written to.
    """
    from zarr_core.reports import report_imports
    from zarr_core.storage import local_path

    # Fail before minutes of measuring if the page cannot be rendered.
    with report_imports():
        from zarr_core.shootout.page import render_page
    from zarr_core.shootout.run import measure_all

    request = ShootoutRequest(
        source=source,
        tiers=tiers,
        budget=budget,
        dataset_kind=dataset_kind,
        num_surface_points=num_surface_points,
        num_volume_points=num_volume_points,
        num_features=num_features,
        batch_size=batch_size,
        samples=samples,
        formats=formats,
        price_per_1000_gets=price_per_1000_gets,
        progress=progress,
    )
    folder = local_path(output_dir)
    made = not folder.exists()
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryFile(dir=folder):  # fail before minutes of measuring if nothing can be written there
        pass
    try:
        report = measure_all(request)
    except BaseException:
        if made:
            folder.rmdir()
        raise
    (folder / "shootout.json").write_text(json.dumps(report, indent=1) + "\n")
    (folder / "shootout.html").write_text(render_page(report))
    return report
