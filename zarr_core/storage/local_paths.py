"""Outputs that can only be local files and folders."""

from __future__ import annotations

import os
from pathlib import Path

from zarr_core._util.redaction import redact
from zarr_core.errors import ZarrCoreError
from zarr_core.storage.storage import absolute, is_local


def local_path(out: str | os.PathLike[str]) -> Path:
    """The absolute path of a local output. ``Path`` takes "s3://bucket/x" for a folder "s3:" in the working directory.

    Raises:
        ZarrCoreError: it is a URL of something else.
    """
    url = absolute(out)
    if not is_local(url):
        raise ZarrCoreError(f"{redact(url)}: a local path is needed here, not a URL")
    return Path(url)
