"""Calls in worker processes that wait until a test lets them go on."""

from __future__ import annotations

import time
from functools import partial
from pathlib import Path
from typing import Any

#: A file with the ids of the samples whose conversions wait, and a file that a conversion creates when it waits.
WANTED, WAITING = "hold", "held"


def held(folder: Path, call: partial[Any]) -> Any:
    """Make a call. If it converts a sample that ``folder/hold`` names, wait first, as long as that file exists."""
    wanted = folder / WANTED
    try:
        names = wanted.read_text().split()
    except FileNotFoundError:
        names = []
    if any(getattr(argument, "sample_id", "") in names for argument in call.args):
        (folder / WAITING).touch()
        while wanted.exists():
            time.sleep(0.02)
    return call()
