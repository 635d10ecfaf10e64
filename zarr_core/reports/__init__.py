"""What the HTML pages of reports are made of: parts of a page, and how figures get onto it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from zarr_core.errors import ZarrCoreError


@contextmanager
def importing_figures() -> Iterator[None]:
    """Around an import that needs matplotlib; raises ZarrCoreError that says what to install."""
    try:
        yield
    except ImportError as error:
        if (error.name or "").partition(".")[0] != "matplotlib":
            raise
        raise ZarrCoreError("the report's figures need matplotlib: pip install 'zarr-core[report]'") from error
