"""Commands of this library, as errors and reports print them."""

from __future__ import annotations

import shlex


def shell(*words: object) -> str:
    """``zarr-core`` with these arguments, quoted for a shell.

    A word in capitals, as in ``--source SOURCE``, stands for what only the reader knows.
    """
    return shlex.join(["zarr-core", *map(str, words)])
