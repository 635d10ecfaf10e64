"""HTML pages of reports: their templates and how figures get onto them. Needs the ``report`` extra."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from zarr_core.errors import ZarrCoreError


@contextmanager
def report_imports() -> Iterator[None]:
    """Wraps the import of a page; raises ZarrCoreError with the command to run where its packages are missing."""
    try:
        yield
    except ImportError as error:
        package = (error.name or "").partition(".")[0]
        if package not in ("jinja2", "markupsafe", "matplotlib"):
            raise
        raise ZarrCoreError(f"reports need {package}: pip install 'zarr-core[report]'") from error
