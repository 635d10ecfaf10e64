"""Places that a caller names: local paths and URLs."""

from __future__ import annotations

import os
import re
from pathlib import Path

from fsspec.implementations.local import LocalFileSystem

from zarr_core._util.redaction import redact, refuse_credentials
from zarr_core.errors import StoreError, ZarrCoreError


def is_local(url: str) -> bool:
    """Whether the location is a path on this machine."""
    return "://" not in url or url.startswith(("file://", "local://"))


def absolute(place: str | os.PathLike[str]) -> str:
    """A place as every process understands it, whatever its working directory: an absolute path, or the URL.

    Whatever keeps a place, passes it to another process or records it calls this first, or ``Storage`` does.

    Raises:
        StoreError: it is empty, which would be the working directory; or a URL with credentials, which would be kept
            and recorded as well; or names an environment variable, which would become a folder of that name in the
            working directory.
    """
    refuse_credentials(place)
    url = os.fspath(place)
    if not url:
        raise StoreError("a path or URL is empty; a variable of the environment in it may not be set")
    if not is_local(url):
        return url
    path = str(LocalFileSystem._strip_protocol(url))
    variable = re.match(r".*?\$[A-Za-z_{][^/]*", path)
    if variable and not os.path.exists(variable[0]):  # a folder may have such a name
        raise StoreError(
            f"{url}: environment variables are not replaced in paths: in a shell leave out single quotes, in Python "
            "use os.path.expandvars, in a declaration {{ env('NAME') }}"
        )
    # TensorStore refuses such a path. What it means depends on links, so it is not a matter of its text.
    return os.path.realpath(path) if ".." in path.split("/") else path


def local_path(out: str | os.PathLike[str]) -> Path:
    """The absolute path of a local output. ``Path`` takes "s3://bucket/x" for a folder "s3:" in the working directory.

    Raises:
        ZarrCoreError: it is a URL of something else.
    """
    url = absolute(out)
    if not is_local(url):
        raise ZarrCoreError(f"{redact(url)}: a local path is needed here, not a URL")
    return Path(url)
