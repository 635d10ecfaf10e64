"""Dependencies that only some installations have."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from zarr_core.errors import ZarrCoreError


@contextmanager
def extra(name: str, needs: str, error: type[ZarrCoreError] = ZarrCoreError) -> Iterator[None]:
    """Import a package of an extra in this block; without it, ``error`` says what needs it and how to install it."""
    try:
        yield
    except ImportError as missing:
        raise error(f"{needs}: pip install 'zarr-core[{name}]'") from missing
